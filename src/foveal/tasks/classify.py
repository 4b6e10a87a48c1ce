"""Task ``classify``: an image; predict its class, or all of its classes where it may have several."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics.classification import MulticlassAccuracy

from foveal import measure
from foveal.attention import insert
from foveal.attention.records.record import Attends, AttentionRecord, watch
from foveal.data import Source
from foveal.data.images import ImageData
from foveal.errors import UserError
from foveal.models.registry import any_model
from foveal.models.weights import start_from
from foveal.recipe import Recipe
from foveal.see.class_maps import top_classes
from foveal.tasks.criterion import ClassAttention, Criterion, try_maps
from foveal.tasks.task import Task, answer_loss, count_classes, find_checkpoint, pixels

SHOWN = 9  # gates in a picture


def build_classifier(
    recipe: Recipe, classes: int, size: int, *, root: Path | None = None, trained: bool = False
) -> nn.Module:
    """The recipe's model of foveal, timm or torchvision, with attention inserted and pretrained weights loaded.

    Args:
        recipe: its ``model`` section has a ``name``, perhaps ``insert`` and ``checkpoint``, and options of the model.
        classes: number of classes.
        size: side of the images.
        root: folder of datasets, where ``model.checkpoint`` is looked for if it is not here.
        trained: trained weights are loaded next, so what training starts from is not needed.
    """
    if "num_classes" in recipe.model:
        raise UserError("model.num_classes comes from the data; leave it out of the recipe")
    ours = ("name", "insert", "checkpoint", *(("pretrained", "weights") if trained else ()))
    name, options = recipe.model["name"], {k: v for k, v in recipe.model.items() if k not in ours}
    model = any_model(name, num_classes=classes, **options)
    insert_all(model, recipe.model.get("insert", []))
    if "checkpoint" in recipe.model and not trained:
        file = find_checkpoint(str(recipe.model["checkpoint"]), root)
        try:
            start_from(model, file)
        except UserError as error:
            raise UserError(f"model.checkpoint: {error}") from error
    _try(model, name, classes, size)
    return model


def insert_all(model: nn.Module, wanted: Any) -> None:
    """Insert what a recipe's ``model.insert`` asks for: a mechanism, one with options, or a list of such.

    >>> from foveal.models.registry import any_model
    >>> model = any_model("resnet18")
    >>> insert_all(model, ["se", {"mechanism": "aw", "at": "layer4.*.conv2", "reduction": 8}])
    >>> model.layer4[0].conv2
    Conv2d+aw(...
    """
    for i, one in enumerate(wanted if isinstance(wanted, list) else [wanted]):
        settings = {"mechanism": one} if isinstance(one, str) else one
        where = f"model.insert[{i}]"
        if not isinstance(settings, Mapping) or not isinstance(settings.get("mechanism"), str):
            raise UserError(f"{where}: expected the name of a mechanism or {{mechanism: NAME, ...}}, got {one!r}")
        at = settings.get("at")
        if not (at is None or isinstance(at, str) or (isinstance(at, list) and all(isinstance(a, str) for a in at))):
            raise UserError(f"{where}.at: expected a glob on layer names or a list of them, got {at!r}")
        try:
            insert(model, **settings)
        except (UserError, TypeError) as error:
            raise UserError(f"{where}: {error}") from error


def _try(model: nn.Module, name: str, classes: int, size: int) -> None:
    """Find out before training whether the model takes such images and answers with so many logits."""
    training = model.training
    try:
        with torch.no_grad():
            logits = model.eval()(torch.zeros(1, 3, size, size))
    except (RuntimeError, ValueError, AssertionError, TypeError) as error:
        raise UserError(f"model {name} cannot take images of {size}×{size}: {' '.join(str(error).split())}") from error
    finally:
        model.train(training)
    if not isinstance(logits, Tensor) or logits.shape != (1, classes):
        given = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise UserError(f"model {name} is no classifier: expected logits (N, {classes}), it puts out {given}")


def looking(model: nn.Module) -> AbstractContextManager[Mapping[str, AttentionRecord]]:
    """Watch the spatial attention of a model; a model without any is not watched."""
    sites = [name for name, m in model.named_modules() if isinstance(m, Attends) and m.kind == "spatial"]
    return watch(model, sites) if sites else contextlib.nullcontext({})


def maps(seen: Mapping[str, AttentionRecord], size: tuple[int, int]) -> tuple[dict[str, Tensor], Tensor | None]:
    """What :func:`looking` saw: maps by layer, every so-maniest of many up to the last, and all combined at ``size``.

    The combined map is None if there are none.
    """
    gates = {site.replace(".attached.", " "): record.values.float() for site, record in seen.items()}
    if not gates:
        return {}, None
    shown = list(gates)[:: -math.ceil(len(gates) / SHOWN)]
    return {site: gates[site] for site in reversed(shown)}, measure.attention_map(list(gates.values()), size)


def normalised(image: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Images (N, 3, H, W) of bytes, or in [0, 1], as (pixel − mean) / std with mean and std (3,); channels last."""
    return (pixels(image) - mean[:, None, None]) / std[:, None, None]


def valid(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Which labels of a batch count, where the dataset says so."""
    return {"valid": batch["valid"]} if "valid" in batch else {}


class Classify(Task):
    """Train and test a classifier ``normalised images -> logits``.

    Args:
        recipe: the whole recipe.
        source: the dataset; batches hold image, label and perhaps valid.
        model: an already built model to use instead of the recipe's.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, recipe: Recipe, source: Source, model: nn.Module | None = None) -> None:
        if not isinstance(source, ImageData):
            raise UserError(f"task classify needs labelled images; for data.name={source.name} use task=refer")
        classes = count_classes(source)
        if model is None:
            model = build_classifier(recipe, classes, source.size, root=source.root)
        if source.multilabel:
            super().__init__(recipe, source, model, "mean_average_precision", measure.MeanAveragePrecision)
        else:
            super().__init__(recipe, source, model, "accuracy", lambda: MulticlassAccuracy(classes, average="micro"))
        self.view = {"size": source.size, "augment": source.augment, "mean": source.mean, "std": source.std}
        for name in ("mean", "std"):  # buffers, so that they lie on the device before the first step
            self.register_buffer(name, torch.tensor(self.view[name]), persistent=False)
        sharpen = recipe.loss.sharpen
        self.criterion = None if sharpen is None else Criterion(self.model, sharpen)
        self.class_attention = None if sharpen is None else ClassAttention(sharpen, source.boxes())
        if sharpen is not None and self.criterion is not None:
            try_maps(self.criterion, sharpen, classes, source.size, source.multilabel)
        self.each_class = measure.AveragePrecision() if source.multilabel else None
        self.top5 = None
        if classes > 5 and not source.multilabel:
            self.top5 = MulticlassAccuracy(classes, top_k=5, average="micro")

    @classmethod
    def rebuild(cls, recipe: Recipe, about: Mapping[str, Any]) -> nn.Module:
        """The recipe's model for as many classes as in training."""
        return build_classifier(recipe, len(about["answers"]), about["view"]["size"], trained=True)

    def about(self) -> dict[str, Any]:
        """Names of the classes, whether several may hold, and how an image becomes the model's input."""
        return {"answers": self.source.answers, "multilabel": self.source.multilabel, "view": self.view}

    def logits(self, batch: dict[str, Tensor]) -> Tensor:
        """What the model says of a batch, (N, classes)."""
        return self.model(normalised(batch["image"], self.mean, self.std))

    def on_fit_start(self) -> None:
        """Compile if asked to; with losses on attention the model alone, for they take gradients within the step."""
        if self.criterion is None:
            super().on_fit_start()
        elif self.recipe.train.compile:
            self.criterion.compile()

    def loss(self, batch: dict[str, Tensor], logits: Tensor | None = None) -> Tensor:
        """Loss of one batch; from ``logits``, without losses on attention, if the model has been asked already."""
        if logits is None and self.criterion is not None:
            return self._attended_loss(batch, self.criterion)
        return self._answer_loss(batch, self.logits(batch) if logits is None else logits)

    def _attended_loss(self, batch: dict[str, Tensor], criterion: Criterion) -> Tensor:
        assert self.recipe.loss.sharpen is not None
        x = normalised(batch["image"], self.mean, self.std)
        attend = self.current_epoch >= self.recipe.loss.sharpen.warmup
        losses = criterion(x, lambda y: self._answer_loss(batch, y), batch["label"], batch.get("valid"), attend)
        if self._trainer is not None:
            named = {f"train/{name}": loss.detach() for name, loss in losses.items()}
            self.log_dict(named, on_step=False, on_epoch=True, batch_size=len(x))
        return criterion.total(losses)

    def _answer_loss(self, batch: dict[str, Tensor], logits: Any) -> Tensor:
        if not isinstance(logits, Tensor):
            raise UserError(
                f"model {self.recipe.model['name']} has several outputs in training; try model.aux_logits=false"
            )
        return answer_loss(logits, batch["label"], self.recipe.loss, self.source.multilabel, batch.get("valid"))

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        """Loss and score of one batch."""
        logits = self.logits(batch).float()
        self.val_loss.update(self.loss(batch, logits), len(logits))
        self.val_score.update(logits, batch["label"], **valid(batch))

    def test_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        """Scores, and a few samples to look at."""
        with looking(self.model) if batch_idx == 0 else contextlib.nullcontext({}) as seen:
            logits = self.logits(batch).float()
        self.test_score.update(logits, batch["label"], **valid(batch))
        if self.top5 is not None:
            self.top5.update(logits, batch["label"])
        if self.each_class is not None:
            self.each_class.update(logits, batch["label"], **valid(batch))
        if self.class_attention is not None:
            x = normalised(batch["image"], self.mean, self.std)
            self.class_attention.update(self.model, x, logits, batch)
        if batch_idx == 0:
            height, width = batch["image"].shape[-2:]
            self.keep(batch, logits, *maps(seen, (height, width)))
            self._keep_top_classes()

    def _keep_top_classes(self) -> None:
        """Beside the samples: the classes the model thinks of first, and where it looks for them."""
        if (sharpen := self.recipe.loss.sharpen) is not None:
            x = normalised(self.samples["image"].to(self.device), self.mean, self.std)
            how: dict[str, Any] = {"kind": sharpen.kind, "multilabel": self.source.multilabel}
            self.samples |= top_classes(self.model, x, sharpen.last, **how).tensors()

    def results(self) -> dict[str, Any]:
        """Top-1 and top-5 accuracy, or average precision; and measures of class attention."""
        found = {self.score.removeprefix("val/"): float(self.test_score.compute())}
        more: dict[str, Any] = {}
        if self.top5 is not None:
            found["top5_accuracy"] = float(self.top5.compute())
        if self.each_class is not None:
            each = self.each_class.compute().tolist()
            named = zip(self.source.answers, each, strict=True)
            more["average_precision"] = {name: None if math.isnan(value) else value for name, value in named}
        if self.class_attention is not None:
            attention = self.class_attention.results()
            found |= attention.pop("metrics")
            more |= attention
        return {"metrics": found, **more}
