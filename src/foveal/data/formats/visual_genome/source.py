"""Visual Genome's attribute prediction as a dataset of recipes: name a class, predict its attributes.

Seo et al., "Hierarchical Attention Networks" (https://arxiv.org/abs/1606.02393), section 4.2. ``source: embedded`` puts
generated shapes (:mod:`foveal.data.embedded.shapes`) in place of the official files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from foveal.data.batches import Batches, Collated, EpochBatches, epoch_seed
from foveal.data.check import check_files
from foveal.data.formats.visual_genome.annotations import FILES, SITE, Index, Sample, parse_index
from foveal.data.formats.visual_genome.attributes import (
    IMAGE_FOLDERS,
    VisualGenomeAttributes,
    image_files,
    read_square,
)
from foveal.data.place import Layout, Place
from foveal.data.problems import Problem, Progress, collected, collecting, note
from foveal.data.registry import Entry, register_data
from foveal.data.splits import SPLITS
from foveal.errors import UserError, unknown

ANNOTATIONS = ("attributes.json", "image_data.json")
PLACE = Place(
    folders=("visual_genome",),
    needs=(*ANNOTATIONS, *IMAGE_FOLDERS),
    how=f"attributes.json.zip, image_data.json.zip, images.zip and images2.zip from {SITE}, unpacked in "
    "visual_genome/; the recipes start from VGG-16 weights, vgg16-397923af.pth from "
    "https://download.pytorch.org/models/, beside that folder",
    layouts=(Layout("a part of the images", (*ANNOTATIONS, f"{IMAGE_FOLDERS[0]}*")),),
    instead="use data.source=embedded for generated shapes",
)


@dataclass(frozen=True)
class VisualGenomeOptions:
    """The ``data`` section of a recipe.

    Attributes:
        source: ``real`` for the official files, ``embedded`` for generated coloured shapes.
        folder: folder of the official files, absolute or relative to the data folder.
        image_size: side of the images after resizing.
        min_count: classes that appear this often or less are dropped; embedded data keeps all of its few.
        seed: seed of the random splits; independent of the training seed, so that all runs have the same test set.
        sizes: number of train, val and test images, or null for the paper's 25,393 : 10,000 : 10,000 of all there are.
        workers: processes that read images, per training process; 0: the training process reads them itself.
    """

    source: Literal["real", "embedded"] = "real"
    folder: str = "visual_genome"
    image_size: int = 224
    min_count: int = 100
    seed: int = 0
    sizes: tuple[int, int, int] | None = None
    workers: int = 2


class VisualGenomeData:
    """Attribute prediction on Visual Genome or on its embedded stand-in, ready to be trained on.

    Attributes:
        queries: object classes.
        answers: attributes.
        splits: the samples of ``train``, ``val`` and ``test``.
    """

    multilabel = True

    def __init__(self, options: VisualGenomeOptions, root: Path | None) -> None:
        self.name, self.title, self.options, self.root = "visual-genome", "Visual Genome", options, root
        self.embedded = options.source == "embedded"
        if options.workers < 0:
            raise UserError(f"data.workers={options.workers}: expected 0 or more")
        settings = (options.image_size, options.min_count, options.seed, options.sizes)
        self.splits: dict[str, VisualGenomeAttributes]
        if self.embedded:
            from foveal.data.embedded.shapes import Shapes  # imports this package in turn

            self.splits = {split: Shapes(Path(), split, *settings) for split in SPLITS}
        else:
            folder = PLACE.find(root, options.folder, name=self.name)
            self.splits = {split: VisualGenomeAttributes(folder, split, *settings) for split in SPLITS}
        self.queries, self.answers = self.splits["train"].queries, self.splits["train"].answers

    def describe(self) -> str:
        """One line on what the data is."""
        what = "generated coloured shapes (embedded stand-in for Visual Genome)" if self.embedded else "Visual Genome"
        images = " + ".join(f"{len(split.image_sizes):,}" for split in self.splits.values())
        classes = f"{len(self.queries)} object classes, {len(self.answers)} attributes"
        side = self.options.image_size
        return f"{what}, {classes}, {images} images for training, validation and test, {side}×{side}"

    def about(self) -> dict[str, Any]:
        """Names of object classes and attributes, and the size of the images."""
        attributes, kinds = len(self.answers), len(self.queries)
        return {
            "queries": self.queries,
            "answers": self.answers,
            "multilabel": True,
            "size": self.options.image_size,
            "question": "How would you describe the {query}?",
            "asked": f"an attribute (one of {attributes}) of one object (one of {kinds} kinds)",
        }

    def prior(self) -> Tensor:
        """Log-odds of every attribute given the object class in the training split, (queries, answers)."""
        return self.splits["train"].prior()

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
        """Batches of ``split`` for one epoch, in pinned memory if they go to a GPU.

        They hold image uint8 (N, 3, S, S), query (N,), label (N, K) of 0 and 1, mask bool (N, S, S), whether or not
        ``masks`` asks for it, and index (N,).
        """
        if split not in self.splits:
            raise unknown("split", split, self.splits)
        data = self.splits[split]
        shuffle = epoch_seed(seed, epoch) if split == "train" else None
        order = EpochBatches(len(data), batch, shuffle, rank, world)
        return Batches(order, Collated(data), device, workers=self.options.workers)


def check_visual_genome(options: VisualGenomeOptions, root: Path | None, progress: Progress) -> Iterator[Problem]:
    """Read all annotations and annotated images and yield what is wrong with them."""
    if options.source == "embedded":
        return
    files: dict[int, Path] = {}
    with collecting() as problems, collected():
        folder = PLACE.find(root, options.folder, name="visual-genome")
        index = parse_index(folder, options.min_count)
        for sample in index.samples:
            _check_boxes(folder, sample, index)
        files = image_files(folder, set(index.sizes))
    yield from problems
    read = partial(read_square, side=options.image_size)
    yield from check_files((files[image] for image in sorted(files)), progress, "reading images", read)


def _check_boxes(folder: Path, sample: Sample, index: Index) -> None:
    """Note boxes that lie outside of their image."""
    width, height = index.sizes.get(sample.image, (float("inf"), float("inf")))
    for x, y, w, h in sample.boxes:
        if x >= width or y >= height or x + w <= 0 or y + h <= 0:
            name, box = index.queries[sample.query], (x, y, w, h)
            note(f"{folder / FILES[0]}: the box {box} of {name!r} lies outside of image {sample.image}")


register_data(
    Entry(
        "visual-genome",
        "attributes of the asked-for object class in a photograph",
        VisualGenomeOptions,
        VisualGenomeData,
        PLACE,
        check_visual_genome,
    )
)
