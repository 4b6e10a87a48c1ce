"""The scripts of docs/ are no package: tests here import them by their names."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs"))


@pytest.fixture
def unregistered() -> Iterator[None]:
    """What the examples of a page register is unknown to the tests that follow."""
    from foveal import models, registry, supervise, tasks  # noqa: F401 (registers foveal's own)
    from foveal.attention.insertion.registry import _MECHANISMS
    from foveal.data.text.documents import _formats
    from foveal.models.registry import _MODELS
    from foveal.recipe.optim import optimisers
    from foveal.recipe.schedules import schedules

    registries = (registry.tasks, registry.datasets, registry.metrics, registry.attention_losses)
    for things in registries:
        things.names()
    known = [things._things for things in registries]
    known += [_MECHANISMS, _MODELS, _formats, optimisers.kinds, schedules.kinds]
    before = [dict(things) for things in known]
    yield
    for things, names in zip(known, before, strict=True):
        things.clear()
        things.update(names)
