"""Sections of a recipe that choose one of several dataclasses by name, each with keys of its own.

A key of another dataclass is an error that says which ones have it, and is not silently ignored.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Generic, TypeVar, get_type_hints

from foveal.errors import UserError, unknown
from foveal.typed import convert, join

_BOUNDS = {
    "least": (operator.ge, "at least"),
    "above": (operator.gt, "a number above"),
    "most": (operator.le, "at most"),
    "below": (operator.lt, "a number below"),
}


def number(default: Any, **bounds: float) -> Any:
    """A field for a number (or a tuple of numbers) within bounds: ``least``, ``above``, ``most``, ``below``."""
    return field(default=default, metadata=bounds)


def fixed(name: str) -> Any:
    """A field that says which dataclass it is; it cannot be given to the constructor."""
    return field(default=name, init=False)


@dataclass(kw_only=True)
class Options:
    """Checks the bounds of its numbers; messages start with the name of the key."""

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            elements = {f"[{i}]": v for i, v in enumerate(value)} if isinstance(value, tuple) else {"": value}
            for index, element in elements.items():
                for bound, limit in entry.metadata.items():
                    compare, words = _BOUNDS[bound]
                    if element is not None and not compare(element, limit):
                        raise UserError(f"{entry.name}{index}: expected {words} {limit:g}, got {element:g}")


T = TypeVar("T", bound=Options)


class Choice(Generic[T]):
    """Dataclasses of which a section of a recipe chooses one by name.

    Args:
        thing: what is chosen, for messages.
        key: the key that holds the name.
    """

    def __init__(self, thing: str, key: str) -> None:
        self.thing, self.key = thing, key
        self.kinds: dict[str, type[T]] = {}

    def register(self, kind: type[T]) -> type[T]:
        """Make a dataclass known under the default of its field :attr:`key`."""
        self.kinds[getattr(kind, self.key)] = kind
        return kind

    def parse(self, raw: Any, where: str, default: str | None = None) -> T:
        """Build the dataclass that ``raw`` names: a mapping, or the name alone.

        Args:
            raw: plain data.
            where: full name of the section, for messages.
            default: the name if ``raw`` has none.
        """
        if isinstance(raw, str):
            raw = {self.key: raw}
        if not isinstance(raw, Mapping):
            raise UserError(f"{where}: expected a section with keys, got {raw!r}")
        name = raw.get(self.key, default)
        if not isinstance(name, str):
            raise UserError(f"{join(where, self.key)}: expected one of {', '.join(self.kinds)}, got {name!r}")
        if name not in self.kinds:
            raise UserError(f"{join(where, self.key)}: {unknown(self.thing, name, self.kinds)}")
        kind = self.kinds[name]
        hints, known = get_type_hints(kind), keys(kind)
        options = {key: value for key, value in raw.items() if key != self.key}
        for key in [key for key in options if key not in known]:
            self._check_owner(key, options.pop(key), name, where)
        values = {key: convert(hints[key], value, join(where, key)) for key, value in options.items()}
        try:
            return kind(**values)
        except UserError as error:
            raise UserError(join(where, str(error))) from error

    def owners(self, key: str) -> list[str]:
        """Names of the dataclasses that have a key."""
        return [name for name, kind in self.kinds.items() if key in keys(kind)]

    def _check_owner(self, key: str, value: Any, name: str, where: str) -> None:
        """Raise unless ``value`` is null, which takes away what a recipe inherits from another one."""
        owners = self.owners(key)
        if not owners:
            raise UserError(f"{where}: {unknown('key', key, (self.key, *keys(self.kinds[name])))}")
        if value is not None:
            several = len(owners) > 1
            listed = f"{', '.join(owners[:-1])} and {owners[-1]}" if several else owners[0]
            have = "have" if several else "has"
            raise UserError(f"{join(where, key)} is not an option of {name}; {listed} {have} it")


def keys(kind: type[Options]) -> tuple[str, ...]:
    """The keys that a dataclass takes."""
    return tuple(entry.name for entry in fields(kind) if entry.init)
