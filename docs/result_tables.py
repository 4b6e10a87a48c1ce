"""Rows of ``results/PAPER.csv`` as tables in Markdown."""

from __future__ import annotations

import csv
from collections.abc import Collection
from pathlib import Path

from expected import COMPARED, METRICS, TABLES, Expected

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"
PAPERS = ROOT / "docs" / "papers"
MISSING = "not measured yet"

Row = dict[str, str]


def results(paper: str, folder: Path = RESULTS) -> str:
    """Tables of ``results/PAPER.csv`` in Markdown, one a table and metric."""
    rows, about = read(folder / f"{paper}.csv"), TABLES[paper]
    if not rows:
        commands = "\n".join(f"    foveal reproduce {table} --seeds 3 --csv results/{paper}.csv" for table in about)
        return f"Not measured yet. These commands make the numbers:\n\n{commands}"
    blocks = [
        "In percent: ours, mean ± standard deviation over training seeds, then the published number in brackets. "
        f"Made from `results/{paper}.csv`."
    ]
    for table in dict.fromkeys([*about, *(row["table"] for row in rows)]):
        here, expected = [row for row in rows if row["table"] == table], about.get(table)
        said = f"`{table}`: {expected.about}" if expected else f"`{table}`"
        known = [row["metric"] for row in here if "/" not in row["metric"]]  # parts: see classes() and splits()
        metrics = dict.fromkeys([*(expected.metrics if expected else ()), *known])
        if here and len({row["dataset"] for row in here} | set(expected.datasets if expected else ())) == 1:
            blocks.append(side_by_side(f"**{here[0]['dataset']}** ({said})", here, metrics, expected))
            continue
        for metric in metrics:
            title = f"**{METRICS.get(metric, metric.replace('_', ' ').capitalize())}** ({said})"
            ran = {(row["model"], row["dataset"]) for row in here}
            blocks.append(block(title, [row for row in here if row["metric"] == metric], expected, ran))
    return "\n\n".join(blocks)


def classes(table: str, folder: Path = RESULTS, published: Path = PAPERS) -> str:
    """Average precision of every class: the published ones of ``PAPER-DATASET.csv``, then ours of the table."""
    paper, name = table.split("/")
    theirs = read(published / f"{paper}-{name.removesuffix('-lite')}.csv")
    rows = [row for row in read(folder / f"{paper}.csv") if row["table"] == table]
    ours = {(row["metric"].removeprefix("average_precision/"), row["model"]): _percent(row["mean"]) for row in rows}
    models = [model for model in TABLES[paper][table].once if any(model == known for _, known in ours)]
    heads = [*theirs[0], *(f"ours, {model}" for model in models)]
    lines = [f"| {' | '.join(heads)} |", "|---|" + "---:|" * (len(heads) - 1)]
    for row in theirs:
        metric = "mean_average_precision" if row["class"] == "mean" else row["class"]
        lines.append(f"| {' | '.join([*row.values(), *(ours.get((metric, model), '') for model in models)])} |")
    return "\n".join(lines)


def splits(table: str, folder: Path = RESULTS) -> str:
    """Measures of attention where the answer was right and where it was wrong."""
    paper = table.split("/")[0]
    found = {
        (row["model"], row["metric"]): row["mean"] for row in read(folder / f"{paper}.csv") if row["table"] == table
    }
    parted = dict.fromkeys(metric.removesuffix("/wrong") for _, metric in found if metric.endswith("/wrong"))
    if not parted:
        return f"Right and wrong answers: {MISSING}."
    metrics = [metric for metric in METRICS if metric in parted]
    lines = [
        f"| right / wrong | {' | '.join(METRICS[metric] for metric in metrics)} |",
        "|---|" + "---:|" * len(metrics),
    ]
    for model in TABLES[paper][table].models:
        pairs = [[found.get((model, f"{metric}/{part}")) for part in ("right", "wrong")] for metric in metrics]
        cells = [" / ".join("–" if mean is None else f"{100 * float(mean):.1f}" for mean in pair) for pair in pairs]
        lines.append(f"| {model} | {' | '.join(cells)} |")
    return "\n".join(lines)


def comparisons(paper: str, folder: Path = RESULTS) -> str:
    """Differences between recipes of ``results/PAPER.csv``, runs of the same seed in pairs."""
    from foveal.tasks.compare import compare

    path = folder / f"{paper}.csv"
    measured = {(row["metric"], row["recipe"]) for row in read(path)}
    lines = ["| metric | from | to | points | 95 % interval | p | seeds |", "|---|---|---|---:|---:|---:|---:|"]
    for metric, first, second in COMPARED[paper]:
        if {(metric, first), (metric, second)} <= measured:
            found = compare(path, first, second, metric)
            points, low, high = (f"{100 * x:+.2f}" for x in (found.difference, found.low, found.high))
            said = METRICS[metric].lower()
            lines.append(
                f"| {said} | `{first}` | `{second}` | {points} | {low} to {high} | {found.p:.2g} | {found.seeds} |"
            )
    if len(lines) == 2:
        return f"{MISSING.capitalize()}."
    return "\n".join([*lines, "", f"Paired t-tests, by `foveal compare results/{paper}.csv FROM TO --metric METRIC`."])


