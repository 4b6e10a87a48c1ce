"""The model, samples and report of task ``scene``; all else is as in task ``classify``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from torch import nn

from foveal.data import Source
from foveal.errors import UserError
from foveal.models.scene import SceneNet
from foveal.recipe import Recipe
from foveal.tasks.answers import count_classes, pixels, try_model
from foveal.tasks.base import Batch
from foveal.tasks.classify.task import Classify, ClassifySource
from foveal.tasks.prediction import Prediction, Trained
from foveal.tasks.registry import register_task
from foveal.tasks.scene.detector import load_detector, rebuild_detector
from foveal.tasks.scene.options import SceneLoss, SceneMeasure
from foveal.tasks.scene.relations import sample_relations
from foveal.tasks.scene.source import scene_source, unpadded
from foveal.typed import check_options

if TYPE_CHECKING:
    from foveal.runs import Group
    from foveal.see.page import Section

MODEL = "scene_net"


@register_task("scene")
class Scene(Classify):
    """Train and test a scene network on a detector that is already trained.

    Args:
        recipe: the whole recipe; ``model.detector`` says which detector.
        source: the dataset; batches hold image and label, or lists image and target, of which each has a scene.
        model: an already built model to use instead of the recipe's.
    """

    summary = "an image; its scene, from the whole and from the regions of a trained detector"
    needs = "labelled images, or images with boxes and scenes, such as data.name=companions"
    sections: ClassVar[Mapping[str, type]] = {"loss": SceneLoss, "measure": SceneMeasure}

    def __init__(self, recipe: Recipe, source: Source, model: nn.Module | None = None) -> None:
        source = scene_source(source)
        if model is None and isinstance(source, ClassifySource):
            classes = count_classes(source)
            model = build_scene(recipe, classes, getattr(source, "root", None))
            try_model(model, MODEL, classes, source.size)
        super().__init__(recipe, source, model)
        # The detector normalises images itself.
        self.mean.zero_()
        self.std.fill_(1)

    @classmethod
    def rebuild(cls, recipe: Recipe, about: Mapping[str, Any]) -> nn.Module:
        """The scene network, with a detector built as that of the training."""
        how = about["detector"]
        return _scene_net(recipe, rebuild_detector(how), how, len(about["answers"]))

    def about(self) -> dict[str, Any]:
        """As of a classifier; but the model takes images in [0, 1], and its detector can be built again."""
        about = super().about()
        view = {**about["view"], "mean": [0.0] * 3, "std": [1.0] * 3}
        return about | {"view": view, "detector": getattr(self.model, "detector_from", {})}

    def inputs(self, batch: Batch) -> Any:
        """Images in [0, 1]; a list of them if they have different sizes."""
        images = super().inputs(batch)
        return unpadded(images, batch["size"]) if "size" in batch else images

    def on_test_epoch_end(self) -> None:
        """Beside the samples: what their regions attend to."""
        super().on_test_epoch_end()
        images = pixels(self.samples["image"].to(self.device))
        self.samples |= sample_relations(self.model, unpadded(images, self.samples.get("size")))

    @classmethod
    def predict(cls, runs: Sequence[Trained], inputs: Sequence[str], *, label: Sequence[str] = ()) -> Prediction:
        """The scene that an image shows, and which of its regions attend to which; ``label`` is the true class."""
        from foveal.tasks.scene.relations import predict

        return predict(runs, inputs, label)

    @classmethod
    def report_sections(cls, groups: Sequence[Group], colours: Mapping[str, int]) -> list[Section]:
        """The samples, and what their regions attend to."""
        from foveal.tasks.scene.relations import relations_section

        gallery = relations_section({group.name: group.samples for group in groups if group.samples is not None})
        return [*super().report_sections(groups, colours), *gallery]


def build_scene(recipe: Recipe, classes: int, root: Path | None = None) -> SceneNet:
    """The recipe's scene network on its trained detector.

    Args:
        recipe: ``model`` has ``detector`` and the options of :class:`~foveal.models.scene.SceneNet`.
        classes: number of scenes.
        root: folder of datasets, where weights are looked for if they are not here.
    """
    section = recipe.model.get("detector")
    if recipe.model["name"] != MODEL or not isinstance(section, Mapping):
        raise UserError(
            f"task scene needs model.name={MODEL} and model.detector, such as {{folder: runs/my-detector}} or "
            "{name: fasterrcnn_resnet50_fpn, checkpoint: detector.pth}"
        )
    detector, how = load_detector(section, root)
    return _scene_net(recipe, detector, how, classes)


def _scene_net(recipe: Recipe, detector: nn.Module, how: Mapping[str, Any], classes: int) -> SceneNet:
    if "num_classes" in recipe.model:
        raise UserError("model.num_classes comes from the data; leave it out of the recipe")
    options = {key: value for key, value in recipe.model.items() if key not in ("name", "detector")}
    checked = check_options(SceneNet, options | {"detector": {}}, f"model {MODEL}") | {"detector": detector}
    model = SceneNet(**checked, num_classes=classes)
    model.detector_from = dict(how)
    return model
