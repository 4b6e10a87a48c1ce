"""Ask trained detectors about an image file: what is where, and what a region attends to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from torchvision.transforms.functional import pil_to_tensor

from foveal.attention import RegionGraph, region_graphs, relationship_proposals, watch
from foveal.data.images.masked import resized_to
from foveal.data.images.reading import read_image
from foveal.errors import UserError
from foveal.see import Found, detections, relations
from foveal.supervise.targets import box_iou
from foveal.tasks.answers import check_same_answers
from foveal.tasks.prediction import Prediction, Trained, point_in, titles
from foveal.tasks.relations import REGIONS, attends_between_regions

LINES = 12  # objects that a terminal shows
PAIRS = 100  # of regions, in the JSON file
OVERLAP = 0.5  # above which a region shows an object
LEAST = 0.01  # weight of a region that is drawn


class Look(NamedTuple):
    """What a detector makes of a photograph, in its own pixels.

    Attributes:
        found: the surest objects.
        graph: the attention between all regions; None of a detector without, or if it has no region.
    """

    found: Found
    graph: RegionGraph | None


def predict(runs: Sequence[Trained], inputs: Sequence[str], score: float, most: int, at: str | None) -> Prediction:
    """The objects in an image file, drawn on it; see :meth:`~foveal.tasks.detect.task.Detect.predict`."""
    if len(inputs) != 1:
        extra = f"; leave {' '.join(inputs[1:])!r} out" if inputs else ""
        raise UserError(f"this model looks for objects in a whole image{extra}")
    if not 0 <= score <= 1:
        raise UserError(f"--score {score:g}: expected a number from 0 to 1")
    if most < 1:
        raise UserError(f"--most {most}: expected at least 1")
    check_same_answers(runs)
    names, photo = runs[0].about["answers"], pil_to_tensor(read_image(Path(inputs[0])))
    point = None if at is None else point_in(at, photo)
    looks = {title: look(run, photo, score, most) for title, run in zip(titles(runs), runs, strict=True)}
    found = {title: one.found for title, one in looks.items()}
    lists = {title: named(objects, names) for title, objects in found.items()}
    reference = _reference(looks, point)
    size = min(960, max(480, *photo.shape[1:]))
    panels: dict[str, Image.Image] = {}
    if reference is not None:
        for title, one in looks.items():
            if one.graph is not None:
                about = f"{title}: " if len(runs) > 1 else ""
                panels[f"{about}what one region attends to"] = _attended(photo, one, one.graph, reference, names, size)
    pairs = {title: _pairs(one.graph) for title, one in looks.items() if one.graph is not None}
    return Prediction(
        picture=detections(photo, found, names, panels=panels, size=size),
        caption="The objects and where it looked" if panels else "The objects",
        lines={title: _lines(objects, score) for title, objects in lists.items()},
        remark="" if at is None or panels else _nothing_attended(runs),
        data={"image": inputs[0], "size": list(photo.shape[1:]), "classes": names, "models": lists}
        | ({"relations": pairs} if pairs else {}),
        stem=f"{Path(inputs[0]).stem}-detected",
    )


def _nothing_attended(runs: Sequence[Trained]) -> str:
    """Why ``--at`` has nothing to show."""
    if any(attends_between_regions(run.model) for run in runs):
        return "no region was found, so --at has nothing to show"
    return "no model attends between regions, so --at has nothing to show"


def look(run: Trained, photo: Tensor, score: float, most: int) -> Look:
    """The surest objects in a photograph uint8 (3, H, W), and the attention between all of its regions."""
    height, width = photo.shape[1:]
    across, down = resized_to((width, height), run.about["view"]["short"])
    image = photo.float() / 255
    if (down, across) != (height, width):
        image = F.interpolate(image[None], (down, across), mode="bilinear", antialias=True)[0]
    with torch.no_grad(), watch(run.model, REGIONS) if attends_between_regions(run.model) else nullcontext() as seen:
        (output,) = run.model([image])
    record = next(iter((seen or {}).values()), None)
    order = output["scores"].argsort(descending=True)[:most]
    order = order[output["scores"][order] >= score]
    factors = torch.tensor([width / across, height / down] * 2)
    found = Found(output["boxes"][order] * factors, output["labels"][order], output["scores"][order])
    graph = None if record is None else region_graphs(record, [(height, width)])[0]
    return Look(found, graph if graph is not None and len(graph.boxes) else None)


# Attention between regions -----------------------------------------------------------


def _reference(looks: Mapping[str, Look], point: tuple[float, float] | None) -> Tensor | None:
    """The box, (4,), of which all pictures show what it attends to, of the first model that attends between regions.

    It is the surest object, or the smallest one around the point. Where no object is, it is the same of the regions, or
    the one whose centre is nearest.
    """
    look = next((one for one in looks.values() if one.graph is not None), None)
    if look is None or look.graph is None:
        return None
    for boxes in (look.found.boxes, look.graph.boxes):
        if point is not None:
            place = torch.tensor(point)
            boxes = boxes[((boxes[:, :2] <= place) & (place <= boxes[:, 2:])).all(1)]
            boxes = boxes[(boxes[:, 2:] - boxes[:, :2]).prod(1).argsort()]
        if len(boxes):
            return boxes[0]
    centres = (look.graph.boxes[:, :2] + look.graph.boxes[:, 2:]) / 2
    return look.graph.boxes[(centres - torch.tensor(point)).norm(dim=1).argmin()]


def _attended(
    photo: Tensor, look: Look, graph: RegionGraph, reference: Tensor, names: Sequence[str], size: int
) -> Image.Image:
    """What the region nearest to ``reference`` attends to; regions that show an object have its name."""
    nearest = int(box_iou(reference[None], graph.boxes)[0].argmax())
    row = graph.logits[nearest].softmax(0)
    drawn = [nearest, *(n for n in row.argsort(descending=True).tolist() if n != nearest and row[n] >= LEAST)]
    boxes, shown = graph.boxes[drawn], [""] * len(drawn)
    if len(look.found.boxes):
        overlaps, objects = box_iou(boxes, look.found.boxes).max(1)
        labels = look.found.labels[objects].tolist()
        shown = [names[label - 1] if o > OVERLAP else "" for o, label in zip(overlaps.tolist(), labels, strict=True)]
    return relations(photo, boxes, row[drawn], reference=0, names=shown, size=size)


def _pairs(graph: RegionGraph) -> list[dict[str, Any]]:
    """The most probable relationships as plain values: boxes of subject and object, and the weight of the pair."""
    ranked = relationship_proposals(*graph, k=PAIRS)
    rows = zip(ranked.subjects.tolist(), ranked.objects.tolist(), ranked.weights.tolist(), strict=True)
    return [
        {
            "subject": [round(end, 1) for end in subject],
            "object": [round(end, 1) for end in other],
            "weight": round(weight, 6),
        }
        for subject, other, weight in rows
    ]


# Objects -------------------------------------------------------------------------------


def named(found: Found, names: Sequence[str]) -> list[dict[str, Any]]:
    """Objects as plain values: class, score and box, in pixels of the image."""
    assert found.scores is not None
    rows = zip(found.labels.tolist(), found.scores.tolist(), found.boxes.tolist(), strict=True)
    return [
        {"class": names[label - 1], "score": round(score, 4), "box": [round(end, 1) for end in box]}
        for label, score, box in rows
    ]


def _lines(objects: Sequence[dict[str, Any]], score: float) -> list[str]:
    if not objects:
        return [f"nothing with a score of {score:g} or more; --score lowers it"]
    width = max(len(one["class"]) for one in objects)
    shown = [
        f"{one['class']:{width}} {one['score']:6.1%}  x {one['box'][0]:.0f}–{one['box'][2]:.0f}, "
        f"y {one['box'][1]:.0f}–{one['box'][3]:.0f}"
        for one in objects[:LINES]
    ]
    return shown + ([f"and {len(objects) - LINES} more"] if len(objects) > LINES else [])
