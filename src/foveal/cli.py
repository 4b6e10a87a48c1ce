"""The command line: a thin layer over the library. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from foveal import __version__
from foveal.errors import InterruptedRunError, TrainingError, UserError, unknown

if TYPE_CHECKING:
    from foveal.tasks.reproduce import Failure

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Attention you can insert, supervise, measure and see. Start with [bold]foveal demo[/bold].",
)
console = Console()

Data = Annotated[Path | None, typer.Option("--data", help="Folder of real datasets, instead of FOVEAL_DATA.")]
Overrides = Annotated[list[str] | None, typer.Argument(help="key=value changes to the recipe, e.g. train.epochs=3.")]


def _version(show: bool) -> None:
    if show:
        console.print(f"foveal {__version__}")
        raise typer.Exit


@app.callback()
def _main(version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False) -> None:
    pass


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the five runs and the report.")] = Path("runs/demo"),
    jobs: Annotated[int, typer.Option(help="Models trained side by side.")] = 2,
) -> None:
    """Train five attention models to find the asked-for digit, and look at where they look."""
    from foveal.recipe import available, load
    from foveal.see import report
    from foveal.tasks.reproduce import named_cells, run_all

    _say("Five models are asked the colour of one digit among several. Data: scikit-learn's digits, no download.")
    names = [name for name in available() if name.startswith("demo/") and load(name).task == "refer"]
    cells = named_cells(names, 1, out)
    _fail(run_all(cells, jobs=jobs, say=_say))
    from foveal.tasks.run import read_result

    table = Table("model", "accuracy", "attention on the digit", "parameters", "seconds")
    for cell in sorted(cells, key=lambda c: read_result(c.out)["metrics"]["accuracy"]):
        r = read_result(cell.out)
        m = r["metrics"]
        table.add_row(
            r["title"],
            f"{m['accuracy']:.1%}",
            f"{m['true_positive_strength']:.1%}",
            f"{r['parameters']:,}",
            f"{r['seconds']:.0f}",
        )
    console.print(table)
    _say_written("Open it in a browser", report(out))


@app.command("list")
def list_(
    what: Annotated[
        str | None, typer.Argument(help="recipes, tables, models, data or mechanisms; all if left out.")
    ] = None,
) -> None:
    """List what there is."""
    from foveal.recipe import available

    kinds = ("recipes", "tables", "models", "data", "mechanisms")
    if what is not None and what not in kinds:
        raise unknown("list", what, kinds)
    if what in (None, "recipes"):
        _listing("recipes", dict.fromkeys(available(), ""))
    if what in (None, "tables"):
        from foveal.tasks.reproduce import tables

        _listing("tables", {name: f"{len(cells)} cells" for name, cells in tables().items()})
    if what in (None, "models"):
        from foveal.models import list_models
        from foveal.models.registry import summary

        _listing("models", {name: summary(name) for name in list_models()})
    if what in (None, "data"):
        from foveal.data import datasets

        _listing("data", {name: entry.summary for name, entry in datasets().items()})
    if what in (None, "mechanisms"):
        from foveal.attention import mechanisms

        _listing("mechanisms", mechanisms())


def _listing(title: str, rows: dict[str, str]) -> None:
    console.print(f"[bold]{title}[/bold]")
    width = max(map(len, rows), default=0)
    for name, said in rows.items():
        _say(f"  {name:{width}}  {said}".rstrip())


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="A recipe's name, a YAML file, or a run folder to resume.")],
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; runs/RECIPE/seedN if left out.")] = None,
    data: Data = None,
) -> None:
    """Train a recipe, or resume a run."""
    from foveal.recipe import load

    if (Path(recipe) / "recipe.yaml").exists():
        if overrides or out:
            raise UserError(f"{recipe} is a run: it is resumed as it was started, without overrides and --out")
        out, plan = Path(recipe), load(Path(recipe) / "recipe.yaml")
    else:
        plan = load(recipe, overrides or [])
        out = out or Path("runs") / plan.name.removesuffix(".yaml").lstrip("./") / f"seed{plan.seed}"
    finished = (out / "result.json").exists()
    from foveal.tasks.run import fit

    result = fit(plan, out, data=data)
    if finished:
        _say(f"{out} is finished already; its result:")
    if _leader():
        _show_result(result)
        _show_place(out)


@app.command("test")
def evaluate(run: Annotated[Path, typer.Argument(help="A finished run folder.")], data: Data = None) -> None:
    """Test a finished run again."""
    from foveal.tasks import run as runs

    runs.evaluate(run, data=data, tell=_show_result if _leader() else None)
    if _leader():
        _show_place(run)


@app.command(context_settings={"ignore_unknown_options": True})  # -1 is a query, if a wrong one
def predict(
    run: Annotated[Path, typer.Argument(help="A finished run folder.")],
    image: Annotated[str, typer.Argument(help="An image file; for a run on texts a text or a text file.")],
    query: Annotated[
        str | None, typer.Argument(help="What to look for, e.g. a digit; a classifier takes none.")
    ] = None,
    beside: Annotated[
        Path | None, typer.Option(help="Another run with the same classes, asked the same and drawn beside.")
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option(help="The true class, which is framed; again for each of several.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Where the picture goes; IMAGE-QUERY.png, IMAGE-seen.png or text-seen.png if left out."),
    ] = None,
) -> None:
    """Ask a model about one image or text; prints the answer and draws where it looked."""
    from foveal.tasks.predict import predict as ask
    from foveal.tasks.predict import text_file

    found = ask(run, image, query, beside=beside, label=label or [])
    for title, answers in found.models.items():
        if beside is not None:
            _say(title)
        for answer, probability in answers[:5]:
            true = "  true" if answer in (label or []) else ""
            _say(f"{answer:12} {probability:6.1%} {'█' * round(30 * probability)}{true}")
    if found.remark:
        _say(found.remark)
    if found.picture is None:
        _say("No picture: this model has no attention over positions.")
        return
    file = text_file(image)
    out = out or Path(f"{'text' if file is None else file.stem}-{query or 'seen'}.png")
    try:
        found.picture.save(out)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot write {out}: {error}; choose another --out ending in .png") from error
    _say_written("Where it looked", out)


@app.command()
def see(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders of runs.")],
    out: Annotated[Path | None, typer.Option(help="The report; report.html in the folder if left out.")] = None,
) -> None:
    """Write report.html: tables, attention maps and curves of one run or many, in one file."""
    from foveal.see import report

    _say_written("Open it in a browser", report(runs[0] if len(runs) == 1 else runs, out))


@app.command()
def reproduce(
    table: Annotated[str, typer.Argument(help="A paper's table, e.g. hattnet/table1; see foveal list tables.")],
    overrides: Overrides = None,
    seeds: Annotated[int, typer.Option(help="Runs of every cell.")] = 1,
    first_seed: Annotated[int, typer.Option(help="Seed of the first of them.")] = 0,
    jobs: Annotated[int, typer.Option(help="Runs side by side.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder for all runs; a finished cell is not run again.")] = Path("runs"),
    csv: Annotated[Path | None, typer.Option(help="Also write the rows to this file.")] = None,
    finished: Annotated[bool, typer.Option("--finished", help="Run nothing; show what is finished.")] = False,
    data: Data = None,
) -> None:
    """Run every cell of a paper's table and put ours beside the published number."""
    from foveal.see import report
    from foveal.tasks.reproduce import cells, run_all, spread, summarise, write_csv

    todo = cells(table, seeds, out, overrides or [], first_seed)
    done = sum(cell.done for cell in todo)
    _say(f"{table}: {len(todo)} runs, {done} finished before")
    if finished:
        todo = [cell for cell in todo if cell.done]
        if not todo:
            raise UserError(f"no run of {table} with these seeds is finished in {out}")
    failures = run_all(todo, data=None if data is None else str(data), jobs=jobs, say=_say)
    rows = summarise(todo)
    other = "embedded data, not the paper's" if any(row["embedded"] for row in rows) else None
    shown = Table("dataset", "model", "metric", "published", "ours", "seeds", title=table, caption=other)
    for row in rows:
        if "/" in row["metric"]:  # of one class, or of right or wrong answers alone
            continue
        said = f"{100 * row['published']:.2f}" if row["published"] != "" else ""
        metric = row["metric"].replace("_", " ")  # so that a narrow terminal breaks it and does not cut it
        shown.add_row(row["dataset"], row["model"], metric, said, spread(row), str(row["seeds"]))
    if rows:
        console.print(shown)
    if csv is not None and rows:
        write_csv(csv, rows)
        _say_written("Rows", csv)
    if rows:
        _say_written("Report", report(out / table))
    _fail(failures)


