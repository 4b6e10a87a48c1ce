"""Tables of what there is, for the pages: keys of recipe sections, datasets, models."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections.abc import Collection, Iterator
from typing import Any, Literal, get_args, get_origin, get_type_hints

from result_tables import revision


def keys_of(what: str) -> str:
    """The tables of a list of this file, or of a dataclass by its full name."""
    lists = {
        "recipe": recipe,
        "optimisers": optimisers,
        "schedules": schedules,
        "averages": averages,
        "tasks": tasks,
        "data": data_keys,
    }
    return lists[what]() if what in lists else keys(named(what))


def keys(kind: type, without: Collection[str] = ()) -> str:
    """Keys of a dataclass with their types, defaults and the words of its docstring and of its base classes."""
    lines = ["| key | value | default | meaning |", "|---|---|---|---|"]
    meanings = [(field, meaning) for field, meaning in _meanings(kind) if field.name not in without]
    lines += [f"| `{f.name}` | {_type(_hint(kind, f))} | {_default(f)} | {meaning} |" for f, meaning in meanings]
    return "\n".join(lines)


def _hint(kind: type, field: dataclasses.Field[Any]) -> str:
    """The type hint of a field as it is written, but the values of a literal type for its alias."""
    hint = get_type_hints(kind)[field.name]
    return str(hint).removeprefix("typing.") if get_origin(hint) is Literal else str(field.type)


def _meanings(kind: type) -> Iterator[tuple[dataclasses.Field[Any], str]]:
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        texts |= attributes(inspect.getdoc(base) or "") if base.__doc__ else {}
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        yield field, _meaning(field.name, texts, hints[field.name])


def _meaning(name: str, texts: dict[str, str], hint: Any) -> str:
    """What the docstring says of a key; else which key explains it, or the first line of the section it names."""
    if name in texts:
        return texts[name]
    if other := next((key for key, text in texts.items() if f"`{name}`" in text), None):
        return f"see `{other}`"
    return _first_sentence(section) if (section := _section(hint)) else ""


def _section(hint: Any) -> type | None:
    """The dataclass in a type hint: ``X``, ``X | None`` or ``dict[str, X]``."""
    return next((kind for kind in (hint, *get_args(hint)) if dataclasses.is_dataclass(kind)), None)


def _first_sentence(kind: type) -> str:
    """The first sentence of a docstring."""
    return (inspect.getdoc(kind) or "").split("\n")[0].split(". ")[0].rstrip(".") + "."


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
    entries: dict[str, str] = {}
    names: list[str] = []
    for line in body.splitlines():
        if not line.startswith(" "):
            break
        entry = re.match(r"    ([\w, ]+): (.*)", line)
        if entry:
            names = [name.strip() for name in entry[1].split(",")]
            entries |= dict.fromkeys(names, entry[2].strip())
        else:
            entries |= {name: f"{entries[name]} {line.strip()}" for name in names}
    plain = {name: re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text) for name, text in entries.items()}  # roles of Sphinx
    return {name: text.replace("``", "`").replace("|", r"\|") for name, text in plain.items()}


def _type(hint: str) -> str:
    """A type hint in the words of YAML.

    >>> _type('Literal["a", "b"] | None'), _type("tuple[int, int] | None"), _type("tuple[int, ...]"), _type("Optim")
    ('`a`, `b` or null', '[int, int] or null', '[int, …]', 'section')
    >>> _type("list[str] | None"), _type("AttentionLoss | None"), _type("str | list[str]")
    ('[str, …] or null', 'section or null', 'str or [str, …]')
    """
    parts = [part.strip() for part in re.split(r"\|(?![^\[]*\])", hint)]
    return " or ".join(map(_one_type, parts))


def _one_type(hint: str) -> str:
    if hint == "None":
        return "null"
    if hint.startswith("Literal["):
        return ", ".join(f"`{value}`" for value in re.findall(r"""["']([^"']+)["']""", hint))
    if re.match(r"[A-Z]|dict", hint):
        return "section"
    return re.sub(r"^list\[(.*)\]$", r"[\1, …]", re.sub(r"^tuple(\[.*\])$", r"\1", hint)).replace("...", "…")


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default_factory is not dataclasses.MISSING or field.default is dataclasses.MISSING:
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


# Lists ------------------------------------------------------------------------------------------------------


def recipe() -> str:
    """The keys of a recipe, as they stand in YAML."""
    from foveal.recipe import Recipe

    return keys(Recipe, without=("sections",))


def optimisers() -> str:
    """The keys that all optimisers have, then those of each."""
    from foveal.recipe.optim import Optim
    from foveal.recipe.optim import optimisers as registered

    return f"{keys(Optim, without=('builds',))}\n\n{_choices(registered.kinds, Optim)}"


def schedules() -> str:
    """The learning-rate schedules and the keys of each."""
    from foveal.recipe.schedules import Warmup
    from foveal.recipe.schedules import schedules as registered

    warming = ", ".join(f"`{name}`" for name, kind in registered.kinds.items() if issubclass(kind, Warmup))
    warmup = f"Keys of a warm-up, for {warming}:\n\n{keys(Warmup, without=('name',))}"
    return f"{_choices(registered.kinds, Warmup)}\n\n{warmup}"


def averages() -> str:
    """The averages of weights and the keys of each."""
    from foveal.recipe.optim import Average
    from foveal.recipe.optim import averages as registered

    return _choices(registered.kinds, Average)


def _choices(kinds: dict[str, type], base: type) -> str:
    """Dataclasses that a section chooses from, with what each adds to ``base`` or changes of it."""
    shared = [(field.name, field.default) for field in dataclasses.fields(base)]
    lines = ["| name | what it is | its own keys |", "|---|---|---|"]
    for name, kind in kinds.items():
        own = [(f, meaning) for f, meaning in _meanings(kind) if f.init and (f.name, f.default) not in shared]
        words = "<br>".join(f"`{field.name}` ({_default(field)}): {meaning}" for field, meaning in own)
        text = " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split())
        lines.append(f"| `{name}` | {text.replace('``', '`')} | {words} |")
    return "\n".join(lines)


def tasks() -> str:
    """The keys of losses that every task has, then the recipe sections of each task."""
    from foveal import registry
    from foveal.recipe import AttentionLoss, LossOptions

    blocks = [f"Every task:\n\n{keys(LossOptions)}", f"Each loss of `loss.attention`:\n\n{keys(AttentionLoss)}"]
    shared = [field.name for field in dataclasses.fields(LossOptions)]
    for name, task in registry.tasks.items().items():
        blocks.append(f"#### task: {name}\n\n{task.summary[:1].upper()}{task.summary[1:]}.")
        for section, kind in task.sections.items():
            blocks += _nested(section, kind, shared if issubclass(kind, LossOptions) else ())
    return "\n\n".join(blocks)


def _nested(name: str, kind: type, without: Collection[str] = ()) -> list[str]:
    """The table of a section, then those of the sections in it; nothing for a section without keys."""
    fields = [field for field in dataclasses.fields(kind) if field.name not in without]
    hints = get_type_hints(kind)
    inner = [(f"{name}.{field.name}", _section(hints[field.name])) for field in fields]
    own = [f"`{name}`:\n\n{keys(kind, without)}"] if fields else []
    return own + [text for key, part in inner if part for text in _nested(key, part)]


def data_keys() -> str:
    """The options of all datasets; those that share a dataclass share a table."""
    from foveal import registry

    by_options: dict[type, list[str]] = {}
    for name, entry in registry.datasets.items().items():
        by_options.setdefault(entry.options, []).append(f"`{name}`")
    return "\n\n".join(f"For {', '.join(names)}:\n\n{keys(kind)}" for kind, names in by_options.items())


def datasets() -> str:
    """All datasets with the files they expect."""
    from foveal import registry

    lines = ["| name | what it asks | files below the data folder |", "|---|---|---|"]
    for name, entry in registry.datasets.items().items():
        files = ", ".join(f"`{path}`" for path in entry.place.expected) if entry.place else ""
        lines.append(f"| `{name}` | {entry.summary} | {files} |")
    return "\n".join(lines)


def models() -> str:
    """All models with their first line."""
    from foveal.models import list_models
    from foveal.models.registry import summary

    return "\n".join(["| name | what it is |", "|---|---|", *(f"| `{n}` | {summary(n)} |" for n in list_models())])


def zoo() -> str:
    """The cards of trained models."""
    from foveal.metric_info import metric_info
    from foveal.runs.zoo import cards

    lines = ["| name | what it answers | trained on | test | recipe, revision | licence |", "|---|---|---|---|---|---|"]
    for name, card in cards().items():
        infos = [(metric_info(key), value) for key, value in card.metrics.items()]
        test = "<br>".join(f"{info.title} {info.with_unit(value, 2)}" for info, value in infos if info.better)
        made = f"`{card.recipe}`, {revision(card.revision)}; {card.hardware}, torch {card.torch}"
        what = f"{card.about} {card.title}, {card.parameters:,} parameters."
        lines.append(f"| `{name}` | {what} | {card.data} | {test} | {made} | {card.licence} |")
    return "\n".join(lines)
