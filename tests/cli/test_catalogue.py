"""The lists of names that are shown without importing PyTorch."""

import json

from foveal import data, plugins
from foveal.attention.insertion import registry as mechanisms
from foveal.cli import catalogue


def test_the_committed_catalogue_is_up_to_date():
    stored = json.loads(catalogue.FILE.read_text(encoding="utf-8"))
    assert stored == catalogue.current(), "write it again: uv run python docs/tables.py"


def test_places_are_those_of_the_datasets():
    places = {entry.name: entry.place for entry in catalogue.listed_datasets()}
    assert places == {name: entry.place for name, entry in data.datasets().items()}
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
