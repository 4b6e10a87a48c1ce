"""The lists of names that are shown without importing PyTorch."""

import json

import pytest
from forked import Forked

from foveal import data, plugins
from foveal.attention.insertion import registry as mechanisms
from foveal.cli import catalogue

STORED = json.loads(catalogue.FILE.read_text(encoding="utf-8"))


@pytest.mark.slow
def test_the_committed_catalogue_is_up_to_date():
    done = Forked("import json; from foveal.cli import catalogue; print(json.dumps(catalogue.current()))").wait()
    assert json.loads(done.stdout) == STORED, "write it again: uv run python docs/tables.py"


def test_what_is_listed_is_there():  # other tests may have registered more
    current = catalogue.current()
    assert {kind: {name: current[kind].get(name) for name in names} for kind, names in STORED.items()} == STORED


def test_places_are_those_of_the_datasets():
    for entry in catalogue.listed_datasets():
        assert entry.place == data.dataset(entry.name).place
    assert catalogue.listed_datasets("voc2012")[0].summary == data.dataset("voc2012").summary


def test_plugins_are_asked_too(call, tmp_path, monkeypatch):
    (tmp_path / "own_names.py").write_text(
        "import foveal\n"
        "@foveal.register_mechanism('own_halve')\n"
        "class Halve(foveal.attention.Gate):\n"
        '    """Halve."""\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FOVEAL_PLUGINS", "own_names")
    monkeypatch.setattr(plugins, "_loaded", False)
    assert "own_halve  Halve." in call("list", "mechanisms").out
    del mechanisms._MECHANISMS["own_halve"]
