"""Docstrings of installed libraries as a corpus."""

import pytest

from foveal.data.embedded.docstrings import clean, read_docstrings
from foveal.errors import DataError


def test_docstrings_of_installed_libraries():
    corpus = read_docstrings(("torchvision", "networkx", "no_such_library"))
    assert corpus.answers == ["torchvision", "networkx"]
    texts = list(corpus.splits["train"]())
    assert {label for _, label in texts} == {0, 1}
    assert min(sum(label == i for _, label in texts) for i in (0, 1)) > 100
    assert len({text for text, _ in texts}) == len(texts)
    words = {word.lower().strip(".,`'") for text, _ in texts for word in text.split()}
    assert not words & {"torchvision", "networkx", "torch", "numpy", "np"}
    assert not any(">>>" in text for text, _ in texts)
    with pytest.raises(DataError, match="nothing to tell apart"):
        read_docstrings(("no_such_library", "networkx"))


def test_cleaning_a_docstring():
    assert clean("A :class:`torch.Tensor` of ``x``.\n\n    >>> 1 + 1\n    2\n\nNotes\n-----\nEnd") == (
        "A Tensor of x.\n\n 2\n\nNotes\n\nEnd"
    )
