"""What attention costs in models: a case, its row beside the plain model, rows in a file, and rows in words."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from foveal.bench import hardware, write_rows
from foveal.revision import revision

MODES = {"eager": None, "default": "default", "reduce-overhead": "reduce-overhead"}  # and torch.compile's mode
PARTS = {"train": "a training step", "infer": "inference"}
PLAIN = "plain"
KEYS = ("model", "batch", "size", "mechanism", "mode", "part", "precision", "layout", "hardware", "torch")
FIGURES = (
    "ms", "plain ms", "time ratio", "gpu ms", "plain gpu ms", "gpu ratio", "peak MiB", "plain peak MiB", "memory ratio",
    "first s", "plain first s", "compile s", "plain compile s", "jobs", "error", "revision",
)  # fmt: skip

COLUMNS = (  # name, digits after the point, sign after them, width
    ("time ratio", 2, "×", 7), ("ms", 1, "", 9), ("gpu ratio", 2, "×", 7), ("gpu ms", 1, "", 9),
    ("memory ratio", 2, "×", 8), ("peak MiB", 0, "", 8), ("first s", 1, "", 15),
)  # fmt: skip
HEADS = {
    "time ratio": "time", "ms": "ms", "gpu ratio": "GPU", "gpu ms": "ms", "memory ratio": "memory", "peak MiB": "MiB",
    "first s": "first step, s",
}  # fmt: skip
RATIOS = {"ms": "time ratio", "gpu ms": "gpu ratio", "peak MiB": "memory ratio"}


@dataclass(frozen=True)
class Case:
    """One model with one mechanism in one mode.

    Attributes:
        model: name of a network of timm, torchvision or foveal.
        batch: number of images.
        size: their side in pixels; 0 for the model's own.
        mechanism: names and options, or ``plain``.
        mode: a key of MODES.
        device: ``cuda`` or ``cpu``.
        channels_last: layout of images and model.
        seconds: how long each part is measured.
    """

    model: str
    batch: int
    size: int
    mechanism: str
    mode: str
    device: str
    channels_last: bool
    seconds: float

    def __str__(self) -> str:
        return f"{self.mechanism} in {self.model}, batch {self.batch}, {self.size}×{self.size}, {self.mode}"


def compared(
    case: Case, part: str, plain: Mapping[str, Any], figures: Mapping[str, Any], row: dict[str, Any]
) -> dict[str, Any]:
    """A row: a model with attention beside the plain one. Figures are added to those that ``row`` has."""
    row = {**key_of(case, part), **dict.fromkeys(FIGURES, ""), **row}
    row["error"] = figures.get("error") or (f"plain model: {plain['error']}" if "error" in plain else "")
    row |= {f"plain {name}": round(value, 3) for name, value in plain.items() if name != "error"}
    if row["error"]:
        return row
    for name, value in figures.items():
        row[name] = round(value, 3)
        if name in RATIOS:
            row[RATIOS[name]] = round(value / plain[name], 3)
    if MODES[case.mode] is not None and "" not in (row["ms"], row["first s"]):
        for kind in ("", "plain "):
            row[f"{kind}compile s"] = round(float(row[f"{kind}first s"]) - float(row[f"{kind}ms"]) / 1e3, 2)
    return row


def key_of(case: Case, part: str) -> dict[str, object]:
    """What a row is about; a file has one row for each."""
    device = torch.device(case.device)
    return {
        "model": case.model, "batch": case.batch, "size": case.size, "mechanism": case.mechanism, "mode": case.mode,
        "part": part, "precision": "bf16" if device.type == "cuda" else "fp32",
        "layout": "channels last" if case.channels_last else "channels first",
        "hardware": hardware(device), "torch": torch.__version__,
    }  # fmt: skip


class Rows:
    """Rows of a file, one for each key, and those that need not be measured.

    Args:
        path: the file; None for none.
        again: measure also what the file has.
    """

    def __init__(self, path: Path | None, again: bool) -> None:
        self.path = path
        self.written: dict[tuple[str, ...], dict[str, Any]] = {}
        if path and path.exists():
            with open(path, newline="", encoding="utf-8") as file:
                rows = [dict.fromkeys((*KEYS, *FIGURES), "") | row for row in csv.DictReader(file)]
            self.written = {row_key(row): row for row in rows}
        self.known = {} if again else dict(self.written)

    def add(self, row: dict[str, Any]) -> None:
        """A new row, which is in the file at once; figures that came later may be of another revision."""
        row["revision"] = "; ".join(dict.fromkeys(filter(None, [row.get("revision"), revision()])))
        self.known[row_key(row)] = self.written[row_key(row)] = row
        if self.path:
            write_rows(self.path, list(self.written.values()))

    def missing(self, case: Case, parts: Sequence[str], column: str) -> list[str]:
        """Parts of a case that have no row, or a row without this figure and without an error."""
        rows = {part: self.row(case, part) for part in parts}
        return [part for part, row in rows.items() if row.get(column, "") == "" and not row.get("error")]

    def row(self, case: Case, part: str) -> dict[str, Any]:
        """What is known of a part, maybe nothing."""
        return self.known.get(row_key(key_of(case, part)), {})


def row_key(row: dict[str, Any]) -> tuple[str, ...]:
    """What a row is about, to compare."""
    return tuple(str(row[name]) for name in KEYS)


def sentence(row: dict[str, Any]) -> str:
    """A row in words."""
    what = f"{row['mechanism']} in {row['model']}, batch {row['batch']}, {row['size']}×{row['size']}, {row['mode']}"
    if row["error"]:
        return f"{what}, {row['part']}: {row['error']}"
    later = (
        f", {float(row['first s']) - float(row['plain first s']):+.1f} s at the first one"
        if row["first s"] != ""
        else ""
    )
    if row["ms"] == "":
        return f"{what}, {row['part']}{later}"
    times = f"{float(row['plain ms']):.1f} → {float(row['ms']):.1f} ms"
    gpu = f", {float(row['gpu ratio']):.2f}× the work of the GPU" if row["gpu ratio"] != "" else ""
    time, memory = float(row["time ratio"]), float(row["memory ratio"])
    return f"{what}: {time:.2f}× the time of {PARTS[row['part']]} ({times}){gpu}, {memory:.2f}× the memory{later}"


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as aligned lines, those of a model beneath each other with the plain model that they were timed beside."""
    blocks: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        blocks.setdefault(tuple(str(row[name]) for name in (*KEYS[:3], *KEYS[4:6], "plain ms")), []).append(row)
    width = max(len(str(name)) for name in (PLAIN, *(row["mechanism"] for row in rows)))
    lines = [f"beside the plain model in the same mode, on {rows[0]['hardware']}"]
    for (model, batch, size, mode, part, _), block in blocks.items():
        lines += ["", f"{model}, batch {batch}, {size}×{size}, {mode}, {PARTS[part]}"]
        shown = [column for column in COLUMNS if any(row[column[0]] != "" for row in block)]
        lines.append(f"  {'':{width}} {' '.join(HEADS[name].rjust(space) for name, _, _, space in shown)}")
        plain = {name: block[0][f"plain {name}"] for name in ("ms", "gpu ms", "peak MiB", "first s")}
        for row in ({"mechanism": PLAIN, "error": "", **dict.fromkeys(RATIOS.values(), ""), **plain}, *block):
            cells = [
                f"{float(row[name]):.{digits}f}{sign}".rjust(space) if row[name] != "" else " " * space
                for name, digits, sign, space in shown
            ]
            figures = f"failed: {row['error']}" if row["error"] else " ".join(cells).rstrip()
            lines.append(f"  {row['mechanism']:{width}} {figures}")
    return "\n".join(lines)
