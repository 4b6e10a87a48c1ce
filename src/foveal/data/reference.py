"""MREF, MDIST and MBG: the colour of the asked-for digit among many.

Seo et al., "Hierarchical Attention Networks" (https://arxiv.org/abs/1606.02393), section 4.1. Real data needs the MNIST
idx files and, for MBG, photographs; ``digits="embedded"`` uses scikit-learn's digits and generated textures instead.

Departures: each split is a stream of images of its own, so no image straddles two splits, and photographs are never
shared between splits. ``sources="pooled"`` draws digits from MNIST's train and test files together as the authors' code
does; ``sources="split"`` keeps them apart, so that no digit of the test set was seen in training.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from foveal.data import digits as digit_files
from foveal.data.cache import cached
from foveal.data.pictures import photographs, textures
from foveal.data.registry import Entry, register_data
from foveal.data.scenes import COLOURS, Scenes, SceneSpec, Sources, generate, images_for
from foveal.errors import DataError, UserError

SPLITS = ("train", "val", "test")
VERSION = 1  # of the generator; part of the cache key


@dataclass(frozen=True)
class ReferenceOptions:
    """The ``data`` section of a recipe.

    Attributes:
        digits: ``mnist`` for the official files, ``embedded`` for scikit-learn's digits and generated textures.
        sources: ``pooled`` or ``split`` (see the module).
        triples: how many (image, query, colour) triples in train, val and test.
        fresh: paint new training images every epoch instead of repeating a fixed set.
        seed: which dataset; independent of the training seed, so that all runs see the same test set.
        pictures: folder of photographs, below the data folder or absolute (MBG).
        canvas, count, scale: size of the images, number of digits and their scale; the defaults are the paper's.
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


