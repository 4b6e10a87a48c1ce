"""The cells of a table, each with its seeds."""

from pathlib import Path

import pytest

from foveal.errors import UnknownNameError, UserError
from foveal.recipe import load
from foveal.recipe.grids import grids
from foveal.reproduce import cells, find_table, run_path

TABLE = """
about: two sizes
settings:
  version: 2
  task: refer
  data: {name: mref, digits: embedded}
  train: {epochs: 1, accelerator: cpu}
rows:
  small: {title: small, model: {name: soft, channels: 4}}
  large: {title: large, model: {name: soft, channels: 8}}
published:
  accuracy: {small: 0.5, large: 0.6}
"""


def test_table1_has_all_fifteen_cells_with_the_published_numbers():
    recipes = [load(grids()["hattnet/table1"].full_name(cell)) for cell in grids()["hattnet/table1"].cells()]
    published = {(r.title, r.data["name"]): r.published for r in recipes}
    assert len(published) == 15
    assert published["HAttNet-CTX", "mbg"]["accuracy"] == 0.8101
    assert published["HAttNet-CTX", "mref"]["true_positive_strength"] == 0.2259
    assert published["STN", "mdist"] == {"accuracy": 0.3832}
    ours = [load(grids()["hattnet/table1-ours"].full_name(cell)) for cell in grids()["hattnet/table1-ours"].cells()]
    assert {(r.title, r.data["name"]): r.published["accuracy"] for r in ours} == {
        key: numbers["accuracy"] for key, numbers in published.items()
    }


def test_unknown_table(tmp_path):
    with pytest.raises(UnknownNameError, match="unknown table 'hattnet/table'; did you mean 'hattnet/table"):
        cells("hattnet/table", 1, tmp_path)


def test_every_run_has_its_own_folder(tmp_path):
    runs = cells("hattnet/table1", 3, tmp_path)
    assert len({cell.out for cell in runs}) == len(runs) == 45
    assert runs[0].out == tmp_path / "hattnet/table1/mref-stn/seed0"
    assert str(runs[0]) == "hattnet/table1/mref-stn seed 0"


def test_a_table_cut_short_has_whole_seeds(tmp_path):
    assert [cell.recipe.seed for cell in cells("hattnet/table1", 2, tmp_path)] == [0] * 15 + [1] * 15


def test_seeds_may_begin_elsewhere(tmp_path):
    runs = cells("demo/document", 2, tmp_path, first_seed=5)
    assert [(cell.recipe.seed, cell.out.name) for cell in runs] == [(5, "seed5")] * 3 + [(6, "seed6")] * 3
    for seeds, first in ((1, -1), (0, 0)):
        with pytest.raises(UserError, match="first-seed"):
            cells("demo/document", seeds, tmp_path, first_seed=first)


def test_overrides_change_every_cell(tmp_path):
    assert {c.recipe.train.epochs for c in cells("demo/document", 1, tmp_path, ["train.epochs=2"])} == {2}
    with pytest.raises(UserError, match="did you mean 'epochs'"):
        cells("demo/document", 1, tmp_path, ["train.epoch=2"])


def test_a_table_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "mine.yaml").write_text(TABLE)
    monkeypatch.chdir(tmp_path)
    runs = cells("mine.yaml", 2, Path("runs"))
    assert [str(cell.out) for cell in runs] == [
        f"runs/mine/{row}/seed{s}" for s in (0, 1) for row in ("small", "large")
    ]
    assert [cell.recipe.published for cell in runs[:2]] == [{"accuracy": 0.5}, {"accuracy": 0.6}]
    assert [cell.recipe.cell.place for cell in runs[:2]] == [(0, 0), (1, 0)]
    assert list(find_table("mine.yaml").rows) == ["small", "large"]
    with pytest.raises(UserError, match=r"gone\.yaml"):
        cells("gone.yaml", 1, tmp_path)


def test_the_folder_of_a_run_stays_below(tmp_path, monkeypatch):
    recipe = load("demo/refer/soft")
    for name, expected in {
        "demo/refer/soft": "runs/demo/refer/soft/seed0",
        "../mine.yaml": "runs/mine/seed0",
        "/etc/mine.yml/row": "runs/etc/mine/row/seed0",
    }.items():
        recipe.name = name
        assert run_path(recipe) == Path(expected)


def test_some_cells_of_a_table(tmp_path):
    runs = cells("demo/document", 2, tmp_path, only=["sup", "h?tt"])
    assert [run.recipe.name for run in runs] == ["demo/document/hatt", "demo/document/sup"] * 2
    assert len(cells("demo/document", 1, tmp_path, only=["*"])) == 3
    with pytest.raises(UserError, match=r"unknown cell of demo/document 'unsupp'.*did you mean 'unsup'"):
        cells("demo/document", 1, tmp_path, only=["hatt", "unsupp"])
