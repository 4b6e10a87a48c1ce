"""Rows of ``results/PAPER.csv`` as tables in Markdown."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from expected import AGAIN, COMPARED, TABLES, UNPAIRED

from foveal.metric_info import metric_info
from foveal.recipe.grids import grids

if TYPE_CHECKING:
    from foveal.reproduce import Comparison

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"
PAPERS = ROOT / "docs" / "papers"
MISSING = "not measured yet"

Row = dict[str, str]


@dataclass(frozen=True)
class Table:
    """A table of results: what is measured of it, and what it shall have by its recipes, measured or not.

    Attributes:
        name: ``hattnet/table1``.
        rows: of the results file.
        about: what distinguishes it, in a few words.
        models: titles of its rows, in order.
        datasets: titles of its columns, in order.
        metrics: that papers report.
    """

    name: str
    rows: list[Row]
    about: str = ""
    models: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: str, rows: Iterable[Row], again: bool = True) -> Table:
        """The table ``name`` of some results; ``again`` includes models that are measured a second time."""
        here, grid = [row for row in rows if row["table"] == name], grids().get(name)
        if not again:
            here = [row for row in here if row["recipe"] not in AGAIN]
        if grid is None:
            return cls(name, here)
        cells = [cell for cell in grid.cells() if again or grid.full_name(cell) not in AGAIN]
        models, datasets = zip(*(grid.titles(cell) for cell in cells), strict=True)
        return cls(name, here, grid.about, *map(_once, (models, filter(None, datasets), grid.published)))

    @property
    def title(self) -> str:
        """Name and what distinguishes it."""
        return f"`{self.name}`: {self.about}" if self.about else f"`{self.name}`"

    def measured(self) -> list[str]:
        """Metrics in order, those of parts (``pointing_game/wrong``) left out: see :func:`classes`, :func:`splits`."""
        metrics = dict.fromkeys([*(row["metric"] for row in self.rows), *self.metrics])
        return [metric for metric in metrics if "/" not in metric]

    def all_models(self, rows: list[Row]) -> list[str]:
        """Models of the recipes, then others that ``rows`` have."""
        return list(dict.fromkeys([*self.models, *(row["model"] for row in rows)]))

    def all_datasets(self, rows: list[Row]) -> list[str]:
        """Datasets of the recipes, then others that ``rows`` have."""
        return list(dict.fromkeys([*self.datasets, *(row["dataset"] for row in rows)]))


def results(paper: str, folder: Path = RESULTS) -> str:
    """Tables of ``results/PAPER.csv`` in Markdown, one a table and metric."""
    rows, names = read(folder / f"{paper}.csv"), TABLES[paper]
    if not rows:
        commands = "\n".join(f"    foveal reproduce {table} --seeds 3 --csv results/{paper}.csv" for table in names)
        return f"Not measured yet. These commands make the numbers:\n\n{commands}"
    blocks = [
        "In percent: ours, mean ± standard deviation over training seeds, then the published number in brackets. "
        f"Made from `results/{paper}.csv`."
    ]
    for name in dict.fromkeys([*names, *(row["table"] for row in rows)]):
        table = Table.of(name, rows)
        if not table.rows:
            blocks.append(f"`{name}` ({table.about}): {MISSING}.")
        elif len(datasets := table.all_datasets(table.rows)) == 1:
            blocks.append(side_by_side(f"**{datasets[0]}** ({table.title})", table))
        else:
            blocks += [block(f"**{head(metric)}** ({table.title})", table, metric) for metric in table.measured()]
    return "\n\n".join(blocks)


def classes(table: str, folder: Path = RESULTS, published: Path = PAPERS) -> str:
    """Average precision of every class: the published ones of ``PAPER-DATASET.csv``, then ours of the table."""
    paper, name = table.split("/")
    theirs = read(published / f"{paper}-{name.removesuffix('-lite')}.csv")
    ours = Table.of(table, read(folder / f"{paper}.csv"), again=False)
    values = {(row["metric"], row["model"]): show(row) for row in ours.rows}
    models = [model for model in ours.models if any(row["model"] == model for row in ours.rows)]
    heads = [*theirs[0], *(f"ours, {model}" for model in models)]
    lines = [f"| {' | '.join(heads)} |", "|---|" + "---:|" * (len(heads) - 1)]
    for row in theirs:
        metric = "label_map" if row["class"] == "mean" else f"average_precision/{row['class']}"
        lines.append(f"| {' | '.join([*row.values(), *(values.get((metric, model), '') for model in models)])} |")
    return "\n".join(lines)


def splits(name: str, folder: Path = RESULTS) -> str:
    """Measures of attention where the answer was right and where it was wrong."""
    table = Table.of(name, read(folder / f"{name.split('/')[0]}.csv"))
    values = {(row["model"], row["metric"]): show(row, digits=1) for row in table.rows}
    metrics = _once(metric.removesuffix("/wrong") for _, metric in values if metric.endswith("/wrong"))
    metrics = tuple(metric for metric in _once([*table.measured(), *metrics]) if metric in metrics)
    if not metrics:
        return f"Right and wrong answers: {MISSING}."
    lines = [f"| right / wrong | {' | '.join(map(head, metrics))} |", "|---|" + "---:|" * len(metrics)]
    for model in table.models:
        pairs = [[values.get((model, f"{metric}/{part}"), "–") for part in ("right", "wrong")] for metric in metrics]
        cells = [" / ".join(pair) for pair in pairs]
        lines.append(f"| {model} | {' | '.join(cells)} |")
    return "\n".join(lines)


def comparisons(paper: str, folder: Path = RESULTS) -> str:
    """Differences between cells of ``results/PAPER.csv``; runs of the same seed are pairs unless ``UNPAIRED``."""
    from foveal.reproduce import compare_rows, together

    rows = {(row["metric"], row["recipe"]): row for row in read(folder / f"{paper}.csv")}
    keys = [((metric, one), (metric, other)) for metric, one, other in COMPARED[paper]]
    measured = [(rows[one], rows[other]) for one, other in keys if one in rows and other in rows]
    if not measured:
        return f"{MISSING.capitalize()}."
    tested = [(one, other, compare_rows(one, other, one["table"] not in UNPAIRED)) for one, other in measured]
    pairs = [(one, other, test) for one, other, test in tested if test is not None]
    if not pairs:
        return "Fewer than two seeds in common so far, which say nothing of the spread."
    tests = together([test for *_, test in pairs])
    corrected, unpaired = sum(test.holm is not None for test in tests), any(test.others is not None for test in tests)
    older = [bool(row.get("older")) for one, other, _ in pairs for row in (one, other)]
    sign = "†" if any(older) and not all(older) else ""
    heads = ["metric", "from", "to", "points", "95 % interval", "p", *["p (Holm)"] * bool(corrected), "seeds"]
    lines = [f"| {' | '.join(heads)} |", "|---|---|---|" + "---:|" * (len(heads) - 3)]
    for (one, other, _), test in zip(pairs, tests, strict=True):
        names = [f"`{row['recipe']}`{sign if row.get('older') else ''}" for row in (one, other)]
        lines.append(f"| {' | '.join([_in_a_line(one['metric']), *names, *statements(test, corrected > 0)])} |")
    about = [f"Paired t-tests, by `foveal compare results/{paper}.csv FROM TO --metric METRIC`."]
    about += ["Where two numbers of seeds are given, runs are not pairs: Welch's t-test (`--unpaired`)."] * unpaired
    if corrected:
        about.append(
            f"The last p is corrected for all {corrected} tests of this table (Holm); intervals are of one test."
        )
    about += [f"{sign} Row of older code." if sign else "All rows are of older code."] * any(older)
    return "\n".join([*lines, "", " ".join(about)])


def statements(test: Comparison, corrected: bool) -> list[str]:
    """Points, interval, p, and p corrected if other tests of the table are, and the number of seeds.

    >>> from foveal.reproduce import paired
    >>> statements(paired([0.85, 0.87], [0.86, 0.88]), corrected=False)
    ['+1.00', 'does not vary', '–', '2']
    """
    points = [f"{test.info.scaled(x):+.2f}" for x in (test.difference, *(test.interval or ()))]
    values = [test.p, test.holm] if corrected else [test.p]
    return [
        points[0],
        " to ".join(points[1:]) or "does not vary",
        *("–" if p is None else f"{p:.2g}" for p in values),
        str(test.seeds) if test.others is None else f"{test.seeds} and {test.others}",
    ]


def _in_a_line(metric: str) -> str:
    title = metric_info(metric).title
    return title if title[1:2].isupper() else title[:1].lower() + title[1:]


def read(path: Path) -> list[Row]:
    """Rows of a results file; none if there is no file."""
    if not path.exists():
        return []
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def block(title: str, table: Table, metric: str) -> str:
    """One table of a metric: models down, datasets across; all of the recipes' are there, measured or not.

    Where there is one dataset, the size of each model and the time of a training step stand beside it, of runs that had
    the machine to themselves. Models that ran and yet have no value have nothing of the kind that is measured.
    """
    rows = [row for row in table.rows if row["metric"] == metric]
    if not rows:
        return f"{title}: {MISSING}."
    values = {(row["model"], row["dataset"]): row for row in rows}
    ran = {(row["model"], row["dataset"]) for row in table.rows}
    columns = table.all_datasets(rows)
    costs = len(columns) == 1 and any(row.get("step_seconds") for row in rows)
    timed = any(map(alone, rows))
    signs = older_signs(rows)
    heads = [*columns, *["parameters"] * costs, *["ms a step"] * (costs and timed)]
    lines = [f"| | {' | '.join(heads)} |", "|---|" + "---|" * len(heads)]
    for model in table.all_models(rows):
        keys = [(model, dataset) for dataset in columns]
        cells = ["–" if key not in values and key in ran else cell(values.get(key), signs) for key in keys]
        cells += cost(values.get(keys[0]), timed) if costs else []
        lines.append(f"| {model} | {' | '.join(cells)} |")
    return "\n\n".join([title, "\n".join(lines), conditions(rows)])


def side_by_side(title: str, table: Table) -> str:
    """One table of one dataset: models down, metrics across, then the size of each model and the time of a step."""
    metrics = table.measured()
    rows = [row for row in table.rows if row["metric"] in metrics]
    values = {(row["model"], row["metric"]): row for row in rows}
    costs, timed = any(row.get("step_seconds") for row in rows), any(map(alone, rows))
    signs = older_signs(rows)
    heads = [*map(head, metrics), *["Parameters"] * costs, *["ms a step"] * (costs and timed)]
    lines = [f"| | {' | '.join(heads)} |", "|---|" + "---|" * len(heads)]
    for model in table.all_models(rows):
        ran = [row for row in rows if row["model"] == model]
        measured = [values.get((model, metric)) for metric in metrics]
        cells = ["–" if row is None and ran else cell(row, signs) for row in measured]
        cells += cost(ran[0] if ran else None, timed) if costs else []
        lines.append(f"| {model} | {' | '.join(cells)} |")
    return "\n\n".join([title, "\n".join(lines), conditions(rows)])


def head(metric: str) -> str:
    """Title of a metric, with its unit where that is not percent.

    >>> head("accuracy")
    'Accuracy'
    """
    info = metric_info(metric)
    return info.title if info.unit == "%" else info.heading


def show(row: Row, key: str = "mean", spread: str = "", digits: int = 2) -> str:
    """A value of a results file in the unit of its metric.

    >>> show({"metric": "accuracy", "mean": "0.98123", "std": "0.001"}, spread="std")
    '98.12 ± 0.10'
    >>> show({"metric": "bleu", "mean": "27.31", "unit": ""})
    '27.31'
    """
    info = metric_info(row["metric"])
    if "unit" in row:
        info = replace(info, unit=row["unit"])
    return info.show(float(row[key]), float(row[spread]) if row.get(spread) else None, digits=digits)


def alone(row: Row) -> bool:
    """Whether the time of a step was measured in runs that had the machine to themselves."""
    return bool(row.get("step_seconds")) and row.get("jobs") == "1"


def cost(row: Row | None, timed: bool = True) -> list[str]:
    """Parameters, and if ``timed`` milliseconds of a training step, empty where runs shared the machine or may have.

    >>> cost({"parameters": "269722", "step_seconds": "0.00123", "jobs": "1"})
    ['269,722', '1.23']
    """
    step = f"{1000 * float(row['step_seconds']):.2f}" if row is not None and alone(row) else ""
    return ["" if row is None else f"{int(row['parameters']):,}", *[step] * timed]


def cell(row: Row | None, signs: Mapping[str, str] = MappingProxyType({})) -> str:
    r"""``ours ± spread (published)``; a star marks embedded data, other signs what is of older code.

    >>> cell({"metric": "accuracy", "mean": "0.9812", "std": "0.001", "published": "0.9851", "embedded": "False"})
    '98.12 ± 0.10 (98.51)'
    >>> cell({"metric": "accuracy", "mean": "0.5", "std": "", "published": "", "embedded": "True"})
    '50.00\\*'
    """
    if row is None:
        return MISSING
    ours = show(row, spread="std")
    star = (r"\*" if row["embedded"] == "True" else "") + signs.get(row.get("older", ""), "")
    return f"{ours}{star} ({show(row, 'published')})" if row["published"] else f"{ours}{star}"


def conditions(rows: Collection[Row]) -> str:
    """How the numbers of one table were made."""
    counts = sorted({int(row["seeds"]) for row in rows})
    seeds = f"{counts[0]} seed{'s' * (counts[-1] > 1)}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"
    precision = ", ".join(sorted({row["precision"] for row in rows}))
    hardware = "; ".join(sorted({_machine(row) for row in rows}))
    embedded = any(row["embedded"] == "True" for row in rows)
    stand_in = " \\* on embedded data, not the paper's: do not compare." if embedded else ""
    return f"{seeds.capitalize()}; precision {precision}; {hardware}{code(rows)}.{stand_in}{_older(rows)}"


def code(rows: Iterable[Row]) -> str:
    """By which revisions of foveal rows were made.

    >>> code([{"revision": "until 5bb5d86"}, {"revision": "a2e8be3"}, {"revision": ""}])
    '; revision a2e8be3, 5bb5d86 or earlier'
    """
    revisions = sorted({row["revision"] for row in rows if row.get("revision")})
    return f"; revision {', '.join(map(revision, revisions))}" if revisions else ""


def revision(recorded: str) -> str:
    """A revision as a reader understands it; of rows that do not name theirs, the commit that recorded them is known.

    >>> revision("until 5bb5d86")
    '5bb5d86 or earlier'
    """
    return f"{recorded.removeprefix('until ')} or earlier" if recorded.startswith("until ") else recorded


def older_signs(rows: Collection[Row]) -> dict[str, str]:
    """A sign for each reason why some rows of a table are of older code; none where it is the same for all of them.

    >>> older_signs([{"older": "a"}, {"older": ""}, {"older": "b"}, {"older": "a"}]), older_signs([{"older": "a"}] * 2)
    ({'a': '†', 'b': '‡'}, {})
    """
    reasons = _once(row.get("older") or "" for row in rows)
    return {} if len(reasons) == 1 else dict(zip(filter(None, reasons), _signs(), strict=False))


def _signs() -> Iterator[str]:
    return (sign * times for times in itertools.count(1) for sign in "†‡")


def _older(rows: Collection[Row]) -> str:
    """What the signs mean, or why all rows are of older code."""
    signs = older_signs(rows) or {reason: "" for row in rows if (reason := row.get("older"))}
    return "".join(f" {sign} Older code: {reason}.".replace("  ", " ") for reason, sign in signs.items())


def _machine(row: Row) -> str:
    return f"{row['hardware']}, torch {row['torch']}" if row.get("torch") else row["hardware"]


def _once(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
