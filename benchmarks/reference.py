"""How fast reference scenes are painted and trained on.

    foveal bench reference                      # this machine
    python benchmarks/reference.py --whole --csv results/bench-reference.csv
    python benchmarks/reference.py --table hattnet/table1-ours --jobs 8 --csv results/bench-reference.csv

Prints images painted a second for each dataset and, for each model, triples trained a second beside the same loop on
one repeated batch: the difference is the share of time spent waiting for data. ``--whole`` also times one whole run,
from the command to its last line. ``--table`` times every run of a table instead, with --jobs of them side by side;
--rows keeps their rows.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from foveal.bench import hardware, write_rows
from foveal.data import data_root
from foveal.data.embedded.painting import generate
from foveal.data.embedded.reference import ReferenceData, ReferenceOptions
from foveal.recipe import load
from foveal.tasks.refer import Refer

MODELS = ("soft", "hard", "hattnet", "hattnet-ctx", "stn")
WHOLE = "hattnet/table1-ours/mref-hattnet-ctx"


def wait(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def paint(name: str, images: int, device: torch.device, root: Path | None) -> float:
    data = ReferenceData(name, ReferenceOptions(digits="mnist" if root else "embedded"), root)
    sources = data.sources("train").to(device)
    batch = 128 if device.type == "cpu" else 4096
    generate(data.spec, sources, 1, min(batch, images), batch=batch, device=device)
    start = wait(device)
    generate(data.spec, sources, 0, images, batch=batch, device=device)
    return images / (wait(device) - start)


def train(
    model: str, data: ReferenceData, device: torch.device, steps: int, batch: int, compiled: bool, amp: bool
) -> dict[str, float]:
    recipe = load(f"hattnet/table1/mref-{model}", [f"train.compile={str(compiled).lower()}"])
    task = Refer(recipe, data).to(device)
    mode = "reduce-overhead" if device.type == "cuda" else None
    step = torch.compile(task.weighed, mode=mode) if compiled else task.weighed
    optimiser = torch.optim.AdamW(task.model.parameters(), lr=1e-3, fused=device.type == "cuda")

    def run(batches, count: int) -> float:  # type: ignore[no-untyped-def]
        start = wait(device)
        for b in itertools.islice(batches, count):
            with torch.autocast(device.type, torch.bfloat16, enabled=amp):
                loss, _ = step(b)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        return (wait(device) - start) / count

    loader = data.loader("train", batch, device=device)
    fixed = next(iter(loader))
    run(itertools.repeat(fixed), 5)
    real = run(itertools.cycle(iter(loader)), steps)
    same = run(itertools.repeat(fixed), steps)
    return {"triples_per_s": batch / real, "ms_per_step": 1e3 * real, "waiting_for_data": max(0.0, 1 - same / real)}


def whole_run(recipe: str = WHOLE) -> dict[str, float]:
    """Seconds from the command to its last line (imports, data, compilation, training, test), and of a step in it."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "foveal", "train", recipe, "train.compile=true", "train.precision=bf16"]
        empty = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "TRITON_CACHE_DIR": f"{folder}/triton"}
        start = time.perf_counter()
        done = subprocess.run(
            [*command, "--out", f"{folder}/run"], env=os.environ | empty, capture_output=True, text=True, check=False
        )
        seconds = time.perf_counter() - start
        if done.returncode:
            sys.exit(done.stderr[-2000:])
        result = json.loads(Path(folder, "run", "result.json").read_text(encoding="utf-8"))
        return {"seconds": seconds, "ms_per_step": 1e3 * result["step_seconds"]}


