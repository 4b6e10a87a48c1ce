"""Run folders made up for the tests: digits on black, maps from Gaussians, curves that look like training."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from sklearn.datasets import load_digits
from torch.nn import functional as F

from foveal.see import Samples

ANSWERS = ("green", "yellow", "white", "red", "blue")
RGB = torch.tensor([[16, 166, 81], [255, 241, 78], [224, 224, 224], [146, 16, 16], [16, 98, 192]]) / 255
MODELS = {  # title: (accuracy, strength, published accuracy, published strength, gate sizes, width of the maps)
    "STN": (0.391, 0.06, 0.3910, None, [100], 60.0),
    "SOFT": (0.80, 0.131, 0.8294, 0.1361, [4], 22.0),
    "HARD": (0.79, 0.135, 0.8184, 0.1395, [4], 20.0),
    "HAttNet": (0.95, 0.19, 0.9592, 0.1739, [49, 23, 10, 4], 12.0),
    "HAttNet-CTX": (0.981, 0.247, 0.9851, 0.2259, [49, 23, 10, 4], 9.0),
}


@functools.cache
def scenes(count: int, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Images (K,3,100,100) uint8, query (K,), label (K,), mask (K,100,100) uint8, centre (K,2) of the target."""
    make = torch.Generator().manual_seed(seed)
    digits = load_digits()
    images, queries, labels, masks, centres = [], [], [], [], []
    for _ in range(count):
        image, owner = torch.zeros(3, 100, 100), torch.full((100, 100), -1)
        placed = []
        for digit in torch.randperm(10, generator=make)[:7].tolist():
            choice = int(torch.randint(0, 100, (1,), generator=make))
            small = torch.tensor(digits.images[digits.target == digit][choice] / 16).float()
            for _ in range(60):
                side = int(28 * (0.6 + 1.4 * float(torch.rand(1, generator=make)) ** 2))
                top, left = torch.randint(0, 100 - side, (2,), generator=make).tolist()
                window = (slice(top, top + side), slice(left, left + side))
                if (owner[window] < 0).all():
                    alpha = F.interpolate(small[None, None], (side, side), mode="bilinear")[0, 0]
                    colour = int(torch.randint(0, 5, (1,), generator=make))
                    image[(slice(None), *window)] = alpha * RGB[colour][:, None, None]
                    owner[window] = torch.where(alpha > 0, digit, owner[window])
                    placed.append((digit, colour, top + side / 2, left + side / 2))
                    break
        digit, colour, *centre = placed[int(torch.randint(0, len(placed), (1,), generator=make))]
        images.append((image * 255).round().byte())
        queries.append(digit)
        labels.append(colour)
        masks.append((owner == digit).byte())
        centres.append(torch.tensor(centre))
    return torch.stack(images), torch.tensor(queries), torch.tensor(labels), torch.stack(masks), torch.stack(centres)


def gaussian(centre: torch.Tensor, size: int, width: float) -> torch.Tensor:
    """(size, size) map of a 100×100 image with its peak at ``centre`` (row, column)."""
    at = (torch.arange(size) + 0.5) * 100 / size
    squares = (at[:, None] - centre[0]) ** 2 + (at[None] - centre[1]) ** 2
    return torch.exp(-squares / (2 * width**2)) + 1e-4


def make_samples(title: str, count: int = 6) -> Samples:
    accuracy, _, _, _, sizes, width = MODELS.get(title, MODELS["SOFT"])
    images, query, label, mask, centre = scenes(count)
    make = torch.Generator().manual_seed(len(title))
    wrong = torch.rand(count, generator=make) > accuracy
    prediction = torch.where(wrong, (label + 1) % 5, label)
    looked = torch.where(wrong[:, None], 100 - centre, centre)
    noise = 0.15 * torch.rand(count, 100, 100, generator=make)
    maps = tuple(
        torch.stack([gaussian(looked[k], size, width * (2.5 - 0.4 * i)) for k in range(count)])
        * (1 - F.interpolate(noise[:, None], (size, size))[:, 0])
        for i, size in enumerate(sizes)
    )
    whole = math.prod(F.interpolate(gate[:, None], (100, 100), mode="bilinear")[:, 0] for gate in maps)
    probability = torch.full((count, 5), 0.02)
    probability[torch.arange(count), prediction] = torch.where(wrong, 0.54, 0.92)
    return Samples(
        image=images,
        query=query,
        label=label,
        prediction=prediction,
        probability=probability,
        mask=mask,
        gates=maps,
        map=whole,
        queries=tuple(map(str, range(10))),
        answers=ANSWERS,
        sites=tuple(f"gates.{i}" for i in range(4 - len(sizes), 4)) if len(sizes) > 1 else ("gates.3",),
    )


