"""Detectors with attention beside the plain one: whole training steps, inference, and the wait for data.

    foveal bench detect                        # this machine
    python benchmarks/detect.py --csv results/bench-detect.csv
    python benchmarks/detect.py --feed voc2012-detection --data FOLDER     # how long a step waits for its images

Milliseconds of a whole step as a run takes it (images of several sizes as bytes, losses, backward, SGD), and of
inference with everything up to the boxes that are left; measured in turns, with all the time that Python takes.
``parts`` compiles the backbone and the head of regions, as ``train.compile`` does. On a GPU: bf16 autocast, batch 8,
ResNet-50 with a pyramid. On a CPU: float32, batch 2, ResNet-18, smaller images.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

import foveal
from foveal.bench import cleared, clock_beside, hardware, peak, stopwatch, write_rows
from foveal.data import data_root, dataset
from foveal.models import create_model

FPN = "backbone.fpn.*_blocks.*.0"
MODELS: dict[str, list[dict[str, Any]]] = {
    "plain": [],
    "SE": [{"mechanism": "se", "at": FPN, "before": True}],
    "CBAM": [{"mechanism": "cbam", "at": FPN, "before": True}],
    "AW": [{"mechanism": "aw", "at": FPN}],
    "AW-SE": [{"mechanism": "se", "at": FPN, "before": True}, {"mechanism": "aw", "at": FPN}],
    "spatial 1111": [{"mechanism": "spatial", "terms": "1111"}],
    "spatial 0010": [{"mechanism": "spatial", "terms": "0010"}],
    "deformable": [{"mechanism": "deform"}],
    "deformable + 0010": [{"mechanism": "deform"}, {"mechanism": "spatial", "terms": "0010"}],
}
SMALL = {"anchors": [[16], [32], [64], [128], [256]], "candidates": 1000, "regions": 128}
SETTINGS: dict[int, dict[str, Any]] = {  # by the short side of the images
    64: {"backbone": "resnet18", "width": 32, "hidden": 64, "candidates": 100, "regions": 32, "proposals_test": 50},
    176: {"backbone": "resnet50", **SMALL, "proposals_train": 500, "proposals_test": 300},
    800: {"backbone": "resnet50"},
}
Batch = dict[str, Any]
Row = dict[str, Any]


def build(inserts: list[dict[str, Any]], short: int, device: torch.device) -> nn.Module:
    """A detector of 20 classes with attention; norms are frozen, as in training from ImageNet's weights."""
    torch.manual_seed(0)
    sizes = {"min_size": short, "max_size": 2 * short}
    model = create_model("detector", num_classes=21, norm="frozen", frozen=2, **sizes, **SETTINGS[short])
    for options in inserts:
        foveal.insert(model, start="paper", **options)
    return model.to(device, memory_format=torch.channels_last)


def photographs(count: int, short: int, device: torch.device) -> Batch:
    """Images of noise of several shapes, each with five boxes."""
    draw = torch.Generator().manual_seed(0)
    images, targets = [], []
    for n in range(count):
        size = (short, short * 4 // 3) if n % 2 else (short * 3 // 2, short)
        images.append(torch.randint(0, 256, (3, *size), dtype=torch.uint8, generator=draw).to(device))
        corner = torch.rand(5, 2, generator=draw) * short / 2
        boxes = torch.cat([corner, corner + short / 8 + torch.rand(5, 2, generator=draw) * short / 3], 1)
        targets.append({"boxes": boxes.to(device), "labels": torch.arange(1, 6, device=device)})
    return {"image": images, "target": targets}


def training(model: nn.Module, device: torch.device) -> Callable[[Batch], object]:
    """A whole step on a batch."""
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-4, momentum=0.9)

    def step(batch: Batch) -> None:
        optimiser.zero_grad()
        with torch.autocast(device.type, torch.bfloat16) if device.type == "cuda" else nullcontext():
            losses = model.train()([image.float() / 255 for image in batch["image"]], batch["target"])
        sum(losses.values()).backward()
        optimiser.step()

    return step


def inference(model: nn.Module, device: torch.device) -> Callable[[Batch], object]:
    """Boxes of a batch."""

    @torch.no_grad()
    def found(batch: Batch) -> object:
        with torch.autocast(device.type, torch.bfloat16) if device.type == "cuda" else nullcontext():
            return model.eval()([image.float() / 255 for image in batch["image"]])

    return found


