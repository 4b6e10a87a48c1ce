"""Plain data, as YAML has it, into dataclasses and arguments; whatever does not fit is named by its key."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import numbers
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import yaml

from foveal.errors import UserError, unknown


def parse(kind: type, raw: Any, where: str) -> Any:
    """Build the dataclass ``kind`` from plain data, naming the key of whatever does not fit.

    >>> from foveal.recipe import Train
    >>> parse(Train, {"epochs": "many"}, "train")
    Traceback (most recent call last):
    ...
    foveal.errors.UserError: train.epochs: expected a whole number, got 'many'
    """
    if not isinstance(raw, Mapping):
        raise UserError(f"{where or 'recipe'}: expected a section with keys, got {raw!r}")
    hints = get_type_hints(kind)
    check_names(raw, hints, where)
    return kind(**{key: convert(hints[key], value, join(where, key)) for key, value in raw.items()})


def check_options(target: Callable[..., Any], options: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Check ``options`` against the signature of the class or function they will be passed to."""
    known = _arguments(target, lambda argument: argument.kind is not argument.VAR_KEYWORD)
    check_names(options, known, where)
    return {key: convert(known[key], value, join(where, key)) for key, value in options.items()}


def check_keywords(target: Callable[..., Any], options: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Check ``options`` against the keyword-only arguments of a function; values may be texts, as in a command line.

    >>> def predict(image, *, top: int = 5, label: Sequence[str] = ()): ...
    >>> check_keywords(predict, {"top": "3", "label": "7"}, "task")
    {'top': 3, 'label': ['7']}
    """
    known = _arguments(target, lambda argument: argument.kind is argument.KEYWORD_ONLY)
    check_names(options, known, where)
    return {key: _convert_text(known[key], value, join(where, key)) for key, value in options.items()}


def _arguments(target: Callable[..., Any], wanted: Callable[[inspect.Parameter], bool]) -> dict[str, Any]:
    """Arguments of a class or function with their type hints."""
    hints = get_type_hints(target.__init__ if inspect.isclass(target) else target)
    arguments = inspect.signature(target).parameters
    return {name: hints.get(name, Any) for name, argument in arguments.items() if wanted(argument)}


def _convert_text(hint: Any, value: Any, where: str) -> Any:
    try:
        return convert(hint, value, where)
    except UserError:
        if not isinstance(value, str):
            raise
        with contextlib.suppress(UserError, yaml.YAMLError):
            return convert(hint, yaml.safe_load(value), where)
        raise


def check_names(raw: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    """Raise a UserError that names the first key that is not known and its close matches."""
    for key in raw:
        if key not in known:
            error = unknown("key", str(key), known)
            raise UserError(f"{where}: {error}" if where else f"recipe: {error}")


def join(where: str, key: str) -> str:
    """The full name of a key."""
    return f"{where}.{key}" if where else key


def check_least(section: Any, where: str, **least: float) -> None:
    """Raise unless each named number of a section is at least its bound; None is no number."""
    for name, bound in least.items():
        value = getattr(section, name)
        if value is not None and not value >= bound:
            raise UserError(f"{join(where, name)}: expected at least {bound}, got {value:g}")


_EXPECTED = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    dict: "a section with keys",
    list: "a list",
    Sequence: "a list",
    Path: "a path",
}


def convert(hint: Any, value: Any, where: str) -> Any:
    """Turn a YAML value into what the type ``hint`` asks for, or say what was expected."""
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        return _convert_union(args, value, where)
    if origin is Literal:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        plain = str(value) if number and value not in args else value
        if plain not in args:
            raise UserError(f"{where}: expected one of {', '.join(map(str, args))}, got {value!r}")
        return plain
    if origin is tuple:
        return _convert_tuple(args, value, where)
    if origin is dict and isinstance(value, Mapping):
        kept = {k: v for k, v in value.items() if v is not None}  # null takes a key away
        return {convert(args[0], k, where): convert(args[1], v, join(where, str(k))) for k, v in kept.items()}
    if dataclasses.is_dataclass(hint):
        return value if isinstance(value, hint) else parse(hint, value, where)  # type: ignore[arg-type]
    if origin is Sequence and isinstance(value, str):
        value = [value]  # one of several
    plain_type = origin or hint
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):  # NumPy's too
        value = int(value)
    if plain_type in (list, Sequence) and isinstance(value, list | tuple):
        return [convert(args[0] if args else Any, v, f"{where}[{i}]") for i, v in enumerate(value)]
    if plain_type is Path and isinstance(value, str):
        return Path(value)
    if plain_type is float and isinstance(value, str):  # YAML reads 1e-3 as a text
        with contextlib.suppress(ValueError):
            value = float(value)
    fits = isinstance(value, plain_type) or (plain_type is float and isinstance(value, int))
    if not fits or (isinstance(value, bool) and plain_type is not bool):
        raise UserError(f"{where}: expected {_EXPECTED.get(plain_type, plain_type)}, got {value!r}")
    return float(value) if plain_type is float else value


def _convert_union(args: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in args:
        return None
    problem = None
    for hint in args:
        try:
            return convert(hint, value, where)
        except UserError as error:
            problem = problem or error
    assert problem is not None
    raise problem


def _convert_tuple(args: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    of_any_length = args[1:] == (...,)
    if not isinstance(value, list | tuple) or not (of_any_length or len(value) == len(args)):
        raise UserError(f"{where}: expected a list{'' if of_any_length else f' of {len(args)} values'}, got {value!r}")
    if of_any_length:
        args = args[:1] * len(value)
    return tuple(convert(a, v, f"{where}[{i}]") for i, (a, v) in enumerate(zip(args, value, strict=True)))
