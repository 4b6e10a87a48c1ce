"""YAML files of recipes: keys are texts and stand once, files are small, and an error names the line."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from foveal.errors import UserError
from foveal.recipe.optim import inherited

LARGEST = 200_000  # bytes; the recipe of a run has some 2,000
DEEPEST = 50  # levels of nesting
MOST = 100_000  # values, those that an alias repeats counted again

_Base = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


class _Loader(_Base):  # type: ignore[misc,valid-type]
    """Safe YAML in which a key is always a text, also where YAML would make ``on`` a truth value."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                key.tag = "tag:yaml.org,2002:str"
        return super().construct_mapping(node, deep)


def read_mapping(path: Path) -> dict[str, Any]:
    """The mapping that a YAML file holds."""
    try:
        with open(path, "rb") as file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise UserError(f"{path}: larger than {LARGEST:,} bytes; a recipe or a table of recipes is a short file")
        mapping = parse_yaml(content.decode("utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such recipe file") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{path} cannot be read as YAML: {' '.join(str(error).split())}") from error
    if not isinstance(mapping, dict):
        raise UserError(f"{path}: expected a mapping of sections, found {type(mapping).__name__}")
    return mapping


def parse_yaml(text: str) -> Any:
    r"""The value of a YAML text; whatever is wrong with it is a ``yaml.YAMLError``.

    >>> parse_yaml("{on: records, lr: 0.1}")
    {'on': 'records', 'lr': 0.1}
    >>> parse_yaml("a: 1\na: 2")
    Traceback (most recent call last):
    ...
    yaml.error.YAMLError: line 2: the key 'a' is already in line 1
    """
    _check(text)
    try:
        return yaml.load(text, _Loader)
    except ValueError as error:  # a date or number that does not exist
        raise yaml.YAMLError(str(error)) from error


REPLACED = {"schedule": "name", "average": "kind"}  # sections that are one thing as a whole, and the key that names it


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with the values of ``over``; sections that both have are merged key by key.

    A schedule or an average of another name replaces the one in ``base``, whose keys would mean nothing to it; an
    optimiser of another name inherits the keys that it has.

    >>> merged({"optim": {"lr": 1, "clip": 5}, "seed": 0}, {"optim": {"lr": 2}})
    {'optim': {'lr': 2, 'clip': 5}, 'seed': 0}
    >>> merged({"schedule": {"name": "stairs", "after": 29}}, {"schedule": {"name": "cosine"}})
    {'schedule': {'name': 'cosine'}}
    """
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping) and not _replaces(key, below, value):
            if key == "optim" and "name" in value:
                below = inherited(below, value["name"])
            value = merged(below, value)
        result[key] = value
    return result


def _replaces(key: str, below: Mapping[str, Any], value: Mapping[str, Any]) -> bool:
    name = REPLACED.get(key)
    return name is not None and name in value and value[name] != below.get(name)


@dataclass
class _Open:
    """A mapping or sequence that has begun and not ended yet."""

    anchor: str | None
    mapping: bool
    size: int = 1
    key_is_next: bool = True
    key_lines: dict[str, int] = field(default_factory=dict)

    def take(self, event: yaml.Event, size: int) -> None:
        """Note a key, or a value of ``size``."""
        self.size += size
        if self.size > MOST:
            raise yaml.YAMLError(f"more than {MOST:,} values")
        if self.mapping and self.key_is_next and isinstance(event, yaml.ScalarEvent):
            line = _line(event)
            if event.value in self.key_lines:
                first = self.key_lines[event.value]
                raise yaml.YAMLError(f"line {line}: the key {event.value!r} is already in line {first}")
            self.key_lines[event.value] = line
        self.key_is_next = not self.key_is_next


def _line(event: yaml.Event) -> int:
    return 0 if event.start_mark is None else event.start_mark.line + 1


def _check(text: str) -> None:
    """Refuse repeated keys, and what would be too deep or, with its aliases followed, too large to walk through."""
    opened, sizes = [_Open(None, mapping=False)], dict[str, int]()
    for event in yaml.parse(text, _Loader):
        if isinstance(event, yaml.AliasEvent):
            if event.anchor is None or event.anchor in [outer.anchor for outer in opened]:
                raise yaml.YAMLError(f"line {_line(event)}: *{event.anchor} contains itself")
            opened[-1].take(event, sizes.get(event.anchor, 1))
        elif isinstance(event, yaml.ScalarEvent):
            opened[-1].take(event, 1)
        elif isinstance(event, yaml.CollectionStartEvent):
            if len(opened) > DEEPEST:
                raise yaml.YAMLError(f"line {_line(event)}: nested more than {DEEPEST} levels deep")
            opened.append(_Open(event.anchor, isinstance(event, yaml.MappingStartEvent)))
        elif isinstance(event, yaml.CollectionEndEvent):
            closed = opened.pop()
            opened[-1].take(event, closed.size)
            if closed.anchor is not None:
                sizes[closed.anchor] = closed.size
