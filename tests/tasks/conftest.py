"""What tests of tasks share."""

import importlib
import sys
from pathlib import Path

import pytest

from foveal import registry
from foveal.data.embedded import companions, confusion
from foveal.models import registry as models
from foveal.tasks import train

collect_ignore = ["brightness.py"]  # not for doctests: to import it registers a task
sys.path.append(str(Path(__file__).parents[1] / "see"))  # for readhtml


@pytest.fixture(scope="module")
def brightness():
    """The module of a task of one's own, known until the tests of a file are over."""
    with pytest.MonkeyPatch.context() as patch:
        for kind in (registry.tasks, registry.datasets, registry.metrics):
            kind.names()
            patch.setattr(kind, "_things", dict(kind._things))
        patch.setattr(models, "_MODELS", dict(models._MODELS))
        known = sys.modules.get("brightness")
        yield importlib.import_module("brightness") if known is None else importlib.reload(known)


@pytest.fixture
def small_confusion(monkeypatch):
    """The dataset ``confusion`` with few images, which are drawn quickly."""
    for split, count in (("train", 200), ("val", 40), ("test", 80)):
        monkeypatch.setitem(confusion.COUNTS, split, count)
    train._build_source.cache_clear()
    yield
    train._build_source.cache_clear()


@pytest.fixture(scope="module")
def small_companions(request):
    """Few pictures of ``companions``, as many as the module's ``COUNTS`` says, painted once."""
    counts = request.module.COUNTS
    pictures = {split: companions.generate(split, count) for split, count in counts.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(companions, "COUNTS", counts)
        patch.setattr(companions, "cached", lambda name, key, make: pictures[key["split"]])
        train._build_source.cache_clear()
        yield
    train._build_source.cache_clear()
