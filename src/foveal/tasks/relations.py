"""Measures of a detector's attention between regions over a test set: relation recall and center-mass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from foveal.attention import AttentionRecord, region_graphs
from foveal.attention.regions import Sizes
from foveal.measure import CenterMass, RelationRecall
from foveal.measure.relation_recall import K
from foveal.supervise import object_relations, region_pairs
from foveal.supervise.relations import TargetKind
from foveal.tasks.results import Results


class RelationMetrics(nn.Module):
    """Relation recall and center-mass, with targets as in :func:`foveal.supervise.region_pairs`.

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
        self.mass = CenterMass()

    def update(self, record: AttentionRecord, targets: Sequence[Mapping[str, Tensor]], sizes: Sizes) -> None:
        """Add the images of a batch; arguments as in :func:`foveal.supervise.region_pairs`."""
        self.mass.update(record, region_pairs(record, targets, sizes, self.kind, self.iou))
        graphs = region_graphs(record, sizes)
        scores, proposals = [graph.logits for graph in graphs], [graph.boxes for graph in graphs]
        boxes = [target["boxes"] for target in targets]
        self.recall.update(scores, proposals, boxes, [self._relations(target) for target in targets])

    def reset(self) -> None:
        """Forget all images."""
        self.recall.reset()
        self.mass.reset()

    def _relations(self, target: Mapping[str, Tensor]) -> Tensor:
        return target["relations"] if self.kind == "annotated" else object_relations(target["labels"], self.kind)

    def add_to(self, results: Results) -> None:
        """Add a metric for each number of pairs, and the center-mass."""
        for info, value in zip(self.recall.infos, self.recall.compute(), strict=True):
            results.add(info, value)
        results.add(self.mass.info, self.mass.compute())
