"""Fixtures of several tests of data; ``small_files`` is importable by the tests below this folder."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The folder of a cache of its own."""
    monkeypatch.setenv("FOVEAL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def images():
    """Twenty images of the size of MNIST's, each another one."""
    return torch.arange(20 * 28 * 28).remainder(256).to(torch.uint8).view(20, 28, 28)


@pytest.fixture
def labels():
    """Two images of each class."""
    return torch.arange(20).remainder(10).to(torch.uint8)
