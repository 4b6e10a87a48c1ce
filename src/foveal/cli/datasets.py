"""Commands on datasets: where each is expected, whether it is there, and whether its files are whole."""

from __future__ import annotations

from typing import Annotated

import typer
from typer.core import TyperGroup

from foveal.cli.terminal import Data, console, say
from foveal.errors import DataError


class _NameOrCommand(TyperGroup):
    """``foveal data NAME`` shows one dataset, ``foveal data check NAME`` reads it."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        positional = [arg for arg in args if not arg.startswith("-")]
        if not positional or positional[0] not in self.commands:
            args = ["show", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(cls=_NameOrCommand, help="Where each dataset is expected, whether it is there, and how to get it.")


@app.command(hidden=True)
def show(
    name: Annotated[str | None, typer.Argument(help="A dataset; all if left out.")] = None,
    root: Data = None,
) -> None:
    """Where each dataset is expected, whether it is there, and how to get it."""
    from foveal.data import data_root, dataset, datasets

    folder = data_root(root)
    say(f"Data folder: {folder}" if folder else "No data folder: set FOVEAL_DATA or --data to where your datasets are.")
    for entry in [dataset(name)] if name else datasets().values():
        status = entry.status(folder)
        state = "[green]there[/green]" if status.there else "[yellow]missing[/yellow]"
        console.print(f"[bold]{entry.name}[/bold] {state}  {entry.summary}", highlight=False)
        for path, there in status.files.items():
            mark = "[green]✓[/green]" if there else "[yellow]–[/yellow]"
            console.print(f"    {mark} {path}", highlight=False)
        if not status.there:
            say(f"    {status.how}")


@app.command()
def check(
    name: Annotated[str, typer.Argument(help="A dataset; see foveal list data.")],
    options: Annotated[
        list[str] | None, typer.Argument(help="key=value options of the dataset, e.g. folder=birds.")
    ] = None,
    root: Data = None,
) -> None:
    """Read every file of a dataset, as training would, and list all that is wrong."""
    from foveal.data import data_root, dataset
    from foveal.data.check import check as find_problems
    from foveal.recipe.files import parse_yaml

    entry = dataset(name)
    pairs = [option.removeprefix("data.").partition("=") for option in options or []]
    settings = {key: parse_yaml(value) for key, _, value in pairs}
    problems = 0
    for problem in find_problems(entry, settings, data_root(root)):
        problems += 1
        say(f"  {problem}")
    if problems:
        raise DataError(f"{name}: {problems} problem(s) found; training would stop at the first of them")
    say(f"{name}: every file could be read")
