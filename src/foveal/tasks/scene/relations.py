"""What the regions of a scene attend to: kept with samples, drawn in reports and predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from foveal.attention import RegionGraph, region_graphs, watch
from foveal.data.images.reading import read_image
from foveal.models.scene import SceneNet
from foveal.runs import Stored
from foveal.see import relations
from foveal.see.page import Section, figure, figure_cards, picture
from foveal.tasks.answers import pixels
from foveal.tasks.attended import packed, strongest, unpacked
from foveal.tasks.classify.prediction import model_view
from foveal.tasks.classify.prediction import predict as predict_class
from foveal.tasks.prediction import Prediction, Trained, titles

LIMIT, SIZE = 6, 300  # images of a report, and pixels of each


def scene_graphs(model: nn.Module, images: Sequence[Tensor]) -> list[RegionGraph]:
    """The attention between the regions of images (3, H, W) in [0, 1]; none of a model that does not use it."""
    if not isinstance(model, SceneNet) or model.regions != "focused":
        return []
    with torch.no_grad(), watch(model, "*box_head.attached.focused*") as seen:
        model(images)
    sizes = [(image.shape[-2], image.shape[-1]) for image in images]
    return region_graphs(next(iter(seen.values())), sizes) if seen else []


def sample_relations(model: nn.Module, images: Sequence[Tensor]) -> dict[str, Tensor]:
    """What samples keep of a model's relations, see :class:`~foveal.tasks.attended.Attended`."""
    graphs = scene_graphs(model, images)
    return packed([strongest(graph) for graph in graphs]) if graphs else {}


def relations_section(samples: Mapping[str, Stored]) -> list[Section]:
    """A gallery of the strongest relations, the models beside each other; nothing if no model has any."""
    have = {name: seen for name, stored in samples.items() if (seen := unpacked(stored.tensors))}
    if not have:
        return []
    first = samples[next(iter(have))]
    names = first.about.get("answers", [])
    items = []
    for n, label in enumerate(first.tensors["label"][:LIMIT].tolist()):
        shown = []
        for name, seen in have.items():
            drawn = relations(samples[name].tensors["image"][n], *seen[n][:2], reference=0, size=SIZE)
            shown.append(figure(picture(drawn, f"what a region attends to in {name}", SIZE), name))
        title = names[label] if isinstance(label, int) else f"test image {n + 1}"
        items.append((title, shown))
    intro = (
        "For each model, the region with the strongest relationship (blue) and the regions that it attends to most "
        "(orange), with their weights."
    )
    return [Section("What regions attend to", figure_cards(items), intro=intro)]


def predict(runs: Sequence[Trained], inputs: Sequence[str], label: Sequence[str] = ()) -> Prediction:
    """The classes of an image file, and the strongest relations of its regions."""
    prediction = predict_class(runs, inputs, label)
    boxes: dict[str, Tensor] = {}
    weights: dict[str, Tensor] = {}
    image: Any = None
    for title, run in zip(titles(runs), runs, strict=True):
        image = pixels(model_view(run, read_image(Path(inputs[0])))[None])[0]
        for graph in scene_graphs(run.model, [image]):
            boxes[title], weights[title] = strongest(graph)[:2]
    if not boxes:
        return replace(prediction, remark="No picture: this model uses no attention between regions.")
    return replace(prediction, picture=relations(image, boxes, weights, reference=0), remark="")
