"""MREF, MDIST and MBG: the colour of the asked-for digit among many.

Seo et al., "Hierarchical Attention Networks" (https://arxiv.org/abs/1606.02393), section 4.1. Real data needs the MNIST
idx files and, for MBG, photographs; ``digits="embedded"`` uses scikit-learn's digits and generated textures instead.

Departures: each split is a stream of images of its own, so no image is in two splits, and photographs are never
shared between splits. ``sources="pooled"`` draws digits from MNIST's train and test files together as the authors' code
does; ``sources="split"`` keeps them apart, so that no digit of the test set was seen in training.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from foveal.data.batches import Batch, Batches, EpochBatches, epoch_seed
from foveal.data.cache import cached
from foveal.data.check import check_files
from foveal.data.embedded.digits import sklearn_digits
from foveal.data.embedded.painting import generate
from foveal.data.embedded.scenes import COLOURS, Scenes, SceneSpec, Sources, images_for
from foveal.data.embedded.textures import textures
from foveal.data.formats.mnist import MNIST, MNIST_FILES, idx_file, mnist, read_idx
from foveal.data.images.backgrounds import photograph_files, photographs, tiles
from foveal.data.place import Place
from foveal.data.problems import Problem, Progress, collected, collecting
from foveal.data.registry import Entry, register_data
from foveal.data.splits import SPLITS
from foveal.errors import UserError, unknown

VERSION = 1  # of the generator; part of the cache key
TILE = 1.28  # side of the pictures behind scenes, in canvases
PHOTOGRAPHS = Place(
    folders=("backgrounds",),
    needs=("*",),
    how="put any photographs in backgrounds/, at least five",
    option="pictures",
    instead="use data.digits=embedded for generated textures",
)


@dataclass(frozen=True)
class ReferenceOptions:
    """The ``data`` section of a recipe.

    Attributes:
        digits: ``mnist`` for the official files, ``embedded`` for scikit-learn's digits and generated textures.
        sources: ``split``: no digit of a training image is in a test image; ``pooled``: digits are drawn from one pool.
        triples: number of (image, query, colour) triples in train, val and test.
        fresh: paint new training images every epoch instead of repeating a fixed set.
        seed: seed of the dataset; independent of the training seed, so that all runs have the same test set.
        pictures: folder of photographs, absolute or relative to the data folder (MBG).
        canvas: side of the images in pixels; the default is the paper's.
        count: least and greatest number of digits per image; the default is the paper's.
        scale: least and greatest scale of a digit; the default is the paper's.
    """

    digits: Literal["mnist", "embedded"] = "mnist"
    sources: Literal["pooled", "split"] = "pooled"
    triples: tuple[int, int, int] = (30_000, 10_000, 10_000)
    fresh: bool = False
    seed: int = 0
    pictures: str = "backgrounds"
    canvas: int = 100
    count: tuple[int, int] = (5, 9)
    scale: tuple[float, float] = (0.5, 3.0)


class Triples:
    """Gathers (image, query, colour) triples of scenes that lie on the device already.

    Args:
        scenes: where the triples come from.
        limit: only the first ``limit`` triples.
        masks: whether batches carry the digit's mask.

    Batches hold image uint8 (N, 3, S, S), query, label, scale and index (N,) and, with ``masks``, mask bool (N, S, S).
    """

    def __init__(self, scenes: Scenes, limit: int, masks: bool) -> None:
        self.scenes, self.masks = scenes, masks
        image, slot = scenes.triples()
        self.image, self.slot = image[:limit], slot[:limit]

    def __len__(self) -> int:
        return len(self.image)

    def __call__(self, index: Tensor) -> Batch:
        """The triples with these numbers as one batch."""
        image, slot = self.image[index], self.slot[index]
        s = self.scenes
        batch = {
            "image": s.images[image],
            "query": s.digit[image, slot],
            "label": s.colour[image, slot],
            "scale": s.scale[image, slot],
            "index": index,
        }
        return batch | {"mask": s.mask(image, slot)} if self.masks else batch


class ReferenceData:
    """One of MREF, MDIST and MBG, ready to be trained on.

    Attributes:
        queries: the ten digits.
        answers: the five colours.
    """

    multilabel = False

    def __init__(self, name: str, options: ReferenceOptions, root: Path | None) -> None:
        self.name, self.title, self.options, self.root = name, name.upper(), options, root
        self.queries, self.answers = [str(digit) for digit in range(10)], list(COLOURS)
        self.embedded = options.digits == "embedded"
        low, high = options.scale
        bins = 5 if low < high else 1  # 0.5, 1, … 3 by default
        high = max(high, low + 1e-3)
        self.scale_edges = tuple(low + (high - low) * i / bins for i in range(bins + 1))
        self.spec = SceneSpec(
            canvas=options.canvas,
            digits=options.count,
            scale=options.scale,
            distractors=17 if name == "mdist" else 0,
            background=name == "mbg",
        )
        if min(options.triples) < 1:
            raise UserError(f"data.triples={list(options.triples)}: expected three positive numbers")
        self._scenes: dict[tuple[str, int, str], Scenes] = {}
        self._sources: dict[str, Sources] = {}
        for split in SPLITS:
            self.sources(split)  # a missing or damaged file stops here, before training

    def describe(self) -> str:
        """One line on what the data is."""
        digits = "scikit-learn's 8×8 digits (embedded stand-in for MNIST)" if self.embedded else "MNIST digits"
        behind = {"mref": "black", "mdist": "17 coloured fragments", "mbg": "photographs"}[self.name]
        if self.embedded and self.name == "mbg":
            behind = "generated textures"
        o = self.options
        images = "new training images every epoch" if o.fresh else f"{o.triples[0]:,} fixed training triples"
        return f"{digits} on {behind}, {o.canvas}×{o.canvas}, {o.count[0]}–{o.count[1]} digits an image, {images}"

    def about(self) -> dict[str, Any]:
        """Names of digits and colours, and the size of the images."""
        return {
            "queries": self.queries,
            "answers": self.answers,
            "multilabel": False,
            "size": self.options.canvas,
            "question": "What colour is the {query}?",
            "asked": "the colour of one digit among many",
            "colours": {name: f"#{red:02x}{green:02x}{blue:02x}" for name, (red, green, blue) in COLOURS.items()},
        }

    def sources(self, split: str) -> Sources:
        """Digits and pictures that ``split`` is made from."""
        if split not in self._sources:
            self._sources[split] = self._load_sources(split)
        return self._sources[split]

    def _load_sources(self, split: str) -> Sources:
        parts = {"pooled": ["train", "test"], "split": ["test" if split == "test" else "train"]}[self.options.sources]
        if self.embedded:
            digits = [sklearn_digits(part) for part in parts]
        else:
            folder = MNIST.find(self.root, name=self.name)
            digits = [mnist(folder, part) for part in parts]
        sources = Sources.by_class(torch.cat([i for i, _ in digits]), torch.cat([label for _, label in digits]))
        if self.name == "mbg":
            side = round(TILE * self.options.canvas)
            if self.embedded:
                sources.pictures = textures(side, split)
            else:
                folder = PHOTOGRAPHS.find(self.root, self.options.pictures, name=self.name)
                sources.pictures = photographs(folder, side, split)
        return sources

    def scenes(self, split: str, device: torch.device | str = "cpu", epoch: int = 0) -> Scenes:
        """The images of ``split``; on the CPU they are cached on disk, elsewhere they are painted again."""
        if split not in SPLITS:
            raise unknown("split", split, SPLITS)
        fresh = self.options.fresh and split == "train"
        key = (split, epoch if fresh else 0, str(device))
        if key not in self._scenes:
            self._scenes = {k: v for k, v in self._scenes.items() if k[0] != split}  # drops an old epoch's images
            on_cpu = torch.device(device).type == "cpu"
            self._scenes[key] = self._cached(split) if on_cpu and not fresh else self._paint(split, device, key[1])
        return self._scenes[key]

    def _seed(self, split: str) -> int:
        return self.options.seed * len(SPLITS) + SPLITS.index(split)

    def _paint(self, split: str, device: torch.device | str, epoch: int) -> Scenes:
        triples, seed = self.options.triples[SPLITS.index(split)], self._seed(split)
        per_epoch = images_for(self.spec, seed, triples)
        # Image counts differ a little between epochs; twenty spare images in a thousand are always enough.
        start = epoch * (per_epoch + per_epoch // 50 + 100)
        count = images_for(self.spec, seed, triples, start)
        batch = 128 if torch.device(device).type == "cpu" else 4096
        show = _progress(f"painting {self.name} {split}") if not self.options.fresh and sys.stderr.isatty() else None
        return generate(
            self.spec, self.sources(split), seed, count, start=start, batch=batch, device=device, progress=show
        )

    def _cached(self, split: str) -> Scenes:
        """Scenes by way of the disk cache; a change of the source files changes the key."""
        sources = self.sources(split)
        sums = [int(t.long().sum()) for t in (sources.digits, sources.pictures) if t is not None]
        options = {k: v for k, v in asdict(self.options).items() if k not in ("triples", "fresh", "pictures")}
        triples = self.options.triples[SPLITS.index(split)]
        key = {"name": self.name, "split": split, "triples": triples, "version": VERSION, "sums": sums, **options}
        tensors = cached(f"{self.name}-{split}", key, lambda: vars(self._paint(split, "cpu", 0)))
        return Scenes(**{f.name: tensors[f.name] for f in fields(Scenes)})

    def loader(
        self,
        split: str,
        batch: int,
        *,
        epoch: int = 0,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        device: torch.device,
        masks: bool = False,
    ) -> Batches:
        """Batches of ``split`` for one epoch, on ``device``, as from :class:`Triples`.

        Validation and test batches always carry masks, training batches if ``masks`` says so.
        """
        scenes = self.scenes(split, device, epoch)
        triples = Triples(scenes, self.options.triples[SPLITS.index(split)], masks or split != "train")
        shuffle = epoch_seed(seed, epoch) if split == "train" else None
        return Batches(EpochBatches(len(triples), batch, shuffle, rank, world), triples, device)


def check_reference(name: str, options: ReferenceOptions, root: Path | None, progress: Progress) -> Iterator[Problem]:
    """Read all digits and photographs that images are painted from and yield what is wrong with them."""
    if options.digits == "embedded":
        return
    with collecting() as problems, collected():
        folder = MNIST.find(root, name=name)
        for split, names in MNIST_FILES.items():
            with collected():
                Sources.by_class(*mnist(folder, split))
            for file in names:
                with collected():
                    read_idx(idx_file(folder, file))
    yield from problems
    if name == "mbg":
        side = round(TILE * options.canvas)
        photographs = photograph_files(PHOTOGRAPHS.find(root, options.pictures, name=name))
        yield from check_files(photographs, progress, "reading photographs", partial(tiles, side=side))


def _progress(title: str):  # type: ignore[no-untyped-def]
    def wrap(steps: Iterator[int], total: int) -> Iterator[int]:
        from rich.progress import track

        yield from track(steps, title, total=total, transient=True)

    return wrap


for _name, _summary, _place in (
    ("mref", "colour of the asked-for digit among 5–9, black background", MNIST),
    ("mdist", "the same with 17 coloured digit fragments as distractors", MNIST),
    ("mbg", "the same on natural photographs", replace(MNIST, also=(PHOTOGRAPHS,))),
):
    _build, _check = partial(ReferenceData, _name), partial(check_reference, _name)
    register_data(Entry(_name, _summary, ReferenceOptions, _build, _place, _check))
