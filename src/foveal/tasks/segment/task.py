"""The step, losses and metrics of task ``segment``."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foveal.data import Source
from foveal.errors import DataError, UserError
from foveal.measure import MeanIoU
from foveal.measure.costs import MFLOPS, PEAK_MEMORY
from foveal.measure.mean_iou import IGNORED, PIXEL_ACCURACY, PixelConfusion, class_iou, pixel_accuracy
from foveal.models.build import build_model
from foveal.recipe import Recipe
from foveal.tasks.answers import normalised
from foveal.tasks.base import SAMPLES, Batch, Task
from foveal.tasks.prediction import Prediction, Trained
from foveal.tasks.registry import register_task
from foveal.tasks.results import Results
from foveal.tasks.segment.costs import PeakMemory, mflops
from foveal.tasks.segment.inference import logits_of, segment
from foveal.tasks.segment.options import SegmentLoss, SegmentMeasure

if TYPE_CHECKING:
    from foveal.runs import Group
    from foveal.see.page import Section
    from foveal.tasks.report import ReportWords


@runtime_checkable
class SegmentSource(Protocol):
    """A dataset of images with a class for every pixel."""

    answers: list[str]
    crop: tuple[int, int]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


@register_task("segment")
class Segment(Task):
    """Train and test a network ``normalised images -> logits of every pixel``.

    Args:
        recipe: the whole recipe.
        source: the dataset; batches hold image and label, of which 255 does not count.
        model: an already built model to use instead of the recipe's. It returns logits (N, K, H, W), or a dict with
            ``out`` and perhaps ``aux``, those of an auxiliary head.
    """

    mean: Tensor
    std: Tensor
    summary = "an image; the class of every pixel"
    sections: ClassVar[Mapping[str, type]] = {"loss": SegmentLoss, "measure": SegmentMeasure}
    usual_weights: ClassVar[Mapping[str, float]] = {"auxiliary": 0.4}

    def __init__(self, recipe: Recipe, source: Source, model: nn.Module | None = None) -> None:
        if not isinstance(source, SegmentSource):
            raise UserError(
                f"task segment needs images with masks, such as data.name=signals; data.name={source.name} has none"
            )
        recipe, classes = self.complete(recipe), len(source.answers)
        if classes < 2:
            raise DataError(f"data.name={source.name} has one class; at least two are needed to tell apart")
        if model is None:
            model = build_model(recipe.model, {"num_classes": classes}, root=getattr(source, "root", None))
            try_segmenter(model, recipe.model["name"], classes, source.crop)
        super().__init__(recipe, source, model, MeanIoU.info, lambda: MeanIoU(classes))
        for name in ("mean", "std"):  # buffers, so that they lie on the device before the first step
            self.register_buffer(name, torch.tensor(getattr(source, name)), persistent=False)
        self.confusion = PixelConfusion(classes)
        self.kept: list[Batch] = []
        self._crop, self._memory = source.crop, PeakMemory()

    @classmethod
    def complete(cls, recipe: Recipe) -> Recipe:
        """Batch norms see all processes, where there are several, each with a GPU of its own."""
        train = recipe.train
        if (train.devices, train.nodes) != (1, 1) and train.accelerator != "cpu":
            return replace(recipe, train=replace(train, sync_batchnorm=True))
        return recipe

    @classmethod
    def rebuild(cls, recipe: Recipe, about: Mapping[str, Any]) -> nn.Module:
        """The recipe's model for as many classes as in training."""
        return build_model(recipe.model, {"num_classes": len(about["answers"])}, trained=True)

    def loss_names(self) -> tuple[str, ...]:
        """The loss of the classes, and that of an auxiliary head, if the model has one."""
        return ("segmentation", "auxiliary")

    def inputs(self, batch: Batch) -> Tensor:
        """What the model takes."""
        return normalised(batch["image"], self.mean, self.std)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Cross entropy of the pixels that count, of the model's output and of its auxiliary head."""
        logits = logits_of(self.model(self.inputs(batch)), self.recipe.model.get("name", ""))
        losses = {"segmentation": self._loss(logits["out"], batch["label"])}
        if "aux" in logits:
            losses["auxiliary"] = self._loss(logits["aux"], batch["label"])
        return losses

    def _loss(self, logits: Tensor, label: Tensor) -> Tensor:
        return pixel_loss(logits, label, self.recipe.loss.label_smoothing)

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        """Loss and score of one batch."""
        logits = segment(self.model, self.inputs(batch), self.recipe.measure)
        self.val_loss.update(self._loss(logits, batch["label"]), len(logits))
        self.val_score.update(logits.argmax(1), batch["label"])

    def on_train_start(self) -> None:
        """Measure memory without that of an earlier run in this process."""
        gc.collect()
        self._memory.start(self.device)

    def on_validation_epoch_start(self) -> None:
        """Images come in many sizes, for each of which cuDNN would search its fastest kernels anew."""
        self._memory.stop(self.device)
        self._searched, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, False

    def on_validation_epoch_end(self) -> None:
        """Log the score; training crops are all of one size."""
        torch.backends.cudnn.benchmark = self._searched
        super().on_validation_epoch_end()
        if self._memory.bytes:
            self.log("train/peak_mib", self._memory.bytes / 2**20, rank_zero_only=True)
        self._memory.start(self.device)

    def on_test_epoch_start(self) -> None:
        """As in validation."""
        torch.backends.cudnn.benchmark = False
        self.kept.clear()

    def test_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        """Scores, and a few samples to look at."""
        prediction = segment(self.model, self.inputs(batch), self.recipe.measure).argmax(1)
        self.test_score.update(prediction, batch["label"])
        self.confusion.update(prediction, batch["label"])
        batches = int(self.trainer.num_test_batches[0])
        looked_at = torch.linspace(0, batches - 1, min(SAMPLES, batches)).long().tolist()  # sizes come in order
        if batch_idx in looked_at:
            kept = {"image": batch["image"], "label": batch["label"], "prediction": prediction.to(torch.uint8)}
            count = min(SAMPLES // len(looked_at), len(prediction))
            spread = torch.linspace(0, len(prediction) - 1, count).long()
            self.kept.append({key: values.cpu()[spread] for key, values in kept.items()})

    def on_test_epoch_end(self) -> None:
        """Samples of all sizes as tensors of one."""
        self.samples = on_one_canvas(self.kept) if self.kept else {}

    def results(self) -> Results:
        """Mean IoU with that of every class, pixel accuracy, and what the network costs."""
        results, matrix = Results(), self.confusion.compute()
        ious = dict(zip(self.about()["answers"], class_iou(matrix).tolist(), strict=True))
        results.add(self.score, self.test_score.compute(), ious)
        results.add(PIXEL_ACCURACY, pixel_accuracy(matrix))
        results.add(MFLOPS, mflops(self.model, self._crop))
        if peak := max((line.get("train/peak_mib", 0.0) for line in self.journal), default=0.0):
            results.add(PEAK_MEMORY, peak)
        return results

    @classmethod
    def predict(
        cls,
        runs: Sequence[Trained],
        inputs: Sequence[str],
        *,
        at: str | None = None,
        short: int | None = None,
        window: int | None = None,
    ) -> Prediction:
        """The classes of an image file, painted over it.

        Args:
            runs: the models.
            inputs: an image file.
            at: ``x,y`` in pixels of the image: also where models with attention between positions look from there.
            short: short side to which the image is brought; that of the training data if left out.
            window: side of a sliding window, instead of the recipe's ``measure.window``.
        """
        from foveal.tasks.segment.prediction import predict

        return predict(runs, inputs, at, short, window)

    @classmethod
    def report_words(cls, groups: Sequence[Group]) -> ReportWords:
        """Pictures, and what was asked."""
        from foveal.tasks.segment.report import report_words

        return report_words(groups)

    @classmethod
    def report_sections(cls, groups: Sequence[Group], colours: Mapping[str, int]) -> list[Section]:
        """The IoU of every class, and some test images."""
        from foveal.tasks.segment.report import report_sections

        return report_sections(groups, colours)


def pixel_loss(logits: Tensor, label: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Mean cross entropy of the pixels that count; 0 if none does.

    Args:
        logits: (N, K, H, W).
        label: class of each pixel (N, H, W), 255 where it does not count.
        label_smoothing: of the cross entropy.
    """
    label = label.long()
    total = F.cross_entropy(
        logits.float(), label, ignore_index=IGNORED, label_smoothing=label_smoothing, reduction="sum"
    )
    return total / (label != IGNORED).sum().clamp_min(1)


def on_one_canvas(batches: Sequence[Batch]) -> dict[str, Tensor]:
    """Batches of images of different sizes as one; what is added to an image does not count.

    Args:
        batches: tensors (N, ..., H, W) by name.
    """
    sizes = torch.tensor([batch["label"].shape[-2:] for batch in batches])
    height, width = sizes.amax(0).tolist()

    def padded(name: str, values: Tensor) -> Tensor:
        beyond = (0, width - values.shape[-1], 0, height - values.shape[-2])
        return F.pad(values, beyond, value=IGNORED if name == "label" else 0)

    return {name: torch.cat([padded(name, batch[name]) for batch in batches]) for name in batches[0]}


def try_segmenter(model: nn.Module, name: str, classes: int, size: tuple[int, int]) -> None:
    """Find out before training whether the model takes such images and gives every pixel so many logits."""
    training = model.training
    try:
        with torch.no_grad():
            logits = logits_of(model.eval()(torch.zeros(1, 3, *size)), name)["out"]
    except (RuntimeError, ValueError, AssertionError, TypeError) as error:
        if isinstance(error, UserError):
            raise
        problem = " ".join(str(error).split())
        raise UserError(f"model {name} cannot take images of {size[0]}×{size[1]}: {problem}") from error
    finally:
        model.train(training)
    if logits.shape != (1, classes, *size):
        raise UserError(
            f"model {name} is no segmentation network: expected logits {(1, classes, *size)}, it returns "
            f"{tuple(logits.shape)}"
        )
