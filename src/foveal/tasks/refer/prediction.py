"""Ask trained models about one object of an image file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from foveal import measure
from foveal.attention import watch
from foveal.data.images.reading import read_image
from foveal.errors import UserError, unknown
from foveal.see import Samples, gates
from foveal.tasks.answers import (
    answer_lines,
    answers,
    check_same_answers,
    few,
    named_answers,
    pixels,
    true_answers,
)
from foveal.tasks.prediction import Prediction, Trained, titles


def predict(runs: Sequence[Trained], inputs: Sequence[str], label: Sequence[str] = ()) -> Prediction:
    """What each model answers, and the maps of its gates.

    Args:
        runs: the models.
        inputs: an image file and a query.
        label: the true answer, which is marked.
    """
    about = runs[0].about
    if len(inputs) != 2:
        if len(inputs) == 1:
            raise UserError(f"say what to ask for after the image: {few(about['queries'])}")
        raise UserError(f"expected an image file and a query, got {' '.join(inputs) or 'nothing'}")
    check_same_answers(runs)
    image, query = inputs
    if query not in about["queries"]:
        raise unknown("query", query, about["queries"])
    picture, true = read_image(Path(image)), true_answers(about, label)
    samples = {
        title: replace(look(run, picture, query), label=true) for title, run in zip(titles(runs), runs, strict=True)
    }
    named = {
        title: named_answers(about["answers"], sample.probability[0])
        for title, sample in samples.items()
        if sample.probability is not None
    }
    return Prediction(
        models=named,
        picture=gates(samples, size=180),
        lines={title: answer_lines(names, label) for title, names in named.items()},
        stem=f"{Path(image).stem}-{query}",
    )


def look(run: Trained, picture: Image.Image, query: str) -> Samples:
    """What a model makes of an image and a query."""
    about = run.about
    side = about["size"]
    resized = picture.resize((side, side), Image.Resampling.BILINEAR)
    image = torch.from_numpy(np.array(resized)).permute(2, 0, 1)[None].contiguous()
    asked = torch.tensor([about["queries"].index(query)])
    with torch.no_grad(), watch(run.model) as seen:
        logits = run.model(pixels(image), asked).float()
    probability, prediction = answers(logits, about["multilabel"])
    maps = {f"gate.{i}": record.values for i, record in enumerate(seen.values())}
    tensors = {
        "image": image,
        "query": asked,
        "prediction": prediction,
        "probability": probability,
        "map": measure.attention_map(seen, (side, side)),
        **maps,
    }
    return Samples.from_tensors(tensors, {**about, "sites": list(seen)})
