"""Ask trained classifiers about an image file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.functional import pil_to_tensor

from foveal.data.images.augment import view
from foveal.data.images.masked import resized_to
from foveal.data.images.reading import read_image
from foveal.errors import UnknownNameError, UserError
from foveal.see import Samples, class_maps, gates, top_classes
from foveal.tasks.answers import answer_lines, answers, check_same_answers, named_answers, normalised, true_answers
from foveal.tasks.classify.attention import looking, spatial_maps
from foveal.tasks.classify.options import ClassAttention
from foveal.tasks.prediction import Prediction, Trained, titles


def predict(runs: Sequence[Trained], inputs: Sequence[str], label: Sequence[str] = ()) -> Prediction:
    """The classes of an image file and, of models that have such, maps of attention.

    Args:
        runs: the models.
        inputs: an image file.
        label: the true class, which is framed; several for models that know several classes an image.
    """
    if len(inputs) != 1:
        extra = f"; leave {' '.join(inputs[1:])!r} out" if inputs else "; give one image file"
        raise UserError(f"this model classifies whole images{extra}")
    check_same_answers(runs)
    about, picture = runs[0].about, read_image(Path(inputs[0]))
    true = true_answers(about, label)
    samples = {title: replace(look(run, picture), label=true) for title, run in zip(titles(runs), runs, strict=True)}
    named = {
        title: named_answers(about["answers"], sample.probability[0])
        for title, sample in samples.items()
        if sample.probability is not None
    }
    drawn = _pictures(samples, runs)
    return Prediction(
        models=named,
        picture=drawn,
        lines={title: answer_lines(names, label) for title, names in named.items()},
        remark="" if drawn is not None else "No picture: this model has no attention over positions.",
        stem=f"{Path(inputs[0]).stem}-seen",
    )


def model_view(run: Trained, picture: Image.Image) -> Tensor:
    """An image as the model sees it, uint8 (3, H, W): a square from its middle, or the whole in its own shape."""
    seen_as = run.about["view"]
    if "short" not in seen_as:
        return view(seen_as["size"], seen_as["augment"], False, False)(picture)
    return pil_to_tensor(picture.resize(resized_to(picture.size, seen_as["short"]), Image.Resampling.BILINEAR))


def look(run: Trained, picture: Image.Image) -> Samples:
    """What a model makes of an image."""
    image, seen_as = model_view(run, picture)[None], run.about["view"]
    mean, std = torch.tensor(seen_as["mean"]), torch.tensor(seen_as["std"])
    with torch.no_grad(), looking(run.model) as seen:
        logits = run.model(normalised(image, mean, std)).float()
    maps, combined = spatial_maps(seen, (image.shape[-2], image.shape[-1]))
    probability, prediction = answers(logits, run.about["multilabel"])
    tensors = {"image": image, "prediction": prediction, "probability": probability}
    tensors |= {f"gate.{i}": values for i, values in enumerate(maps.values())}
    if combined is not None:
        tensors["map"] = combined
    return Samples.from_tensors(tensors, {**run.about, "sites": list(maps), "total_gates": len(seen)})


def _pictures(samples: dict[str, Samples], runs: Sequence[Trained]) -> Image.Image | None:
    """The maps of every gate, and below them those of the classes that each model thinks of first."""
    looks = {title: sample for title, sample in samples.items() if sample.map is not None}
    pictures = [gates(looks, size=180)] if looks else []
    options = [run.recipe.measure.class_attention for run in runs]
    first = next((option for option in options if option is not None), None)
    if first is not None:
        for (title, sample), run, option in zip(samples.items(), runs, options, strict=True):
            pictures.append(_class_maps(title, run, sample, option or first, first.kind))
    if not pictures:
        return None
    whole = Image.new("RGB", (max(p.width for p in pictures), sum(p.height for p in pictures)), "white")
    top = 0
    for picture in pictures:
        whole.paste(picture, (0, top))
        top += picture.height
    return whole


def _class_maps(title: str, run: Trained, sample: Samples, option: ClassAttention, kind: str) -> Image.Image:
    """Where a model looks for each of the classes it thinks of first.

    All models have maps of one kind, so that they compare; a run that measured none has the other run's layer too.
    """
    seen_as = run.about["view"]
    x = normalised(sample.image, torch.tensor(seen_as["mean"]), torch.tensor(seen_as["std"]))
    assert option.layers is not None
    try:
        top = top_classes(run.model, x, option.layers[-1], kind=kind, multilabel=run.about["multilabel"])  # type: ignore[arg-type]
    except UnknownNameError as error:
        raise UserError(f"{title} has no maps at the layer of the other run: {error}") from error
    return class_maps({title: top}, sample.image, sample.label, names=run.about["answers"], size=180)
