"""The page "Extend" is a project: its files are written as shown, its Python is run, its commands too."""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from forked import Forked

CPU, SPLITS = torch.device("cpu"), ("train", "val", "test")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "extend.md"
TEXT = PAGE.read_text(encoding="utf-8")


class Block(NamedTuple):
    """Code of the page: its language, the file it belongs to ("" for none), the line before it, and the text."""

    language: str
    file: str
    line: int
    text: str


def blocks() -> list[Block]:
    fences = re.finditer(r"^```(\w+)\n((?:# (\S+\.(?:py|yaml))\n)?.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    return [Block(f[1], f[3] or "", TEXT[: f.start(2)].count("\n"), f[2]) for f in fences]


def write_files(folder: Path) -> None:
    """The files that the page shows; blocks of one file follow each other."""
    for name in {block.file for block in blocks() if block.file}:
        parts = [block.text for block in blocks() if block.file == name]
        (folder / name).write_text("\n\n".join(parts), encoding="utf-8")


def commands() -> list[str]:
    return re.findall(r"^    ((?:foveal|export) .+)$", re.sub(r"^```.*?^```$", "", TEXT, flags=re.M | re.S), re.M)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("FOVEAL_DATA", raising=False)
    monkeypatch.delenv("FOVEAL_PLUGINS", raising=False)
    yield tmp_path
    sys.modules.pop("bubbles", None)


def test_the_page_is_one_project():
    assert {block.file for block in blocks()} == {"", "bubbles.py", "bubbles.yaml", "sizes.yaml", "guided.yaml"}
    assert {block.language for block in blocks()} == {"python", "yaml", "toml"}
    assert len(blocks()) == TEXT.count("\n```") / 2


def test_everything_is_imported_from_a_room():
    """No example needs to know which file of a room something is in."""
    imported = {match[1] for match in re.finditer(r"^from (foveal[\w.]*) import", TEXT, re.MULTILINE)}
    assert imported
    assert {module for module in imported if module.count(".") > 1} <= {"foveal.see.page", "foveal.tasks.classify"}


@pytest.mark.usefixtures("unregistered")
def test_examples_run(project: Path):
    namespace = {"__name__": "example"}
    for block in blocks():
        if block.language == "python" and not block.file:
            exec(compile("\n" * block.line + block.text, PAGE.name, "exec"), namespace)
    from foveal.data import dataset
    from foveal.data.text.documents import TextOptions
    from foveal.recipe import LossOptions, load
    from foveal.recipe.files import parse_yaml
    from foveal.recipe.grids import own_grid
    from foveal.typed import parse

    assert load("sizes.yaml").task == "classify-sure"
    notes = dataset("bubble-notes").build(TextOptions(tagger="none"), project / "photos")
    assert notes.answers == ["small", "large"]
    assert sum(len(batch["label"]) for split in SPLITS for batch in notes.loader(split, 1, device=CPU)) == 200
    cells = {cell: load(f"guided.yaml/{cell}") for cell in own_grid(Path("guided.yaml")).cells()}
    assert cells["free"].loss.weights == {"on_bubble": 0}
    assert cells["guided"].published == {"relative_error": 0.05}
    for block in blocks():
        if block.language == "yaml" and not block.file:
            assert parse(LossOptions, parse_yaml(block.text)["loss"], "loss").attention

    last = json.loads((project / "runs/bubbles/metrics.jsonl").read_text().splitlines()[-1])
    assert last["train/loss"] == pytest.approx(last["train/radius"] + 5 * last["train/on_bubble"], abs=1e-4)
    report = (project / "runs/bubbles/report.html").read_text()
    for words in ("Relative error, %", "True-positive strength, %", "Where guided looks", ", measured ", "Bubbles"):
        assert words in report


SHELL = """
import os, shlex, sys
from foveal.cli import main

for line in sys.argv[1:]:
    command, *words = shlex.split(line)
    if command == "export":
        os.environ.update(word.split("=") for word in words)
        continue
    sys.argv = [command, *words]
    try:
        main()
    except SystemExit as stop:
        if stop.code:
            sys.exit(f"{line}: status {stop.code}")
"""


def run(folder: Path, lines: list[str], **environment: str) -> str:
    """The output of commands in one new process."""
    around = {k: v for k, v in os.environ.items() if not k.startswith("FOVEAL_")}
    around |= {"COLUMNS": "200", **environment}
    done = Forked(SHELL, *lines, cwd=folder, env=around).wait()
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_commands_run(project: Path):
    photographs = next(block for block in blocks() if "ImageDraw" in block.text)
    exec(compile(photographs.text, PAGE.name, "exec"), {})
    shown = run(project, commands())
    for words in (
        "an image; the radius of the object in it",
        "bubbles: every file could be read",
        "bubble-notes: every file could be read",
        ", measured 7.5",
        "sureness",
        "Relative error, %",
        "5.00",  # the published number
        "guided.yaml/guided − guided.yaml/free: relative_error",
        "runs/guided/report.html",
    ):
        assert words in shown
    assert "Where free looks" in (project / "runs/guided/report.html").read_text()


@pytest.mark.slow
def test_an_installed_package_is_found(project: Path):
    """The entry point of the page, as an installer would write it."""
    points = tomllib.loads(next(block.text for block in blocks() if block.language == "toml"))
    (group, names), *_ = points["project"]["entry-points"].items()
    lines = [f"[{group}]", *(f"{name} = {value}" for name, value in names.items())]
    info = project / "bubbles-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bubbles\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("\n".join(lines))
    elsewhere = project / "elsewhere"
    elsewhere.mkdir()
    shown = run(elsewhere, ["foveal list tasks", "foveal list mechanisms"], PYTHONPATH=str(project))
    assert "an image; the radius of the object in it" in shown
    assert "spotlight" in shown
