"""What task ``classify`` minimises and measures when a recipe supervises class attention (``loss.sharpen``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from foveal.attention.cam import cam
from foveal.errors import UserError
from foveal.measure import AttentionOverlap, InnerInLast
from foveal.recipe import Sharpening
from foveal.supervise import Sharpen, confusing_class


class Criterion:
    """The losses of a training step by name, and the weight of each.

    Args:
        model: the classifier.
        options: of the recipe.

    Attributes:
        weight_dict: what each loss is multiplied by in :meth:`total`.
    """

    def __init__(self, model: nn.Module, options: Sharpening) -> None:
        names = [options.last] if options.inner is None else [options.inner, options.last]
        given = {name: weight for name, weight in options.weight_dict.items() if name != "classification"}
        same = ("kind", "order", "theta", "sigma", "omega", "mask", "mask_gradient", "normalise", "hinge", "batch_norm")
        how: dict[str, Any] = {name: getattr(options, name) for name in (*same, "pairs", "positives")}
        try:
            self.sharpen = Sharpen(model, names, weights=given, **how)
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


class ClassAttention(nn.Module):
    """Measures of the true and the confusing class's attention over a test set.

    Args:
        options: of the recipe.
    """

    def __init__(self, options: Sharpening) -> None:
        super().__init__()
        self.layers = [options.last] if options.inner is None else [options.inner, options.last]
        self.kind = options.kind
        overlaps = [AttentionOverlap() for _ in self.layers]
        self.overlaps = overlaps
        self.held = nn.ModuleList(overlaps)  # so that they move to the device with the task
        self.inside = InnerInLast(sigma=options.sigma, omega=options.omega) if len(self.layers) == 2 else None

    def update(self, model: nn.Module, x: Tensor, logits: Tensor, label: Tensor, valid: Tensor | None) -> None:
        """Add a batch; of an image with several labels its best-scoring true class is taken."""
        confuser, has = confusing_class(logits, label, valid)
        if label.ndim == 1:
            true = label
        else:
            positive = label > 0 if valid is None else (label > 0) & valid
            true, has = logits.masked_fill(~positive, -torch.inf).argmax(1), has & positive.any(1)
        if not bool(has.any()):
            return
        classes = torch.stack([true, confuser], 1)
        maps = cam(model, x, classes, self.layers, self.kind)
        right = (logits.gather(1, classes).diff(dim=1)[:, 0] < 0)[has]
        for metric, each in zip(self.overlaps, maps.values(), strict=True):
            metric.update(each[has, 0], each[has, 1], right)
        if self.inside is not None:
            inner, last = (each[has, 0] for each in maps.values())
            self.inside.update(inner, last, right)

    def results(self) -> dict[str, Any]:
        """Means over all images as ``metrics``, and split by right and wrong answers as ``class_attention``."""
        found = dict(zip(("overlap_inner", "overlap_last")[-len(self.layers) :], self.overlaps, strict=True))
        metrics = {name: metric.compute() for name, metric in found.items()}
        if self.inside is not None:
            metrics["inner_in_last"] = self.inside.compute()
        split = {name: {k: _number(v) for k, v in value._asdict().items()} for name, value in metrics.items()}
        return {"metrics": {name: value["all"] for name, value in split.items()}, "class_attention": split}


def _number(value: Tensor) -> float | None:
    return None if bool(value.isnan()) else float(value)
