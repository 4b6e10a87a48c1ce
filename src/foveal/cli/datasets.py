"""Commands on datasets: where each is expected, whether it is there, and whether its files can be read."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import Progress
from typer.core import TyperGroup

from foveal.cli.terminal import Data, console, say
from foveal.errors import DataError


class _NameOrCommand(TyperGroup):
    """``foveal data NAME`` shows one dataset, ``foveal data check NAME`` reads it."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        if not args or args[0] not in (*self.commands, *ctx.help_option_names):
            args = ["show", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_NameOrCommand,
    help="Where datasets are expected and how to get them: foveal data [NAME]. "
    "Read every file of one before training: foveal data check NAME.",
)


@app.command()
def show(
    name: Annotated[str | None, typer.Argument(help="A dataset; all if left out.")] = None,
    root: Data = None,
) -> None:
    """Where each dataset is expected, whether it is there, and how to get it; "show" may be left out."""
    from foveal.cli.catalogue import listed_datasets
    from foveal.data.place import data_root

    folder = data_root(root)
    say(f"Data folder: {folder}" if folder else "No data folder: set FOVEAL_DATA or --data to where your datasets are.")
    for entry in listed_datasets(name):
        status = entry.status(folder)
        state = "[green]there[/green]" if status.there else "[yellow]missing[/yellow]"
        _print(f"[bold]{escape(entry.name)}[/bold] {state}  {escape(entry.summary)}")
        for path, there in status.files.items():
            _print(f"    {'[green]✓[/green]' if there else '[yellow]–[/yellow]'} {escape(path)}")
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
    from foveal.recipe.loading import override_key

    entry = dataset(name)
    settings: dict[str, Any] = {}
    for option in options or []:
        override_key(settings, option.removeprefix("data."))
    problems = remarks = 0
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        for problem in find_problems(entry, settings, data_root(root), bar.track):
            problems += problem.stops
            remarks += not problem.stops
            say(f"  {problem}" if problem.stops else f"  remark: {problem}")
    if problems:
        raise DataError(f"{name}: {problems} problem(s) found; training would stop at the first of them")
    more = f"; {remarks} remark(s), at which training does not stop" if remarks else ""
    say(f"{name}: every file could be read{more}")


def _print(text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True)
