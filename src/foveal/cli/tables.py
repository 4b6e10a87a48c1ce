"""Commands on whole tables: demo, list, reproduce, compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Column, Table

from foveal.cli.catalogue import LISTS, listed
from foveal.cli.imports import quick_imports
from foveal.cli.terminal import Data, Overrides, columns, console, listing, say, say_written
from foveal.errors import TrainingError, UserError, unknown

if TYPE_CHECKING:
    from foveal.reproduce import Cell, Comparison, Failure
    from foveal.runs import Group


def demo(
    table: Annotated[str, typer.Argument(help="Any table whose data is embedded; see foveal list tables.")] = (
        "demo/refer"
    ),
    out: Annotated[Path, typer.Option(help="Folder for the runs and the report.")] = Path("runs"),
    jobs: Annotated[int, typer.Option(help="Models trained side by side.")] = 2,
) -> None:
    """Train the models of a table on embedded data, and write a report that shows where they look."""
    from foveal.reproduce import cells, find_table, run_all

    say(f"{table}: {find_table(table).about}")
    with quick_imports():
        todo = cells(table, 1, out)
    from foveal.see import report

    _fail(run_all(todo, jobs=jobs, say=say))
    _show_metrics(todo)
    say_written("Open it in a browser", report(todo[0].out.parents[1]))


def _show_metrics(cells: Sequence[Cell]) -> None:
    """A column per model: its metrics, size and time."""
    from foveal.metric_info import metric_info
    from foveal.runs import RunFolder

    results = [RunFolder(cell.out).result() for cell in cells]
    stored = {key: info for result in results for key, info in result["infos"].items()}
    infos = [info for key in stored if (info := metric_info(key, stored[key])).better][:4]
    table = Table("", *(Column(result["title"], justify="right", overflow="fold") for result in results))
    for info in infos:
        values = [result["metrics"].get(info.key) for result in results]
        table.add_row(info.heading, *("–" if value is None else info.show(value) for value in values))
    table.add_row("parameters", *(f"{result['parameters']:,}" for result in results))
    table.add_row("seconds", *(f"{result['seconds']:.0f}" for result in results))
    console.print(table)


def list_(
    what: Annotated[str | None, typer.Argument(help=f"{', '.join(LISTS)}; all if left out.")] = None,
) -> None:
    """List recipes, tables, models, datasets and everything else with a name."""
    if what is not None and what not in LISTS:
        raise unknown("list", what, LISTS)
    for name in LISTS if what is None else [what]:
        listing(name, listed(name))


def reproduce(
    table: Annotated[str, typer.Argument(help="A paper's table, e.g. hattnet/table1; see foveal list tables.")],
    overrides: Overrides = None,
    seeds: Annotated[int, typer.Option(help="Number of seeds per cell.")] = 1,
    first_seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
    only: Annotated[list[str] | None, typer.Option(help="Only cells of this name or pattern; repeatable.")] = None,
    jobs: Annotated[int, typer.Option(help="Runs side by side.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder for all runs; a finished cell is not run again.")] = Path("runs"),
    csv: Annotated[Path | None, typer.Option(help="Add the rows to this file.")] = None,
    missing: Annotated[bool, typer.Option("--missing", help="Skip seeds that the CSV file has.")] = False,
    minutes: Annotated[float | None, typer.Option(help="Stop after this time; the same command resumes.")] = None,
    finished: Annotated[bool, typer.Option("--finished", help="Run nothing; show what is finished.")] = False,
    data: Data = None,
) -> None:
    """Run every cell of a paper's table and print our numbers beside the published ones."""
    from foveal.reproduce import cells, read_csv, recorded, run_all, runs_of, shown, summarise, write_csv

    if missing and csv is None:
        raise UserError("--missing leaves out the seeds that a file has: name it with --csv")
    earlier = [] if csv is None or not csv.exists() else read_csv(csv)  # before anything is trained
    with quick_imports():
        todo = cells(table, seeds, out, overrides or [], first_seed, only or [])
    from foveal.files import check_writable
    from foveal.see import report

    known = recorded(todo, earlier) if missing else []
    asked = list(dict.fromkeys(cell.recipe.name for cell in todo))
    count, todo = len(todo), [cell for cell in todo if cell not in known]
    done = sum(cell.done for cell in todo)
    say(f"{table}: {count} runs, {done} finished before" + (f", {len(known)} in {csv}" if known else ""))
    if finished:
        todo = [cell for cell in todo if cell.done]
        if not todo and not known:
            raise UserError(f"no run of {table} with these seeds is finished in {out}")

    def record() -> list[Any]:
        rows = summarise(todo)
        return rows if csv is None else write_csv(csv, rows, anywhere=missing)

    if csv is not None:
        check_writable(csv)
    summarise(todo)  # a result that cannot be read is found before anything is trained
    failures = run_all(
        todo, data=None if data is None else str(data), jobs=jobs, minutes=minutes, say=say, after=record
    )
    rows = record()
    if csv is not None and csv.exists():
        written = read_csv(csv)
        ours = {cell.recipe.name for cell in (*known, *(cell for cell in todo if cell.done))}
        titles = {row["metric"]: row["title"] for row in rows if "title" in row}
        rows = shown(written, [name for name in asked if name in ours], titles)
        if gone := runs_of(row for row in earlier if row["recipe"] in asked) - runs_of(written):
            say(f"{csv} no longer has {len(gone)} run(s) of other settings or of another machine")
    if rows:
        _show_rows(table, rows)
        if csv is not None:
            say_written("Rows", csv)
    if any(cell.done for cell in todo):
        say_written("Report", report(todo[0].out.parents[1]))
    waiting = sum(not cell.done for cell in todo) - len(failures)
    if waiting:
        say(f"stopped after {minutes:g} minutes: {waiting} of {count} runs are not finished; the same command resumes")
    _fail(failures)


