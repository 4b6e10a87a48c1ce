"""The documents say what is true: examples run, commands exist, links lead somewhere, tables are the file's."""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
import sys
from pathlib import Path

import pytest
import typer

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(ROOT.glob("docs/**/*.md"))
WITH_CODE = [page for page in PAGES if "```python" in page.read_text(encoding="utf-8")]
SPEAKING = [page for page in PAGES if "/api/" not in page.as_posix()]


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def load(script: str):
    """A module of docs/, which is not a package."""
    if script not in sys.modules:
        spec = importlib.util.spec_from_file_location(script, ROOT / "docs" / f"{script}.py")
        sys.modules[script] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[script])
    return sys.modules[script]


# Each needs those before it.
listings, expected, result_tables, charts, hooks, tables = map(
    load, ("listings", "expected", "result_tables", "charts", "hooks", "tables")
)


# Examples -----------------------------------------------------------------


@pytest.mark.parametrize("page", WITH_CODE, ids=name)
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FOVEAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FOVEAL_DATA", raising=False)
    text = page.read_text(encoding="utf-8")
    namespace = {"__name__": "example"}
    blocks = list(re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    assert blocks
    for found in blocks:
        lines_before = text[: found.start(1)].count("\n")
        exec(compile("\n" * lines_before + found[1], name(page), "exec"), namespace)


def test_readme_shows_every_verb_of_today() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    words = ("ProgressiveGate", "foveal.insert(", "foveal.cam(", "foveal.measure.", "foveal.see.", "fit(")
    for word, block in zip(words, blocks, strict=True):
        assert word in block
        assert block.count("\n") <= 32


# Commands -----------------------------------------------------------------


def commands() -> dict[str, typer.core.TyperCommand]:
    from foveal.cli import app

    return typer.main.get_command(app).commands


def said(page: Path) -> list[list[str]]:
    """The words of every foveal command in inline code and indented blocks."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    inline = re.findall(r"`(?:uv run )?(foveal [^`\n]+)`", text)
    blocks = re.findall(r"^    (?:uv run )?(foveal .+)$", text, re.MULTILINE)
    return [shlex.split(command, comments=True) for command in inline + blocks]


@pytest.mark.parametrize("page", SPEAKING, ids=name)
def test_commands_exist(page: Path) -> None:
    from foveal.recipe import available
    from foveal.recipe import load as recipe

    known, published = commands(), [recipe(name).published for name in available()]
    for _, command, *words in said(page):
        assert command in known, f"foveal {command}"
        options = {option for parameter in known[command].params for option in parameter.opts}
        for word in words:
            assert not word.startswith("--") or word in options, f"foveal {command} {word}"
        if command == "train" and re.match(r"(aw|demo|hattnet)/", words[0]):
            assert words[0] in available()
        if command == "reproduce" and words:
            assert words[0] in {cell.table for cell in published if cell is not None}


def test_readme_names_every_command() -> None:
    assert {command for _, command, *_ in said(ROOT / "README.md")} == set(commands())


def fits(base: str, changes: list[str]) -> bool:
    """Whether the recipe ``base`` takes these changes."""
    from foveal.data import dataset
    from foveal.errors import UserError
    from foveal.models.registry import accepts
    from foveal.recipe import load
    from foveal.typed import parse

    try:
        recipe = load(base, changes)
        options = {key: value for key, value in recipe.data.items() if key != "name"}
        parse(dataset(recipe.data["name"]).options, options, "data")
    except UserError:
        return False
    always = {"name", "insert", "checkpoint"} if recipe.task == "classify" else {"name"}
    return all(accepts(recipe.model["name"], key) for key in recipe.model if key not in always)


def test_overrides_are_real() -> None:
    """Every ``key=value`` in a command fits the recipe it changes, every other one some recipe."""
    from foveal.recipe import available

    override = re.compile(r"(?:train|optim|loss|data|model)\.\w+=\S+")
    texts = ("demo/document", "fan/yahoo-mini-hatt", "fan/news-hatt")
    bases, seen = ("demo/hattnet-ctx", "hattnet/vg-soft", "demo/classify", *texts), 0
    for page in SPEAKING:
        for text in [*re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8")), *map(" ".join, said(page))]:
            if changes := override.findall(text):
                named = [word for word in text.split() if word in available()]
                assert any(fits(base, changes) for base in named or bases), text
                seen += len(changes)
    assert seen > 10


# Links --------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in ROOT.glob("docs/**/*.md"):
        assert page.relative_to(ROOT / "docs").as_posix() in navigation


# Tables -------------------------------------------------------------------

HEADER = (
    "table,recipe,model,dataset,metric,published,mean,std,difference,seeds,values,run_seeds,parameters,epochs,seconds,"
    "step_seconds,precision,embedded,hardware"
)
CTX = (
    "hattnet/table1,hattnet/mref-hattnet-ctx,HAttNet-CTX,MREF,accuracy,0.9851,0.98,0.0012,-0.0051,3,0.98,0,59273,100,60,,32,"
    "False,some GPU"
)


def write(folder: Path, *rows: str) -> Path:
    (folder / "hattnet.csv").write_text("\n".join([HEADER, *rows, ""]), encoding="utf-8")
    return folder


def test_readme_holds_what_the_script_would_write() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "<!-- table:hattnet " in text
    assert tables.rewritten(text) == text, "run: uv run python docs/tables.py"


def test_script_replaces_only_the_block(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(
        "before\n<!-- table:hattnet hattnet/table1-ours accuracy -->\nold\n<!-- /table -->\nafter\n", encoding="utf-8"
    )
    tables.main(readme)
    text = readme.read_text(encoding="utf-8")
    assert text.startswith("before\n<!-- table:hattnet hattnet/table1-ours accuracy -->")
    assert text.endswith("<!-- /table -->\nafter\n")
    assert "\nold\n" not in text
    tables.main(readme)
    assert readme.read_text(encoding="utf-8") == text


def test_no_file_is_not_measured_yet(tmp_path: Path) -> None:
    assert result_tables.results("hattnet", tmp_path).startswith("Not measured yet")


def test_table_has_models_down_and_datasets_across(tmp_path: Path) -> None:
    found = result_tables.results("hattnet", write(tmp_path, CTX))
    lines = found.splitlines()
    assert lines.count("| | MREF | MDIST | MBG |") == 1  # the other five tables have no row
    rows = [line.split("|")[1].strip() for line in lines if line.startswith("| ") and "MREF" not in line]
    assert rows == ["STN", "SOFT", "HARD", "HAttNet", "HAttNet-CTX"]
    assert "| HAttNet-CTX | 98.00 ± 0.12 (98.51) | not measured yet | not measured yet |" in lines
    assert found.count("not measured yet.") == 7
    assert "3 seeds; precision 32; some GPU." in found


def test_cells_without_spread_published_or_real_data(tmp_path: Path) -> None:
    row = CTX.replace("0.9851,0.98,0.0012,-0.0051,3", ",0.5,,,1").replace("False", "True")
    found = result_tables.results("hattnet", write(tmp_path, row.replace("accuracy", "true_positive_strength_last")))
    assert r"| HAttNet-CTX | 50.00\* |" in found
    assert "1 seed; precision 32" in found
    assert "on embedded data, not the paper's: do not compare" in found


def test_tables_and_metrics_that_are_not_expected_are_shown_too(tmp_path: Path) -> None:
    row = CTX.replace("table1", "table9").replace("MREF", "VG").replace("accuracy", "weighted_average_precision")
    found = result_tables.results("hattnet", write(tmp_path, row))
    assert "**VG** (`hattnet/table9`)" in found
    assert "| | Weighted average precision |" in found


def test_classes_stand_beside_the_published_ones(tmp_path: Path) -> None:
    (tmp_path / "icasc-voc2012.csv").write_text("class,ResNet-18\ncat,93.91\nmean,77.44\n", encoding="utf-8")
    row = "icasc/voc2012-lite,icasc/voc2012-lite-{},{},VOC 2012,{},,0.5,,,1,0.5,0,3,10,60,0.04,bf16,False,some GPU"
    rows = [
        row.format("ach", "Lite0 + ICASC A_ch", "average_precision/cat"),
        row.format("baseline", "Lite0", "average_precision/cat").replace(",0.5,", ",0.925,", 1),
        row.format("baseline", "Lite0", "mean_average_precision"),
    ]
    (tmp_path / "icasc.csv").write_text("\n".join([HEADER, *rows, ""]), encoding="utf-8")
    assert result_tables.classes("icasc/voc2012-lite", tmp_path, tmp_path).splitlines() == [
        "| class | ResNet-18 | ours, Lite0 | ours, Lite0 + ICASC A_ch |",
        "|---|---:|---:|---:|",
        "| cat | 93.91 | 92.50 | 50.00 |",
        "| mean | 77.44 | 50.00 |  |",
    ]
    assert "average_precision/" not in result_tables.results("icasc", tmp_path)
    (tmp_path / "icasc.csv").unlink()
    assert "| cat | 93.91 |" in result_tables.classes("icasc/voc2012-lite", tmp_path, tmp_path).splitlines()


def test_right_and_wrong_answers(tmp_path: Path) -> None:
    assert result_tables.splits("icasc/voc2012-lite", tmp_path) == "Right and wrong answers: not measured yet."
    row = "icasc/voc2012-lite,icasc/voc2012-lite-baseline,Lite0,VOC 2012,{},,{},,,1,0.5,0,3,10,60,0.04,bf16,False,GPU"
    rows = [row.format("pointing_game/right", "0.8"), row.format("pointing_game/wrong", "0.51234")]
    (tmp_path / "icasc.csv").write_text("\n".join([HEADER, *rows, ""]), encoding="utf-8")
    found = result_tables.splits("icasc/voc2012-lite", tmp_path).splitlines()
    assert found[:3] == ["| right / wrong | Pointing game |", "|---|---:|", "| Lite0 | 80.0 / 51.2 |"]
    assert found[-1].endswith("| – / – |")


def test_columns_are_those_that_reproduce_writes() -> None:
    """Read off the source, because importing it takes longer than all other tests here."""
    source = (ROOT / "src/foveal/tasks/reproduce.py").read_text(encoding="utf-8")
    literals = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Dict)]
    written = [[key.value for key in node.keys if isinstance(key, ast.Constant)] for node in literals]
    assert HEADER.split(",") in written


def test_one_dataset_leaves_room_for_size(tmp_path: Path) -> None:
    row = (
        "aw/cifar10,aw/cifar10-aw-resnet20,AW-ResNet-20,CIFAR-10,accuracy,,0.9,0.01,,3,0.9,0,286890,30,60,0.00321,bf16,"
        "False,some GPU"
    )
    (tmp_path / "aw.csv").write_text("\n".join([HEADER, row, ""]), encoding="utf-8")
    lines = result_tables.results("aw", tmp_path).splitlines()
    assert "**CIFAR-10** (`aw/cifar10`: one small network and schedule, every mechanism)" in lines
    assert "| | Accuracy | Parameters |" in lines  # no time of a step: these runs had changing company
    assert "| AW-ResNet-20 | 90.00 ± 1.00 | 286,890 |" in lines
    assert "| SE-ResNet-20 | not measured yet |  |" in lines
    assert sum(line.endswith("not measured yet.") for line in lines) == 2  # the paper's table, top-1 and top-5


def test_metrics_of_one_dataset_stand_side_by_side(tmp_path: Path) -> None:
    row = "fan/table6,fan/news-{},{},20 News,{},,{},,,1,0.9,0,100,30,60,0.002,bf16,False,some GPU"
    rows = [
        row.format("hatt", "Hatt", "accuracy", 0.6),
        row.format("fan-sup", "FAN-hatt-sup", "center_mass", 0.5),
        row.format("fan-sup", "FAN-hatt-sup", "accuracy", 0.7),
    ]
    (tmp_path / "fan-documents.csv").write_text("\n".join([HEADER, *rows, ""]), encoding="utf-8")
    lines = result_tables.results("fan-documents", tmp_path).splitlines()
    assert "| | Accuracy | Center-mass | Parameters | ms a step |" in lines
    assert "| Hatt | 60.00 | – | 100 | 2.00 |" in lines  # ran, and has none
    assert "| FAN-hatt-unsup | not measured yet | not measured yet |  |  |" in lines
    assert "| FAN-hatt-sup | 70.00 | 50.00 | 100 | 2.00 |" in lines


def test_expected_rows_are_those_of_the_recipes() -> None:
    from foveal.recipe import available
    from foveal.recipe import load as recipe

    published = [cell for name in available() if (cell := recipe(name).published) is not None]
    for known in expected.TABLES.values():
        for table, about in known.items():
            cells = {(cell.row, cell.column) for cell in published if cell.table == table}
            assert cells == {(row, column) for row in about.models for column in about.datasets}


# Keys ---------------------------------------------------------------------


def test_markers_of_all_pages_are_filled() -> None:
    for page in ROOT.glob("docs/**/*.md"):
        filled = hooks.on_page_markdown(page.read_text(encoding="utf-8"))
        assert not re.search(r"<!-- (results|keys|datasets|models)", filled), name(page)


def test_every_key_of_a_recipe_is_explained() -> None:
    from foveal.recipe import Loss, Optim, Recipe, Train

    for kind in (Recipe, Optim, Train, Loss):
        for line in listings.keys(kind).splitlines()[2:]:
            assert line.split("|")[-2].strip(), f"{kind.__name__}: {line}"
