"""Tables of what there is, for the pages: keys of dataclasses, datasets, models."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from typing import Any, get_args, get_type_hints


def keys(kind: type) -> str:
    """Keys of a dataclass with their types, defaults and the words of its docstring."""
    said, hints = attributes(inspect.getdoc(kind) or ""), get_type_hints(kind)
    lines = ["| key | value | default | meaning |", "|---|---|---|---|"]
    for field in dataclasses.fields(kind):
        meaning = _meaning(field.name, said, hints[field.name])
        lines.append(f"| `{field.name}` | {_type(str(field.type))} | {_default(field)} | {meaning} |")
    return "\n".join(lines)


def _meaning(name: str, said: dict[str, str], hint: Any) -> str:
    """What the docstring says of a key; else which key explains it, or the first line of the section it names."""
    if name in said:
        return said[name]
    if other := next((key for key, text in said.items() if f"`{name}`" in text), None):
        return f"see `{other}`"
    section = next((kind for kind in (hint, *get_args(hint)) if dataclasses.is_dataclass(kind)), None)
    return (inspect.getdoc(section) or "").split("\n")[0] if section else ""


def attributes(docstring: str) -> dict[str, str]:
    """The entries below ``Attributes:`` of a Google docstring; ``a, b: words`` counts for a and for b.

    >>> attributes('''Words.
    ...
    ... Attributes:
    ...     lr: the rate,
    ...         at most.
    ...     a, b: both.
    ... ''')
    {'lr': 'the rate, at most.', 'a': 'both.', 'b': 'both.'}
    """
    _, _, body = docstring.partition("Attributes:\n")
    found: dict[str, str] = {}
    names: list[str] = []
    for line in body.splitlines():
        if not line.startswith(" "):
            break
        entry = re.match(r"    ([\w, ]+): (.*)", line)
        if entry:
            names = [name.strip() for name in entry[1].split(",")]
            found |= dict.fromkeys(names, entry[2].strip())
        else:
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
    plain = {name: re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text) for name, text in found.items()}  # roles of Sphinx
    return {name: text.replace("``", "`").replace("|", r"\|") for name, text in plain.items()}


def _type(hint: str) -> str:
    """A type hint in the words of YAML.

    >>> _type('Literal["a", "b"]'), _type("tuple[int, int] | None"), _type("Optim")
    ('`a`, `b`', '[int, int] or null', 'section')
    """
    if hint.startswith("Literal["):
        return ", ".join(f"`{value}`" for value in re.findall(r"""["']([^"']+)["']""", hint))
    hint = re.sub(r"tuple(\[.*?\])", r"\1", hint).replace(" | None", " or null")
    return "section" if re.match(r"[A-Z]|dict", hint) else hint.replace("|", r"\|")


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return ""
    if isinstance(field.default, str) and not field.default:
        return ""
    value = list(field.default) if isinstance(field.default, tuple) else field.default
    yaml = {None: "null", True: "true", False: "false"}
    return f"`{yaml[value] if value is None or isinstance(value, bool) else value}`"


def named(name: str) -> type:
    """What a full name means."""
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def data_keys() -> str:
    """The options of all datasets; those that share a dataclass share a table."""
    from foveal.data import datasets as registered

    by_options: dict[type, list[str]] = {}
    for name, entry in registered().items():
        by_options.setdefault(entry.options, []).append(f"`{name}`")
    return "\n\n".join(f"For {', '.join(names)}:\n\n{keys(kind)}" for kind, names in by_options.items())


def datasets() -> str:
    """All datasets with the files they expect."""
    from foveal.data import datasets as registered

    lines = ["| name | what it asks | files below the data folder |", "|---|---|---|"]
    for name, entry in registered().items():
        files = ", ".join(f"`{path}`" for path in entry.expected)
        lines.append(f"| `{name}` | {entry.summary} | {files} |")
    return "\n".join(lines)


def models() -> str:
    """All models with their first line."""
    from foveal.models import list_models
    from foveal.models.registry import summary

    return "\n".join(["| name | what it is |", "|---|---|", *(f"| `{n}` | {summary(n)} |" for n in list_models())])
