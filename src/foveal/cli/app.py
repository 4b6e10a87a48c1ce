"""The commands by name. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from foveal import __version__
from foveal.cli import datasets, models, runs, tables
from foveal.cli.terminal import console, show_hints, stop
from foveal.errors import InterruptedRunError, TrainingError, UserError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Attention you can insert, supervise, measure and see. Start with [bold]foveal demo[/bold].",
)


def _version(show: bool) -> None:
    if show:
        console.print(f"foveal {__version__}")
        raise typer.Exit


@app.callback()
def _main(version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False) -> None:
    pass


app.command()(tables.demo)
app.command("list")(tables.list_)
app.command()(runs.train)
app.command("test")(runs.evaluate)
app.command(context_settings={"ignore_unknown_options": True})(runs.predict)  # options of the task's own
app.command()(runs.see)
app.command()(tables.reproduce)
app.command()(tables.compare)
app.command()(models.sites)
app.add_typer(datasets.app, name="data")
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(models.bench)


def main() -> None:
    """Run the command line: a user's mistake is one line and status 2, an interrupted run says how to go on."""
    show_hints()
    try:
        app()
    except InterruptedRunError as error:
        stop(str(error), 130)
    except UserError as error:
        stop(str(error), 2)
    except TrainingError as error:
        stop(str(error), 1)
    except KeyboardInterrupt:
        stop("stopped", 130)
    except BrokenPipeError:
        sys.exit(0)