def read(path: Path) -> list[Row]:
    """Rows of a results file; none if there is no file."""
    if not path.exists():
        return []
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def block(title: str, rows: list[Row], expected: Expected | None, ran: Collection[tuple[str, str]] = ()) -> str:
    """One table of a metric: models down, datasets across; an expected one shows all of the paper's, measured or not.

    Where there is one dataset, the size of each model and the time of a training step stand beside it. Models that
    ``ran`` and yet have no value have nothing of the kind that is measured.
    """
    if not rows:
        return f"{title}: {MISSING}."
    found = {(row["model"], row["dataset"]): row for row in rows}
    models = dict.fromkeys([*(expected.models if expected else ()), *(model for model, _ in found)])
    columns = dict.fromkeys([*(expected.datasets if expected else ()), *(dataset for _, dataset in found)])
    costs = len(columns) == 1 and any(row.get("step_seconds") for row in rows)
    timed = expected is None or expected.timed
    heads = [*columns, *["parameters"] * costs, *["ms a step"] * (costs and timed)]
    lines = [f"| | {' | '.join(heads)} |", "|---|" + "---|" * len(heads)]
    for model in models:
        cells = [
            "–" if (model, dataset) not in found and (model, dataset) in ran else cell(found.get((model, dataset)))
            for dataset in columns
        ]
        if costs:
            cells += cost(found.get((model, next(iter(columns)))), timed)
        lines.append(f"| {model} | {' | '.join(cells)} |")
    return "\n\n".join([title, "\n".join(lines), conditions(rows)])


def side_by_side(title: str, rows: list[Row], metrics: Collection[str], expected: Expected | None) -> str:
    """One table of one dataset: models down, metrics across, then the size of each model and the time of a step."""
    rows = [row for row in rows if row["metric"] in metrics]
    found = {(row["model"], row["metric"]): row for row in rows}
    models = dict.fromkeys([*(expected.models if expected else ()), *(model for model, _ in found)])
    costs, timed = any(row.get("step_seconds") for row in rows), expected is None or expected.timed
    heads = [METRICS.get(metric, metric.replace("_", " ").capitalize()) for metric in metrics]
    heads += ["Parameters"] * costs + ["ms a step"] * (costs and timed)
    lines = [f"| | {' | '.join(heads)} |", "|---|" + "---|" * len(heads)]
    for model in models:
        ran = [row for (known, _), row in found.items() if known == model]
        values = [found.get((model, metric)) for metric in metrics]
        cells = ["–" if row is None and ran else cell(row) for row in values]
        lines.append(f"| {model} | {' | '.join(cells + (cost(ran[0] if ran else None, timed) if costs else []))} |")
    return "\n\n".join([title, "\n".join(lines), conditions(rows)])


def cost(row: Row | None, timed: bool = True) -> list[str]:
    """Parameters, and if ``timed`` milliseconds of a training step.

    >>> cost({"parameters": "269722", "step_seconds": "0.00123"})
    ['269,722', '1.23']
    """
    step = "" if row is None or not row.get("step_seconds") else f"{1000 * float(row['step_seconds']):.2f}"
    return ["" if row is None else f"{int(row['parameters']):,}", *[step] * timed]


def cell(row: Row | None) -> str:
    r"""``ours ± spread (published)`` in percent; a star marks embedded data.

    >>> cell({"mean": "0.9812", "std": "0.001", "published": "0.9851", "embedded": "False"})
    '98.12 ± 0.10 (98.51)'
    >>> cell({"mean": "0.5", "std": "", "published": "", "embedded": "True"})
    '50.00\\*'
    """
    if row is None:
        return MISSING
    ours = _percent(row["mean"]) + (f" ± {_percent(row['std'])}" if row["std"] else "")
    star = r"\*" if row["embedded"] == "True" else ""
    return f"{ours}{star} ({_percent(row['published'])})" if row["published"] else f"{ours}{star}"


def conditions(rows: list[Row]) -> str:
    """How the numbers of one table were made."""
    counts = sorted({int(row["seeds"]) for row in rows})
    seeds = f"{counts[0]} seed{'s' * (counts[-1] > 1)}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"
    precision = ", ".join(sorted({row["precision"] for row in rows}))
    hardware = "; ".join(sorted({row["hardware"] for row in rows}))
    embedded = any(row["embedded"] == "True" for row in rows)
    stand_in = " \\* on embedded data, not the paper's: do not compare." if embedded else ""
    return f"{seeds.capitalize()}; precision {precision}; {hardware}.{stand_in}"


def _percent(fraction: str) -> str:
    return f"{100 * float(fraction):.2f}"
