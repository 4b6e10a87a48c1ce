"""What each process of test_ddp.py runs; a module of its own, so that another process can import it by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torchmetrics import Metric

from foveal.measure import (
    AttentionOverlap,
    AttentionPrecisionRecall,
    AveragePrecision,
    Bleu,
    BoxAP,
    EnergyInBox,
    InnerInLast,
    MeanIoU,
    PointingGame,
    RelationRecall,
    ScaleAccuracy,
    TruePositiveStrength,
    WeightedAveragePrecision,
)

SAMPLES = 25  # odd: the processes hold different numbers of samples


def metrics() -> dict[str, Metric]:
    return {
        "strength": TruePositiveStrength(),
        "precision_recall": AttentionPrecisionRecall(11),
        "scale": ScaleAccuracy(),
        "average_precision": WeightedAveragePrecision(),
        "each_average_precision": AveragePrecision(),
        "overlap": AttentionOverlap(),
        "inner_in_last": InnerInLast(),
        "pointing": PointingGame(tolerance=1),
        "energy": EnergyInBox(),
        "iou": MeanIoU(4),
        "boxes": BoxAP(2),
        "relations": RelationRecall(k=(1, 3, 30)),
        "bleu": Bleu("char"),
    }


def samples() -> dict[str, tuple[Any, ...]]:
    draw = torch.Generator().manual_seed(0)
    attention = torch.rand(SAMPLES, 6, 7, generator=draw)
    mask = torch.rand(SAMPLES, 6, 7, generator=draw) < 0.3
    correct = torch.rand(SAMPLES, generator=draw) < 0.6
    scale = 0.5 + 2.5 * torch.rand(SAMPLES, generator=draw)
    scores = torch.rand(SAMPLES, 3, generator=draw)
    labels = torch.rand(SAMPLES, 3, generator=draw) < 0.3
    corner = 40 * torch.rand(SAMPLES, 1, 2, generator=draw)
    boxes = torch.cat([corner, corner + 20], 2)
    found = [
        {"boxes": box + 6 * shift, "labels": 1 + kind[:1].long(), "scores": shift[None]}
        for box, shift, kind in zip(boxes, scores[:, 0], labels, strict=True)
    ]
    true = [{"boxes": box, "labels": torch.ones(1, dtype=torch.int64)} for box in boxes]
    regions = torch.rand(SAMPLES, 6, 4, generator=draw) + torch.tensor([0.0, 0, 1, 1])
    related = torch.randint(-1, 6, (SAMPLES, 3, 2), generator=draw)
    return {
        "boxes": (found, true),
        "strength": (attention, mask),
        "precision_recall": (attention, mask),
        "scale": (correct, scale),
        "average_precision": (scores, labels),
        "each_average_precision": (scores, labels),
        "overlap": (attention, attention.flip(1)),
        "inner_in_last": (attention, attention.flip(2)[:, ::2]),
        "pointing": (attention, mask),
        "energy": (attention, mask),
        "iou": ((4 * attention).long(), (4 * attention.flip(1)).long().masked_fill(mask, 255)),
        "relations": (attention[..., :6], regions, regions.flip(1), related),
        "bleu": ([f"text {i}" for i in range(SAMPLES)], [f"texts {i + 1}" for i in range(SAMPLES)]),
    }


def measure(share: slice) -> dict[str, object]:
    """Value of every metric over ``share`` of the samples, in two updates."""
    values = {}
    for name, metric in metrics().items():
        parts = [part[share] for part in samples()[name]]
        metric.update(*(part[:4] for part in parts))
        metric.update(*(part[4:] for part in parts))
        value = metric.compute()
        values[name] = tuple(value) if isinstance(value, tuple) else value
    return values


def share_of(rank: int, processes: int) -> slice:
    return slice(rank, None, processes)


def work(rank: int, processes: int, folder: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=processes)
    torch.save(measure(share_of(rank, processes)), Path(folder) / f"{rank}.pt")
    distributed.destroy_process_group()
