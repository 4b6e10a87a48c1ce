"""Ask trained detectors about an image file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.transforms.functional import pil_to_tensor

from foveal.data.images.masked import resized_to
from foveal.data.images.reading import read_image
from foveal.errors import UserError
from foveal.see import Found, detections
from foveal.tasks.answers import check_same_answers
from foveal.tasks.prediction import Prediction, Trained, titles

LINES = 12  # objects that a terminal shows


def predict(runs: Sequence[Trained], inputs: Sequence[str], score: float, most: int) -> Prediction:
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
    found = {title: look(run, photo, score, most) for title, run in zip(titles(runs), runs, strict=True)}
    lists = {title: named(objects, names) for title, objects in found.items()}
    return Prediction(
        picture=detections(photo, found, names, size=min(960, max(480, *photo.shape[1:]))),
        lines={title: _lines(objects, score) for title, objects in lists.items()},
        data={"image": inputs[0], "size": list(photo.shape[1:]), "classes": names, "models": lists},
        stem=f"{Path(inputs[0]).stem}-detected",
    )


def look(run: Trained, photo: Tensor, score: float, most: int) -> Found:
    """The surest objects in a photograph uint8 (3, H, W), in its own pixels."""
    height, width = photo.shape[1:]
    across, down = resized_to((width, height), run.about["view"]["short"])
    image = photo.float() / 255
    if (down, across) != (height, width):
        image = F.interpolate(image[None], (down, across), mode="bilinear", antialias=True)[0]
    with torch.no_grad():
        (output,) = run.model([image])
    order = output["scores"].argsort(descending=True)[:most]
    order = order[output["scores"][order] >= score]
    factors = torch.tensor([width / across, height / down] * 2)
    return Found(output["boxes"][order] * factors, output["labels"][order], output["scores"][order])


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
