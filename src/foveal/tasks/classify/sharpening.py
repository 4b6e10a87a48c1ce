"""The losses of "Sharpen Focus" (https://arxiv.org/abs/1811.07484) in a training step, if a recipe has them."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foveal.attention import cam
from foveal.errors import UserError
from foveal.supervise import Sharpen
from foveal.tasks.classify.options import Sharpening

PYTHON_ADVICE = r", or say how to read it with reshape=|: at=\(.*\)"  # advice that a recipe cannot follow


class SharpenLosses:
    """Separability and consistency of class attention by name, with the logits of the same forward pass.

    Args:
        model: the classifier.
        options: of the recipe, completed.
        weights: of the attention losses; those of weight 0 are not computed.
    """

    def __init__(self, model: nn.Module, options: Sharpening, weights: Mapping[str, float]) -> None:
        arguments = {name: value for name, value in vars(options).items() if name not in ("layers", "warmup")}
        assert options.layers is not None
        self.options, self.layers = options, options.layers
        try:
            self.sharpen = Sharpen(model, options.layers, weights=dict(weights), **arguments)
        except UserError as error:
            raise UserError(f"loss.sharpen: {error}") from error

    def __call__(
        self, x: Tensor, classify: Callable[[Tensor], Tensor], target: Tensor, valid: Tensor | None, attend: bool
    ) -> dict[str, Tensor]:
        """Losses of a batch.

        Args:
            x: what the model takes.
            classify: the loss of the classes, from what the model returns.
            target: labels (N,) or (N, K).
            valid: bool (N, K), which of them count, or None if all do.
            attend: whether the attention losses are wanted yet.
        """
        if not attend:
            return {"classification": classify(self.sharpen.model(x))}
        logits, losses = self.sharpen(x, target, valid)
        return {"classification": classify(logits), **losses}

    def compile(self) -> None:
        """Compile the model as the losses run it, and the losses."""
        if self.sharpen.order == 2 and any(self.sharpen.weights.values()):
            raise UserError("loss.sharpen.order=2 differentiates twice, which compiled code cannot; use order=1")
        self.sharpen = self.sharpen.on(torch.compile(self.sharpen.model))  # type: ignore[arg-type]
        self.sharpen.compile = True

    def try_maps(self, classes: int, size: int, multilabel: bool) -> None:
        """Find out before training whether the layers have maps; two images, and the model is left as it was.

        Args:
            classes: number of classes.
            size: side of the images.
            multilabel: whether an image may have several classes.
        """
        model, trial = self.sharpen.model, copy.copy(self)
        trial.sharpen = self.sharpen.on(model)  # what it finds out in eval mode is not for training
        x, label = trial_images(model, size)
        target = F.one_hot(label, classes) if multilabel else label
        training = model.training
        try:
            cam(model.eval(), x, label, self.layers, self.options.kind)
            with torch.enable_grad():
                trial(x, Tensor.sum, target, None, attend=True)
        except (RuntimeError, ValueError) as error:
            raise UserError(f"loss.sharpen: {without_python(error)}") from error
        finally:
            model.train(training)


def trial_images(model: nn.Module, size: int) -> tuple[Tensor, Tensor]:
    """Two images and their labels, to try something before training."""
    device = next(model.parameters()).device
    x = torch.linspace(-1, 1, 6 * size**2, device=device).view(2, 3, size, size)
    return x, torch.zeros(2, dtype=torch.int64, device=device)


def without_python(error: Exception) -> str:
    """An error's message without advice for people who write Python."""
    return re.sub(PYTHON_ADVICE, "", " ".join(str(error).split()))
