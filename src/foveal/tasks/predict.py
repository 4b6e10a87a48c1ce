"""Ask a finished run about one image or text."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from foveal import measure
from foveal.attention.records.record import watch
from foveal.data.augment import view
from foveal.data.corpora import TEXT_ENDINGS
from foveal.data.documents import TextOptions
from foveal.data.pictures import read_image
from foveal.data.texts import text_format
from foveal.errors import UnknownNameError, UserError, unknown
from foveal.models.document import DocumentNet
from foveal.recipe import Recipe, Sharpening
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
    """Answers with their probabilities, most probable first, and a picture of where the models looked.

    Attributes:
        models: title of each model that was asked, and its answers.
        picture: None if no model has attention over positions.
        remark: what else there is to say.
    """

    models: dict[str, list[tuple[str, float]]]
    picture: Image.Image | None
    remark: str = ""

    @property
    def answers(self) -> list[tuple[str, float]]:
        """Those of the run that was asked first."""
        return next(iter(self.models.values()))


@dataclass(frozen=True)
class _Trained:
    """The model of a run."""

    folder: Path
    recipe: Recipe
    model: nn.Module
    about: Mapping[str, Any]


def predict(
    run: str | Path,
    image: str | Path,
    query: str | None = None,
    *,
    beside: str | Path | None = None,
    label: Sequence[str] = (),
) -> Prediction:
    """What the model of ``run`` says about ``image``, and where it looks.

    Args:
        run: a finished run folder.
        image: an image file; it is brought to the size the model was trained on. For a run of task ``document`` a text,
            or the name of a text file.
        query: which object is meant, for a run of task ``refer``.
        beside: another run with the same task and classes, asked the same and drawn beside.
        label: the true class, which is framed; several for a model that knows several classes an image.
    """
    folders = [Path(run)] if beside is None else [Path(run), Path(beside)]
    models = [_Trained(folder, load_run(folder), *load_model(folder)) for folder in folders]
    recipe, about = models[0].recipe, models[0].about
    if recipe.task == "document":
        if query is not None:
            raise UserError("this model classifies one text; put quotes around it")
        if beside is not None or label:
            raise UserError("this model reads texts; another run beside it and a true class are for images")
        return _read(models[0].model, about, recipe, str(image))
    if recipe.task == "classify" and query is not None:
        raise UserError(f"this model classifies whole images; leave {query!r} out")
    if recipe.task == "refer" and query is None:
        raise UserError(f"say what to ask for after the image: {_few(about['queries'])}")
    for other in models[1:]:
        _check_same(models[0], other)
    true, picture = _true(about, label), read_image(Path(image))
    seen = [replace(_look(trained, picture, query), label=true) for trained in models]
    titles = [trained.recipe.title for trained in models]
    if len(set(titles)) < len(titles):
        titles = [str(folder) for folder in folders]
    answered = {title: _named(about, samples.probability) for title, samples in zip(titles, seen, strict=True)}
    return Prediction(answered, _picture(titles, models, seen))


def _look(trained: _Trained, picture: Image.Image, query: str | None) -> Samples:
    if query is None:
        return _classified(trained.model, trained.about, picture)
    return _referred(trained.model, trained.about, trained.recipe, picture, query)


def _named(about: Mapping[str, Any], probability: Tensor | None) -> list[tuple[str, float]]:
    assert probability is not None
    order = probability[0].argsort(descending=True).tolist()
    return [(about["answers"][i], float(probability[0, i])) for i in order]


def _true(about: Mapping[str, Any], label: Sequence[str]) -> Tensor | None:
    """The true classes in the form of predictions; None if they are not known."""
    known = about["answers"]
    for name in label:
        if name not in known:
            raise unknown("class", name, known)
    if not label:
        return None
    if about["multilabel"]:
        return torch.tensor([[int(name in label) for name in known]])
    if len(label) > 1:
        raise UserError(f"this model knows one class an image; give one true class instead of {', '.join(label)}")
    return torch.tensor([known.index(label[0])])


def _check_same(one: _Trained, other: _Trained) -> None:
    """Raise unless these are two runs that answer the same question with the same classes."""
    if one.folder.resolve() == other.folder.resolve():
        raise UserError(f"{other.folder} is the same run; name another one to draw beside it")
    if one.recipe.task != other.recipe.task:
        raise UserError(
            f"{other.folder} is a run of task {other.recipe.task} and cannot stand beside {one.folder} of task "
            f"{one.recipe.task}"
        )
    if any(one.about.get(key) != other.about.get(key) for key in ("answers", "multilabel", "queries")):
        knows, known = (_few(each.about["answers"]) for each in (other, one))
        raise UserError(
            f"{other.folder} knows other classes ({knows}) than {one.folder} ({known}); give a run on the same dataset"
        )


def _picture(titles: Sequence[str], models: Sequence[_Trained], seen: Sequence[Samples]) -> Image.Image | None:
    """The maps of every gate, and below them those of the classes that each model thinks of first."""
    looks = {title: samples for title, samples in zip(titles, seen, strict=True) if samples.map is not None}
    pictures = [gates(looks, size=180)] if looks else []
    sharpen = next((how for trained in models if (how := trained.recipe.loss.sharpen) is not None), None)
    if sharpen is not None:
        pictures += [_class_maps(*each, sharpen) for each in zip(titles, models, seen, strict=True)]
    if not pictures:
        return None
    whole = Image.new("RGB", (max(p.width for p in pictures), sum(p.height for p in pictures)), "white")
    top = 0
    for each in pictures:
        whole.paste(each, (0, top))
        top += each.height
    return whole


def _class_maps(title: str, trained: _Trained, samples: Samples, sharpen: Sharpening) -> Image.Image:
    """Where a model looks for each of the classes it thinks of first.

    All models have maps of the kind that ``sharpen`` says, so that they compare; a run trained without attention losses
    has its layer too.
    """
    about = trained.about
    x = normalised(samples.image, torch.tensor(about["view"]["mean"]), torch.tensor(about["view"]["std"]))
    layer = (trained.recipe.loss.sharpen or sharpen).last
    try:
        top = top_classes(trained.model, x, layer, kind=sharpen.kind, multilabel=about["multilabel"])
    except UnknownNameError as error:
        raise UserError(f"{title} has no maps at the layer of the other run: {error}") from error
    return class_maps({title: top}, samples.image, samples.label, names=about["answers"], size=180)


def _read(model: nn.Module, about: Mapping[str, Any], recipe: Recipe, text: str) -> Prediction:
    assert isinstance(model, DocumentNet)
    samples = read_text(model, about, as_in_training(recipe, text))
    remark = "" if samples.texts[0] else NO_WORD
    answered = {recipe.title: _named(about, samples.probability)}
    return Prediction(answered, document(samples, title=recipe.title), remark)


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
