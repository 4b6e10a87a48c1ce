"""What rows say of how they were made."""

import json
from dataclasses import fields, make_dataclass, replace

import pytest
from fake_runs import write_run
from tiny import tiny_recipe

from foveal.recipe import load
from foveal.reproduce import Cell, cells, run_all, summarise, write_csv
from foveal.reproduce.provenance import differences, made_with, settings

TABLE1 = "hattnet/table1/mref-soft"


def test_a_row_says_how_it_was_made(tmp_path, monkeypatch):
    monkeypatch.setenv("FOVEAL_REVISION", "v1-3-gabc")
    recipe = tiny_recipe(tmp_path, "train.epochs=1", "optim.lr=0.02")
    run_all([Cell(recipe, tmp_path / "a")], say=lambda line: None)
    row = summarise([Cell(recipe, tmp_path / "a", ("train.epochs=1", "optim.lr=0.02"))])[0]
    assert (row["overrides"], row["revision"], row["jobs"]) == ("train.epochs=1 optim.lr=0.02", "v1-3-gabc", "1")
    assert (row["limit"], row["lr"], row["compile"], row["older"]) == ("1", "0.02", "False", "")
    assert row["hardware"]
    assert row["torch"]


@pytest.mark.slow
def test_how_many_ran_side_by_side(tmp_path):
    todo = [Cell(tiny_recipe(tmp_path, "train.epochs=1", f"seed={i}"), tmp_path / str(i)) for i in range(2)]
    run_all(todo, jobs=4, say=lambda line: None)
    assert summarise(todo)[0]["jobs"] == "2"  # there were no more to run


def test_runs_of_several_revisions_and_of_an_installed_package(tmp_path):
    made = {"gpu": None, "packages": {"torch": "2.9.0", "foveal": "0.1.0"}}
    todo = []
    for seed, revision in enumerate(("abc", None, "abc")):
        folder = write_run(tmp_path / str(seed), seed=seed, kept=False)
        (folder / "environment.json").write_text(json.dumps({**made, "revision": revision}))
        todo.append(Cell(tiny_recipe(tmp_path, f"seed={seed}"), folder))
    found = made_with(todo)
    assert (found["revision"], found["torch"], found["jobs"]) == ("abc; 0.1.0", "2.9.0", "")


def test_overrides_of_a_table_are_those_of_its_cells(tmp_path):
    assert cells("demo/refer", 1, tmp_path, ["train.epochs=2"])[0].overrides == ("train.epochs=2",)


def test_settings_are_neither_seed_nor_hardware_nor_defaults():
    plain = settings(load(TABLE1))
    same = ["seed=3", "train.devices=2", "data.workers=1", "train.accumulate=1", "title=other"]
    assert settings(load(TABLE1, same)) == plain
    for change in ("data.sources=split", "model.dropout=0.1", "optim.alpha=0.8", "train.patience=7"):
        assert settings(load(TABLE1, [change]))["settings"] != plain["settings"], change


def test_a_new_option_at_its_default_is_no_other_setting():
    """Or it would set apart the rows of before; that a section is there is a setting."""
    recipe = load("icasc/confusion/ach")

    def grown(section):
        more = make_dataclass(type(section).__name__, [("new", bool, True)], bases=(type(section),), kw_only=True)
        return more(**{item.name: getattr(section, item.name) for item in fields(section) if item.init})

    later = replace(
        recipe,
        loss=replace(recipe.loss, sharpen=grown(recipe.loss.sharpen)),
        optim=replace(recipe.optim, schedule=grown(recipe.optim.schedule)),
    )
    assert later.loss.sharpen.new
    assert settings(later) == settings(recipe)
    for change in (
        "optim.average=ema",
        "loss.sharpen=null",
        "loss.sharpen.theta=0.7",
        "optim.schedule={name: multistep, epochs: [2]}",
    ):
        assert settings(load(recipe.name, [change]))["settings"] != settings(recipe)["settings"], change


def test_what_today_differs_is_named():
    row = {"recipe": TABLE1, **settings(load(TABLE1))}
    assert differences(row) == []
    assert differences({**row, "compile": "", "settings": ""}) == []  # not known
    assert differences({**row, "lr": "0.1", "precision": "32"}) == [
        "train.precision 32, now bf16",
        "optim.lr 0.1, now 0.003",
    ]
    assert differences({**row, "settings": "0"}) == ["other settings of the recipe"]
    changed = {"recipe": TABLE1, "overrides": "optim.lr=0.1", **settings(load(TABLE1, ["optim.lr=0.1"]))}
    assert differences(changed) == []
    assert "no longer loads" in differences({"recipe": "hattnet/gone"})[0]


def test_the_mark_of_an_older_row_stays(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("table,recipe,metric,mean,values,older\nother,b,accuracy,0.4,0.4,rate changed\n")
    folder = write_run(tmp_path / "run", kept=False)
    write_csv(path, summarise([Cell(tiny_recipe(tmp_path), folder)]))
    assert "rate changed" in path.read_text()
