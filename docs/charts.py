"""``results/bench-NAME.csv`` as bar charts and tables, and results against costs."""

from __future__ import annotations

import math
import re
from pathlib import Path

from result_tables import RESULTS, Row, code, read

from foveal.recipe.grids import grids
from foveal.see import pareto, tradeoffs


def bench(name: str, folder: Path = RESULTS) -> str:
    """``results/bench-NAME.csv`` as bar charts of the ratio to the plain form, and every figure in a table."""
    rows = read(folder / f"bench-{name}.csv")
    if not rows:
        command = f"python benchmarks/{name}.py --csv results/bench-{name}.csv"
        return f"Not measured yet. This command makes the numbers:\n\n    {command}"
    if "ratio_to_attention" in rows[0]:
        return beside_attention(rows)
    if "ratio to plain" not in rows[0]:
        return plain_table(rows)
    charts = []
    for measure, batch in dict.fromkeys((row["measure"], row["batch"]) for row in rows):
        here = [row for row in rows if (row["measure"], row["batch"]) == (measure, batch) and row["form"] != "plain"]
        title = "peak memory" if measure == "peak MiB" else measure.removesuffix(" ms")
        charts.append(bars(f"{title}, batch {batch}: times the plain form", here))
    heads = ("what", "form", "batch", "measure", "value", "ratio to plain")
    lines = [f"| {' | '.join(heads)} |", "|---|---|" + "---:|---|---:|---:|"]
    lines += [f"| {' | '.join(row[head] for head in heads)} |" for row in rows]
    conditions = f"{rows[0]['hardware']}, torch {rows[0]['torch']}, {rows[0]['precision']}{code(rows)}."
    table = '??? note "All figures"\n\n' + "\n".join(f"    {line}" for line in lines)
    return "\n\n".join([conditions, '<div class="bench">' + "".join(charts) + "</div>", table])


COSTS = {"gflops": "GFLOPs of a crop", "mib": "MiB in training", "ms": "milliseconds of a training step"}


def tradeoff(table: str, folder: Path = RESULTS) -> str:
    """Mean IoU of a table's models against what they cost, and what its paper concludes beside it."""
    results = [row for row in read(folder / f"{table.split('/')[0]}.csv") if row["table"] == table]
    costs = read(folder / "bench-atlas.csv")
    points = {label: tradeoffs(results, costs, "mean_iou", key) for key, label in COSTS.items()}
    figures = [pareto(found, value="mean IoU, %", cost=label) for label, found in points.items() if found]
    found = "\n".join(f"- {sentence}" for sentence in grids()[table].conclusions)
    beside = f"What the paper concludes from its own experiments:\n\n{found}"
    if not figures:
        commands = (
            f"foveal reproduce {table} --seeds 3 --csv results/{table.split('/')[0]}.csv",
            f"python benchmarks/atlas.py --table {table} --csv results/bench-atlas.csv",
        )
        lines = "\n".join(f"    {command}" for command in commands)
        return f"Not measured yet. These commands make the picture:\n\n{lines}\n\n{beside}"
    return f'<div class="bench">{"".join(figures)}</div>\n\n{beside}'


def beside_attention(rows: list[Row]) -> str:
    """Time of the loss as a multiple of attention's, by entities and width, over all heads; and every figure."""
    light = [row for row in rows if row["form"] == "light"]
    counts, widths = (sorted({int(row[head]) for row in light}) for head in ("entities", "width"))

    def cell(count: int, width: int) -> str:
        here = [row for row in light if (int(row["entities"]), int(row["width"])) == (count, width)]
        ratios = sorted(float(row["ratio_to_attention"]) for row in here)
        if not ratios:
            return ""
        low, high = f"{ratios[0]:.2f}", f"{ratios[-1]:.2f}"
        return f"{low}×" if low == high else f"{low}–{high}×"

    heads = sorted({int(row["heads"]) for row in light})
    over = f"from the least to the most over {', '.join(map(str, heads))} heads" if heads[1:] else f"{heads[0]} heads"
    lines = [f"| N | {' | '.join(f'd = {width}' for width in widths)} |", "|---:|" + "---:|" * len(widths)]
    lines += [f"| {count:,} | {' | '.join(cell(count, width) for width in widths)} |" for count in counts]
    where = f"{rows[0]['hardware']}, torch {rows[0]['torch']}, {rows[0]['dtype']}{code(rows)}."
    about = f"{where} Time of the loss as a multiple of attention's, {over}."
    figures = '??? note "All figures"\n\n' + "\n".join(f"    {line}" for line in plain_table(rows).splitlines())
    return "\n\n".join([about, "\n".join(lines), figures])


def plain_table(rows: list[Row]) -> str:
    """Every figure of a benchmark; what is the same in all rows stands before them."""
    rows, made = [{head: row[head] for head in row if head != "revision"} for row in rows], code(rows)
    same = [head for head in rows[0] if len({row[head] for row in rows}) == 1]
    heads = [head for head in rows[0] if head not in same]
    lines = [f"| {' | '.join(head.replace('_', ' ') for head in heads)} |", "|" + "---|" * len(heads)]
    lines += [f"| {' | '.join(short(row[head]) for head in heads)} |" for row in rows]
    shared = [f"{head} {rows[0][head]}" if rows[0][head].isdigit() else rows[0][head] for head in same if rows[0][head]]
    return "\n".join([", ".join(shared) + f"{made}.", "", *lines])


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
    labels = [f"{float(row['ratio to plain']):.2f}× {row['form']}" for row in rows]
    width, left, line, gap = 480, 118, 15, 9
    right = width - 12 - LETTER * max(map(len, labels))  # the label of the longest bar is beside it

    def across(ratio: float) -> float:
        return left + (right - left) * max(0.0, math.log(ratio)) / math.log(longest)

    parts, y, group = [], 30, ""
    for row, label in zip(rows, labels, strict=True):
        if row["what"] != group:
            y += gap if group else 0
            parts.append(f'<text x="{left - 6}" y="{y + 11}" text-anchor="end">{row["what"]}</text>')
            group = row["what"]
        ratio, ink = float(row["ratio to plain"]), COLOURS[forms.index(row["form"]) % len(COLOURS)]
        parts.append(f'<rect x="{left}" y="{y}" width="{max(1, across(ratio) - left):.1f}" height="12" fill="{ink}"/>')
        parts.append(f'<text x="{across(ratio) + 4:.1f}" y="{y + 10}">{label}</text>')
        y += line
    return (
        f'<svg viewBox="0 0 {width} {y + 8}" role="img" aria-label="{title}" fill="currentColor" font-size="10.5">'
        f'<text x="4" y="14" font-size="12" font-weight="600">{title}</text>{"".join(parts)}</svg>'
    )


LETTER = 6  # pixels of a letter in labels, at most on average
COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1")
