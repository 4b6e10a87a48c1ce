"""Fills the marked places of the pages with tables made from results, dataclasses and registries.

MkDocs calls :func:`on_page_markdown` for every page. A marker is an HTML comment on a line of its own::

    <!-- results:hattnet -->               tables of results/hattnet.csv
    <!-- classes:icasc/voc2012-lite -->    average precision of every class, beside the published ones
    <!-- compare:fan-documents -->         recipes of results/fan-documents.csv in pairs
    <!-- bench:aw -->                      charts and table of results/bench-aw.csv
    <!-- keys:foveal.recipe.Optim -->      keys of a dataclass, from its docstring
    <!-- keys:data -->                     options of every dataset
    <!-- datasets -->  <!-- models -->     what is registered

``docs/tables.py`` writes the same results into README.md.
"""

from __future__ import annotations

import csv
import dataclasses
import math
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from listings import data_keys, datasets, keys, models, named

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"
PAPERS = ROOT / "docs" / "papers"
MARKER = re.compile(r"^<!-- (results|classes|compare|bench|keys|datasets|models)(?::([\w./-]+))? -->$", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Expected:
    """A table that is to be measured: what it is, and its metrics, rows and columns in order."""

    about: str
    metrics: tuple[str, ...]
    models: tuple[str, ...]
    datasets: tuple[str, ...]


_HATTNET = (
    ("accuracy", "true_positive_strength", "true_positive_strength_last", "true_positive_strength_resized"),
    ("STN", "SOFT", "HARD", "HAttNet", "HAttNet-CTX"),
    ("MREF", "MDIST", "MBG"),
)
_RESNETS = tuple(
    f"{before}ResNet{depth}{after}"
    for depth in (50, 101)
    for before, after in (
        ("", ""),
        ("AW-", ""),
        ("SE-", ""),
        ("AW-SE-", ""),
        ("AW-CBAM-", " (MaxPool)"),
        ("AW-CBAM-", " (Spatial)"),
    )
)
_MOBILENETS = ("MobileNet", "SE-MobileNet", "AW-SE-MobileNet", "CBAM-MobileNet", "AW-CBAM-MobileNet (Spatial)")
_SMALL = tuple(f"{before}ResNet-20" for before in ("", "AW-", "SE-", "AW-SE-", "CBAM-", "AW-CBAM-"))
_TOP = ("accuracy", "top5_accuracy")
_FAN = (("accuracy", "center_mass"), ("Hatt", "FAN-hatt-unsup", "FAN-hatt-sup"))
_TARGETS = ("different word", "same category", "different category", "semantic")
_LOSSES = ("row", "mat (r = 0)", "r = 1", "mat-focal (r = 2)", "r = 3", "r = 4", "L2", "smooth L1")

_VARIED = (
    "Grad-CAM, second order",
    "A_ch, second order",
    "L_AS",
    "L_AC",
    "sharpened, first order",
    "sharpened, maps as they are",
    "sharpened, A_ch",
    "sharpened, both layers",
)
_MAP = ("mean_average_precision",)
_SHARPENED = (
    "L_AS of the last layer",
    "L_AS of both layers",
    "L_AC",
    "both, second order",
    "L_AS of the last layer, second order",
    "Grad-CAM, second order",
    "Grad-CAM, L_AS of the last layer, second order",
    "mask of the inner layer",
    "gradients through the mask",
    "maps divided by their maxima",
    "no reward beyond θ",
    "frozen batch norm",
    "one pair an image",
    "after five epochs",
    "weights of 0.3",
    "layers a stage earlier",
)


def _rows(*networks: str) -> tuple[str, ...]:
    return tuple(f"{network}{more}" for network in networks for more in ("", " + ICASC Grad-CAM", " + ICASC A_ch"))


TABLES = {  # the tables that are expected, whatever the file holds
    "hattnet": {
        "hattnet/table1": Expected("the authors' data sizes, optimiser and schedule", *_HATTNET),
        "hattnet/table1-ours": Expected("the same networks with more data and our schedule", *_HATTNET),
    },
    "aw": {
        "aw/cifar10": Expected("one small network and schedule, every mechanism", _TOP[:1], _SMALL, ("CIFAR-10",)),
        "aw/table1": Expected("the paper's table", _TOP, _RESNETS + _MOBILENETS, ("ImageNet",)),
    },
    "icasc": {
        "icasc/confusion": Expected(
            "a generated set on which classes are confused",
            _TOP[:1],
            ("baseline", "ICASC Grad-CAM", "ICASC A_ch", "sharpened"),
            ("two objects",),
        ),
        "icasc/confusion-ablation": Expected(
            "the same set; Grad-CAM and all losses in first order unless said", _TOP[:1], _VARIED, ("two objects",)
        ),
        "icasc/voc2012": Expected("the supplement's settings", _MAP, _rows("ResNet-18"), ("VOC 2012",)),
        "icasc/voc2012-lite": Expected("a small pretrained network", _MAP, _rows("Lite0"), ("VOC 2012",)),
        "icasc/ablation": Expected("VOC 2012, the small network, A_ch unless said", _MAP, _SHARPENED, ("VOC 2012",)),
        "icasc/cub100-lite": Expected("a small pretrained network", _TOP[:1], _rows("Lite0"), ("CUB-100",)),
        "icasc/cifar100": Expected("the supplement's settings", _TOP[:1], _rows("ResNet-110"), ("CIFAR-100",)),
        "icasc/caltech256": Expected(
            "the supplement's settings", _TOP[:1], _rows("ResNet-18", "VGG-19"), ("Caltech-256",)
        ),
        "icasc/imagenet": Expected("the supplement's settings", _TOP[:1], _rows("ResNet-18"), ("ImageNet",)),
        "icasc/cub200": Expected(
            "the supplement's settings", _TOP[:1], _rows("ResNet-50", "ResNet-101"), ("CUB-200-2011",)
        ),
    },
    "fan-documents": {
        "fan/table6": Expected("the paper's optimiser and schedule", *_FAN, ("20 News",)),
        "fan/table6-ours": Expected("the same networks, trained better", *_FAN, ("20 News",)),
        "fan/table6-stripped": Expected("messages without headers, footers and quotes", *_FAN, ("20 News",)),
        "fan/table8": Expected("what attention is drawn to", _FAN[0], _TARGETS, ("20 News",)),
        "fan/ablations": Expected("how it is drawn there", _FAN[0], _LOSSES, ("20 News",)),
        "fan/table6-yahoo": Expected("Yahoo Answers", *_FAN, ("Yahoo-mini", "Yahoo-half")),
    },
}
METRICS = {
    "accuracy": "Accuracy",
    "top5_accuracy": "Top-5 accuracy",
    "mean_average_precision": "Mean average precision",
    "center_mass": "Center-mass",
    "overlap_inner": "Overlap, inner layer",
    "overlap_last": "Overlap, last layer",
    "inner_in_last": "Inner in last",
    "true_positive_strength": "True-positive strength, product of all gates",
    "true_positive_strength_last": "True-positive strength, last gate alone",
    "true_positive_strength_resized": "True-positive strength, product of gates stretched over the image",
}
MISSING = "not measured yet"

Row = dict[str, str]


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace every marker of a page (called by MkDocs)."""
    return MARKER.sub(lambda found: fill(found[1], found[2]), markdown)


def fill(kind: str, what: str | None) -> str:
    """What stands in the place of one marker."""
    if kind == "results":
        return results(what or "")
    if kind == "classes":
        return classes(what or "")
    if kind == "compare":
        return comparisons(what or "")
    if kind == "bench":
        return bench(what or "")
    if kind == "keys":
        return data_keys() if what == "data" else keys(named(what or ""))
    return datasets() if kind == "datasets" else models()


# Results ------------------------------------------------------------------


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
        known = [row["metric"] for row in here if "/" not in row["metric"]]  # those of one class: see classes()
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
    models = [model for model in TABLES[paper][table].models if any(model == known for _, known in ours)]
    heads = [*theirs[0], *(f"ours, {model}" for model in models)]
    lines = [f"| {' | '.join(heads)} |", "|---|" + "---:|" * (len(heads) - 1)]
    for row in theirs:
        metric = "mean_average_precision" if row["class"] == "mean" else row["class"]
        lines.append(f"| {' | '.join([*row.values(), *(ours.get((metric, model), '') for model in models)])} |")
    return "\n".join(lines)


COMPARED = {  # pairs of recipes of which the second might be better
    "icasc": tuple(
        (metric, f"{recipe}-baseline", f"{recipe}-{other}")
        for metric, recipe, others in (
            ("mean_average_precision", "icasc/voc2012-lite", ("gradcam", "ach")),
            ("accuracy", "icasc/cub100-lite", ("gradcam", "ach")),
            ("accuracy", "demo/confusion", ("gradcam", "ach", "sharpened")),
        )
        for other in others
    )
    + tuple(
        ("accuracy", "demo/confusion-baseline", f"icasc/confusion-{other}")
        for other in ("last-order1", "consistency", "separability", "last-ach", "ach-order2", "gradcam-order2")
    )
    + (("accuracy", "icasc/confusion-last-order1", "demo/confusion-sharpened"),),
    "fan-documents": (
        ("accuracy", "fan/news-hatt", "fan/news-fan-unsup"),
        ("accuracy", "fan/news-fan-unsup", "fan/news-fan-sup"),
        ("accuracy", "fan/news-hatt", "fan/news-fan-sup"),
        ("accuracy", "fan/news-target-different-word", "fan/news-target-semantic"),
        ("accuracy", "fan/news-hatt-ours", "fan/news-fan-unsup-ours"),
        ("accuracy", "fan/news-fan-unsup-ours", "fan/news-fan-sup-ours"),
        ("accuracy", "fan/news-hatt-stripped", "fan/news-fan-unsup-stripped"),
        ("accuracy", "fan/news-fan-unsup-stripped", "fan/news-fan-sup-stripped"),
    ),
}


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
    heads = [*columns, *(("parameters", "ms a step") if costs else ())]
    lines = [f"| | {' | '.join(heads)} |", "|---|" + "---|" * len(heads)]
    for model in models:
        cells = [
            "–" if (model, dataset) not in found and (model, dataset) in ran else cell(found.get((model, dataset)))
            for dataset in columns
        ]
        if costs:
            cells += cost(found.get((model, next(iter(columns)))))
        lines.append(f"| {model} | {' | '.join(cells)} |")
    return "\n\n".join([title, "\n".join(lines), conditions(rows)])


def side_by_side(title: str, rows: list[Row], metrics: Collection[str], expected: Expected | None) -> str:
    """One table of one dataset: models down, metrics across, then the size of each model and the time of a step."""
    found = {(row["model"], row["metric"]): row for row in rows}
    models = dict.fromkeys([*(expected.models if expected else ()), *(model for model, _ in found)])
    costs = any(row.get("step_seconds") for row in rows)
    heads = [METRICS.get(metric, metric.replace("_", " ").capitalize()) for metric in metrics]
    heads += ["Parameters", "ms a step"] * costs
    lines = [f"| | {' | '.join(heads)} |", "|---|" + "---|" * len(heads)]
    for model in models:
        ran = [row for (known, _), row in found.items() if known == model]
        values = [found.get((model, metric)) for metric in metrics]
        cells = ["–" if row is None and ran else cell(row) for row in values]
        lines.append(f"| {model} | {' | '.join(cells + (cost(ran[0] if ran else None) if costs else []))} |")
    return "\n\n".join([title, "\n".join(lines), conditions(rows)])


def cost(row: Row | None) -> list[str]:
    """Parameters, and milliseconds of a training step.

    >>> cost({"parameters": "269722", "step_seconds": "0.00123"})
    ['269,722', '1.23']
    """
    step = "" if row is None or not row.get("step_seconds") else f"{1000 * float(row['step_seconds']):.2f}"
    return ["" if row is None else f"{int(row['parameters']):,}", step]


def cell(row: Row | None) -> str:
    r"""``ours ± spread (published)`` in percent; a star marks the embedded stand-in.

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
    stand_in = " \\* on the embedded stand-in data, not the paper's: do not compare." if embedded else ""
    return f"{seeds.capitalize()}; precision {precision}; {hardware}.{stand_in}"


def _percent(fraction: str) -> str:
    return f"{100 * float(fraction):.2f}"


# Benchmarks ---------------------------------------------------------------


def bench(name: str, folder: Path = RESULTS) -> str:
    """``results/bench-NAME.csv`` as bar charts of the ratio to the plain form, and every figure in a table."""
    rows = read(folder / f"bench-{name}.csv")
    if not rows:
        command = f"python benchmarks/{name}.py --csv results/bench-{name}.csv"
        return f"Not measured yet. This command makes the numbers:\n\n    {command}"
    if "ratio to plain" not in rows[0]:
        return plain_table(rows)
    charts = []
    for measure, batch in dict.fromkeys((row["measure"], row["batch"]) for row in rows):
        here = [row for row in rows if (row["measure"], row["batch"]) == (measure, batch) and row["form"] != "plain"]
        said = "peak memory" if measure == "peak MiB" else measure.removesuffix(" ms")
        charts.append(bars(f"{said}, batch {batch}: times the plain form", here))
    heads = ("what", "form", "batch", "measure", "value", "ratio to plain")
    lines = [f"| {' | '.join(heads)} |", "|---|---|" + "---:|---|---:|---:|"]
    lines += [f"| {' | '.join(row[head] for head in heads)} |" for row in rows]
    where = f"{rows[0]['hardware']}, torch {rows[0]['torch']}, {rows[0]['precision']}."
    table = '??? note "All figures"\n\n' + "\n".join(f"    {line}" for line in lines)
    return "\n\n".join([where, '<div class="bench">' + "".join(charts) + "</div>", table])


def plain_table(rows: list[Row]) -> str:
    """Every figure of a benchmark; what is the same in all rows stands before them."""
    same = [head for head in rows[0] if len({row[head] for row in rows}) == 1]
    heads = [head for head in rows[0] if head not in same]
    lines = [f"| {' | '.join(head.replace('_', ' ') for head in heads)} |", "|" + "---|" * len(heads)]
    lines += [f"| {' | '.join(short(row[head]) for head in heads)} |" for row in rows]
    said = [f"{head} {rows[0][head]}" if rows[0][head].isdigit() else rows[0][head] for head in same if rows[0][head]]
    return "\n".join([", ".join(said) + ".", "", *lines])


def short(text: str) -> str:
    """A number of many digits with four of them.

    >>> short("0.0042553190141916275"), short("16384"), short("light")
    ('0.004255', '16384', 'light')
    """
    return f"{float(text):.4g}" if re.fullmatch(r"[\d.]{8,}", text) else text


def bars(title: str, rows: list[Row]) -> str:
    """Ratios as horizontal bars on a logarithmic scale, grouped by what was measured, as inline SVG."""
    forms = list(dict.fromkeys(row["form"] for row in rows))
    longest = max(2.0, *(float(row["ratio to plain"]) for row in rows))
    left, right, line, gap = 118, 372, 15, 9

    def across(ratio: float) -> float:
        return left + (right - left) * max(0.0, math.log(ratio)) / math.log(longest)

    parts, y, group = [], 30, ""
    for row in rows:
        if row["what"] != group:
            y += gap if group else 0
            parts.append(f'<text x="{left - 6}" y="{y + 11}" text-anchor="end">{row["what"]}</text>')
            group = row["what"]
        ratio, ink = float(row["ratio to plain"]), COLOURS[forms.index(row["form"]) % len(COLOURS)]
        parts.append(f'<rect x="{left}" y="{y}" width="{max(1, across(ratio) - left):.1f}" height="12" fill="{ink}"/>')
        said = f"{ratio:.2f}× {row['form']}"
        parts.append(f'<text x="{across(ratio) + 4:.1f}" y="{y + 10}">{said}</text>')
        y += line
    return (
        f'<svg viewBox="0 0 480 {y + 8}" role="img" aria-label="{title}" fill="currentColor" font-size="10.5">'
        f'<text x="4" y="14" font-size="12" font-weight="600">{title}</text>{"".join(parts)}</svg>'
    )


COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1")
