"""What tasks share that answer with classes: the loss of the answers, probabilities, predictions with names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foveal.data import Source
from foveal.errors import DataError, UserError, unknown
from foveal.measure.info import MetricInfo, register_metric
from foveal.recipe import LossOptions
from foveal.tasks.base import SAMPLES
from foveal.tasks.prediction import Trained
from foveal.typed import check_least

ACCURACY = register_metric(MetricInfo("accuracy", "Accuracy"))


@dataclass
class AnswerLoss(LossOptions):
    """What is minimised.

    Attributes:
        label_smoothing: of the cross entropy.
        floor: added to the probability of the right answer before the logarithm (1e-5 in the code of Seo et al.); not
            together with ``label_smoothing``.
    """

    label_smoothing: float = 0.0
    floor: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, "loss", label_smoothing=0, floor=0)
        if self.label_smoothing > 1:
            raise UserError(f"loss.label_smoothing: expected at most 1, got {self.label_smoothing:g}")
        if self.label_smoothing and self.floor:
            raise UserError("loss.label_smoothing and loss.floor exclude each other; set one of them to 0")


@runtime_checkable
class AnswerSource(Protocol):
    """A dataset whose samples have one of several answers, or several of them."""

    answers: list[str]
    multilabel: bool


def count_classes(source: Source) -> int:
    """How many answers a dataset has; raises if there is nothing to choose from."""
    assert isinstance(source, AnswerSource)
    count = len(source.answers)
    if count < 2 and not source.multilabel:
        named = f"only the class {source.answers[0]!r}" if count else "no class"
        raise DataError(f"data.name={source.name} has {named}; at least two are needed to tell apart")
    return count


def try_model(model: nn.Module, name: str, classes: int, size: int, *inputs: Tensor) -> None:
    """Find out before training whether the model takes such images and answers with so many logits.

    Args:
        model: takes images (1, 3, size, size) and ``inputs``.
        name: of the model.
        classes: number of logits.
        size: side of the images.
        inputs: what else the model takes.
    """
    training = model.training
    try:
        with torch.no_grad():
            logits = model.eval()(torch.zeros(1, 3, size, size), *inputs)
    except (RuntimeError, ValueError, AssertionError, TypeError) as error:
        raise UserError(f"model {name} cannot take images of {size}×{size}: {' '.join(str(error).split())}") from error
    finally:
        model.train(training)
    if not isinstance(logits, Tensor) or logits.shape != (1, classes):
        output = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise UserError(f"model {name} is no classifier: expected logits (N, {classes}), it returns {output}")


def answer_loss(
    logits: Tensor, label: Tensor, options: AnswerLoss, multilabel: bool, valid: Tensor | None = None
) -> Tensor:
    """Loss of the answers: binary cross entropy per answer if several may hold, else cross entropy.

    Args:
        logits: (N, K).
        label: (N,) class indices, or (N, K) in {0, 1} if ``multilabel``.
        options: ``floor`` is added to the probability inside the logarithm.
        multilabel: whether several answers may hold at once.
        valid: bool (N, K), false for answers that do not count; only if ``multilabel``.
    """
    logits = logits.float()
    if multilabel:
        losses = F.binary_cross_entropy_with_logits(logits, label.float(), reduction="none")
        return losses.mean() if valid is None else (losses * valid).sum() / valid.sum().clamp_min(1)
    if options.floor:
        right = logits.softmax(1).gather(1, label[:, None])
        return -(right + options.floor).log().mean()
    return F.cross_entropy(logits, label, label_smoothing=options.label_smoothing)


def answers(logits: Tensor, multilabel: bool) -> tuple[Tensor, Tensor]:
    """Probabilities (N, K), and the answers: class int64 (N,), or 0 and 1 for every class (N, K) if ``multilabel``."""
    if multilabel:
        probability = logits.sigmoid()
        return probability, (probability > 0.5).long()
    probability = logits.softmax(1)
    return probability, probability.argmax(1)


def pixels(image: Tensor) -> Tensor:
    """Bytes to [0, 1], channels last."""
    image = image.float().div(255) if image.dtype == torch.uint8 else image
    return image.contiguous(memory_format=torch.channels_last)


def normalised(image: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Images (N, 3, H, W) of bytes, or in [0, 1], as (pixel − mean) / std with mean and std (3,); channels last."""
    return (pixels(image) - mean[:, None, None]) / std[:, None, None]


def sample_tensors(
    batch: Mapping[str, Tensor],
    logits: Tensor,
    multilabel: bool,
    gates: Mapping[str, Tensor],
    combined: Tensor | None,
    most: int = SAMPLES,
) -> dict[str, Tensor]:
    """A few samples of a batch: what was asked, what was answered, and where the model looked.

    Args:
        batch: image, label and, where there are such, size (of images that are padded), query and mask.
        logits: (N, K).
        multilabel: whether several answers may hold at once.
        gates: attention maps by site, each (N, h, w).
        combined: all of them combined, (N, H, W), or None if there are none.
        most: how many, spread over the batch.
    """
    kept: dict[str, Tensor] = {key: batch[key] for key in ("image", "size", "query", "label", "mask") if key in batch}
    kept["probability"], kept["prediction"] = answers(logits, multilabel)
    if combined is not None:
        kept["map"] = combined
    kept |= {f"gate.{i}": values for i, values in enumerate(gates.values())}
    spread = torch.linspace(0, len(logits) - 1, min(most, len(logits)), device=logits.device).long()
    return {key: tensor[spread].detach().cpu() for key, tensor in kept.items()}


# Predictions ---------------------------------------------------------------------


def named_answers(names: Sequence[str], probability: Tensor) -> list[tuple[str, float]]:
    """Answers with their probabilities (K,), most probable first."""
    return [(names[i], float(probability[i])) for i in probability.argsort(descending=True).tolist()]


def true_answers(about: Mapping[str, Any], label: Sequence[str]) -> Tensor | None:
    """The true classes in the form of predictions; None if they are not known."""
    known = about["answers"]
    for name in label:
        if name not in known:
            raise unknown("class", name, known)
    if not label:
        return None
    if about["multilabel"]:
        return torch.tensor([[int(name in label) for name in known]])
    if len(label) > 1:
        raise UserError(f"this model knows one class an image; give one true class instead of {', '.join(label)}")
    return torch.tensor([known.index(label[0])])


def check_same_answers(runs: Sequence[Trained]) -> None:
    """Raise unless the runs answer the same question with the same classes."""
    first = runs[0]
    for other in runs[1:]:
        if any(first.about.get(key) != other.about.get(key) for key in ("answers", "multilabel", "queries")):
            raise UserError(
                f"{other.folder} knows other classes ({few(other.about['answers'])}) than {first.folder} "
                f"({few(first.about['answers'])}); give a run on the same dataset"
            )


def few(names: Sequence[str]) -> str:
    """The first names of many."""
    return ", ".join(names[:5]) + (f" or another of {len(names)}" if len(names) > 5 else "")


def answer_lines(names: Sequence[tuple[str, float]], label: Sequence[str] = ()) -> list[str]:
    """The most probable answers as lines with bars; the true ones are marked."""
    shown = names[:5]
    width = max([12, *(len(name) for name, _ in shown)])
    return [
        f"{name:{width}} {probability:6.1%} {'█' * round(30 * probability)}{'  true' if name in label else ''}".rstrip()
        for name, probability in shown
    ]