def whole_table(table: str, seeds: int, jobs: int, rows: Path | None, overrides: list[str]) -> tuple[int, float]:
    """Number of runs of a table, and seconds from the command that makes them to its last line."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "foveal", "reproduce", table, "--seeds", str(seeds), "--jobs", str(jobs)]
        start = time.perf_counter()
        done = subprocess.run([*command, "--out", folder, "--csv", str(rows or f"{folder}/rows.csv"), *overrides])
        seconds = time.perf_counter() - start
        if done.returncode:
            sys.exit(done.returncode)
        return len(list(Path(folder).rglob("result.json"))), seconds


def add_rows(path: Path, rows: list[dict[str, object]]) -> None:
    """Add rows to a file; they replace what was measured there on the same hardware."""

    def key(row: dict[str, object]) -> list[object]:
        return [row[name] for name in ("what", "unit", "hardware")]

    known: list[dict[str, object]] = []
    if path.exists():
        with path.open(encoding="utf-8", newline="") as file:
            known = list(csv.DictReader(file))
    new = list(map(key, rows))
    write_rows(path, [*(row for row in known if key(row) not in new), *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=None, help="images to paint (15,000 on a GPU, 2,000 on a CPU)")
    parser.add_argument("--steps", type=int, default=None, help="training steps a model (200 on a GPU, 5 on a CPU)")
    parser.add_argument("--batch", type=int, default=200)
    parser.add_argument("--whole", action="store_true", help=f"also time a whole run of {WHOLE}; needs MNIST")
    parser.add_argument("--table", help="time every run of this table instead")
    parser.add_argument("--seeds", type=int, default=3, help="of the table")
    parser.add_argument("--jobs", type=int, default=8, help="runs of the table side by side")
    parser.add_argument("--rows", type=Path, help="add the rows of the table to this file")
    parser.add_argument("overrides", nargs="*", help="of the table's recipes")
    parser.add_argument("--csv", type=Path, help="also add the rows to this file")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    gpu = device.type == "cuda"
    images, steps = options.images or (15_000 if gpu else 2_000), options.steps or (200 if gpu else 5)
    root = data_root()
    rows: list[dict[str, object]] = []
    where = {"hardware": hardware(device), "torch": torch.__version__}
    if options.table:
        runs, seconds = whole_table(options.table, options.seeds, options.jobs, options.rows, options.overrides)
        what = " ".join([f"table {options.table}, {runs} runs, {options.jobs} at once", *options.overrides])
        print(f"{what} {seconds / 60:.1f} min")
        if options.csv:
            add_rows(options.csv, [{"what": what, "value": round(seconds, 1), "unit": "seconds", **where}])
        return
    for name in ("mref", "mdist") + (("mbg",) if root and (root / "backgrounds").exists() else ()):
        speed = paint(name, images, device, root)
        print(f"paint {name:6} {speed:10,.0f} images/s   15,000 images in {15_000 / speed:6.1f} s")
        rows.append({"what": f"paint {name}", "value": round(speed, 1), "unit": "images/s", **where})
    data = ReferenceData(
        "mref", ReferenceOptions(digits="mnist" if root else "embedded", triples=(4000, 100, 100)), root
    )
    variants = [(False, False), (True, True)] if gpu else [(False, False)]
    for model, (compiled, amp) in itertools.product(MODELS, variants):
        how = "bf16 compiled" if compiled else "fp32 eager"
        found = train(model, data, device, steps, options.batch, compiled, amp)
        print(
            f"train {model:12} {how:14} {found['triples_per_s']:10,.0f} triples/s {found['ms_per_step']:8.2f} ms/step  "
            f"waiting for data {found['waiting_for_data']:.1%}"
        )
        for key, value in found.items():
            rows.append({"what": f"train {model} {how}", "value": round(value, 4), "unit": key, **where})
    if options.whole:
        found = whole_run()
        print(f"run {WHOLE} bf16 compiled {found['seconds']:.1f} s, {found['ms_per_step']:.2f} ms/step")
        for key, value in found.items():
            rows.append({"what": f"run {WHOLE} bf16 compiled", "value": round(value, 2), "unit": key, **where})
    if options.csv:
        add_rows(options.csv, rows)


if __name__ == "__main__":
    main()