def _show_rows(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Ours beside the published number, and how the rows differ."""
    from foveal.metric_info import MetricInfo
    from foveal.reproduce import against_first, spread

    other = "embedded data, not the paper's" if any(row["embedded"] for row in rows) else None
    shown = Table("dataset", "model", "metric", "published", "ours", "seeds", title=title, caption=other)
    for row in rows:
        if "/" in row["metric"]:  # of one class, or of right or wrong answers alone
            continue
        info = MetricInfo(row["metric"], row["title"], row["unit"])
        published = "" if row["published"] == "" else info.show(row["published"], digits=2)
        shown.add_row(row["dataset"], row["model"], info.heading, published, spread(row), str(row["seeds"]))
    console.print(shown)
    _show_comparisons(against_first(rows))


def compare(
    what: Annotated[
        list[str],
        typer.Argument(help="Run folders or folders of runs; or a CSV of foveal reproduce and two recipes in it."),
    ],
    metric: Annotated[str | None, typer.Option(help="What to compare; the first metric if left out.")] = None,
    unpaired: Annotated[bool, typer.Option("--unpaired", help="Runs of the same seed are not pairs.")] = False,
) -> None:
    """Which recipe is better? Runs of the same seed in pairs."""
    from foveal.reproduce import compare as compared
    from foveal.reproduce import compare_runs, together

    if not Path(what[0]).is_dir() and (Path(what[0]).is_file() or what[0].endswith(".csv")):
        if len(what) < 3:
            raise UserError(f"after {what[0]} give two recipes in it or more: foveal compare {what[0]} FIRST SECOND")
        file, first, *others = what
        tests = together([compared(Path(file), first, other, metric, not unpaired) for other in others])
        _show_comparisons([(first, other, test) for other, test in zip(others, tests, strict=True)])
        return
    pairs = []
    for dataset, groups in compare_runs([Path(folder) for folder in what]).items():
        pairs += _show_groups(dataset, groups, metric, not unpaired)
    tests = together([test for *_, test in pairs])
    _show_comparisons([(first, other, test) for (first, other, _), test in zip(pairs, tests, strict=True)])


def _show_groups(
    dataset: str, groups: Sequence[Group], metric: str | None, pairs: bool
) -> list[tuple[str, str, Comparison]]:
    """A row a recipe; returns how each differs from the first."""
    from foveal.reproduce import compare_groups
    from foveal.runs.groups import spread_over_seeds

    keys = list(dict.fromkeys(key for group in groups for key in group.metrics))
    if metric is not None and metric not in keys:
        raise unknown("metric", metric, keys)
    infos = [next(group for group in groups if key in group.metrics).info(key) for key in keys]
    shown = [info for info in infos if info.better and metric in (None, info.key)]
    rows = [("model", *(info.heading for info in shown), "runs")]
    rows += [(group.name, *(spread_over_seeds(group, i) for i in shown), str(len(group.finished))) for group in groups]
    say(dataset)
    columns(rows, numbers=len(shown) + 1)
    first, *others = groups
    tests = [(other, compare_groups(first, other, shown[0].key, pairs)) for other in others] if shown else []
    return [(first.name, other.name, test) for other, test in tests if test is not None]


def _show_comparisons(comparisons: Sequence[tuple[str, str, Comparison]]) -> None:
    corrected = sum(test.holm is not None for *_, test in comparisons)
    for first, second, test in comparisons:
        info = test.info
        unit = "points" if info.unit == "%" else info.unit
        result = "the differences do not vary, so no interval and no p"
        if test.interval is not None:
            low, high = (f"{info.scaled(x):+.2f}" for x in test.interval)
            result = f"95% interval {low} to {high}, p = {test.p:.2g}"
            result += "" if test.holm is None else f", {test.holm:.2g} by Holm for all {corrected} tests"
        kind = f"paired t-test, {test.seeds} seeds"
        if test.others is not None:
            kind = f"not paired: Welch's t-test, {test.seeds} and {test.others} runs"
        older = f"; of older code: {', '.join(test.older)}" if test.older else ""
        say(f"{second} − {first}: {info.key} {info.scaled(test.difference):+.2f} {unit}, {result} ({kind}{older})")


def _fail(failures: Sequence[Failure]) -> None:
    if failures:
        kind = UserError if all(isinstance(failure.error, UserError) for failure in failures) else TrainingError
        raise kind(f"{len(failures)} run(s) failed; the first: {failures[0]}. The same command resumes with the rest")
