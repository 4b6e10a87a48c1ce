"""What task ``classify`` minimises and measures when a recipe supervises class attention (``loss.sharpen``)."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foveal.attention.class_maps.cam import cam
from foveal.errors import UserError
from foveal.measure import AttentionOverlap, EnergyInBox, InnerInLast, PointingGame, attention_map, box_mask
from foveal.measure._split import SplitMean
from foveal.recipe import Sharpening
from foveal.supervise import Sharpen, confusing_class

NO_KEYS = r", or say how to read it with reshape=|: at=\(.*\)"  # advice for who writes Python


class Criterion:
    """The losses of a training step by name, and the weight of each.

    Args:
        model: the classifier.
        options: of the recipe.

    Attributes:
        weight_dict: what each loss is multiplied by in :meth:`total`.
    """

    def __init__(self, model: nn.Module, options: Sharpening) -> None:
        given = {name: weight for name, weight in options.weight_dict.items() if name != "classification"}
        same = ("kind", "order", "theta", "sigma", "omega", "mask", "mask_gradient", "normalise", "hinge", "batch_norm")
        how: dict[str, Any] = {name: getattr(options, name) for name in (*same, "pairs", "positives")}
        try:
            self.sharpen = Sharpen(model, _layers(options), weights=given, **how)
        except UserError as error:
            raise UserError(f"loss.sharpen: {error}") from error
        self.weight_dict = {"classification": options.weight_dict.get("classification", 1.0), **self.sharpen.weights}

    def __call__(
        self, x: Tensor, classify: Callable[[Tensor], Tensor], target: Tensor, valid: Tensor | None, attend: bool
    ) -> dict[str, Tensor]:
        """Losses of a batch.

        Args:
            x: what the model takes.
            classify: the task's own loss, from what the model returns.
            target: labels (N,) or (N, K).
            valid: bool (N, K), which of them count, or None if all do.
            attend: whether the attention losses are wanted yet.
        """
        if not attend:
            return {"classification": classify(self.sharpen.model(x))}
        logits, losses = self.sharpen(x, target, valid)
        return {"classification": classify(logits), **losses}

    def total(self, losses: dict[str, Tensor]) -> Tensor:
        """The weighted sum."""
        return torch.stack([self.weight_dict[name] * loss.float() for name, loss in losses.items()]).sum()

    def compile(self) -> None:
        """Compile the model as the losses run it, and the losses."""
        if self.sharpen.order == 2 and any(self.sharpen.weights.values()):
            raise UserError("loss.sharpen.order=2 differentiates twice, which compiled code cannot; use order=1")
        self.sharpen = self.sharpen.on(torch.compile(self.sharpen.model))  # type: ignore[arg-type]
        self.sharpen.compile = True


def try_maps(criterion: Criterion, options: Sharpening, classes: int, size: int, multilabel: bool) -> None:
    """Find out before training whether the layers have maps; two images, and the model is left as it was.

    Args:
        criterion: whose model and losses are tried.
        options: of the recipe.
        classes: number of classes.
        size: side of the images.
        multilabel: whether an image may have several classes.
    """
    model, trial = criterion.sharpen.model, copy.copy(criterion)
    trial.sharpen = criterion.sharpen.on(model)  # what it finds out in eval mode is not for training
    training, device = model.training, next(model.parameters()).device
    x = torch.linspace(-1, 1, 6 * size**2, device=device).view(2, 3, size, size)
    label = torch.zeros(2, dtype=torch.int64, device=device)
    target = F.one_hot(label, classes) if multilabel else label
    try:
        cam(model.eval(), x, label, _layers(options), options.kind)
        with torch.enable_grad():
            trial(x, Tensor.sum, target, None, attend=True)
    except (RuntimeError, ValueError) as error:
        said = " ".join(str(error).split())
        raise UserError(f"loss.sharpen: {re.sub(NO_KEYS, '', said)}") from error
    finally:
        model.train(training)


def _layers(options: Sharpening) -> list[str]:
    return [options.last] if options.inner is None else [options.inner, options.last]


class ClassAttention(nn.Module):
    """Measures of the true and the confusing class's attention over a test set.

    Args:
        options: of the recipe.
        boxes: where things are in the test images, as in :meth:`foveal.data.images.ImageData.boxes`, or None.
    """

    def __init__(self, options: Sharpening, boxes: Tensor | None = None) -> None:
        super().__init__()
        self.layers, self.kind, self.boxes = _layers(options), options.kind, boxes
        self.measures: dict[str, SplitMean] = {"overlap_last": AttentionOverlap()}
        if len(self.layers) == 2:
            inside = InnerInLast(sigma=options.sigma, omega=options.omega)
            self.measures = {"overlap_inner": AttentionOverlap(), **self.measures, "inner_in_last": inside}
        if boxes is not None:
            self.measures |= {"pointing_game": PointingGame(), "energy_in_box": EnergyInBox()}
        self.held = nn.ModuleList(self.measures.values())  # so that they move to the device with the task

    def update(self, model: nn.Module, x: Tensor, logits: Tensor, batch: Mapping[str, Tensor]) -> None:
        """Add a batch; of an image with several labels its best-scoring true class is taken.

        Args:
            model: the classifier.
            x: what it takes.
            logits: what it says, (N, K).
            batch: label, index and perhaps valid.
        """
        label, valid = batch["label"], batch.get("valid")
        confuser, has = confusing_class(logits, label, valid)
        if label.ndim == 1:
            true = label
        else:
            positive = label > 0 if valid is None else (label > 0) & valid
            true, has = logits.masked_fill(~positive, -torch.inf).argmax(1), has & positive.any(1)
        if not bool(has.any()):
            return
        classes = torch.stack([true, confuser], 1)
        # A map that overflowed in half precision says nothing.
        maps = [each[has].nan_to_num(0, 0) for each in cam(model, x, classes, self.layers, self.kind).values()]
        last = maps[-1]
        given = {"overlap_last": (last[:, 0], last[:, 1])}
        if len(maps) == 2:
            given |= {"overlap_inner": (maps[0][:, 0], maps[0][:, 1]), "inner_in_last": (maps[0][:, 0], last[:, 0])}
        if self.boxes is not None:
            size = (x.shape[2], x.shape[3])
            boxes = zip(self.boxes[batch["index"][has].cpu()], true[has].tolist(), strict=True)
            region = box_mask([each[each[:, 0] == k, 1:] for each, k in boxes], size).to(x.device)
            given |= dict.fromkeys(("pointing_game", "energy_in_box"), (attention_map([last[:, 0]], size), region))
        right = (logits.gather(1, classes).diff(dim=1)[:, 0] < 0)[has]
        for name, measure in self.measures.items():
            measure.update(*given[name], right)

    def results(self) -> dict[str, Any]:
        """Means over all images as ``metrics``, and split by right and wrong answers as ``class_attention``."""
        found = {name: measure.compute() for name, measure in self.measures.items()}
        split = {name: {k: _number(v) for k, v in value._asdict().items()} for name, value in found.items()}
        return {"metrics": {name: value["all"] for name, value in split.items()}, "class_attention": split}


def _number(value: Tensor) -> float | None:
    return None if bool(value.isnan()) else float(value)
