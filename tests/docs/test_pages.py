"""The documents say what is true: examples run, commands exist, links lead somewhere, tables are up to date."""

from __future__ import annotations

import itertools
import pkgutil
import re
import shlex
from inspect import signature
from pathlib import Path

import hooks
import listings
import pytest
import tables
import typer
import yaml

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(ROOT.glob("docs/**/*.md"))
WITH_CODE = [page for page in PAGES if "```python" in page.read_text(encoding="utf-8") and page.stem != "extend"]
PROSE = [page for page in PAGES if "/api/" not in page.as_posix()]


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


# Examples -----------------------------------------------------------------


@pytest.mark.usefixtures("unregistered")
@pytest.mark.parametrize("page", WITH_CODE, ids=name)
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FOVEAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FOVEAL_DATA", raising=False)
    text = page.read_text(encoding="utf-8")
    namespace = {"__name__": "example"}
    blocks = list(re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    assert blocks
    for block in blocks:
        lines_before = text[: block.start(1)].count("\n")
        exec(compile("\n" * lines_before + block[1], name(page), "exec"), namespace)


def test_readme_shows_every_verb_of_today() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    words = ("foveal.insert(", "layers[", "ProgressiveGate", "foveal.cam(", "foveal.measure.", "foveal.see.", "fit(")
    for word, block in zip(words, blocks, strict=True):
        assert word in block
        assert block.count("\n") <= 32


# Commands -----------------------------------------------------------------


def commands() -> dict[str, typer.core.TyperCommand]:
    from foveal.cli import app

    return typer.main.get_command(app).commands


def written_commands(page: Path) -> list[list[str]]:
    """The words of every foveal command in inline code and indented blocks."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    inline = re.findall(r"`(?:uv run )?(foveal [^`\n]+)`", text)
    blocks = re.findall(r"^    (?:uv run )?(foveal .+)$", text, re.MULTILINE)
    return [shlex.split(command, comments=True) for command in inline + blocks]


@pytest.mark.parametrize("page", PROSE, ids=name)
def test_commands_exist(page: Path) -> None:
    from foveal import registry
    from foveal.recipe.grids import cell_names, grids

    known = commands()
    of_tasks = {f"--{key}" for task in registry.tasks.items().values() for key in signature(task.predict).parameters}
    for _, command, *words in written_commands(page):
        assert command in known, f"foveal {command}"
        options = {option for parameter in known[command].params for option in parameter.opts}
        options |= of_tasks if command == "predict" else set()
        if command == "bench" and words and words[0] != "NAME":  # what follows are options of the benchmark
            options |= set(re.findall(r'"(--[\w-]+)"', (ROOT / f"benchmarks/{words[0]}.py").read_text("utf-8")))
        for word in words:
            assert not word.startswith("--") or word in options, f"foveal {command} {word}"
        if command == "train" and re.match(r"(aw|demo|fan|hattnet|icasc)/", words[0]):
            assert words[0] in cell_names()
        if command == "reproduce" and words and not words[0].endswith(".yaml"):
            assert words[0] in grids()


def test_heads_of_recipes_and_pages_name_the_same_seeds() -> None:
    from foveal.recipe.grid_file import shipped_files

    def seeds(command: list[str]) -> dict[str, str]:
        options = dict(itertools.pairwise(command))
        plain = command[1] == "reproduce" and "--seeds" in options and "--only" not in options
        return {command[2]: options["--seeds"]} if plain else {}

    texts = {name: path.read_text(encoding="utf-8") for name, path in shipped_files().items()}
    heads = {name: re.search(rf"^# (foveal reproduce {name} .+)$", text, re.MULTILINE) for name, text in texts.items()}
    of_recipes = {k: v for head in heads.values() if head for k, v in seeds(shlex.split(head[1])).items()}
    of_pages = [pair for page in PROSE for command in written_commands(page) for pair in seeds(command).items()]
    compared = [(name, number) for name, number in of_pages if name in of_recipes]
    assert len(compared) > 10
    assert all(of_recipes[name] == number for name, number in compared), set(compared) - set(of_recipes.items())


def test_readme_names_every_command() -> None:
    assert {command for _, command, *_ in written_commands(ROOT / "README.md")} == set(commands())


def fits(base: str, changes: list[str]) -> bool:
    """Whether the recipe ``base`` takes these changes."""
    from foveal import registry
    from foveal.errors import UserError
    from foveal.models.registry import accepts
    from foveal.recipe import load
    from foveal.typed import parse

    try:
        recipe = load(base, changes)
        options = {key: value for key, value in recipe.data.items() if key != "name"}
        parse(registry.datasets.get(recipe.data["name"]).options, options, "data")
    except UserError:
        return False
    always = ("name", "insert", "checkpoint")
    return all(accepts(recipe.model["name"], key) for key in recipe.model if key not in always)


def test_overrides_are_real() -> None:
    """Every ``key=value`` in a command fits the recipe it changes, every other one some recipe."""
    from foveal.recipe import available

    override = re.compile(r"(?:train|optim|loss|data|model)\.\w+=\S+")
    texts = ("demo/document/sup", "fan/table6-yahoo/mini-hatt", "fan/table6/hatt")
    bases, seen = (
        (
            "demo/refer/hattnet-ctx",
            "hattnet/table2/attention-soft",
            "demo/classify",
            "demo/detect/plain",
            "demo/translate/all",
            *texts,
        ),
        0,
    )
    for page in PROSE:
        for text in [
            *re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8")),
            *map(" ".join, written_commands(page)),
        ]:
            if changes := override.findall(text):
                named = [word for word in text.split() if word in available()]
                assert any(fits(base, changes) for base in named or bases), text
                seen += len(changes)
    assert seen > 10


# Names --------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_names_of_foveal_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for full_name in re.findall(r"(?:`|^::: )(foveal(?:\.\w+)+)(?:`|$)", text, re.MULTILINE):
        pkgutil.resolve_name(full_name)


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


# Files --------------------------------------------------------------------


def files(page: Path) -> dict[str, str]:
    """YAML files that a page shows: indented blocks whose first line is ``# name.yaml``."""
    blocks = re.findall(r"^    # (\S+\.yaml)\n((?:(?:    .*)?\n)+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {f"{i}-{name}": re.sub(r"^    ", "", text, flags=re.MULTILINE) for i, (name, text) in enumerate(blocks)}


def test_recipes_and_tables_that_pages_show_are_valid(tmp_path: Path) -> None:
    from foveal.recipe import load
    from foveal.recipe.grid import is_grid
    from foveal.recipe.grids import own_grid

    shown = {name: text for page in PROSE for name, text in files(page).items()}
    assert len(shown) >= 3
    for name, text in shown.items():
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        if is_grid(yaml.safe_load(text)):
            for cell in own_grid(path).cells():
                assert load(f"{path}/{cell}").title
        else:
            assert load(path).title


# Generated parts ----------------------------------------------------------


@pytest.mark.parametrize("page", tables.PAGES, ids=name)
def test_pages_hold_what_the_script_would_write(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert tables.MARKED.search(text)
    assert tables.rewritten(text) == text, "run: uv run python docs/tables.py"


def test_script_replaces_only_the_block(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    mark = "<!-- table:hattnet hattnet/table1-ours accuracy -->"
    page.write_text(
        f"before\n{mark}\nold\n<!-- /table -->\nbetween\n<!-- keys:averages -->\n<!-- /keys -->\nafter\n",
        encoding="utf-8",
    )
    tables.main([page])
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"before\n{mark}\n\n`hattnet/table1-ours`: ")
    assert "<!-- /table -->\nbetween\n<!-- keys:averages -->\n\n| name |" in text
    assert text.endswith("<!-- /keys -->\nafter\n")
    assert "\nold\n" not in text
    tables.main([page])
    assert page.read_text(encoding="utf-8") == text


def test_markers_of_all_pages_are_filled() -> None:
    for page in ROOT.glob("docs/**/*.md"):
        text = page.read_text(encoding="utf-8")
        left = re.findall(r"<!-- (\w+)", hooks.on_page_markdown(text))
        assert set(left) <= {"table", "keys", "datasets", "models", "prices", "zoo"}, name(page)
        assert len(left) == len(re.findall(r"<!-- /\w+ -->", text)), f"{name(page)}: a mark is not closed"


def test_every_key_of_a_recipe_is_explained() -> None:
    for what in ("recipe", "foveal.recipe.Train", "optimisers", "tasks"):
        for line in listings.keys_of(what).splitlines():
            if line.startswith("| `"):
                assert line.split("|")[-2].strip(), f"{what}: {line}"
