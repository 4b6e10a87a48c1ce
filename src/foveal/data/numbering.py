"""What the numbers in a model's inputs and outputs stand for. Data fits a trained model only if it is the same."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from foveal.data.text.subwords import Subwords
from foveal.errors import UserError

INPUTS = {"queries": "queries", "vocabulary": "words", "subwords": "subwords", "lowercase": "data.lowercase"}
NUMBERED = {"answers": "classes", **INPUTS}
"""Keys of ``Source.about()``, and what errors call them."""


def numbering(about: Mapping[str, Any]) -> dict[str, Any]:
    """The part of ``Source.about()`` that says what numbers stand for."""
    return {key: about[key] for key in NUMBERED if key in about}


def check_numbering(
    trained: Mapping[str, Any], data: Mapping[str, Any], who: str, advice: str, keys: Iterable[str] = NUMBERED
) -> None:
    """Raise if numbers stand for something else in the data than in training.

    Args:
        trained: what ``Source.about()`` returned in training, perhaps read from a file.
        data: what it returns now.
        who: was trained, for the message.
        advice: what to do, for the message.
        keys: those to compare, if both have them.

    >>> check_numbering({"answers": ["cat", "dog"]}, {"answers": ("dog", "cat")}, "runs/a", "put the old files back")
    Traceback (most recent call last):
    foveal.errors.UserError: runs/a was trained with other classes than those of the data; put the old files back
    """
    for key in keys:
        if key in trained and key in data and _plain(key, trained[key]) != _plain(key, data[key]):
            raise UserError(f"{who} was trained with other {NUMBERED[key]} than those of the data; {advice}")


def _plain(key: str, value: Any) -> Any:
    """A value as it is after it was written and read, whatever version wrote it."""
    return Subwords.load(value).dump() if key == "subwords" else json.loads(json.dumps(value))
