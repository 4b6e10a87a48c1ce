"""Triton kernels on the CPU, through Triton's interpreter (``tests/conftest.py`` switches it on)."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")


@pytest.fixture(autouse=True)
def _exact(monkeypatch):
    """What the kernels are compared with is not rounded to TF32 on a GPU."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
