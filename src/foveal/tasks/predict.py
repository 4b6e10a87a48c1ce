"""Ask a finished run about one image or text."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from foveal import measure
from foveal.attention.record import watch
from foveal.data.augment import view
from foveal.data.corpora import TEXT_ENDINGS
from foveal.data.documents import TextOptions
from foveal.data.pictures import read_image
from foveal.data.texts import text_format
from foveal.errors import UserError, unknown
from foveal.models.document import DocumentNet
from foveal.recipe import Recipe
from foveal.see import Samples, class_maps, gates, top_classes
from foveal.see.documents import NO_WORD, document
from foveal.tasks.classify import looking, maps, normalised
from foveal.tasks.document import read_text
from foveal.tasks.folder import load_run
from foveal.tasks.run import load_model
from foveal.tasks.task import answers, pixels
from foveal.typed import parse


@dataclass(frozen=True)
class Prediction:
    """Answers with their probabilities, most probable first, and a picture of where the model looked.

    The picture is None for a model that has no attention over positions. The remark is what else there is to say.
    """

    answers: list[tuple[str, float]]
    picture: Image.Image | None
    remark: str = ""


def predict(run: str | Path, image: str | Path, query: str | None = None) -> Prediction:
    """What the model of ``run`` says about ``image``, and where it looks.

    Args:
        run: a finished run folder.
        image: an image file; it is brought to the size the model was trained on. For a run of task ``document`` a text,
            or the name of a text file.
        query: which object is meant, for a run of task ``refer``.
    """
    recipe = load_run(Path(run))
    model, about = load_model(run)
    if recipe.task == "document":
        if query is not None:
            raise UserError("this model classifies one text; put quotes around it")
        return _read(model, about, recipe, str(image))
    if recipe.task == "classify":
        if query is not None:
            raise UserError(f"this model classifies whole images; leave {query!r} out")
        samples = _classified(model, about, read_image(Path(image)))
    else:
        if query is None:
            raise UserError(f"say what to ask for after the image: {_few(about['queries'])}")
        samples = _referred(model, about, recipe, read_image(Path(image)), query)
    assert samples.probability is not None
    order = samples.probability[0].argsort(descending=True).tolist()
    named = [(about["answers"][i], float(samples.probability[0, i])) for i in order]
    if recipe.task == "classify" and recipe.loss.sharpen is not None and samples.map is None:
        return Prediction(named, _class_maps(model, about, recipe, samples))
    return Prediction(named, None if samples.map is None else gates({recipe.title: samples}, size=180))


def _class_maps(model: nn.Module, about: Mapping[str, Any], recipe: Recipe, samples: Samples) -> Image.Image:
    """Where the model looks for each of the classes it thinks of first."""
    sharpen, seen_as = recipe.loss.sharpen, about["view"]
    assert sharpen is not None
    x = normalised(samples.image, torch.tensor(seen_as["mean"]), torch.tensor(seen_as["std"]))
    top = top_classes(model, x, sharpen.last, kind=sharpen.kind, multilabel=about["multilabel"])
    return class_maps({recipe.title: top}, samples.image, names=about["answers"], size=180)


def _read(model: nn.Module, about: Mapping[str, Any], recipe: Recipe, text: str) -> Prediction:
    assert isinstance(model, DocumentNet)
    samples = read_text(model, about, as_in_training(recipe, text))
    order = samples.probability[0].argsort(descending=True).tolist()
    named = [(about["answers"][i], float(samples.probability[0, i])) for i in order]
    remark = "" if samples.texts[0] else NO_WORD
    return Prediction(named, document(samples, title=recipe.title), remark)


def as_in_training(recipe: Recipe, given: str) -> str:
    """A text, or the content of a text file, decoded and cleaned like those that a run of ``recipe`` learnt from."""
    file = text_file(given)
    known = {field.name for field in fields(TextOptions)}
    options = parse(TextOptions, {k: v for k, v in recipe.data.items() if k in known}, "data")
    try:
        return text_format(recipe.data["name"]).text(given if file is None else file.read_bytes(), options)
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from error


def text_file(given: str) -> Path | None:
    """The file that ``given`` names, or None if it is a text itself.

    A folder is neither, nor is a single word that looks like a file and is none.

    >>> text_file("To be, or not to be." * 100) is None
    True
    """
    if not given:
        return None
    try:
        folder, exists = Path(given).is_dir(), Path(given).exists()
    except (OSError, ValueError):  # too long for a name, or with characters that no name has
        return None
    if folder:
        raise UserError(f"{given} is a folder; give a text, or one text file")
    named = given.lower().endswith(TEXT_ENDINGS) or any(sep in given for sep in (os.sep, os.altsep) if sep)
    if not exists and named and not any(letter.isspace() for letter in given):
        raise UserError(f"there is no file {given}; give a text file, or a text of more than one word")
    return Path(given) if exists else None


def _few(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" or another of {len(names)}" if len(names) > 5 else "")


def _classified(model: nn.Module, about: Mapping[str, Any], picture: Image.Image) -> Samples:
    seen_as = about["view"]
    batch = view(seen_as["size"], seen_as["augment"], False, False)(picture)[None]
    mean, std = torch.tensor(seen_as["mean"]), torch.tensor(seen_as["std"])
    with torch.no_grad(), looking(model) as seen:
        logits = model(normalised(batch, mean, std)).float()
    each, combined = maps(seen, (seen_as["size"], seen_as["size"]))
    return _samples(about, batch, logits, each, combined)


def _referred(model: nn.Module, about: Mapping[str, Any], recipe: Recipe, picture: Image.Image, query: str) -> Samples:
    queries = about["queries"]
    if query not in queries:
        raise unknown("query", query, queries)
    side = recipe.data.get("canvas") or recipe.data.get("image_size") or (224 if about["multilabel"] else 100)
    resized = picture.resize((side, side), Image.Resampling.BILINEAR)
    batch = torch.from_numpy(np.array(resized)).permute(2, 0, 1)[None].contiguous()
    asked = torch.tensor([queries.index(query)])
    with torch.no_grad(), watch(model) as seen:
        logits = model(pixels(batch), asked).float()
    each = {site: record.values for site, record in seen.items()}
    return _samples(about, batch, logits, each, measure.attention_map(seen, (side, side)), asked)


def _samples(
    about: Mapping[str, Any],
    image: Tensor,
    logits: Tensor,
    each: Mapping[str, Tensor],
    combined: Tensor | None,
    query: Tensor | None = None,
) -> Samples:
    probability, prediction = answers(logits, about["multilabel"])
    return Samples(
        image=image,
        query=query,
        prediction=prediction,
        gates=tuple(each.values()),
        map=combined,
        probability=probability,
        queries=tuple(about.get("queries", ())),
        answers=tuple(about["answers"]),
        sites=tuple(each),
    )
