"""Attributes of objects in Visual Genome, read from the official files.

Krishna et al., "Visual Genome: Connecting Language and Vision Using Crowdsourced Dense Image Annotations"
(https://arxiv.org/abs/1602.07332). The query is an object class, the answers are the attributes that annotators gave to the
objects of that class in the image. A dataset folder looks as the official archives unpack::

    attributes.json    [{"image_id": 1, "attributes": [{"object_id": 5, "names": ["clock"], "attributes": ["green", "tall"],
                         "x": 421, "y": 91, "w": 79, "h": 339, "synsets": ["clock.n.01"]}, ...]}, ...]
    image_data.json    [{"image_id": 1, "width": 800, "height": 600, "url": ...}, ...]
    objects.json       optional: names and boxes of objects for which attributes.json has none
    VG_100K/ VG_100K_2/    the images, named by id: 2.jpg

Seo et al. (https://arxiv.org/abs/1606.02393) keep the 488 object and 274 attribute classes that appear more than 100 times,
in 45,393 images. They used an early release and do not say how they counted; whether a given release yields exactly these
numbers with the counting done here has not been checked. The classes a folder yields are in ``queries`` and ``answers``.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from foveal.errors import DataError, UserError, unknown

SPLITS = ("train", "val", "test")
PAPER_SIZES = (25_393, 10_000, 10_000)
SITE = "https://homes.cs.washington.edu/~ranjay/visualgenome/api.html"
IMAGE_FOLDERS = ("VG_100K", "VG_100K_2")

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
    """A class name as it is counted: lower case, stripped, single spaces.

    >>> clean("  Light   Blue ")
    'light blue'
    """
    return " ".join(str(name).lower().split())


def split_sizes(images: int, sizes: Sequence[int] | None = None) -> tuple[int, int, int]:
    """Number of training, validation and test images: ``sizes``, or the paper's fractions of ``images``.

    >>> split_sizes(45_393)
    (25393, 10000, 10000)
    >>> split_sizes(100)
    (56, 22, 22)
    """
    if sizes is None:
        train, val = (round(images * part / sum(PAPER_SIZES)) for part in PAPER_SIZES[:2])
        return train, val, images - train - val
    if len(sizes) != 3 or min(sizes) < 0:
        raise UserError(f"sizes must be three numbers of images (train, val, test), got {list(sizes)}")
    if sum(sizes) > images:
        raise UserError(f"sizes {list(sizes)} ask for {sum(sizes)} images, but only {images} have a kept label")
    return sizes[0], sizes[1], sizes[2]


def union_mask(boxes: Iterable[Box], width: int, height: int, image_size: int) -> Tensor:
    """Where any of ``boxes`` lies once the image is resized to a square.

    Args:
        boxes: left, top, width, height in pixels of the original image; what lies outside of it is cut off.
        width, height: size of the original image.
        image_size: side S of the resized image.

    Returns:
        bool (S, S), true for every pixel that a box touches.

    >>> union_mask([(0, 0, 50, 20)], width=100, height=40, image_size=4).int()
    tensor([[1, 1, 0, 0],
            [1, 1, 0, 0],
            [0, 0, 0, 0],
            [0, 0, 0, 0]], dtype=torch.int32)
    """
    mask = torch.zeros(image_size, image_size, dtype=torch.bool)
    for x, y, w, h in boxes:
        left, top = max(0, math.floor(x * image_size / width)), max(0, math.floor(y * image_size / height))
        right, bottom = math.ceil((x + w) * image_size / width), math.ceil((y + h) * image_size / height)
        mask[top : max(0, bottom), left : max(0, right)] = True
    return mask


def _read_json(path: Path) -> list[Any]:
    """The list in a JSON file."""
    get = f"get {path.name}.zip from {SITE} and unpack it there"
    try:
        with path.open(encoding="utf-8") as file:
            content = json.load(file)
    except FileNotFoundError as error:
        raise DataError(f"Visual Genome file {path} is missing; {get}") from error
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise DataError(
            f"{path} is not valid JSON ({error.msg} at {where}); it may be cut short: {get} again"
        ) from error
    except (UnicodeDecodeError, OSError) as error:
        raise DataError(f"cannot read {path} ({error}); {get} again") from error
    if not isinstance(content, list):
        raise DataError(f"{path} must hold a list with one entry per image, got {type(content).__name__}; {get} again")
    return content


def _field(entry: Any, keys: Sequence[str], path: Path, number: int) -> Any:
    """The value under the first of ``keys`` that ``entry`` has; releases differ in names."""
    for key in keys:
        if isinstance(entry, dict) and key in entry:
            return entry[key]
    raise DataError(
        f"{path}: entry {number} has no {' or '.join(map(repr, keys))}; this is not the official {path.name}, "
        f"get it from {SITE}"
    )


def _box(thing: dict[str, Any]) -> Box | None:
    x, y = thing.get("x"), thing.get("y")
    w, h = thing.get("w", thing.get("width")), thing.get("h", thing.get("height"))
    return None if x is None or y is None or w is None or h is None else (x, y, w, h)


def _name(thing: dict[str, Any]) -> str:
    names = thing.get("names") or thing.get("object_names") or [""]
    return clean(names[0] if isinstance(names, list) else names)


def _annotations(root: Path) -> Iterator[Annotation]:
    """Every object of attributes.json that has a name, in order."""
    path, extra = root / "attributes.json", root / "objects.json"
    by_id: dict[int, dict[str, Any]] | None = None
    for number, entry in enumerate(_read_json(path)):
        image = int(_field(entry, ("image_id", "id"), path, number))
        for thing in _field(entry, ("attributes",), path, number) or []:
            if not isinstance(thing, dict):
                raise DataError(
                    f"{path}: image {image} lists {thing!r} where an object is expected; get it from {SITE}"
                )
            name, box = _name(thing), _box(thing)
            if (not name or box is None) and by_id is None:
                by_id = _objects(extra) if extra.exists() else {}
            if (not name or box is None) and by_id:
                other = by_id.get(thing.get("object_id", thing.get("id", -1)), {})
                name, box = name or _name(other), box or _box(other)
            if name:
                given = (clean(a) for a in thing.get("attributes") or ())
                yield Annotation(image, name, tuple(dict.fromkeys(a for a in given if a)), box)


def _objects(path: Path) -> dict[int, dict[str, Any]]:
    return {
        thing.get("object_id", thing.get("id")): thing
        for number, entry in enumerate(_read_json(path))
        for thing in _field(entry, ("objects",), path, number)
    }


def frequent(names: Iterable[str], min_count: int) -> list[str]:
    """Names that appear more than ``min_count`` times, the most frequent first, ties by name.

    >>> frequent(["sky", "red", "red", "car", "car", "car", "sky"], 1)
    ['car', 'red', 'sky']
    """
    counts = Counter(names)
    return sorted((n for n, count in counts.items() if count > min_count), key=lambda n: (-counts[n], n))


@lru_cache(maxsize=2)
def _index(root: Path, stamps: tuple[float, ...], min_count: int) -> Index:
    """Parse the annotation files once; ``stamps`` are their times, so that changed files are parsed again."""
    annotations = list(_annotations(root))
    queries = frequent((a.name for a in annotations if a.attributes), min_count)
    answers = frequent((attribute for a in annotations for attribute in a.attributes), min_count)
    query_of, answer_of = ({name: i for i, name in enumerate(names)} for names in (queries, answers))

    found: dict[tuple[int, int], set[int]] = defaultdict(set)
    boxes: dict[tuple[int, int], list[Box]] = defaultdict(list)
    for a in annotations:
        if a.name in query_of:
            key = a.image, query_of[a.name]
            found[key].update(answer_of[attribute] for attribute in a.attributes if attribute in answer_of)
            boxes[key] += [a.box] if a.box else []
    samples = [Sample(*key, tuple(sorted(found[key])), tuple(boxes[key])) for key in sorted(found) if found[key]]
    if not samples:
        raise DataError(
            f"{root / 'attributes.json'} has no object class with an attribute, both appearing more than {min_count} times; "
            "lower min_count for a subset of Visual Genome"
        )
    return Index(queries, answers, samples, _image_sizes(root, {s.image for s in samples}))


def _image_sizes(root: Path, images: set[int]) -> dict[int, tuple[int, int]]:
    path, keys = root / "image_data.json", (("image_id", "id"), ("width",), ("height",))
    rows = ([_field(entry, key, path, i) for key in keys] for i, entry in enumerate(_read_json(path)))
    sizes = {int(image): (int(width), int(height)) for image, width, height in rows if image in images}
    if absent := sorted(images - sizes.keys()):
        raise DataError(
            f"{path} does not list image {absent[0]} of attributes.json ({len(absent)} absent); "
            f"get both files of one release from {SITE}"
        )
    return sizes


def _image_files(root: Path, images: set[int]) -> dict[int, Path]:
    """Where each of ``images`` is; all are looked for at once, so that a long training does not stop at a missing one."""
    present = {folder: set(os.listdir(root / folder)) for folder in IMAGE_FOLDERS if (root / folder).is_dir()}
    files = {i: root / folder / f"{i}.jpg" for folder, names in present.items() for i in images if f"{i}.jpg" in names}
    if absent := sorted(images - files.keys()):
        raise DataError(
            f"image {absent[0]}.jpg is annotated but in neither {root / IMAGE_FOLDERS[0]} nor {root / IMAGE_FOLDERS[1]} "
            f"({len(absent)} of {len(images)} images absent); get images.zip and images2.zip from {SITE}"
        )
    return files


class VisualGenomeAttributes(Dataset[dict[str, Any]]):
    """Which attributes do the objects of a class have in an image?

    There is one sample per image and object class, with the union of the attributes and boxes of that class in the image. An
    object counts towards its class if it has any attribute; its class is its first name. Images with at least one kept label
    are divided by a hash of seed and image id, so no image is in two splits and the division depends on nothing else.

    The annotation files are parsed once per process and nothing is written. Each item is a dict:

    - ``image``: uint8 (3, S, S), RGB, resized without keeping the aspect ratio;
    - ``query``: int, index into ``queries``;
    - ``label``: float (K,), 1 for each attribute that holds, in the order of ``answers``;
    - ``mask``: bool (S, S), the union of the boxes of the class;
    - ``index``: int.

    Args:
        root: folder with the official files, see the module.
        split: ``train``, ``val`` or ``test``.
        image_size: side S of the images.
        min_count: classes that appear this often or less are dropped.
        seed: which division into splits.
        sizes: number of train, val and test images; ``None`` for the paper's 25,393 : 10,000 : 10,000 of however many images
            there are.

    Attributes:
        queries: names of the object classes, the most frequent first.
        answers: names of the attributes, the most frequent first.
    """

    queries: list[str]
    answers: list[str]

    def __init__(
        self,
        root: str | Path,
        split: str,
        image_size: int = 224,
        min_count: int = 100,
        seed: int = 0,
        sizes: Sequence[int] | None = None,
    ) -> None:
        if split not in SPLITS:
            raise unknown("split", str(split), SPLITS)
        if image_size < 1:
            raise UserError(f"image_size must be at least 1, got {image_size}")
        self.root, self.split, self.image_size = Path(root), split, image_size
        self.min_count, self.seed, self.sizes = min_count, seed, sizes
        index = self._index()
        self.queries, self.answers = index.queries, index.answers
        self.samples = self._samples(split)
        if not self.samples:
            count = len(index.sizes)
            raise DataError(
                f"the {split} split is empty: {self.root} has {count} labelled images; give sizes or more images"
            )
        images = {s.image for s in self.samples}
        self.image_sizes = {i: index.sizes[i] for i in images}
        self.files = _image_files(self.root, images)

    def _index(self) -> Index:
        if not self.root.is_dir():
            raise DataError(
                f"no Visual Genome folder {self.root}; make it and put attributes.json, image_data.json, VG_100K and "
                f"VG_100K_2 from {SITE} in it"
            )
        files = [self.root / name for name in ("attributes.json", "image_data.json", "objects.json")]
        stamps = tuple(file.stat().st_mtime if file.exists() else 0.0 for file in files)
        return _index(self.root.resolve(), stamps, self.min_count)

    def _samples(self, split: str) -> list[Sample]:
        index = self._index()
        order = sorted(index.sizes, key=lambda image: hashlib.sha256(f"{self.seed}:{image}".encode()).digest())
        train, val, test = split_sizes(len(order), self.sizes)
        start, count = {"train": (0, train), "val": (train, val), "test": (train + val, test)}[split]
        chosen = set(order[start : start + count])
        return [s for s in index.samples if s.image in chosen]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample = self.samples[index]
        label = torch.zeros(len(self.answers))
        label[list(sample.answers)] = 1.0
        return {
            "image": self._image(self.files[sample.image]),
            "query": sample.query,
            "label": label,
            "mask": union_mask(sample.boxes, *self.image_sizes[sample.image], self.image_size),
            "index": index,
        }

    def _image(self, path: Path) -> Tensor:
        try:
            with Image.open(path) as image:
                small = image.convert("RGB").resize((self.image_size, self.image_size), Image.Resampling.BILINEAR)
        except (OSError, SyntaxError, ValueError) as error:
            raise DataError(
                f"cannot read the image {path} ({error}); it is missing or damaged, unpack it again from images.zip or "
                f"images2.zip of {SITE}"
            ) from error
        return torch.from_numpy(np.array(small)).permute(2, 0, 1).contiguous()

    def prior(self, smoothing: float = 1.0) -> Tensor:
        """Log-odds of every attribute given the object class, over the training split whichever split this is.

        With n_q the training samples of class q and n_qa those of them with attribute a, and s the smoothing::

            p = (n_qa + s) / (n_q + 2s);  log p / (1 − p) = log (n_qa + s) − log (n_q − n_qa + s)

        Args:
            smoothing: Laplace's s, above zero.

        Returns:
            (Q, K), zero for a class without training samples; what ``AttributeNet.set_prior`` takes.
        """
        if not smoothing > 0:
            raise UserError(f"smoothing must be above zero or log-odds become infinite, got {smoothing}")
        samples = self._samples("train")
        positive = torch.zeros(len(self.queries), len(self.answers), dtype=torch.float64)
        total = torch.zeros(len(self.queries), 1, dtype=torch.float64)
        for sample in samples:
            total[sample.query] += 1
            positive[sample.query, list(sample.answers)] += 1
        return (torch.log(positive + smoothing) - torch.log(total - positive + smoothing)).float()
