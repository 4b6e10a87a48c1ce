"""``results/bench-insert.csv`` as tables: what attention costs in a model, as it is run."""

from __future__ import annotations

from pathlib import Path

from result_tables import RESULTS, Row, code, read

MODES = {"eager": "eager", "default": "compiled", "reduce-overhead": "compiled, CUDA graphs"}
PARTS = {"train": "A training step", "infer": "Inference"}
CONTROL = "none"  # the mechanism of a second plain model
COMMAND = "    python benchmarks/insert.py --preset h200 --jobs 8 --csv results/bench-insert.csv"


def prices(what: str = "", folder: Path = RESULTS) -> str:
    """Tables of ``train``, ``infer`` or both, one for each hardware: models and mechanisms down, modes across.

    ``train short`` has eager steps alone, mechanisms across, without the work of the GPU.
    """
    part, _, short = what.partition(" ")
    rows = [row for row in read(folder / "bench-insert.csv") if part in ("", row["part"])]
    rows = [row for row in rows if row["mode"] == "eager"] if short else rows
    if all(row["mechanism"] == CONTROL for row in rows):
        return f"Not measured yet. This command makes the numbers:\n\n{COMMAND}"
    kinds = dict.fromkeys((row["part"], row["hardware"], row["torch"], row["precision"]) for row in rows)
    table = _short if short else _table
    blocks = []
    for kind in sorted(kinds, key=_order):
        mine = [row for row in rows if _kind(row) == kind]
        priced = [row for row in mine if row["mechanism"] != CONTROL]
        chance = "" if short else _chance([row for row in mine if row["mechanism"] == CONTROL])
        blocks += [table(kind, priced) + chance] if priced else []
    return "\n\n".join(blocks)


def _chance(rows: list[Row]) -> str:
    """What a second plain model costs beside the first, in a sentence."""
    ratios = sorted(float(row["time ratio"]) for row in rows if not row["error"])
    if not ratios:
        return ""
    modes = " and ".join(name for mode, name in MODES.items() if any(row["mode"] == mode for row in rows))
    return (
        f"\n\nChance: a second plain model beside the first, in {len(ratios)} of these measurements ({modes}), took "
        f"{ratios[0]:.2f} to {ratios[-1]:.2f} times its time."
    )


def _kind(row: Row) -> tuple[str, ...]:
    return row["part"], row["hardware"], row["torch"], row["precision"]


def _order(kind: tuple[str, ...]) -> tuple[bool, list[str], int]:
    """GPUs before CPUs, training before inference."""
    return kind[1].startswith("CPU"), list(kind[1:]), list(PARTS).index(kind[0])


def _table(kind: tuple[str, ...], rows: list[Row]) -> str:
    part, hardware, torch, precision = kind
    modes = [mode for mode in MODES if any(row["mode"] == mode for row in rows)]
    cells = {(_model(row), row["mechanism"], row["mode"]): _cell(row) for row in rows}
    later = "; work of the GPU" if any(row.get("gpu ratio") for row in rows) else ""
    later += "; seconds more at the first step" if any(row["first s"] for row in rows) else ""
    title = f"{PARTS[part]}, times the plain model's time (memory{later}). {hardware}"
    lines = ["| | |" + "".join(f" {MODES[mode]} |" for mode in modes), "|---|---|" + "---|" * len(modes)]
    models = list(dict.fromkeys(model for model, _, _ in cells))
    pairs = dict.fromkeys((model, mechanism) for model, mechanism, _ in cells)
    for model, mechanism in sorted(pairs, key=lambda pair: models.index(pair[0])):
        values = [cells.get((model, mechanism, mode), "") for mode in modes]
        lines.append(f"| {' | '.join([model, mechanism, *values])} |")
    return f"{title}, torch {torch}, {precision}{code(rows)}.\n\n" + "\n".join(lines)


def _short(kind: tuple[str, ...], rows: list[Row]) -> str:
    part, hardware, torch, precision = kind
    mechanisms = list(dict.fromkeys(row["mechanism"] for row in rows))
    cells = {(_model(row), row["mechanism"]): _cell(row | {"gpu ratio": "", "first s": ""}) for row in rows}
    models = dict.fromkeys(_model(row) for row in sorted(rows, key=lambda row: (row["model"], int(row["batch"]))))
    lines = [f"| | {' | '.join(mechanisms)} |", "|---|" + "---|" * len(mechanisms)]
    for model in models:
        lines.append(f"| {' | '.join([model, *(cells.get((model, name), '') for name in mechanisms)])} |")
    title = f"{PARTS[part]}, times the plain model's time (memory). {hardware}"
    return f"{title}, torch {torch}, {precision}{code(rows)}.\n\n" + "\n".join(lines)


def _model(row: Row) -> str:
    size = "" if row["size"] == "224" else f", {row['size']}×{row['size']}"
    return f"{row['model']}, batch {row['batch']}{size}"


def _cell(row: Row) -> str:
    """``1.42× (1.05×; GPU 1.1×; +3 s)``, or without what is not known.

    >>> _cell({"error": "", "time ratio": "1.416", "memory ratio": "1.05", "first s": "4.1", "plain first s": "1.0"})
    '1.42× (1.05×; +3.1 s)'
    >>> _cell({"error": "", "time ratio": "1.416", "memory ratio": "1.05", "first s": ""})
    '1.42× (1.05×)'
    >>> _cell({"error": "", "time ratio": "1.416", "memory ratio": "1.05", "gpu ratio": "1.1", "first s": ""})
    '1.42× (1.05×; GPU 1.10×)'
    """
    if row["error"]:
        without = any(words in row["error"] for words in ("no default site", "no usual place"))  # and of older code
        return "no default site" if without else "does not run"
    later = f"; {float(row['first s']) - float(row['plain first s']):+.1f} s" if row["first s"] else ""
    gpu = f"; GPU {float(row['gpu ratio']):.2f}×" if row.get("gpu ratio") else ""
    return f"{float(row['time ratio']):.2f}× ({float(row['memory ratio']):.2f}×{gpu}{later})"
