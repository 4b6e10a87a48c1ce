"""Measures of a detector's attention between regions over a test set: relation recall and center-mass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from foveal.attention import AttentionRecord, FocusedRegions, RegionGraph, region_graphs
from foveal.attention.regions import Sizes
from foveal.measure import CenterMass, RelationRecall
from foveal.measure.info import MetricInfo, register_metric
from foveal.measure.relation_recall import K
from foveal.supervise import object_relations, region_pairs
from foveal.supervise.relations import TargetKind
from foveal.tasks.results import Results

TRAINING_MASS = register_metric(
    MetricInfo("center_mass_train", "Center-mass of training images", about=CenterMass.info.about)
)


REGIONS = "*box_head.attached.focused*"  # where a detector's attention between regions is watched


def attends_between_regions(model: nn.Module) -> bool:
    """Whether a detector has focused attention."""
    return any(isinstance(module, FocusedRegions) for module in model.modules())


class RelationMetrics(nn.Module):
    """Relation recall and center-mass, with targets as in :func:`foveal.supervise.region_pairs`.

    Crowds and difficult objects have no relations.

    Args:
        kind: ``category`` and ``instance``: all pairs of objects, without order; ``annotated``: relations of subject
            and object.
        k: numbers of pairs that are looked at.
        iou: an overlap must be above it.
    """

    def __init__(self, kind: TargetKind = "category", k: Sequence[int] = K, iou: float = 0.5) -> None:
        super().__init__()
        self.kind, self.iou = kind, iou
        self.recall = RelationRecall(k, iou, ordered=kind == "annotated")
        self.mass, self.training_mass = CenterMass(), CenterMass()

    def update(self, record: AttentionRecord | None, targets: Sequence[Mapping[str, Tensor]], sizes: Sizes) -> None:
        """Add the images of a batch; arguments as in :func:`foveal.supervise.region_pairs`.

        Without a record no image had a region, so that nothing of their relations is found.
        """
        targets = [counted(target) for target in targets]
        self._add(self.mass, record, targets, sizes)
        graphs = self.graphs(record, sizes)
        scores, proposals = [graph.logits for graph in graphs], [graph.boxes for graph in graphs]
        boxes = [target["boxes"] for target in targets]
        self.recall.update(scores, proposals, boxes, [self.relations(target) for target in targets])

    def update_training(
        self, record: AttentionRecord | None, targets: Sequence[Mapping[str, Tensor]], sizes: Sizes
    ) -> None:
        """Add training images, of which the center-mass alone is measured."""
        self._add(self.training_mass, record, targets, sizes)

    def _add(
        self, mass: CenterMass, record: AttentionRecord | None, targets: Sequence[Mapping[str, Tensor]], sizes: Sizes
    ) -> None:
        if record is None:
            nothing = torch.zeros(len(targets), 1, 1, device=mass.device)
            mass.update(nothing, nothing.bool())
        else:
            mass.update(record, region_pairs(record, targets, sizes, self.kind, self.iou))

    def graphs(self, record: AttentionRecord | None, sizes: Sizes) -> list[RegionGraph]:
        """The attention of each image; empty without a record."""
        if record is not None:
            return region_graphs(record, sizes)
        device = self.mass.device
        return [RegionGraph(torch.zeros(0, 0, device=device), torch.zeros(0, 4, device=device)) for _ in sizes]

    def reset(self) -> None:
        """Forget all images."""
        self.training_mass.reset()
        self.recall.reset()
        self.mass.reset()

    def relations(self, target: Mapping[str, Tensor]) -> Tensor:
        """Rows of subject and object, (r, 2)."""
        return target["relations"] if self.kind == "annotated" else object_relations(target["labels"], self.kind)

    def add_to(self, results: Results) -> None:
        """Add a metric for each number of pairs, and the center-mass."""
        recalls = torch.atleast_1d(self.recall.compute())  # torchmetrics makes a scalar of a single number
        for info, value in zip(self.recall.infos, recalls, strict=True):
            results.add(info, value)
        _add_mass(results, self.mass.info, self.mass)
        if self.training_mass.update_called:
            _add_mass(results, TRAINING_MASS, self.training_mass)


def _add_mass(results: Results, info: MetricInfo, mass: CenterMass) -> None:
    """Add a center-mass and of how many images it is: of those whose regions show two related objects."""
    value = mass.compute()
    measured, images = mass.counted
    results.add(info, value, note=f"regions show two related objects in {measured} of {images} images")


def counted(target: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Boxes, labels and relations of the objects that count: neither crowds nor difficult ones.

    >>> target = {"boxes": torch.rand(3, 4), "labels": torch.tensor([1, 2, 3]), "relations": torch.tensor([[1, 2]])}
    >>> counted(target | {"iscrowd": torch.tensor([True, False, False])})["relations"].tolist()
    [[0, 1]]
    """
    keep = torch.ones_like(target["labels"], dtype=torch.bool)
    for mark in ("iscrowd", "difficult"):
        keep &= ~target[mark].bool() if mark in target else True
    kept = {key: target[key][keep] for key in ("boxes", "labels")}
    if "relations" in target:
        relations = target["relations"]
        kept["relations"] = (keep.cumsum(0) - 1)[relations[keep[relations].all(1)]]
    return kept
