"""The command line in this process, and finished runs to give to it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from tiny import DIGITS, tiny_recipe

from foveal import cli
from foveal.cli.terminal import console
from foveal.tasks import fit


class Ended(NamedTuple):
    """Exit status of a command, what it printed, and what it printed as errors and hints."""

    status: int
    out: str
    err: str


@pytest.fixture
def call(monkeypatch, capsys):
    """Run a command in this process."""
    monkeypatch.setattr(console, "width", 160)

    def call(*words: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["foveal", *map(str, words)])
        try:
            cli.main()
            status = 0
        except SystemExit as stop:
            status = stop.code or 0
        return Ended(status, *capsys.readouterr())

    return call


@pytest.fixture(scope="session")
def run(tmp_path_factory) -> Path:
    """A finished run of task refer."""
    folder = tmp_path_factory.mktemp("refer")
    fit(tiny_recipe(folder, "train.epochs=1"), folder / "run", progress=False)
    return folder / "run"


@pytest.fixture(scope="session")
def classifiers(tmp_path_factory) -> Path:
    """Two classifiers, of which only the first has attention over positions."""
    folder = tmp_path_factory.mktemp("classifiers")
    small = ("train.epochs=1", "train.batch=200", "model.depth=8")
    for name in ("aw_cbam", "aw_se"):
        recipe = tiny_recipe(folder, *small, f"model.name={name}_cifar_resnet20", text=DIGITS)
        fit(recipe, folder / "runs" / name, progress=False)
    return folder / "runs"
