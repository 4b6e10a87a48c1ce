"""What attention costs in models: a case, its row beside the plain model, rows in a file, and rows in words."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from foveal.bench import hardware, write_rows

MODES = {"eager": None, "default": "default", "reduce-overhead": "reduce-overhead"}  # and torch.compile's mode
PARTS = {"train": "a training step", "infer": "inference"}
PLAIN = "plain"
KEYS = ("model", "batch", "size", "mechanism", "mode", "part", "precision", "layout", "hardware", "torch")
FIGURES = (
    "ms", "plain ms", "time ratio", "peak MiB", "plain peak MiB", "memory ratio", "first s", "plain first s",
    "compile s", "plain compile s", "jobs", "error",
)  # fmt: skip


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


def compared(case: Case, part: str, plain: dict[str, Any], figures: dict[str, Any], jobs: int) -> dict[str, Any]:
    """A row: a model with attention beside the plain one."""
    error = f"plain model: {plain['error']}" if "error" in plain else figures.get("error", "")
    row = key_of(case, part) | dict.fromkeys(FIGURES, "") | {"jobs": jobs, "error": error}
    if not error:
        row |= {name: round(figures[name], 3) for name in ("ms", "peak MiB", "first s")}
        row |= {f"plain {name}": round(plain[name], 3) for name in ("ms", "peak MiB", "first s")}
        row["time ratio"] = round(figures["ms"] / plain["ms"], 3)
        row["memory ratio"] = round(figures["peak MiB"] / plain["peak MiB"], 3)
        if MODES[case.mode] is not None:
            row["compile s"] = round(figures["first s"] - figures["ms"] / 1e3, 2)
            row["plain compile s"] = round(plain["first s"] - plain["ms"] / 1e3, 2)
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
        """A new row, which is in the file at once."""
        self.known[row_key(row)] = self.written[row_key(row)] = row
        if self.path:
            write_rows(self.path, list(self.written.values()))

    def missing(self, case: Case, parts: Sequence[str]) -> list[str]:
        """Parts of a case without a row."""
        return [part for part in parts if row_key(key_of(case, part)) not in self.known]

    def plain(self, case: Case, part: str, jobs: int) -> dict[str, Any] | None:
        """Figures of a plain model that stand in rows of mechanisms, if as many processes ran side by side."""
        about = row_key(key_of(case, part) | {"mechanism": ""})
        for row in self.known.values():
            if row_key(row | {"mechanism": ""}) == about and not row["error"] and str(row["jobs"]) == str(jobs):
                return {name: float(row[f"plain {name}"]) for name in ("ms", "peak MiB", "first s")}
        return None


def row_key(row: dict[str, Any]) -> tuple[str, ...]:
    """What a row is about, to compare."""
    return tuple(str(row[name]) for name in KEYS)


def sentence(row: dict[str, Any]) -> str:
    """A row in words."""
    what = f"{row['mechanism']} in {row['model']}, batch {row['batch']}, {row['size']}×{row['size']}, {row['mode']}"
    if row["error"]:
        return f"{what}, {row['part']}: {row['error']}"
    later = float(row["first s"]) - float(row["plain first s"])
    return (
        f"{what}: {float(row['time ratio']):.2f}× the time of {PARTS[row['part']]} "
        f"({float(row['plain ms']):.1f} → {float(row['ms']):.1f} ms), {float(row['memory ratio']):.2f}× the memory, "
        f"{later:+.1f} s at the first one"
    )


def show(rows: list[dict[str, Any]], console: Console) -> None:
    """Print a table of rows."""
    table = Table(title="attention beside the plain model in the same mode", caption=str(rows[0]["hardware"]))
    for head in ("model, batch", "mechanism", "mode", "part"):
        table.add_column(head)
    for head in ("time", "ms (plain)", "memory", "MiB (plain)", "first, s (plain)"):
        table.add_column(head, justify="right")
    for row in rows:
        cells = [f"{row['model']}, {row['batch']}", row["mechanism"], row["mode"], row["part"]]
        if row["error"]:
            table.add_row(*cells, "failed")
            continue
        ratios = [f"{float(row[f'{name} ratio']):.2f}×" for name in ("time", "memory")]
        pairs = [
            f"{float(row[name]):.{digits}f} ({float(row[f'plain {name}']):.{digits}f})"
            for name, digits in (("ms", 1), ("peak MiB", 0), ("first s", 1))
        ]
        table.add_row(*cells, ratios[0], pairs[0], ratios[1], *pairs[1:])
    console.print(table)
