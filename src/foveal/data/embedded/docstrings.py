"""Docstrings of installed libraries, classified by library: real texts that every machine already has.

The source files are parsed, not imported. Doctests are removed, and so are the names of the libraries, which would be
the answer. The texts depend on the installed versions, so results compare on one machine only.
"""

from __future__ import annotations

import ast
import importlib.util
import itertools
import re
import textwrap
import zlib
from collections.abc import Iterator
from functools import lru_cache, partial
from importlib import metadata
from pathlib import Path

from foveal.data.text.documents import TextFormat, register_texts
from foveal.data.text.reading import Corpus, Texts
from foveal.errors import DataError

LIBRARIES = ("matplotlib", "networkx", "numpy", "scipy", "sklearn", "sympy", "torch", "torchvision")
DISTRIBUTIONS = {"sklearn": "scikit-learn"}
LEAST, MOST, FILES = 25, 300, 150  # words of a docstring, docstrings and files of a library
_NAMES = re.compile(
    r"\b(?:matplotlib|mpl|plt|pyplot|networkx|nx|numpy|np|scipy|sklearn|scikit|sympy|torch|pytorch|torchvision)\b",
    re.IGNORECASE,
)
_MARKUP = re.compile(r">>>.*$|^[ \t]*(?:\.\.\.|[-=~^*#]{3,}|\.\. \w).*$", re.MULTILINE)
_ROLES = re.compile(r":[\w:]+:`~?([^`<]+)[^`]*`")


def read_docstrings(libraries: tuple[str, ...] = LIBRARIES) -> Corpus:
    """Docstrings of those libraries that are installed, as one split."""
    folders = {name: folder for name in libraries if (folder := _folder(name)) is not None}
    if len(folders) < 2:
        raise DataError(f"fewer than two of {', '.join(libraries)} are installed; there is nothing to tell apart")
    versions: list[object] = [f"{name} {metadata.version(DISTRIBUTIONS.get(name, name))}" for name in folders]
    return Corpus(list(folders), {"train": partial(_texts, tuple(folders.values()))}, versions)


def _folder(library: str) -> Path | None:
    spec = importlib.util.find_spec(library)
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None


def _texts(folders: tuple[Path, ...]) -> Texts:
    return iter(_gathered(folders))


@lru_cache(maxsize=1)  # the splits of one corpus are read one after the other
def _gathered(folders: tuple[Path, ...]) -> list[tuple[str, int]]:
    labels: dict[str, int] = {}  # a text that two libraries share stays with the first
    for label, folder in enumerate(folders):
        labels |= {text: label for text in itertools.islice(_docstrings(folder), MOST) if text not in labels}
    return list(labels.items())


def _docstrings(folder: Path) -> Iterator[str]:
    """Cleaned docstrings of up to :data:`FILES` files, spread over the library by a hash of their names."""
    files = [file for file in folder.rglob("*.py") if not {"tests", "test", "testing", "_vendor"} & set(file.parts)]
    names = {file: file.relative_to(folder).as_posix() for file in files}
    for file in sorted(files, key=lambda file: (zlib.crc32(names[file].encode()), names[file]))[:FILES]:
        try:
            tree = ast.parse(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, SyntaxError, ValueError):
            continue
        for node in _documented(tree):
            text = clean(ast.get_docstring(node) or "")
            if len(text.split()) >= LEAST:
                yield text


def _documented(node: ast.Module | ast.ClassDef) -> Iterator[ast.Module | ast.ClassDef | ast.FunctionDef]:
    """A module or class, and the classes and functions in it; what is inside functions is private."""
    yield node
    for inner in node.body:
        if isinstance(inner, ast.ClassDef):
            yield from _documented(inner)
        elif isinstance(inner, ast.FunctionDef):
            yield inner


def clean(docstring: str) -> str:
    r"""A docstring without doctests, markup and names of libraries.

    >>> clean("Sum of :func:`~numpy.array` elements.\n\n>>> np.sum([1])\n1")
    'Sum of array elements.\n\n1'
    """
    text = _ROLES.sub(lambda match: " " + match[1].replace(".", " "), textwrap.dedent(docstring))
    text = _NAMES.sub(" ", _MARKUP.sub("", text)).replace("``", "").replace("`", "")
    return re.sub(r"\n\s*\n", "\n\n", re.sub(r"[ \t]+", " ", text)).strip()


register_texts(
    TextFormat(
        "docstrings",
        "docstrings of installed libraries",
        lambda *_: read_docstrings(),
        clean=lambda text, _: clean(text),
    ),
    "docstrings of installed libraries, classified by library; embedded",
)
