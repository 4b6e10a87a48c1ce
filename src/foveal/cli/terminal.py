"""What the commands share: printing, and turning errors into one line and a status."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from foveal.errors import DamagedRunWarning, RenamedWarning

console = Console()

Data = Annotated[Path | None, typer.Option("--data", help="Folder of real datasets, instead of FOVEAL_DATA.")]
Overrides = Annotated[list[str] | None, typer.Argument(help="key=value changes to the recipe, e.g. train.epochs=3.")]


def say(text: str) -> None:
    """Print a line as it is: brackets in it are no markup, and it is not wrapped."""
    console.print(text, highlight=False, soft_wrap=True, markup=False)


def say_written(what: str, path: Path) -> None:
    """Print where a file is."""
    say(f"{what}: {path.resolve()}")


def listing(title: str, rows: dict[str, str]) -> None:
    """Print names with a line on each."""
    console.print(f"[bold]{title}[/bold]")
    width = max(map(len, rows), default=0)
    for name, summary in rows.items():
        say(f"  {name:{width}}  {summary}".rstrip())


def columns(rows: Sequence[Sequence[str]], numbers: int = 0) -> None:
    """Print rows in columns, the last ``numbers`` of them aligned right; nothing is cut in a narrow terminal."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        last = len(row) - numbers
        cells = [
            f"{cell:>{w}}" if i >= last else f"{cell:<{w}}" for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        say("  ".join(cells).rstrip())


def stop(message: str, status: int) -> NoReturn:
    """Print an error in one line and leave."""
    _errors("foveal:", "bold red", message)
    sys.exit(status)


def show_hints() -> None:
    """Print what foveal warns of as one line; warnings of other packages as Python does."""
    usual, package = warnings.showwarning, str(Path(__file__).parents[1])
    heads = {RenamedWarning: "hint:", DamagedRunWarning: "left out:", UserWarning: "note:"}

    def show(message: Warning | str, category: type[Warning], filename: str, *place: Any, **options: Any) -> None:
        if category in heads and (category is not UserWarning or filename.startswith(package)):
            _errors(heads[category], "yellow", str(message))
        else:
            usual(message, category, filename, *place, **options)

    warnings.showwarning = show


def _errors(head: str, style: str, message: str) -> None:
    errors = Console(stderr=True)
    errors.print(head, style=style, end=" ")
    errors.print(" ".join(message.split()), highlight=False, soft_wrap=True, markup=False)
