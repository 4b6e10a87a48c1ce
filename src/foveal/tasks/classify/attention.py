"""What attention a classifier shows: maps of inserted mechanisms, and measures of class attention over a test set."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Literal

import torch
from torch import Tensor, nn

from foveal.attention import Attends, AttentionRecord, cam, watch
from foveal.errors import UserError
from foveal.measure import AttentionOverlap, EnergyInBox, InnerInLast, PointingGame, attention_map, box_mask
from foveal.measure._split import SplitMean
from foveal.measure.attention_overlap import OVERLAP_INNER, OVERLAP_LAST
from foveal.measure.info import MetricInfo
from foveal.supervise import confusing_class
from foveal.tasks.classify.options import ClassAttention
from foveal.tasks.classify.sharpening import trial_images, without_python
from foveal.tasks.results import Results

MapKind = Literal["channel", "gradcam"]
SHOWN = 9  # gates in a picture


def looking(model: nn.Module) -> AbstractContextManager[Mapping[str, AttentionRecord]]:
    """Watch the spatial attention of a model; a model without any is not watched."""
    sites = [name for name, m in model.named_modules() if isinstance(m, Attends) and m.kind == "spatial"]
    return watch(model, sites) if sites else contextlib.nullcontext({})


def spatial_maps(seen: Mapping[str, AttentionRecord], size: tuple[int, int]) -> tuple[dict[str, Tensor], Tensor | None]:
    """What :func:`looking` saw: maps by layer, every k-th of many up to the last, and all combined at ``size``.

    The combined map is None if there are none.
    """
    gates = {site.replace(".attached.", " "): record.values.float() for site, record in seen.items()}
    if not gates:
        return {}, None
    shown = list(gates)[:: -math.ceil(len(gates) / SHOWN)]
    return {site: gates[site] for site in reversed(shown)}, attention_map(list(gates.values()), size)


def try_maps(model: nn.Module, layers: Sequence[str], kind: MapKind, size: int, key: str) -> None:
    """Find out before training whether layers have class maps; the model is left as it was.

    Args:
        model: the classifier.
        layers: names.
        kind: of the maps.
        size: side of the images.
        key: of the recipe, for the message.
    """
    x, label = trial_images(model, size)
    training = model.training
    try:
        cam(model.eval(), x, label, list(layers), kind)
    except (RuntimeError, ValueError) as error:
        raise UserError(f"{key}: {without_python(error)}") from error
    finally:
        model.train(training)


class ClassAttentionMetrics(nn.Module):
    """Measures of the true and the confusing class's attention over a test set.

    Args:
        options: of the recipe, completed.
        boxes: where things are in the test images, as in ``ImageData.boxes``, or None.
    """

    def __init__(self, options: ClassAttention, boxes: Tensor | None = None) -> None:
        super().__init__()
        assert options.layers is not None
        self.layers, self.kind, self.boxes = options.layers, options.kind, boxes
        metrics: list[tuple[MetricInfo, SplitMean]] = [(OVERLAP_LAST, AttentionOverlap())]
        if len(self.layers) == 2:
            inside = InnerInLast(sigma=options.sigma, omega=options.omega)
            metrics = [(OVERLAP_INNER, AttentionOverlap()), *metrics, (InnerInLast.info, inside)]
        if boxes is not None:
            metrics += [(PointingGame.info, PointingGame()), (EnergyInBox.info, EnergyInBox())]
        self.metrics = {info.key: metric for info, metric in metrics}
        self.infos = {info.key: info for info, _ in metrics}
        self.held = nn.ModuleList(self.metrics.values())  # so that they move to the device with the task

    def update(self, model: nn.Module, x: Tensor, logits: Tensor, batch: Mapping[str, Tensor]) -> None:
        """Add a batch; of an image with several labels its best-scoring true class is taken.

        Args:
            model: the classifier.
            x: what it takes.
            logits: what it returns, (N, K).
            batch: label, index and perhaps valid.
        """
        label, valid = batch["label"], batch.get("valid")
        confuser, counts = confusing_class(logits, label, valid)
        if label.ndim == 1:
            true = label
        else:
            positive = label > 0 if valid is None else (label > 0) & valid
            true, counts = logits.masked_fill(~positive, -torch.inf).argmax(1), counts & positive.any(1)
        if not bool(counts.any()):
            return
        classes = torch.stack([true, confuser], 1)
        # A map that overflowed in half precision says nothing.
        maps = [layer[counts].nan_to_num(0, 0) for layer in cam(model, x, classes, self.layers, self.kind).values()]
        last = maps[-1]
        arguments = {"overlap_last": (last[:, 0], last[:, 1])}
        if len(maps) == 2:
            inner = maps[0]
            arguments |= {"overlap_inner": (inner[:, 0], inner[:, 1]), "inner_in_last": (inner[:, 0], last[:, 0])}
        if self.boxes is not None:
            region = self._regions(batch["index"][counts], true[counts], (x.shape[2], x.shape[3])).to(x.device)
            on_image = (attention_map([last[:, 0]], (x.shape[2], x.shape[3])), region)
            arguments |= dict.fromkeys((PointingGame.info.key, EnergyInBox.info.key), on_image)
        right = (logits.gather(1, classes).diff(dim=1)[:, 0] < 0)[counts]
        for key, metric in self.metrics.items():
            metric.update(*arguments[key], right)

    def _regions(self, index: Tensor, true: Tensor, size: tuple[int, int]) -> Tensor:
        assert self.boxes is not None
        pairs = zip(self.boxes[index.cpu()], true.tolist(), strict=True)
        return box_mask([boxes[boxes[:, 0] == label, 1:] for boxes, label in pairs], size)

    def add_to(self, results: Results) -> None:
        """Means over all images, and over those answered right and wrong."""
        for key, metric in self.metrics.items():
            parts = metric.compute()._asdict()
            results.add(self.infos[key], parts.pop("all"), parts)