def measured(
    names: list[str], short: int, compiled: bool, seconds: float, device: torch.device
) -> list[dict[str, Any]]:
    """Rows of all models, in training and inference."""
    batch = photographs(8 if device.type == "cuda" else 2, short, device)
    rows: list[Row] = []
    for phase, make in (("train", training), ("infer", inference)):
        runs, memory = {}, {}
        for name in names:
            cleared()
            torch._dynamo.reset()
            model = build(MODELS[name], short, device)
            if compiled:
                model.backbone.compile(dynamic=True)
                model.roi_heads.box_head.compile(dynamic=True)
            call = make(model, device)
            runs[name] = lambda call=call: call(batch)
            for _ in range(3):
                runs[name]()
            memory[name] = peak(runs[name], above=True) if device.type == "cuda" else 0.0
        times = clock_beside(runs, device, seconds)
        for name, value in times.items():
            ratio = value / times[names[0]]
            mode = "parts" if compiled else "eager"
            print(
                f"{short:4} px {phase:5} {mode:5} {name:18} {value:9.2f} ms {ratio:6.3f}×  {memory[name]:8.0f} MiB",
                flush=True,
            )
            row = {"short": short, "batch": len(batch["image"]), "phase": phase, "mode": mode, "model": name}
            rows.append({**row, "ms": round(value, 3), "ratio": round(ratio, 4), "peak_mib": round(memory[name], 1)})
    return rows


def waiting(name: str, root: Path | None, short: int, device: torch.device, steps: int) -> list[Row]:
    """The part of a training step that is spent on waiting for its images: held on the device, and read from files."""
    entry, rows = dataset(name), []
    for held in (True, False):
        source = entry.build(entry.options(short=short, hold=held, workers=8, val_fraction=0.0), root)
        batches = iter(source.loader("train", 8, device=device))
        step = training(build([], short, device), device)

        def moved(batches: Any = batches) -> Batch:
            batch = next(batches)
            images = [image.to(device, non_blocking=True) for image in batch["image"]]
            keys = ("boxes", "labels")
            return {"image": images, "target": [{key: t[key].to(device) for key in keys} for t in batch["target"]]}

        for _ in range(5):
            step(moved())
        spent = 0.0

        def one(moved: Callable[[], Batch] = moved, step: Callable[[Batch], object] = step) -> None:
            nonlocal spent
            start = time.perf_counter()
            batch = moved()
            spent += time.perf_counter() - start
            step(batch)

        seconds = stopwatch(one, device, steps)
        share, how = spent / (seconds * steps), "held" if held else "files"
        print(f"{name} {how:5}: {1e3 * seconds:7.2f} ms a step, {share:.1%} of it waiting for data", flush=True)
        row = {"short": short, "batch": 8, "phase": f"train on {name}", "mode": how, "model": "plain"}
        rows.append({**row, "ms": round(1e3 * seconds, 3), "ratio": "", "peak MiB": "", "waiting": round(share, 4)})
    return rows


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--models", nargs="+", default=list(MODELS), choices=list(MODELS), help="the first is compared with"
    )
    parser.add_argument("--short", nargs="+", type=int, choices=list(SETTINGS), help="short sides of the images")
    parser.add_argument("--eager", action="store_true", help="without compiled parts")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each measurement")
    parser.add_argument("--feed", help="a dataset: also measure how long steps wait for it")
    parser.add_argument("--data", help="folder of datasets, instead of FOVEAL_DATA")
    parser.add_argument("--csv", type=Path, help="also write the rows to this file")
    options = parser.parse_args(arguments)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    gpu = device.type == "cuda"
    sizes = options.short or ([176, 800] if gpu else [64])
    rows = [
        row
        for short in sizes
        for compiled in ((False,) if options.eager or not gpu else (False, True))
        for row in measured(options.models, short, compiled, options.seconds, device)
    ]
    if options.feed:
        rows += waiting(options.feed, data_root(options.data), sizes[0], device, 60 if gpu else 3)
    if options.csv:
        where = {"hardware": hardware(device), "torch": torch.__version__, "precision": "bf16" if gpu else "fp32"}
        write_rows(options.csv, [{**row, **where} for row in rows])


if __name__ == "__main__":
    main()
