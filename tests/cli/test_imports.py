"""Imports that a package puts off, and what commands import without need."""

import gc
import subprocess
import sys
from collections import Counter

import pytest

from foveal.cli.imports import deferred, quick_imports

HEAVY = ("heavy", "heavy.plots")


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """A package ``light`` that takes names from a package ``heavy``; returns a function that writes a module of it."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(**modules):
        for name, code in {
            "heavy": "LOADED = True",
            "heavy.plots": "from collections import Counter",
            **modules,
        }.items():
            folder = tmp_path.joinpath(*name.split("."))
            folder.mkdir(exist_ok=True)
            (folder / "__init__.py").write_text(code)

    yield write
    for name in [name for name in sys.modules if name.partition(".")[0] in ("light", "heavy")]:
        del sys.modules[name]


LIGHT = """
import heavy
import heavy.plots as plots
from heavy.plots import Counter

def style(function): return plots.Counter(function)
CONSTANT = plots.Counter("abb").most_common
def counts(text): return plots.Counter(text)
def is_counter(value): return isinstance(value, Counter)
def loaded(): return heavy.LOADED
"""


def test_names_of_a_deferred_module_are_looked_up_when_used(packages):
    packages(light=LIGHT)
    with deferred("light", HEAVY):
        import light
    assert not any(name in sys.modules for name in HEAVY)
    assert light.CONSTANT(1) == [("b", 2)]
    assert "heavy.plots" in sys.modules
    assert light.counts("aab") == {"a": 2, "b": 1}
    assert light.is_counter(light.counts("a"))
    assert not light.is_counter({})
    assert light.loaded() is True


def test_elsewhere_an_import_is_an_ordinary_one(packages):
    packages(light=LIGHT)
    with deferred("light", HEAVY):
        import light
    import heavy.plots

    assert heavy.plots.Counter is Counter
    assert heavy.LOADED is True
    assert light.counts("a") == Counter("a")


def test_a_package_that_needs_more_than_stand_ins_is_imported_as_usual(packages):
    packages(light="import light.sub", **{"light.sub": "from heavy.plots import Counter\nONE = 1 + Counter('a')['a']"})
    with deferred("light", HEAVY):
        import light
    assert light.sub.ONE == 2
    assert "heavy.plots" in sys.modules


def test_an_error_of_the_package_itself_is_raised(packages):
    packages(light="1 / 0")
    with deferred("light", HEAVY), pytest.raises(ZeroDivisionError):
        import light  # noqa: F401
    assert not any(name in sys.modules for name in ("light", *HEAVY))


def test_a_module_that_is_there_already_is_used(packages):
    packages(light=LIGHT)
    import heavy.plots

    with deferred("light", HEAVY):
        import light
    assert light.Counter is heavy.plots.Counter


def test_nothing_is_left_behind(packages):
    packages()
    before = list(sys.meta_path)
    with deferred("light", HEAVY):
        assert len(sys.meta_path) == len(before) + 1
    assert sys.meta_path == before


def test_garbage_is_collected_after_the_imports_only(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch")
    frozen = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(gc.isenabled()))
    with quick_imports():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert frozen == [False]


def test_in_a_process_that_has_torch_nothing_changes():
    before = list(sys.meta_path)
    with quick_imports():
        assert gc.isenabled()
        assert sys.meta_path == before


AFTER = """
import sys
from foveal.cli.imports import UNUSED, quick_imports
with quick_imports():
    from foveal import registry
    registry.tasks.items()
print([name for name in (*UNUSED, "scipy.stats", "sklearn", "torch.distributed.checkpoint") if name in sys.modules])
import torch
from torchmetrics.classification import MulticlassConfusionMatrix
metric = MulticlassConfusionMatrix(2)
metric.update(torch.tensor([0, 1]), torch.tensor([0, 0]))
figure, axes = metric.plot()
from matplotlib.figure import Figure
print(isinstance(figure, Figure), len(axes.texts))
"""


@pytest.mark.slow
def test_tasks_without_what_torchmetrics_imports_for_itself():
    """Its plots still work, and nothing is reported as leaked at the end of the process."""
    done = subprocess.run([sys.executable, "-c", AFTER], capture_output=True, text=True, check=False, timeout=300)
    assert done.stdout.splitlines() == ["[]", "True 4"], done.stderr
    assert done.stderr == ""
