"""What tests of tasks share."""

import importlib
import sys
from pathlib import Path

import pytest

from foveal import registry
from foveal.data.embedded import confusion
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
