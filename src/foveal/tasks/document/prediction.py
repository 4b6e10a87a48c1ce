"""Ask a trained model about a text or a text file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch

from foveal.data.text.documents import TextOptions, text_format
from foveal.data.text.encode import Form, numbered, prepare
from foveal.errors import UserError
from foveal.models.document import DocumentNet
from foveal.recipe import Recipe
from foveal.see import DocumentSamples, document
from foveal.tasks.answers import answer_lines, named_answers
from foveal.tasks.document.task import look
from foveal.tasks.prediction import Prediction, Trained, text_file
from foveal.typed import parse

NO_WORD = "There is no word in this text."


def predict(runs: Sequence[Trained], inputs: Sequence[str]) -> Prediction:
    """The class of a text, and a picture of which words and sentences counted.

    Args:
        runs: one model.
        inputs: a text, or the name of a text file.
    """
    if len(inputs) != 1:
        raise UserError("this model classifies one text; put quotes around it")
    if len(runs) > 1:
        raise UserError("this model reads texts; another run beside it is for images")
    run, text = runs[0], inputs[0]
    assert isinstance(run.model, DocumentNet)
    samples = read_text(run.model, run.about, as_in_training(run.recipe, text))
    title, file = run.recipe.title, text_file(text)
    named = named_answers(run.about["answers"], samples.probability[0])
    return Prediction(
        models={title: named},
        picture=document(samples, title=title),
        lines={title: answer_lines(named)},
        remark="" if samples.texts[0] else NO_WORD,
        stem=f"{'text' if file is None else file.stem}-seen",
    )


def read_text(model: DocumentNet, about: Mapping[str, Any], text: str) -> DocumentSamples:
    """What a trained model makes of a text."""
    form = Form(**about["form"] | {"tagger": "none"})  # tags are for training
    prepared = prepare(text, form)
    tensors = look(model, torch.from_numpy(numbered([prepared], about["vocabulary"], form)[0]))
    del tensors["words"]  # the text itself also has the words that the model does not know
    return DocumentSamples(([words for words, _ in prepared],), **tensors, answers=tuple(about["answers"]))


def as_in_training(recipe: Recipe, text: str) -> str:
    """A text, or the content of a text file, decoded and cleaned like those that a run of ``recipe`` learnt from."""
    file = text_file(text)
    known = {field.name for field in fields(TextOptions)}
    options = parse(TextOptions, {k: v for k, v in recipe.data.items() if k in known}, "data")
    try:
        content = text if file is None else file.read_bytes()
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from error
    decoded = text_format(recipe.data["name"]).text(content, options)
    if file is not None and "\0" in decoded:
        raise UserError(f"{file} is no text file: it has null characters; this model reads texts and text files")
    return decoded
