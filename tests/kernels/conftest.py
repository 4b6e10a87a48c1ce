"""Triton kernels on the CPU, through Triton's interpreter (``tests/conftest.py`` switches it on)."""

import pytest

pytest.importorskip("triton", reason="Triton is not installed")
