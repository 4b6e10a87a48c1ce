"""Ask finished runs about an input of your own."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image
from torch import Tensor, nn

from foveal import registry
from foveal.data.text.reading import TEXT_ENDINGS
from foveal.errors import UserError
from foveal.recipe import Recipe, complete
from foveal.runs import RunFolder, find_run
from foveal.typed import check_keywords


@dataclass(frozen=True)
class Trained:
    """The model of a finished run.

    Attributes:
        folder: the run.
        recipe: its recipe.
        model: in eval mode.
        about: what its task kept of the data.
    """

    folder: RunFolder
    recipe: Recipe
    model: nn.Module
    about: Mapping[str, Any]


@dataclass(frozen=True)
class Prediction:
    """What models say about one input.

    Attributes:
        models: title of each model that was asked, and its answers with their probabilities, most probable first;
            empty for a task that does not answer with classes.
        picture: where the models looked, or what they found; None if there is nothing to draw.
        caption: what the picture shows.
        lines: what a terminal shows for each model, by title.
        remark: what else there is to say.
        data: plain values for a JSON file, or None.
        text: for a text file, or None.
        stem: beginning of the names of files that are written.
    """

    models: dict[str, list[tuple[str, float]]] = field(default_factory=dict)
    picture: Image.Image | None = None
    caption: str = "Where it looked"
    lines: dict[str, list[str]] = field(default_factory=dict)
    remark: str = ""
    data: Any = None
    text: str | None = None
    stem: str = "prediction"

    @property
    def answers(self) -> list[tuple[str, float]]:
        """Those of the run that was asked first."""
        return next(iter(self.models.values()))


def predict(
    run: str | Path, *inputs: str | Path, beside: str | Path | Sequence[str | Path] | None = None, **options: Any
) -> Prediction:
    """What the model of ``run`` says about an input, and where it looks.

    Args:
        run: a finished run folder, or a model that comes with foveal.
        inputs: what the task takes: an image file, an image file and a query, a text or a text file, ….
        beside: another run of the same task, or several, asked the same and drawn beside.
        options: the task's own, such as ``label``, the true class.
    """
    from foveal.tasks.weights import load_model

    others = [beside] if isinstance(beside, str | Path) else beside or ()
    folders = [find_run(folder) for folder in (run, *others)]
    for number, folder in enumerate(folders):
        if folder.path.resolve() in (earlier.path.resolve() for earlier in folders[:number]):
            raise UserError(f"{folder} is the same run; name another one to draw beside it")
    runs = [Trained(folder, complete(folder.recipe()), *load_model(folder.path)) for folder in folders]
    first = runs[0]
    for other in runs[1:]:
        if other.recipe.task != first.recipe.task:
            raise UserError(
                f"{other.folder} is a run of task {other.recipe.task} and cannot be compared with {first.folder} of "
                f"task {first.recipe.task}"
            )
    task = registry.tasks.get(first.recipe.task)
    known = {key: value for key, value in options.items() if value not in (None, [], ())}
    checked = check_keywords(task.predict, known, f"task {first.recipe.task}")
    return task.predict(runs, [str(value) for value in inputs if value is not None], **checked)


def point_in(at: str, photo: Tensor) -> tuple[float, float]:
    """``x,y`` as numbers, which must be inside a photograph (3, H, W).

    >>> import torch
    >>> point_in("12,7.5", torch.zeros(3, 20, 30))
    (12.0, 7.5)
    """
    height, width = photo.shape[1:]
    try:
        x, y = (float(part) for part in at.split(","))
    except ValueError as error:
        example = f"{width // 2},{height // 2}"
        raise UserError(f"--at {at}: expected x,y in pixels of the image, such as --at {example}") from error
    if not (0 <= x < width and 0 <= y < height):
        raise UserError(f"--at {at} is outside the image, which has {width}×{height} pixels")
    return x, y


def titles(runs: Sequence[Trained]) -> list[str]:
    """A title for each run; their folders if the titles are the same."""
    names = [run.recipe.title for run in runs]
    return names if len(set(names)) == len(names) else [str(run.folder) for run in runs]


def text_file(text: str, *endings: str) -> Path | None:
    """The file that ``text`` names, or None if it is a text itself.

    A folder is neither, nor is a single word that looks like a file and is none: with the ending of text files, or with
    one of ``endings``.

    >>> text_file("To be, or not to be." * 100) is None
    True
    """
    if not text:
        return None
    try:
        folder, exists = Path(text).is_dir(), Path(text).exists()
    except (OSError, ValueError):  # too long for a name, or with characters that no name has
        return None
    if folder:
        raise UserError(f"{text} is a folder; give a text, or one text file")
    named = text.lower().endswith((*TEXT_ENDINGS, *endings)) or any(sep in text for sep in (os.sep, os.altsep) if sep)
    if not exists and named and not any(letter.isspace() for letter in text):
        raise UserError(f"there is no file {text}; give a text file, or a text of more than one word")
    return Path(text) if exists else None
