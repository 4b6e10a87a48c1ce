"""CONTRIBUTING.md shows the tree as it is: its examples are lines of real files, its rooms are the contract."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r"^```(?:py|yaml)\n# (\S+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("file", EXAMPLES)
def test_an_example_is_a_shortened_file(file: str):
    lines = iter((ROOT / file).read_text(encoding="utf-8").splitlines())
    for line in filter(None, EXAMPLES[file].splitlines()):
        assert line in lines, f"{file} has no line {line!r} here"  # consumes them, so that their order counts


def test_there_is_an_example_of_each():
    assert len(EXAMPLES) == TEXT.count("\n# src/") == 8


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`((?:src|tests|docs|results|benchmarks)/[^`\s]+)`", TEXT))))
def test_files_that_are_named_exist(path: str):
    pattern = path.replace("PAPER", "*").replace("NAME", "*")
    assert list(ROOT.glob(pattern)), path


def test_rooms_are_those_of_the_contract():
    with open(ROOT / "pyproject.toml", "rb") as file:
        layers = tomllib.load(file)["tool"]["importlinter"]["contracts"][0]["layers"]
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", TEXT, re.MULTILINE)
    assert [re.findall(r"`(\w+)`", row) for row in rows] == [
        [name.strip().removeprefix("foveal.") for name in layer.split("|")] for layer in layers
    ]
    known = {path.stem for path in (ROOT / "src/foveal").iterdir() if path.stem not in ("recipes", "benchmarks", "zoo")}
    assert known - {"__init__", "__main__", "__pycache__", "py"} == {
        name for row in rows for name in re.findall(r"\w+", row)
    }
