"""The annotation files of Visual Genome, parsed into the samples of attribute prediction.

Releases differ: 1.2 and later call an image ``image_id`` and an object's classes ``names``, 1.0 calls them ``id`` and
``object_names``; an object without attributes may lack the key altogether. All of these are read.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from foveal.data.formats._json import read_json
from foveal.data.problems import collected
from foveal.errors import DataError

SITE = "https://homes.cs.washington.edu/~ranjay/visualgenome/api.html"
FILES = ("attributes.json", "image_data.json", "objects.json")

Box = tuple[float, float, float, float]
"""Left, top, width, height in pixels of the original image."""


class Annotation(NamedTuple):
    """One object as annotated: its class, its attributes and its box, if it has one."""

    image: int
    name: str
    attributes: tuple[str, ...]
    box: Box | None


class Sample(NamedTuple):
    """One question about one image: the object class, the attributes it has there and where it is."""

    image: int
    query: int
    answers: tuple[int, ...]
    boxes: tuple[Box, ...]


@dataclass(frozen=True)
class Index:
    """What is kept of the annotation files.

    Attributes:
        queries: object classes, the most frequent first.
        answers: attribute classes, the most frequent first.
        samples: one per image and object class with at least one kept attribute, by image and then by query.
        sizes: width and height of every image in ``samples``.
    """

    queries: list[str]
    answers: list[str]
    samples: list[Sample]
    sizes: dict[int, tuple[int, int]]


def clean(name: object) -> str:
    """A class name as it is counted: lower case, stripped.

    >>> clean("  Light Blue ")
    'light blue'
    """
    return str(name).strip().lower()


def frequent(names: Iterable[str], min_count: int) -> list[str]:
    """Names that appear more than ``min_count`` times, the most frequent first, ties by name.

    >>> frequent(["sky", "red", "red", "car", "car", "car", "sky", "hat"], 1)
    ['car', 'red', 'sky']
    """
    counts = Counter(names)
    return sorted((n for n, count in counts.items() if count > min_count), key=lambda n: (-counts[n], n))


def read_index(root: Path, min_count: int) -> Index:
    """Parse the annotation files of ``root``, once per process unless they change.

    An object counts towards its class, which is its first name, if it has any attribute.

    Args:
        root: folder with ``attributes.json``, ``image_data.json`` and perhaps ``objects.json``.
        min_count: classes that appear this often or less are dropped.
    """
    if not root.is_dir():
        raise DataError(
            f"no Visual Genome folder {root}; make it and put attributes.json, image_data.json, VG_100K and VG_100K_2 "
            f"from {SITE} in it"
        )
    files = [root / name for name in FILES]
    stamps = tuple(file.stat().st_mtime_ns if file.exists() else 0 for file in files)
    return _parsed(root.resolve(), stamps, min_count)


@lru_cache(maxsize=2)
def _parsed(root: Path, stamps: tuple[int, ...], min_count: int) -> Index:
    return parse_index(root, min_count)


def parse_index(root: Path, min_count: int) -> Index:
    """The same, parsed anew."""
    annotations = list(_annotations(root))
    queries = frequent((a.name for a in annotations if a.attributes), min_count)
    answers = frequent((attribute for a in annotations for attribute in a.attributes), min_count)
    query_of, answer_of = ({name: i for i, name in enumerate(names)} for names in (queries, answers))

    labels: dict[tuple[int, int], set[int]] = defaultdict(set)
    boxes: dict[tuple[int, int], list[Box]] = defaultdict(list)
    for a in annotations:
        if a.name in query_of:
            key = a.image, query_of[a.name]
            labels[key].update(answer_of[attribute] for attribute in a.attributes if attribute in answer_of)
            boxes[key] += [a.box] if a.box else []
    samples = [Sample(*key, tuple(sorted(labels[key])), tuple(boxes[key])) for key in sorted(labels) if labels[key]]
    if not samples:
        raise DataError(
            f"{root / FILES[0]} has no object class with an attribute that both appear more than {min_count} times; "
            "lower min_count for a subset of Visual Genome"
        )
    return Index(queries, answers, samples, image_sizes(root, {s.image for s in samples}))


def _annotations(root: Path) -> Iterator[Annotation]:
    """Every object of attributes.json that has a name, in order; objects.json fills in names and boxes it lacks."""
    path, extra = root / "attributes.json", root / "objects.json"
    by_id: dict[Any, dict[str, Any]] | None = None
    for image, node in _nodes(path):
        name, box = name_of(node), box_of(node)
        if not name or box is None:
            if by_id is None:
                by_id = _objects(extra) if extra.exists() else {}
            other = by_id.get(object_id(node), {})
            name, box = name or name_of(other), box or box_of(other)
        if name:
            attributes = (clean(a) for a in node.get("attributes") or ())
            yield Annotation(image, name, tuple(dict.fromkeys(a for a in attributes if a)), box)


def _nodes(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The image and the JSON object of every object of attributes.json."""
    for number, entry in enumerate(read_list(path)):
        nodes: list[Any] = []
        with collected():
            image = field_of(entry, ("image_id", "id"), int, path, number)
            nodes = field_of(entry, ("attributes",), list, path, number)
        for node in nodes:
            if isinstance(node, dict):
                yield image, node
                continue
            with collected():
                raise DataError(f"{path}: image {image} lists {node!r} instead of an object; get the file from {SITE}")


def _objects(path: Path) -> dict[Any, dict[str, Any]]:
    """The objects of objects.json by id."""
    return {
        object_id(node): node
        for number, entry in enumerate(read_list(path))
        for node in field_of(entry, ("objects",), list, path, number)
    }


def object_id(node: dict[str, Any]) -> Any:
    """Id of an object."""
    return node.get("object_id", node.get("id"))


def name_of(node: dict[str, Any]) -> str:
    """First name of an object, which is its class; empty if it has none."""
    names = node.get("names") or node.get("object_names") or [""]
    return clean(names[0] if isinstance(names, list) else names)


def box_of(node: dict[str, Any]) -> Box | None:
    """Box of an object, if it has one."""
    w, h = node.get("w", node.get("width")), node.get("h", node.get("height"))
    x, y = node.get("x"), node.get("y")
    return (x, y, w, h) if all(isinstance(side, int | float) for side in (x, y, w, h)) else None  # type: ignore[return-value]


def image_sizes(root: Path, images: set[int]) -> dict[int, tuple[int, int]]:
    """Width and height of each of ``images``, from image_data.json."""
    path, sizes = root / "image_data.json", {}
    for number, entry in enumerate(read_list(path)):
        with collected():
            image = field_of(entry, ("image_id", "id"), int, path, number)
            if image in images:
                sizes[image] = tuple(field_of(entry, (side,), int, path, number) for side in ("width", "height"))
    absent = sorted(images - sizes.keys())
    for image in absent:
        with collected():
            raise DataError(
                f"{path} does not list image {image} of attributes.json ({len(absent)} absent); "
                f"get both files of one release from {SITE}"
            )
    return sizes


def read_list(path: Path) -> list[Any]:
    """The list in a JSON file."""
    return read_json(path, list, f"get {path.name}.zip from {SITE} and unpack it there")


def field_of(entry: Any, keys: Sequence[str], kind: type, path: Path, number: int) -> Any:
    """The value under the first of ``keys`` that ``entry`` has with the right type."""
    for key in keys:
        if isinstance(entry, dict) and isinstance(entry.get(key), kind):
            return entry[key]
    expected = f"{' or '.join(map(repr, keys))} of type {kind.__name__}"
    raise DataError(f"{path}: entry {number} has no {expected}, as the official file has; get {path.name} from {SITE}")
