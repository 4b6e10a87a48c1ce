"""``results/bench-NAME.csv`` as bar charts and tables, and results against costs."""

from __future__ import annotations

import math
import re
from pathlib import Path

from expected import TABLES
from result_tables import RESULTS, Row, code, read

from foveal.recipe.grids import grids
from foveal.see import pareto, tradeoffs


def bench(name: str, folder: Path = RESULTS) -> str:
    """``results/bench-NAME.csv`` as bar charts of ratios, and every figure in a table."""
    rows = read(folder / f"bench-{name}.csv")
    if not rows:
        command = f"python benchmarks/{name}.py --csv results/bench-{name}.csv"
        return f"Not measured yet. This command makes the numbers:\n\n    {command}"
    if "ratio_to_attention" in rows[0]:
        return beside_attention(rows)
    ratio = next((head for head in RATIOS if head in rows[0]), None)
    if ratio is None or "measure" not in rows[0]:
        return plain_table(rows)
    rows = [row | {"ratio": row[ratio]} for row in rows]
    conditions = [head for head in ("map", "batch", "mode", "measure") if head in rows[0]]
    varying = [head for head in conditions if len({row[head] for row in rows}) > 1]
    charts = []
    for condition in dict.fromkeys(tuple(row[head] for head in varying) for row in rows):
        here = [row for row in rows if tuple(row[head] for head in varying) == condition]
        if all(row["ratio"] in ("", "1.0") for row in here):  # the same of all forms, and no comparison
            continue
        firsts = {row["what"]: row["form"] for row in reversed(here)}  # what the others are compared with
        names = list(dict.fromkeys(firsts[row["what"]] for row in here))
        against = " or ".join(names) if len(names) < 3 else "first"
        here = [row for row in here if row["form"] != firsts[row["what"]]]
        words = [f"batch {value}" if head == "batch" else value for head, value in zip(varying, condition, strict=True)]
        title = ", ".join(WORDS.get(word, word.removesuffix(" ms")) for word in words)
        charts.append(bars(f"{title}: times the {against} form", here))
    about = f"{rows[0]['hardware']}, torch {rows[0]['torch']}, {rows[0]['precision']}{code(rows)}."
    lines = pivoted(rows, [head for head in ("what", "map", "batch", "form") if head in rows[0]])
    table = '??? note "All figures"\n\n' + "\n".join(f"    {line}" for line in lines)
    return "\n\n".join([about, '<div class="bench">' + "".join(charts) + "</div>", table])


def pivoted(rows: list[Row], keys: list[str]) -> list[str]:
    """A table with a line for each combination of ``keys``, and a column for each mode and measure."""
    columns = list(dict.fromkeys((row.get("mode", ""), row["measure"]) for row in rows))
    found = {(tuple(row[key] for key in keys), row.get("mode", ""), row["measure"]): row for row in rows}
    heads = [*keys, *(f"{measure}, {mode}" if mode else measure for mode, measure in columns)]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(keys) + "---:|" * len(columns)]
    for line in dict.fromkeys(key for key, *_ in found):
        cells = (found.get((line, *column)) for column in columns)
        lines.append(f"| {' | '.join([*line, *(figure(row) for row in cells)])} |")
    return lines


def figure(row: Row | None) -> str:
    """A value, with its ratio unless that is one.

    >>> figure({"value": "20.806", "ratio": "0.3507"}), figure({"value": "59.3", "ratio": "1.0"}), figure(None)
    ('20.806 (0.35×)', '59.3', '')
    """
    if row is None:
        return ""
    alone = row["ratio"] in ("", "1.0")
    return short(row["value"]) + ("" if alone else f" ({float(row['ratio']):.2f}×)")


COSTS = {"gflops": "GFLOPs of a crop", "mib": "MiB in training", "ms": "milliseconds of a training step"}


def tradeoff(table: str, folder: Path = RESULTS) -> str:
    """Mean IoU of a table's models against what they cost, and what its paper concludes beside it."""
    file = next(file for file, tables in TABLES.items() if table in tables)
    results = [row for row in read(folder / f"{file}.csv") if row["table"] == table]
    costs = read(folder / "bench-atlas.csv")
    points = {label: tradeoffs(results, costs, "mean_iou", key) for key, label in COSTS.items()}
    if not any(points.values()):  # what the runs themselves have counted
        counted = [row | {"mflops": row["mean"]} for row in results if row["metric"] == "mflops"]
        points = {"MFLOPs of an image": tradeoffs(results, counted, "mean_iou", "mflops")}
    figures = [pareto(found, value="mean IoU, %", cost=label) for label, found in points.items() if found]
    found = "\n".join(f"- {sentence}" for sentence in grids()[table].conclusions)
    beside = f"\n\nWhat the paper concludes from its own experiments:\n\n{found}" if found else ""
    if not figures:
        commands = (
            f"foveal reproduce {table} --seeds 3 --csv results/{file}.csv",
            f"python benchmarks/atlas.py --table {table} --csv results/bench-atlas.csv",
        )
        lines = "\n".join(f"    {command}" for command in commands)
        return f"Not measured yet. These commands make the picture:\n\n{lines}{beside}"
    return f'<div class="bench">{"".join(figures)}</div>{beside}'


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
    """A number of many digits with four of them, or without those after the point.

    >>> short("0.0042553190141916275"), short("10203.86"), short("16384"), short("light")
    ('0.004255', '10,204', '16384', 'light')
    """
    if not re.fullmatch(r"[\d.]{7,}", text):
        return text
    return f"{float(text):,.0f}" if float(text) >= 1000 else f"{float(text):.4g}"


def bars(title: str, rows: list[Row]) -> str:
    """Ratios as horizontal bars from one on a logarithmic scale, grouped by what was measured, as inline SVG."""
    forms = list(dict.fromkeys(row["form"] for row in rows))
    ratios = [float(row["ratio"]) for row in rows]
    least, most = min(1.0, *ratios), max(2.0, *ratios)
    labels = [f"{ratio:.2f}× {row['form']}" for row, ratio in zip(rows, ratios, strict=True)]
    width, left, line, gap = 480, 118, 15, 9
    right = width - 12 - LETTER * max(map(len, labels))  # the label of the longest bar is beside it

    def across(ratio: float) -> float:
        return left + (right - left) * math.log(ratio / least) / math.log(most / least)

    parts, y, group = [], 30, ""
    for row, ratio, label in zip(rows, ratios, labels, strict=True):
        if row["what"] != group:
            y += gap if group else 0
            parts.append(f'<text x="{left - 6}" y="{y + 11}" text-anchor="end">{row["what"]}</text>')
            group = row["what"]
        ink = COLOURS[forms.index(row["form"]) % len(COLOURS)]
        begin, end = sorted((across(1.0), across(ratio)))
        parts.append(
            f'<rect x="{begin:.1f}" y="{y}" width="{max(1.0, end - begin):.1f}" height="12" fill="{ink}"/>'
            f'<text x="{end + 4:.1f}" y="{y + 10}">{label}</text>'
        )
        y += line
    return (
        f'<svg viewBox="0 0 {width} {y + 8}" role="img" aria-label="{title}" fill="currentColor" font-size="10.5">'
        f'<text x="4" y="14" font-size="12" font-weight="600">{title}</text>{"".join(parts)}</svg>'
    )


RATIOS = ("ratio to plain", "ratio")  # columns of ratios to the form that is first
WORDS = {"ms": "time", "peak MiB": "peak memory"}  # measures in titles
LETTER = 6  # pixels of a letter in labels, at most on average
COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1")