def make_run(
    folder: Path,
    title: str = "SOFT",
    *,
    dataset: str = "MREF",
    seed: int = 0,
    embedded: bool = False,
    finished: bool = True,
    epochs: int = 40,
    truncated: bool = False,
    samples: bool = True,
    settings: dict[str, Any] | None = None,
    **changes: Any,
) -> Path:
    """Write a run folder; ``changes`` replace entries of result.json."""
    folder.mkdir(parents=True)
    accuracy, strength, paper, paper_strength, sizes, _ = MODELS.get(title, MODELS["SOFT"])
    accuracy += 0.004 * (seed - 1)
    name = f"hattnet/{dataset.lower()}-{title.lower()}"
    recipe = {"version": 1, "name": name, "title": title, "seed": seed, "data": {"name": dataset.lower()}}
    recipe |= {"model": {"name": title.lower()}, "train": {"epochs": 60}} | (settings or {})
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    environment = {"python": "3.12.1", "torch": "2.9.0", "device": "CPU", "revision": "a05ffa6"}
    (folder / "environment.json").write_text(json.dumps(environment))
    make = torch.Generator().manual_seed(seed + len(title))
    lines = []
    for epoch in range(epochs):
        near = 1 - math.exp(-epoch / 9)
        jitter = 0.02 * float(torch.randn(1, generator=make))
        lines.append(
            {
                "epoch": epoch,
                "step": 150 * (epoch + 1),
                "seconds": 1.2,
                "lr": 0.003,
                "train/loss": 1.55 - 1.5 * accuracy * near + jitter / 2,
                "val/loss": 1.6 - 1.45 * accuracy * near + jitter,
                "val/accuracy": min(1.0, max(0.0, 0.2 + (accuracy - 0.2) * near + jitter / 2)),
            }
        )
    text = "\n".join(map(json.dumps, lines)) + "\n"
    (folder / "metrics.jsonl").write_text(text[:-40] if truncated else text)
    if not finished:
        return folder
    thresholds = [i / 20 for i in range(21)]
    peak = min(1.0, 3.2 * strength)
    result = {
        "recipe": name,
        "title": title,
        "dataset": dataset,
        "seed": seed,
        "parameters": 30470 if len(sizes) == 1 else 59273,
        "epochs": epochs,
        "best_epoch": epochs - 7,
        "seconds": 31.2 + 5 * len(sizes),
        "embedded": embedded,
        "data": "seven digits in five colours on black, 10,000 questions held out",
        "metrics": {
            "accuracy": accuracy,
            "true_positive_strength": strength + 0.002 * seed,
            "true_positive_strength_last": 0.9 * strength,
            "target_area": 0.0234,
        },
        "scale_accuracy": {
            "edges": [0.5, 1, 1.5, 2, 2.5, 3],
            "accuracy": [
                min(1.0, accuracy * (1 - (0.3 if len(sizes) == 1 else 0.02) * abs(i - 1.6) / 2)) for i in range(5)
            ],
            "count": [4200, 3000, 1500, 900, 400],
        },
        "pixel_pr": {
            "thresholds": thresholds,
            "precision": [0.0234 + (peak - 0.0234) * t for t in thresholds],
            "recall": [(1 - t) ** (0.5 / peak) for t in thresholds],
        },
        "published": {"accuracy": paper, "true_positive_strength": paper_strength},
    } | changes
    (folder / "result.json").write_text(json.dumps(result))
    if samples:
        make_samples(title).save(folder / "samples.safetensors")
    return folder


@pytest.fixture
def write_run() -> Callable[..., Path]:
    return make_run


@pytest.fixture
def samples_of() -> Callable[..., Samples]:
    return make_samples