class TripleLoader:
    """Batches of triples from scenes that lie on the device already: indexing, no copying from the host.

    Args:
        scenes: where the triples come from.
        limit: only the first ``limit`` triples.
        batch: triples a batch and process.
        shuffle: seed of this epoch's order, or None for the order of the images.
        masks: whether batches carry the digit's mask.
        rank, world: this process and the number of processes. When shuffled, process r takes the r-th piece of every
            global batch, so that ``world`` processes see at each step what one process with a ``world`` times larger
            batch would see; otherwise every ``world``-th triple.

    Batches hold image uint8 (N, 3, S, S), query, label, scale and index (N,) and, if asked for, mask (N, S, S).
    """

    def __init__(
        self, scenes: Scenes, limit: int, batch: int, shuffle: int | None, masks: bool, rank: int = 0, world: int = 1
    ) -> None:
        self.scenes, self.batch, self.shuffle, self.masks = scenes, batch, shuffle, masks
        self.rank, self.world = rank, world
        image, slot = scenes.triples()
        self.image, self.slot = image[:limit], slot[:limit]
        if shuffle is not None and len(self.image) < batch * world:
            raise UserError(
                f"{len(self.image)} training triples do not fill one batch of {batch} × {world} process(es)"
            )

    def __len__(self) -> int:
        if self.shuffle is not None:
            return len(self.image) // (self.batch * self.world)
        return -(-len(range(self.rank, len(self.image), self.world)) // self.batch)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        device = self.image.device
        if self.shuffle is None:
            own = torch.arange(len(self.image), device=device)[self.rank :: self.world]
        else:
            order = torch.randperm(len(self.image), generator=torch.Generator().manual_seed(self.shuffle))
            whole = order[: len(self) * self.world * self.batch].view(len(self), self.world, self.batch)
            own = whole[:, self.rank].flatten().to(device)
        for step in range(len(self)):  # none for a process without triples
            yield self.gather(own[step * self.batch : (step + 1) * self.batch])

    def gather(self, index: Tensor) -> dict[str, Tensor]:
        """The triples numbered ``index`` as one batch."""
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
    """One of MREF, MDIST and MBG, ready to be trained on."""

    multilabel = False
    queries = [str(digit) for digit in range(10)]  # noqa: RUF012
    answers = list(COLOURS)  # noqa: RUF012

    def __init__(self, name: str, options: ReferenceOptions, root: Path | None) -> None:
        self.name, self.options = name, options
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
        if not self.embedded and root is None:
            raise DataError(
                f"{name} needs the official MNIST files: set FOVEAL_DATA (or --data) to a folder that holds mnist/, "
                "or use data.digits=embedded for scikit-learn's digits"
            )
        self.root = root
        self._held: dict[tuple[str, int, str], Scenes] = {}
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
        often = "new training images every epoch" if o.fresh else f"{o.triples[0]:,} fixed training triples"
        return f"{digits} on {behind}, {o.canvas}×{o.canvas}, {o.count[0]}–{o.count[1]} digits an image, {often}"

    def sources(self, split: str) -> Sources:
        """Digits and pictures that ``split`` is made from."""
        if split not in self._sources:
            self._sources[split] = self._load_sources(split)
        return self._sources[split]

    def _load_sources(self, split: str) -> Sources:
        parts = {"pooled": ["train", "test"], "split": ["test" if split == "test" else "train"]}[self.options.sources]
        if self.embedded:
            loaded = [digit_files.embedded(part) for part in parts]
        else:
            assert self.root is not None
            loaded = [digit_files.mnist(self.root / "mnist", part) for part in parts]
        found = digit_files.by_class(torch.cat([i for i, _ in loaded]), torch.cat([label for _, label in loaded]))
        if self.name == "mbg":
            side = round(1.28 * self.options.canvas)
            if self.embedded:
                found.pictures = textures(side, split)
            else:
                assert self.root is not None
                found.pictures = photographs(self.root / self.options.pictures, side, split)
        return found

    def scenes(self, split: str, device: torch.device | str = "cpu", epoch: int = 0) -> Scenes:
        """The images of ``split``; on the CPU they are cached on disk, elsewhere they are painted faster than read."""
        if split not in SPLITS:
            raise UserError(f"unknown split {split!r}; expected one of {', '.join(SPLITS)}")
        fresh = self.options.fresh and split == "train"
        key = (split, epoch if fresh else 0, str(device))
        if key not in self._held:
            self._held = {k: v for k, v in self._held.items() if k[0] != split}  # an old epoch's images make room
            on_cpu = torch.device(device).type == "cpu"
            self._held[key] = self._cached(split) if on_cpu and not fresh else self._paint(split, device, key[1])
        return self._held[key]

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
        made = cached(f"{self.name}-{split}", key, lambda: vars(self._paint(split, "cpu", 0)))
        return Scenes(**{f.name: made[f.name] for f in fields(Scenes)})

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
    ) -> TripleLoader:
        """Batches of ``split`` for one epoch, on ``device``."""
        shuffle = seed * 100_003 + epoch if split == "train" else None
        limit = self.options.triples[SPLITS.index(split)]
        return TripleLoader(self.scenes(split, device, epoch), limit, batch, shuffle, split != "train", rank, world)


def _progress(title: str):  # type: ignore[no-untyped-def]
    def wrap(steps: Iterator[int], total: int) -> Iterator[int]:
        from rich.progress import track

        yield from track(steps, title, total=total, transient=True)

    return wrap


_MNIST = tuple(f"mnist/{name}*" for names in digit_files.MNIST_FILES.values() for name in names)


def _register(name: str, summary: str, expected: tuple[str, ...], how: str) -> None:
    register_data(Entry(name, summary, ReferenceOptions, partial(ReferenceData, name), expected, how))


_register("mref", "colour of the asked-for digit among 5–9, black background", _MNIST, digit_files.HOW_TO_GET_MNIST)
_register("mdist", "the same with 17 coloured digit fragments as distractors", _MNIST, digit_files.HOW_TO_GET_MNIST)
_register(
    "mbg",
    "the same on natural photographs",
    (*_MNIST, "backgrounds"),
    f"{digit_files.HOW_TO_GET_MNIST}; any photographs in backgrounds/",
)
