"""JSON files of annotations, with errors that name what is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

from foveal.errors import DataError

T = TypeVar("T")


def read_json(path: Path, kind: type[T], get: str) -> T:
    """The content of a JSON file, which must be a ``kind``; ``get`` says in messages where to get the file."""
    try:
        with path.open(encoding="utf-8") as file:
            content = json.load(file)
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing; {get}") from error
    except json.JSONDecodeError as error:
        position = f"line {error.lineno}, column {error.colno}"
        raise DataError(
            f"{path} is not valid JSON ({error.msg}: {position}); it may be cut short, {get} again"
        ) from error
    except (UnicodeDecodeError, OSError) as error:
        raise DataError(f"cannot read {path} ({error}); {get} again") from error
    if not isinstance(content, kind):
        expected = "a list" if kind is list else "an object"
        raise DataError(f"{path} must hold {expected} at the top, got {type(content).__name__}; {get} again")
    return content


def numbers(value: Any, count: int, where: str) -> list[float]:
    """``count`` plain numbers, such as the sides of a box."""
    plain = isinstance(value, list) and all(isinstance(n, int | float) and not isinstance(n, bool) for n in value)
    if plain and len(value) == count:
        return [float(number) for number in value]
    raise DataError(f"{where}: expected {count} numbers, got {value!r}")


def member(entry: Any, key: str, kind: type[T], where: str) -> T:
    """The value of ``key`` in a JSON object, which must be a ``kind``."""
    value = entry.get(key) if isinstance(entry, dict) else None
    if isinstance(value, kind) and not isinstance(value, bool):
        return value
    raise DataError(f"{where}: expected {key!r} of type {kind.__name__}, got {value!r}")
