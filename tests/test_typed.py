"""Plain data into dataclasses and arguments; what does not fit is named by its key."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from foveal.errors import UserError
from foveal.typed import check_keywords, check_options, convert, parse


@dataclass
class Part:
    floor: float = 0.0


@dataclass
class Kinds:
    whole: int = 0
    pair: tuple[int, float] = (0, 0.0)
    maybe: tuple[int, int] | None = None
    path: Path = Path()
    anything: Any = None
    choice: Literal["a", "b"] = "a"
    section: Part | None = None
    either: int | str = 0
    names: list[str] | None = None
    several: Sequence[int] = ()
    weights: dict[str, float] | None = None


@pytest.mark.parametrize(
    ("key", "given", "value"),
    [
        ("pair", [1, 2], (1, 2.0)),
        ("pair", (1, "1e-3"), (1, 0.001)),
        ("maybe", [3, 4], (3, 4)),
        ("maybe", None, None),
        ("path", "a/b", Path("a/b")),
        ("anything", {"x": [1]}, {"x": [1]}),
        ("section", {"floor": 1}, Part(floor=1.0)),
        ("section", Part(0.1), Part(0.1)),
        ("either", "x", "x"),
        ("either", 3, 3),
        ("names", ["a", "b"], ["a", "b"]),
        ("names", ("a",), ["a"]),
        ("names", [], []),
        ("several", [1, np.int64(2)], [1, 2]),
        ("whole", np.int64(3), 3),
        ("weights", {"a": 1, "b": "1e-3"}, {"a": 1.0, "b": 0.001}),
        ("weights", {"a": 1, "b": None}, {"a": 1.0}),
    ],
)
def test_conversion(key, given, value):
    converted = getattr(parse(Kinds, {key: given}, "kinds"), key)
    assert converted == value
    assert type(converted) is type(value)


@pytest.mark.parametrize(
    ("key", "given", "message"),
    [
        ("pair", [1], r"kinds\.pair: expected a list of 2 values, got \[1\]"),
        ("pair", "12", r"kinds\.pair: expected a list of 2 values, got '12'"),
        ("pair", [1, "x"], r"kinds\.pair\[1\]: expected a number, got 'x'"),
        ("maybe", [1, 2.5], r"kinds\.maybe\[1\]: expected a whole number, got 2\.5"),
        ("choice", "c", r"kinds\.choice: expected one of a, b, got 'c'"),
        ("choice", ["a"], r"kinds\.choice: expected one of a, b, got \['a'\]"),
        ("section", {"flor": 1}, r"kinds\.section: unknown key 'flor'; did you mean 'floor'"),
        ("path", 3, r"kinds\.path: expected a path, got 3"),
        ("either", 1.5, r"kinds\.either: expected a whole number, got 1\.5"),
        ("names", ["a", 3], r"kinds\.names\[1\]: expected a text, got 3"),
        ("names", "ab", r"kinds\.names: expected a list, got 'ab'"),
        ("several", 3, r"kinds\.several: expected a list, got 3"),
        ("several", ["x"], r"kinds\.several\[0\]: expected a whole number, got 'x'"),
        ("weights", {"a": "x"}, r"kinds\.weights\.a: expected a number, got 'x'"),
        ("weights", [1], r"kinds\.weights: expected a section with keys, got \[1\]"),
        ("whole", "1e3", r"kinds\.whole: expected a whole number, got '1e3'"),
    ],
)
def test_conversion_errors(key, given, message):
    with pytest.raises(UserError, match=message):
        parse(Kinds, {key: given}, "kinds")


def test_convert_keeps_whole_numbers_apart_from_truth():
    assert convert(bool, True, "x") is True
    with pytest.raises(UserError, match="x: expected true or false, got 1"):
        convert(bool, 1, "x")


def test_check_options_reads_a_signature():
    def build(channels: int, *, rate: float = 0.1, **rest: Any) -> None:
        """Never called."""

    assert check_options(build, {"channels": 3, "rate": 1}, "model x") == {"channels": 3, "rate": 1.0}
    with pytest.raises(UserError, match="model x: unknown key 'rest'"):
        check_options(build, {"rest": 1}, "model x")


def ask(runs: list[str], inputs: str, *, top: int = 5, fast: bool = False, label: Sequence[str] = ()) -> None:
    """Never called."""


def test_check_keywords_takes_texts_as_a_command_line_has_them():
    options = {"top": "3", "fast": "true", "label": "7"}
    assert check_keywords(ask, options, "task x") == {"top": 3, "fast": True, "label": ["7"]}
    assert check_keywords(ask, {"top": 3, "label": ["7", "8"]}, "task x") == {"top": 3, "label": ["7", "8"]}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top": "many"}, r"task x\.top: expected a whole number, got 'many'"),
        ({"top": "[1"}, r"task x\.top: expected a whole number, got '\[1'"),
        ({"lable": "7"}, "task x: unknown key 'lable'; did you mean 'label'"),
        ({"runs": "7"}, "task x: unknown key 'runs'"),
    ],
)
def test_check_keywords_names_what_does_not_fit(options, message):
    with pytest.raises(UserError, match=message):
        check_keywords(ask, options, "task x")