@app.command()
def compare(
    csv: Annotated[Path, typer.Argument(help="A file that foveal reproduce --csv wrote.")],
    first: Annotated[str, typer.Argument(help="A recipe in it.")],
    second: Annotated[str, typer.Argument(help="Another one.")],
    metric: Annotated[str, typer.Option(help="What to compare.")] = "accuracy",
) -> None:
    """Is the second recipe better than the first? Runs of the same seed in pairs."""
    from foveal.tasks.compare import compare as compared

    found = compared(csv, first, second, metric)
    _say(
        f"{second} − {first}: {metric} {100 * found.difference:+.2f} points, 95% interval {100 * found.low:+.2f} to "
        f"{100 * found.high:+.2f}, p = {found.p:.2g} (paired t-test, {found.seeds} seeds)"
    )


@app.command()
def sites(
    model: Annotated[str, typer.Argument(help="A timm or torchvision model, or one of foveal's.")],
    mechanism: Annotated[str, typer.Option(help="What would be inserted; see foveal list mechanisms.")] = "aw",
    at: Annotated[str | None, typer.Option(help="A glob on layer names; the usual places if left out.")] = None,
) -> None:
    """Dry run: where attention would go in a model, and what it would cost."""
    from foveal.attention import sites as find_sites
    from foveal.models.registry import any_model

    rows = find_sites(any_model(model), mechanism, at)
    table = Table("site", "layer", "shape", "extra parameters", "extra MFLOPs", title=f"{mechanism} in {model}")
    for row in rows:
        shape = "?" if row.shape is None else "×".join(map(str, row.shape))
        flops = "?" if row.flops is None else f"{row.flops / 1e6:.3f}"
        table.add_row(row.name, row.layer, shape, f"{row.parameters:,}", flops)
    table.add_section()
    total = "?" if any(r.flops is None for r in rows) else f"{sum(r.flops or 0 for r in rows) / 1e6:.3f}"
    table.add_row(f"{len(rows)} sites", "", "", f"{sum(r.parameters for r in rows):,}", total)
    console.print(table)


