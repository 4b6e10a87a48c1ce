"""Tables of recipes: names, what a cell changes, and what is wrong with a file."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from foveal.errors import UnknownNameError, UserError
from foveal.recipe.grid import is_grid
from foveal.recipe.grids import conclusions, find_cell, own_grid, shipped

TABLE = """
about: a small table
formerly: old/{column}-{row}
settings:
  task: refer
  data: {digits: embedded, triples: [1, 2, 3]}
  optim: {lr: 0.1, clip: 5.0}
columns:
  near: {title: NEAR, data: {name: mref}}
  far: {title: FAR, data: {name: mbg, digits: mnist}}
rows:
  soft: {title: SOFT, model: {name: soft}}
  stn: {title: STN, model: {name: stn}, optim: {lr: 0.2}}
cells:
  "*-stn": {optim: {clip: 1.0}}
  far-stn: {optim: {lr: 0.3}}
published:
  accuracy:
    soft: [0.5, null]
    stn: [0.25, 1e-1]
"""
ONE_COLUMN = """
settings: {task: refer}
columns: {mref: {title: MREF, data: {name: mref}}}
rows: {soft: {model: {name: soft}}, hard: {title: HARD, model: {name: hard}}}
published: {accuracy: {soft: 0.5}}
"""


@pytest.fixture
def write(tmp_path):
    """Write a file and return its path."""

    def write(text: str, name: str = "mine.yaml") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write


# Cells ------------------------------------------------------------------------------------------------------


def test_cells_go_row_by_row(write):
    grid = own_grid(write(TABLE))
    assert list(grid.cells()) == ["near-soft", "far-soft", "near-stn", "far-stn"]
    assert grid.cells()["far-stn"] == ("stn", "far")
    assert grid.full_name("far-stn").endswith("mine.yaml/far-stn")
    assert grid.titles("far-stn") == ("STN", "FAR")
    assert grid.about == "a small table"


def test_a_cell_is_settings_then_column_then_row_then_cells(write):
    grid = own_grid(write(TABLE))
    soft, stn = grid.raw("near-soft"), grid.raw("far-stn")
    assert soft["data"] == {"digits": "embedded", "triples": [1, 2, 3], "name": "mref"}
    assert soft["optim"] == {"lr": 0.1, "clip": 5.0}
    assert stn["data"] == {"digits": "mnist", "triples": [1, 2, 3], "name": "mbg"}
    assert stn["optim"] == {"lr": 0.3, "clip": 1.0}
    assert grid.raw("near-stn")["optim"] == {"lr": 0.2, "clip": 1.0}
    assert stn["name"] == grid.full_name("far-stn")
    assert stn["title"] == "STN"
    assert stn["cell"] == {"table": grid.name, "row": "STN", "column": "FAR", "place": [1, 1]}
    assert "formerly" not in stn


def test_published_numbers(write):
    grid = own_grid(write(TABLE))
    assert grid.raw("near-soft")["published"] == {"accuracy": 0.5}
    assert grid.raw("far-soft")["published"] == {}
    assert grid.numbers("far-stn") == {"accuracy": 0.1}


def test_one_column_does_not_appear_in_names(write):
    grid = own_grid(write(ONE_COLUMN))
    assert list(grid.cells()) == ["soft", "hard"]
    assert grid.titles("soft") == ("soft", "MREF")  # a row without a title is called by its key
    assert grid.raw("soft")["data"] == {"name": "mref"}
    assert grid.raw("soft")["published"] == {"accuracy": 0.5}


def test_no_columns(write):
    grid = own_grid(write("settings: {task: refer}\nrows: {soft: {model: {name: soft}}, hard: }\n"))
    assert grid.raw("hard")["cell"]["column"] == ""
    assert grid.raw("hard")["cell"]["place"] == [1, 0]


def test_cells_are_not_shared(write):
    grid = own_grid(write(TABLE))
    grid.raw("near-soft")["data"]["triples"].append(4)
    grid.raw("near-soft")["optim"]["lr"] = 9
    assert grid.raw("near-soft")["data"]["triples"] == [1, 2, 3]
    assert grid.raw("far-soft")["optim"]["lr"] == 0.1


def test_titles_of_recipes_from_a_template(write):
    text = TABLE.replace("settings:", "settings:\n  title: '{row} on {column}, {braces} kept'")
    assert own_grid(write(text)).raw("far-stn")["title"] == "STN on FAR, {braces} kept"
    assert own_grid(write(TABLE.replace("{lr: 0.3}", "{lr: 0.3}, title: alone"))).raw("far-stn")["title"] == "alone"


def test_former_names_by_table_column_row_and_cell(write):
    grid = own_grid(write(TABLE))
    assert grid.former_name("far-stn") == "old/far-stn"
    grid = own_grid(write(TABLE.replace("{title: FAR", "{formerly: 'far/{row}', title: FAR")))
    assert (grid.former_name("far-stn"), grid.former_name("near-stn")) == ("far/stn", "old/near-stn")
    grid = own_grid(write(TABLE.replace("far-stn: {", "far-stn: {formerly: once, ")))
    assert grid.former_name("far-stn") == "once"
    assert "formerly" not in grid.raw("far-stn")
    assert own_grid(write(ONE_COLUMN)).former_name("soft") is None


# Extending --------------------------------------------------------------------------------------------------


def test_a_table_extends_another(write):
    write(TABLE, "base/first.yaml")
    grid = own_grid(write("extends: base/first.yaml\nsettings: {task: classify}\ncells: {}\n"))
    assert list(grid.cells()) == ["near-soft", "far-soft", "near-stn", "far-stn"]
    raw = grid.raw("far-stn")
    assert raw["task"] == "classify"
    assert raw["optim"] == {"lr": 0.2}  # neither the settings nor the cells of the other table
    assert raw["published"] == {"accuracy": 0.1}
    assert grid.about == ""
    assert grid.former_name("far-stn") is None


def test_files_that_settings_extend_are_those_beside_the_table_they_stand_in(write, tmp_path):
    write(TABLE.replace("settings:", "settings:\n  extends: _block.yaml"), "base/first.yaml")
    grid = own_grid(write("extends: base/first.yaml\nabout: other\ncolumns: {one: }\npublished: {}\ncells: {}\n"))
    assert grid.raw("soft")["extends"] == str(tmp_path / "base" / "_block.yaml")


def test_a_shipped_table_can_be_extended(write):
    grid = own_grid(write("extends: hattnet/table1\nsettings: {extends: hattnet/table1/mref-soft, seed: 3}\n"))
    assert "mbg-hattnet-ctx" in grid.cells()
    assert grid.raw("mbg-stn")["extends"] == "hattnet/table1/mref-soft"
    assert grid.raw("mbg-stn")["seed"] == 3


def test_what_is_a_table():
    assert is_grid({"rows": {}})
    assert is_grid({"extends": "hattnet/table1", "columns": {}})
    assert not is_grid({"extends": "hattnet/table1/mref-soft", "model": {}})


# Names ------------------------------------------------------------------------------------------------------


def test_find_cell():
    grid, cell, hint = find_cell("hattnet/table1/mref-soft")
    assert (grid.name, cell, hint) == ("hattnet/table1", "mref-soft", None)


def test_a_former_name_is_understood_with_a_hint():
    grid, cell, hint = find_cell("hattnet/mref-soft")
    assert (grid.name, cell) == ("hattnet/table1", "mref-soft")
    assert hint == "hattnet/mref-soft is now called hattnet/table1/mref-soft"
    raw, same_hint = shipped("hattnet/mref-soft")
    assert same_hint == hint
    assert raw["name"] == "hattnet/table1/mref-soft"


def test_a_recipe_outside_tables():
    raw, hint = shipped("demo/classify")
    assert hint is None
    assert raw["task"] == "classify"
    with pytest.raises(UnknownNameError, match="demo/classify"):
        shipped("demo/clasify")


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("hattnet/table1/mref-sotf", "hattnet/table1/mref-soft"),
        ("hattnet/table1-our/mref-soft", "hattnet/table1-ours/mref-soft"),
        ("hattnet/mref-sotf", "hattnet/table1/mref-soft"),  # close to a former name
        ("mref-hattnet-ctx", "hattnet/table1/mref-hattnet-ctx"),
        ("resnet101-ach", "icasc/cub200/resnet101-ach"),
        ("Hattnet/Table1/mref-soft", "hattnet/table1/mref-soft"),
    ],
)
def test_unknown_names_have_near_misses(name, suggestion):
    with pytest.raises(UnknownNameError, match=f"did you mean.*'{suggestion}'"):
        find_cell(name)


@pytest.mark.parametrize(
    "name", ["zzzzz", "", "/", "a/b/c/d/e/f", "hattnet/table1/", "../hattnet/table1/mref-soft", "demo/"]
)
def test_no_list_of_all_names(name):
    with pytest.raises(UnknownNameError) as caught:
        find_cell(name)
    assert len(str(caught.value)) < 300


def test_a_table_where_a_cell_is_needed():
    with pytest.raises(UserError, match=r"hattnet/table1/\{mref,mdist,mbg\}-\{stn,soft,hard,hattnet,hattnet-ctx\}"):
        find_cell("hattnet/table1")
    with pytest.raises(UserError, match=r"aw/table1/\{resnet50,.*,…\}") as caught:
        find_cell("aw/table1")
    assert len(str(caught.value)) < 400


def test_a_cell_that_an_own_table_has_not(write):
    grid = own_grid(write(TABLE))
    with pytest.raises(UnknownNameError, match=r"did you mean '.*mine\.yaml/near-soft'"):
        grid.raw("near-sotf")
    with pytest.raises(UnknownNameError, match=r"its cells are .*\{near,far\}-\{soft,stn\}"):
        grid.raw("q")


def test_one_recipe_is_not_a_table(write):
    with pytest.raises(UserError, match="one recipe, not a table"):
        own_grid(write("data: {name: mref}\n"))


# What is wrong with a file ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("about:", "abuot:", "unknown key 'abuot'; did you mean 'about'"),
        ("about: a small table", "about: 3", "about: expected a text, got 3"),
        ("formerly: old/{column}-{row}", "formerly: [a]", "formerly: expected a text"),
        (
            "    stn: [0.25, 1e-1]",
            "    snt: [0.25, 1e-1]",
            r"published\.accuracy: unknown key 'snt'; did you mean 'stn'",
        ),
        ("[0.5, null]", "[0.5]", r"published\.accuracy\.soft: expected 2 numbers, one a column, got 1"),
        ("[0.5, null]", "0.5", r"published\.accuracy\.soft: expected 2 numbers, one a column, got 1"),
        ("[0.5, null]", "[0.5, high]", r"published\.accuracy\.soft: expected a number, got 'high'"),
        ("[0.5, null]", "[0.5, true]", r"published\.accuracy\.soft: expected a number, got True"),
        ("[0.5, null]", "[0.5, .nan]", r"published\.accuracy\.soft: expected finite numbers"),
        ("  accuracy:\n", "  accuracy: 3\n  other:\n", r"published\.accuracy: expected rows with their numbers, got 3"),
        ("  far-stn:", "  far-sth:", "cells: table .* has no cell 'far-sth'; did you mean '.*far-stn'"),
        ('  "*-stn":', '  "*-xyz":', r"cells: table .* has no cell '\*-xyz'"),
        (
            "  far-stn: {optim: {lr: 0.3}}",
            "  far-stn: 3",
            r"cells\.far-stn: expected a section with recipe keys, got 3",
        ),
        ("  far: {title: FAR", "  near: {title: FAR", "the key 'near' is already in line 9"),
        ("  soft: {title: SOFT", "  stn: {title: SOFT", "the key 'stn' is already in line"),
        ("  soft: {title: SOFT", "  a b: {title: SOFT", r"rows\.a b: the key becomes part of a name"),
        ("  soft: {title: SOFT", "  a/b: {title: SOFT", r"rows\.a/b: the key becomes part of a name"),
        ("  soft: {title: SOFT", "  x.yaml: {title: SOFT", r"rows\.x\.yaml: the key becomes part of a name"),
        ("{title: SOFT", "{title: 3", r"rows\.soft\.title: expected a text, got 3; quotes make it one"),
        ("{title: SOFT", "{name: x, title: SOFT", r"rows\.soft\.name: .*cannot be set here"),
        ("{title: SOFT", "{published: {}, title: SOFT", r"rows\.soft\.published: .* below `published` of the table"),
        ("  task: refer", "  cell: {}", r"settings\.cell: .*cannot be set here"),
        ("  task: refer", "  title: 3", r"settings\.title: expected a text, got 3"),
        ("about: a small table", "extends: nothing.yaml", r"nothing\.yaml: no such recipe file"),
        ("about: a small table", "extends: hattnet/tabel1", "extends: unknown table.*did you mean 'hattnet/table1'"),
        ("about: a small table", "extends: [a, b]", "extends names one table"),
        ("about: a small table", "extends: mine.yaml", r"mine\.yaml extends itself"),
        ("about: a small table", "extends: sub/../mine.yaml", r"mine\.yaml extends itself"),
    ],
)
def test_malformed_tables(old, new, message, write, tmp_path):
    (tmp_path / "sub").mkdir()
    assert old in TABLE
    with pytest.raises(UserError, match=message) as caught:
        own_grid(write(TABLE.replace(old, new)))
    assert ".yaml" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("section", "message"),
    [("rows: ", "at least one row"), ("rows: {}", "at least one row"), ("rows: 3", "rows: expected a section")],
)
def test_a_table_has_rows(section, message, write):
    with pytest.raises(UserError, match=message):
        own_grid(write(f"settings: {{task: refer}}\n{section}\n"))


@pytest.mark.parametrize("key", ["settings", "columns", "cells", "published"])
def test_sections_are_sections(key, write):
    rest = "rows: {soft: }\n" + ("" if key == "settings" else "settings: {}\n")
    with pytest.raises(UserError, match=f"{key}: expected a section"):
        own_grid(write(f"{rest}{key}: [1]\n"))


def test_two_cells_of_one_name(write):
    with pytest.raises(UserError, match="two cells are called 'a-b-c'"):
        own_grid(write("columns: {a-b: , a: }\nrows: {c: , b-c: }\n"))


# Files that are no good for any reader ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rows: " + "[" * 5000, "line 1: nested more than 50 levels deep"),
        ("rows: " + "[" * 5000 + "]" * 5000, "nested more than 50 levels deep"),
        ("rows: " + "{a: " * 5000, "nested more than 50 levels deep"),
        ("rows: " + "- " * 5000 + "x", "cannot be read as YAML"),
        ("rows: &a [*a]", r"\*a contains itself"),
        ("rows: &a {b: {c: *a}}", r"\*a contains itself"),
        ("rows: 2020-13-45", "cannot be read as YAML: month must be"),
        ("rows: {? [1] : 2}", "unhashable"),
        ("rows: {a: {b: 1,\n c: 2,\n b: 3}}", "line 3: the key 'b' is already in line 1"),
        ("a: 1\n'a': 2", "line 2: the key 'a' is already in line 1"),
    ],
)
def test_yaml_that_is_refused(text, message, write):
    with pytest.raises(UserError, match=message) as caught:
        own_grid(write(text))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_aliases_that_grow(write):
    text = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
    text += "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 10))
    with pytest.raises(UserError, match="more than 100,000 values"):
        own_grid(write(text))


@pytest.mark.parametrize("keys", [10_000, 400_000])
def test_a_file_of_many_keys_takes_no_time(keys, write):
    path = write("".join(f"key{i}: {i}\n" for i in range(keys)))
    begin = time.process_time()
    with pytest.raises(UserError, match="larger than 200,000 bytes" if keys > 10_000 else "not a table"):
        own_grid(path)
    assert time.process_time() - begin < 5


def test_keys_are_texts_whatever_yaml_makes_of_them(write):
    raw = own_grid(write("settings: {loss: {on: records, 1: x, yes: no}}\nrows: {soft: }\n")).raw("soft")
    assert raw["loss"] == {"on": "records", "1": "x", "yes": False}


def test_anchors_and_merge_keys(write):
    text = "settings: {deep: {a: &a {x: 1, y: {z: 2}}}}\nrows: {one: {data: {<<: *a, x: 3}}, two: {data: *a}}\n"
    grid = own_grid(write(text))
    assert grid.raw("one")["data"] == {"x": 3, "y": {"z": 2}}
    assert grid.raw("two")["data"] == {"x": 1, "y": {"z": 2}}


# Conclusions ------------------------------------------------------------------------------------------------


def test_conclusions(write):
    path = write(TABLE + "conclusions: [near is easy, far is not]\n")
    assert own_grid(path).conclusions == conclusions(str(path)) == ("near is easy", "far is not")
    below = write("extends: mine.yaml\nsettings: {task: refer}\n", "below.yaml")
    assert conclusions(str(below)) == ("near is easy", "far is not")
    assert conclusions(str(write(TABLE))) == ()
    assert conclusions("moved.yaml") == ()


def test_conclusions_are_a_list_of_texts(write):
    with pytest.raises(UserError, match="conclusions"):
        own_grid(write(TABLE + "conclusions: {near: easy}\n"))
