from __future__ import annotations

import pytest
import torch
from torch import Tensor

from foveal.measure import (
    AttentionOverlap,
    AttentionPrecisionRecall,
    EnergyInBox,
    InnerInLast,
    PointingGame,
    ScaleAccuracy,
    TruePositiveStrength,
    WeightedAveragePrecision,
    attention_map,
)


def samples(device: str) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(0)
    gates = [torch.rand(20, h, h, generator=draw).to(device) for h in (5, 3)]
    attention = attention_map(gates, (9, 10))
    mask = torch.rand(20, 9, 10, generator=draw).to(device) < 0.3
    correct, scale = torch.rand(20, generator=draw) < 0.6, 0.5 + 2.5 * torch.rand(20, generator=draw)
    scores, labels = torch.randint(0, 5, (20, 3), generator=draw) / 5, torch.rand(20, 3, generator=draw) < 0.3
    pairs = [(correct, scale), (scores, labels), (scores, labels), (scores, labels)]
    others = [(attention, attention.flip(1))] * 2 + [(attention, mask)] * 2
    return [(attention, mask), (attention, mask), *((a.to(device), b.to(device)) for a, b in pairs), *others]


def measure(device: str) -> list[Tensor]:
    """Every metric, moved to the device after it was made, over samples that live there."""
    metrics = [TruePositiveStrength(), AttentionPrecisionRecall(11), ScaleAccuracy()]
    metrics += [WeightedAveragePrecision(interpolation) for interpolation in ("area", "11point", "step")]
    metrics += [AttentionOverlap(), InnerInLast(), PointingGame(tolerance=1), EnergyInBox()]
    values = []
    for metric, pair in zip(metrics, samples(device), strict=True):
        metric.to(device).update(*pair)
        value = metric.compute()
        values += list(value) if isinstance(value, tuple) else [value]
    assert all(value.device.type == device for value in values)
    return values


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cuda_measures_what_the_cpu_does() -> None:
    for actual, expected in zip(measure("cuda"), measure("cpu"), strict=True):
        torch.testing.assert_close(actual.cpu(), expected, equal_nan=True, rtol=1e-5, atol=1e-6)
