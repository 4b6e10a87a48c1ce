"""Scenes that several tests look at."""

import pytest
import torch

from foveal.data.embedded.digits import sklearn_digits
from foveal.data.embedded.painting import generate
from foveal.data.embedded.scenes import SceneSpec, Sources


@pytest.fixture(scope="package")
def pooled():
    """A function that makes sources from the digits of both splits of a dataset."""

    def pool(load):
        images, labels = zip(*(load(split) for split in ("train", "test")), strict=True)
        return Sources.by_class(torch.cat(images), torch.cat(labels))

    return pool


@pytest.fixture(scope="package")
def embedded(pooled):
    """All digits of scikit-learn."""
    return pooled(sklearn_digits)


@pytest.fixture(scope="package")
def paper(embedded):
    """Scenes with the paper's settings."""
    return generate(SceneSpec(), embedded, 0, 120)
