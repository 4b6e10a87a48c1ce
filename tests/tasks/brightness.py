"""A task of one's own in one file: how bright is an image? With its own dataset, metric, model and report section.

No file of foveal names it; ``FOVEAL_PLUGINS=brightness`` makes it known.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from markupsafe import Markup
from torch import nn
from torchmetrics import MeanAbsoluteError

from foveal.data import Entry, register_data
from foveal.data.batches import Batches, EpochBatches, epoch_seed
from foveal.data.images.reading import read_image
from foveal.measure.info import MetricInfo
from foveal.models import register
from foveal.models.build import build_model
from foveal.recipe import LossOptions, MeasureOptions
from foveal.see.page import Section
from foveal.tasks import Prediction, Task, register_task

ERROR = MetricInfo(
    "brightness_error", "Error of brightness", unit="grey levels", better="lower", about="Lower is better."
)
COUNTS = {"train": 64, "val": 16, "test": 16}


@dataclass(frozen=True)
class GreyOptions:
    """The ``data`` section.

    Attributes:
        side: of the images.
    """

    side: int = 8


class GreyImages:
    """Generated grey images; the target is their mean brightness."""

    name, title, embedded, root = "grey-images", "grey images", True, None

    def __init__(self, options: GreyOptions, root: Path | None) -> None:
        self.side = options.side

    def describe(self) -> str:
        return f"generated grey images of {self.side}×{self.side}"

    def about(self) -> dict:
        return {"side": self.side}

    def loader(self, split, batch, *, epoch=0, seed=0, rank=0, world=1, device, masks=False):
        numbers = torch.Generator().manual_seed(list(COUNTS).index(split))
        level = torch.rand(COUNTS[split], 1, generator=numbers)
        noise = torch.rand(COUNTS[split], self.side**2, generator=numbers) - 0.5
        image = (level + 0.2 * noise).view(-1, 1, self.side, self.side).to(device)
        order = EpochBatches(len(level), batch, epoch_seed(seed, epoch) if split == "train" else None, rank, world)
        target = image.mean((1, 2, 3))
        return Batches(order, lambda index: {"image": image[index], "brightness": target[index]}, device)


register_data(Entry("grey-images", "generated grey images", GreyOptions, GreyImages))


class Brightness(nn.Module):
    """A convolution and a mean.

    Args:
        channels: of the convolution.
    """

    def __init__(self, channels: int = 4) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, channels, 3, padding=1), nn.ReLU(), nn.Conv2d(channels, 1, 1))

    def forward(self, image):
        return self.net(image).mean((1, 2, 3))


@register(Brightness)
def brightness_net(**options) -> Brightness:
    """A network that reads brightness."""
    return Brightness(**options)


@dataclass
class BrightnessLoss(LossOptions):
    """What is minimised.

    Attributes:
        huber: where the loss turns from squares to absolute values.
    """

    huber: float = 1.0


@register_task("brightness")
class BrightnessTask(Task):
    """Train and test a model ``image -> number``."""

    summary = "an image; how bright it is"
    sections = {"loss": BrightnessLoss, "measure": MeasureOptions}  # noqa: RUF012

    def __init__(self, recipe, source, model=None) -> None:
        super().__init__(recipe, source, model or build_model(recipe.model, {}), ERROR, MeanAbsoluteError)

    @classmethod
    def rebuild(cls, recipe, about):
        return build_model(recipe.model, {}, trained=True)

    def loss_names(self):
        return ("squares", "shrinkage")

    def losses(self, batch):
        squares = nn.functional.huber_loss(
            self.model(batch["image"]), batch["brightness"], delta=self.recipe.loss.huber
        )
        return {"squares": squares, "shrinkage": sum(p.square().sum() for p in self.model.parameters()) * 1e-4}

    def validation_step(self, batch, batch_idx):
        self.val_score.update(255 * self.model(batch["image"]), 255 * batch["brightness"])

    def test_step(self, batch, batch_idx):
        answer = self.model(batch["image"])
        self.test_score.update(255 * answer, 255 * batch["brightness"])
        self.samples = {"answer": answer.detach().cpu(), "brightness": batch["brightness"].cpu()}

    @classmethod
    def predict(cls, runs, inputs, *, scale: float = 255):
        side = runs[0].about["side"]
        grey = read_image(Path(inputs[0])).convert("L").resize((side, side))
        image = torch.tensor(list(grey.getdata())).view(1, 1, side, side) / 255
        lines = {run.recipe.title: [f"brightness {scale * float(run.model(image)):.1f}"] for run in runs}
        return Prediction(lines=lines, data={"image": inputs[0], "lines": lines}, stem=f"{Path(inputs[0]).stem}-bright")

    @classmethod
    def report_sections(cls, groups, colours):
        rows = [f"{group.name}: {len(group.samples.tensors['answer'])} images" for group in groups if group.samples]
        return [Section("Brightness, image by image", Markup("<p>{}</p>").format("; ".join(rows)))]
