"""The step, losses and metrics of task ``detect``."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torchvision.models.detection import KeypointRCNN, MaskRCNN

from foveal.attention import AttentionRecord, watch
from foveal.attention.regions import Sizes
from foveal.compat import raise_recompile_limit
from foveal.data import Source
from foveal.errors import UserError
from foveal.measure import BoxAP
from foveal.measure.box_ap import AP50, AP75, SIZES
from foveal.models.build import build_model
from foveal.models.detector import exact_boxes
from foveal.recipe import Recipe
from foveal.tasks import attended
from foveal.tasks.base import SAMPLES, Task
from foveal.tasks.detect.options import DetectMeasure
from foveal.tasks.detect.samples import Sample, packed
from foveal.tasks.prediction import Prediction, Trained
from foveal.tasks.registry import register_task
from foveal.tasks.relations import REGIONS, RelationMetrics, attends_between_regions, counted
from foveal.tasks.results import Results

if TYPE_CHECKING:
    from foveal.runs import Group
    from foveal.see.page import Section
    from foveal.tasks.report import ReportWords

LOSSES = ("classifier", "box_reg", "objectness", "rpn_box_reg")  # torchvision's, without "loss_"


@runtime_checkable
class BoxSource(Protocol):
    """A dataset of images with boxes around their objects, and perhaps classes of whole images (scenes)."""

    answers: list[str]
    scenes: list[str] | None


@register_task("detect")
class Detect(Task):
    """Train and test a detector in the form of torchvision's.

    In training mode it takes a list of images and one of targets and returns a dict of losses; in eval mode it takes
    the images and returns ``boxes``, ``labels`` and ``scores`` of each.

    Args:
        recipe: the whole recipe.
        source: the dataset; batches hold lists image and target.
        model: an already built model to use instead of the recipe's.
    """

    summary = "an image; its objects, each with a box and a class"
    sections: ClassVar[Mapping[str, type]] = {"measure": DetectMeasure}

    def __init__(self, recipe: Recipe, source: Source, model: nn.Module | None = None) -> None:
        if not isinstance(source, BoxSource):
            raise UserError(
                f"task detect needs images with boxes, such as data.name=companions; data.name={source.name} has none"
            )
        classes = len(source.answers)
        if model is None:
            model = build_model(recipe.model, {"num_classes": classes + 1}, root=getattr(source, "root", None))
            try_detector(model, recipe.model["name"])
        super().__init__(recipe, source, exact_boxes(model), BoxAP.info, lambda: BoxAP(classes))
        self.kept: list[Sample] = []
        self.attended: list[attended.Attended] = []  # by regions of the kept images
        measure = recipe.measure
        focused = attends_between_regions(self.model)
        if focused and measure.relations == "annotated" and not getattr(source, "related", True):
            raise UserError(
                f"measure.relations=annotated: data.name={source.name} has no annotated relations; use category or "
                "instance"
            )
        self.relations = RelationMetrics(measure.relations, measure.pairs, measure.iou) if focused else None

    @classmethod
    def rebuild(cls, recipe: Recipe, about: Mapping[str, Any]) -> nn.Module:
        """The recipe's model for as many classes as in training."""
        return build_model(recipe.model, {"num_classes": len(about["answers"]) + 1}, trained=True)

    def loss_names(self) -> tuple[str, ...]:
        """Those of both stages: of proposals, and of regions."""
        return LOSSES

    def losses(self, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        """What the model returns in training mode."""
        losses = self.model(inputs(batch), batch["target"])
        return {name.removeprefix("loss_"): loss for name, loss in losses.items()}

    def detect(self, batch: Mapping[str, Any]) -> list[dict[str, Tensor]]:
        """What the model finds in each image of a batch."""
        return self.model(inputs(batch))

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Score of one batch."""
        self.val_score.update(self.detect(batch), batch["target"])

    def on_test_start(self) -> None:
        """Keep samples anew."""
        self.kept, self.attended = [], []
        if self.relations is not None:
            self.relations.reset()

    def test_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Scores, and an image of each batch to look at, until there are some."""
        detections, record = self._detect_and_watch(batch)
        self.test_score.update(detections, batch["target"])
        sizes = sizes_of(batch)
        if self.relations is not None:
            self.relations.update(record, batch["target"], sizes)
        if len(self.kept) < SAMPLES:
            self.kept.append(Sample.of(batch["image"][0], detections[0], batch["target"][0]))
            self.samples = packed(self.kept)
            if self.relations is not None:
                self.attended.append(self._attended(record, batch["target"][0], sizes))
                self.samples |= attended.packed(self.attended)

    def on_test_epoch_end(self) -> None:
        """Look at training images as well, if asked to."""
        left = self.recipe.measure.training_images if self.relations is not None else 0
        if left <= 0:
            return
        assert self.relations is not None
        # No larger than in training: so many images there are.
        world, size = self.trainer.world_size, min(self.recipe.train.batch, self.recipe.train.eval_batch)
        place: dict[str, Any] = {"rank": self.global_rank, "world": world, "device": self.device}
        for batch in itertools.islice(self.source.loader("train", size, **place), -(-left // (size * world))):
            batch = self.trainer.strategy.batch_to_device(batch)
            with self.trainer.precision_plugin.forward_context():  # as Lightning does around a test step
                _, record = self._detect_and_watch(batch)
            self.relations.update_training(record, batch["target"], sizes_of(batch))

    def _detect_and_watch(self, batch: Mapping[str, Any]) -> tuple[list[dict[str, Tensor]], AttentionRecord | None]:
        """Detections, and the attention between regions; None if there is none, or no region in any image."""
        if self.relations is None:
            return self.detect(batch), None
        with watch(self.model, REGIONS) as seen:
            detections = self.detect(batch)
        return detections, next(iter(seen.values()), None)

    def _attended(
        self, record: AttentionRecord | None, target: Mapping[str, Tensor], sizes: Sizes
    ) -> attended.Attended:
        """What a region of the first image attends to, in pixels of the kept image."""
        assert self.relations is not None
        graph, true = self.relations.graphs(record, sizes)[0], counted(target)
        seen = attended.of_object(graph, true, self.relations.relations(true), self.relations.iou)
        return seen._replace(boxes=seen.boxes * self.kept[-1].image.shape[-1] / sizes[0][1])

    def results(self) -> Results:
        """AP with that of every class, at two overlaps, and by size; recall of relations where regions attend."""
        results, metric = Results(), self.test_score
        assert isinstance(metric, BoxAP)
        value = metric.compute()
        assert metric.scores is not None
        by_class = dict(zip(self.about()["answers"], metric.scores.by_class.tolist(), strict=True))
        results.add(self.score, value, by_class)
        results.add(AP50, metric.scores.ap50)
        results.add(AP75, metric.scores.ap75)
        for size, info in SIZES.items():
            results.add(info, metric.scores.by_size[size])
        if self.relations is not None:
            self.relations.add_to(results)
        return results

    def on_fit_start(self) -> None:
        """Compile, if asked to, the parts with regular shapes: the backbone, and the head of regions."""
        if not self.recipe.train.compile:
            return
        raise_recompile_limit()
        for name in ("backbone", "roi_heads.box_head"):
            try:
                part = self.model.get_submodule(name)
            except AttributeError:  # a detector of another form
                continue
            part.compile(dynamic=True)

    def batch_size(self, batch: Any) -> int:
        """Images of a batch."""
        return len(batch["image"])

    @classmethod
    def predict(
        cls,
        runs: Sequence[Trained],
        inputs: Sequence[str],
        *,
        score: float = 0.5,
        most: int = 50,
        at: str | None = None,
    ) -> Prediction:
        """The objects in an image file; of a detector with attention between regions, also what one of them attends to.

        Args:
            runs: the models.
            inputs: an image file.
            score: least score of an object that is shown.
            most: so many objects are shown at most.
            at: x,y in pixels of the image: the object there is the one that attends, instead of the surest one.
        """
        from foveal.tasks.detect.prediction import predict

        return predict(runs, inputs, score, most, at)

    @classmethod
    def report_words(cls, groups: Sequence[Group]) -> ReportWords:
        """Pictures, and what was asked."""
        from foveal.tasks.detect.report import report_words

        return report_words(groups)

    @classmethod
    def report_sections(cls, groups: Sequence[Group], colours: Mapping[str, int]) -> list[Section]:
        """Some test images with what each model finds, and what regions attend to."""
        from foveal.tasks.detect.report import report_sections

        return report_sections(groups, colours)


def inputs(batch: Mapping[str, Any]) -> list[Tensor]:
    """Images of bytes as the model takes them: float in [0, 1], (3, H, W) each."""
    return [image.float() / 255 for image in batch["image"]]


def sizes_of(batch: Mapping[str, Any]) -> Sizes:
    """Height and width of the images of a batch."""
    return [(image.shape[-2], image.shape[-1]) for image in batch["image"]]


def try_detector(model: nn.Module, name: str) -> None:
    """Find out before training whether the model takes a list of images, learns from boxes and returns boxes."""
    if isinstance(model, MaskRCNN | KeypointRCNN):
        needs = "masks" if isinstance(model, MaskRCNN) else "keypoints"
        raise UserError(
            f"model {name} learns from {needs}, and task detect has boxes only; use detector, or a Faster R-CNN, "
            "RetinaNet, FCOS or SSD of torchvision, such as fasterrcnn_resnet50_fpn"
        )
    training = model.training
    try:
        with torch.no_grad():
            output = model.eval()([torch.zeros(3, 64, 64)])
    except (RuntimeError, ValueError, AssertionError, TypeError, AttributeError, IndexError) as error:
        if isinstance(error, UserError):
            raise
        problem = " ".join(str(error).split())
        raise UserError(
            f"model {name} is no detector: it does not take a list of images ({problem}); use detector, or one of "
            "torchvision's, such as fasterrcnn_resnet50_fpn"
        ) from error
    finally:
        model.train(training)  # also attention that was inserted on frozen norms
    keys = {"boxes", "labels", "scores"}
    if not (isinstance(output, list) and len(output) == 1 and isinstance(output[0], dict) and keys <= set(output[0])):
        raise UserError(f"model {name} is no detector: expected a dict of boxes, labels and scores for each image")