@app.command()
def data(
    name: Annotated[str | None, typer.Argument(help="A dataset; all if left out.")] = None,
    root: Annotated[
        Path | None, typer.Option("--data", help="Folder of real datasets, instead of FOVEAL_DATA.")
    ] = None,
) -> None:
    """Where each dataset is expected, whether it is there, and how to get it."""
    from foveal.data import data_root, dataset, datasets

    folder = data_root(root)
    _say(
        f"Data folder: {folder}" if folder else "No data folder: set FOVEAL_DATA or --data to where your datasets are."
    )
    for entry in [dataset(name)] if name else datasets().values():
        missing = entry.missing(folder)
        state = "[green]there[/green]" if not missing else "[yellow]missing[/yellow]"
        console.print(f"[bold]{entry.name}[/bold] {state}  {entry.summary}", highlight=False)
        for path in entry.expected:
            console.print(
                f"    {'[yellow]–[/yellow]' if path in missing else '[green]✓[/green]'} {path}", highlight=False
            )
        if missing:
            _say(f"    {entry.how}")


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def bench(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="A benchmark; lists them if left out.")] = None,
) -> None:
    """Speed and memory, side by side with what you would otherwise run.

    Options after the name are the benchmark's own: foveal bench NAME -- --help lists them.
    """
    import runpy

    here = Path(__file__).resolve().parent
    folder = next((f for f in (here.parents[1] / "benchmarks", here / "benchmarks") if f.is_dir()), None)
    known = {p.stem: p for p in sorted(folder.glob("*.py"))} if folder else {}
    if name is None:
        _listing("benchmarks", dict.fromkeys(known, ""))
        return
    if name not in known:
        raise unknown("benchmark", name, known)
    sys.argv = [str(known[name]), *context.args]
    runpy.run_path(str(known[name]), run_name="__main__")


def _leader() -> bool:
    """Whether this process speaks for all that train together."""
    return int(os.environ.get("LOCAL_RANK", "0")) == 0


def _show_result(result: dict[str, Any]) -> None:
    _say(f"{result['title']} on {result['dataset']}: {result['data']}")
    published = result.get("published") or {}
    for name, value in result["metrics"].items():
        if value is not None:
            caveat = ", on other data" if result["embedded"] else ""
            beside = f"   (published {published[name]:.2%}{caveat})" if name in published else ""
            split = result.get("class_attention", {}).get(name, {})
            parts = [f"{part} {split[part]:.2%}" for part in ("right", "wrong") if split.get(part) is not None]
            _say(f"  {name:28} {value:8.2%}{beside}" + f"   ({', '.join(parts)})" * bool(parts))
    if result.get("step_seconds"):
        from foveal.see.table import step_time

        _say(f"  {result['parameters']:,} parameters, {step_time(result['step_seconds'])}")


def _show_place(out: Path) -> None:
    _say(f"Everything is in {out}; `foveal see {shlex.quote(str(out))}` makes a page of it.")


def _say(text: str) -> None:
    """Print a line as it is: brackets in it are no markup, and it is not wrapped."""
    console.print(text, highlight=False, soft_wrap=True, markup=False)


def _say_written(what: str, path: Path) -> None:
    _say(f"{what}: {path.resolve()}")


def _fail(failures: Sequence[Failure]) -> None:
    if failures:
        kind = UserError if all(isinstance(failure.error, UserError) for failure in failures) else TrainingError
        raise kind(f"{len(failures)} run(s) failed; the first: {failures[0]}. The same command goes on with the rest")


def _stop(message: str, status: int) -> NoReturn:
    errors = Console(stderr=True)
    errors.print("foveal:", style="bold red", end=" ")
    errors.print(" ".join(message.split()), highlight=False, soft_wrap=True, markup=False)
    sys.exit(status)


def main() -> None:
    """Run the command line: a user's mistake is one line and status 2, an interrupted run says how to go on."""
    try:
        app()
    except InterruptedRunError as error:
        _stop(str(error), 130)
    except UserError as error:
        _stop(str(error), 2)
    except TrainingError as error:
        _stop(str(error), 1)
    except KeyboardInterrupt:
        _stop("stopped", 130)
    except BrokenPipeError:
        sys.exit(0)
