"""Images with a class for every pixel, whatever their format on disk.

A reader (:attr:`SegmentFormat.read`) says which images and masks there are; this file divides them into splits and
makes batches. Images are decoded once, kept in the cache, held on the training device and augmented there
(:mod:`foveal.data.images.crops`), if they fit; otherwise worker processes read them and do the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from foveal.data.batches import CPU, Batch, Batches, EpochBatches, epoch_seed
from foveal.data.cache import cached, files_state
from foveal.data.check import check_files
from foveal.data.images.boxed import undecided
from foveal.data.images.crops import CanvasBatches, MaskedImages, canvases, cropped, plain_views, random_views
from foveal.data.images.format import check_reading, described
from foveal.data.images.masked import (
    MaskedFiles,
    SegmentFormat,
    SegmentOptions,
    SegmentSet,
    read_pair,
    resized_to,
    size_of,
)
from foveal.data.images.masks import IGNORED, palette
from foveal.data.problems import Problem, Progress
from foveal.data.registry import Entry, register_data
from foveal.data.splits import divide, mapped
from foveal.errors import DataError, UserError, unknown

__all__ = ["MaskedFiles", "SegmentData", "SegmentFormat", "SegmentOptions", "SegmentSet", "register_segments"]

MOST_HELD = 4 * 2**30  # bytes
NOTHING = "no training mask has a class, all are 255; there is nothing to learn"
VERSION = 2  # of what is cached: changes when files are read in another way


def register_segments(form: SegmentFormat, summary: str) -> Entry:
    """Make a dataset of images with masks known by its format."""
    build, check = partial(SegmentData, form), partial(check_segments, form)
    return register_data(Entry(form.name, summary, SegmentOptions, build, form.place, check))


def check_segments(
    form: SegmentFormat, options: SegmentOptions, root: Path | None, progress: Progress
) -> Iterator[Problem]:
    """Read all lists, images and masks of a dataset and yield what is wrong with them."""
    images, problems = form.try_read(root, options.folder)
    yield from problems
    if images is None:
        return
    seen, turned = {split: np.zeros(IGNORED + 1, np.int64) for split in images.splits}, list[Path]()
    for split, files in images.splits.items():
        assert isinstance(files, MaskedFiles)
        masks = dict(zip(files.images, files.masks, strict=True))

        def read(file: Path, masks: dict[Path, Path] = masks, split: str = split) -> None:
            image, mask = read_pair(file, masks[file], images.read_mask)
            seen[split][np.unique(mask)] += 1
            if undecided(file, image.size):
                turned.append(file)

        yield from check_files(files.images, progress, f"reading {split} images and masks", read)
        if split == "test" and not seen[split][: len(images.answers)].any():
            yield Problem("no test mask has a class: nothing can be measured", stops=False)
    for file in turned:
        yield Problem(
            f"{file} is shown turned or mirrored, as its EXIF orientation says; its mask must be of that",
            stops=False,
            file=file,
        )
    if "train" not in seen:  # it could not be read
        return
    trained = seen["train"][: len(images.answers)]
    if not trained.any():
        yield Problem(NOTHING)
        return
    for name, count in zip(images.answers, trained, strict=True):
        if not count:
            yield Problem(f"class {name!r} is in no training mask: no model can learn it", stops=False)


class SegmentData:
    """A segmentation dataset, ready to be trained on.

    Attributes:
        answers: names of the classes.
        colours: of the classes, "#rrggbb".
        splits: the samples of ``train``, ``val`` and ``test``.
    """

    crop: tuple[int, int]
    scale: tuple[float, float]
    flip: bool
    val_fraction: float
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def __init__(self, form: SegmentFormat, options: SegmentOptions, root: Path | None) -> None:
        self.form, self.name, self.options, self.root = form, form.name, options, root
        self.embedded = form.place is None
        for key in ("crop", "scale", "flip", "val_fraction", "mean", "std"):
            value = getattr(options, key)
            setattr(self, key, getattr(form, key) if value is None else value)
        self._check_options()
        self.folder = Path() if form.place is None else form.place.find(root, options.folder, name=form.name)
        self.title = self.folder.resolve().name if form.own_files else form.title
        found = form.read(self.folder)  # what is missing stops here
        self.answers, self.read_mask, self.official = found.answers, found.read_mask, tuple(found.splits)
        self.colours = list(found.colours) or palette(self.answers)
        self.splits: dict[str, MaskedFiles | MaskedImages] = divide(
            found.splits, self.val_fraction, options.test_fraction, options.seed
        )
        self.held = self._holds()
        if self.held:
            self.splits = mapped(self.splits, self._decode)
            if len(self.absent_classes()) == len(self.answers):
                raise DataError(f"data.name={self.name}: {NOTHING}")
        self._on_device: dict[tuple[int, str], MaskedImages] = {}

    def _check_options(self) -> None:
        o = self.options
        if min(self.crop) < 1:
            raise UserError(f"data.crop={list(self.crop)}: expected a height and a width of 1 or more")
        if not 0 < self.scale[0] <= self.scale[1]:
            raise UserError(f"data.scale={list(self.scale)}: expected 0 < least ≤ greatest")
        check_reading(o.short, o.workers, self.val_fraction, o.test_fraction)
        if not min(self.std) > 0:
            raise UserError(f"data.std={list(self.std)}: expected three numbers above 0")

    # Splits ------------------------------------------------------------------------

    def _files(self) -> dict[str, MaskedFiles]:
        return {split: files for split, files in self.splits.items() if isinstance(files, MaskedFiles)}

    # Decoding ----------------------------------------------------------------------

    def _holds(self) -> bool:
        files = self._files()
        if not files or self.options.hold is not None:
            return not files or bool(self.options.hold)
        height, width = size_of(files["train"].images[0], self.options.short)
        return 4 * height * width * sum(len(split) for split in files.values()) < MOST_HELD

    def _decode(self, split: str, files: MaskedFiles | MaskedImages) -> MaskedImages:
        """The files of a split as pixels, by way of the disk cache."""
        if isinstance(files, MaskedImages):
            return files
        state = files_state((*files.images, *files.masks))
        classes = {"classes": self.answers, "colours": self.colours}
        key: dict[str, object] = {"files": state, "short": self.options.short, "version": VERSION, **classes}

        def make() -> dict[str, Tensor]:
            batches = Batches(
                EpochBatches(len(files), 64), partial(self._read, files), CPU, workers=self.options.workers
            )
            # A copy, because what comes from another process lies in shared memory, of which there may be little.
            parts = [{name: values.clone() for name, values in batch.items()} for batch in batches]
            return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

        return MaskedImages.of(**cached(f"{self.name}-{split}", key, make))

    def _read(self, files: MaskedFiles, index: Tensor) -> Batch:
        """Images and masks as the arguments of :meth:`~foveal.data.images.crops.MaskedImages.of`."""
        pixels, labels, sizes = [], [], []
        for n in index.tolist():
            image, mask = read_pair(files.images[n], files.masks[n], self.read_mask)
            size = resized_to(image.size, self.options.short)
            if size != image.size:
                image = image.resize(size, Image.Resampling.BILINEAR)
                mask = np.asarray(Image.fromarray(mask).resize(size, Image.Resampling.NEAREST))
            pixels.append(torch.from_numpy(np.array(image)).view(-1, 3))
            labels.append(torch.from_numpy(np.array(mask)).flatten())
            sizes.append((size[1], size[0]))
        return {"pixels": torch.cat(pixels), "labels": torch.cat(labels), "size": torch.tensor(sizes)}

    # What a task asks --------------------------------------------------------------

    def describe(self) -> str:
        """One line on what the data is."""
        short, absent = self.options.short, self.absent_classes()
        return described(
            self.form,
            len(self.answers),
            self.splits,
            self.official,
            first=[f"short side {short}"] if short else [],
            last=[f"in no training mask: {', '.join(absent)}"] if absent else [],
        )

    def absent_classes(self) -> list[str]:
        """Classes that no training mask has; none if the masks are not held."""
        train = self.splits["train"]
        if not isinstance(train, MaskedImages):
            return []
        counts = train.labels.bincount(minlength=len(self.answers))
        return [name for name, count in zip(self.answers, counts.tolist(), strict=False) if not count]

    def about(self) -> dict[str, Any]:
        """Names and colours of the classes, and how an image becomes the model's input."""
        return {
            "answers": self.answers,
            "palette": self.colours,
            "view": {"short": self.options.short, "mean": list(self.mean), "std": list(self.std)},
            "asked": f"what every pixel shows ({len(self.answers)} classes)",
        }

    def held_on(self, split: str, device: torch.device) -> MaskedImages:
        """Images and masks of ``split`` on ``device``, moved there once."""
        pairs = self.splits[split]
        assert isinstance(pairs, MaskedImages)
        key = (id(pairs), str(device))  # validation and test may be the same images
        if key not in self._on_device:
            self._on_device[key] = pairs.to(device)
        return self._on_device[key]

    @cached_property
    def fill(self) -> Tensor:
        """The mean colour, uint8 (3,), for what is beyond the border of an image."""
        return torch.tensor([round(255 * value) for value in self.mean]).clamp(0, 255).to(torch.uint8)

    def _sizes(self, split: str) -> Tensor:
        """Height and width of each image, int64 (N, 2)."""
        pairs = self.splits[split]
        if isinstance(pairs, MaskedImages):
            return pairs.images.size.cpu()
        return torch.tensor([size_of(file, self.options.short) for file in pairs.images])

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
        """Batches of ``split`` for one epoch; held images on ``device``, others in memory pinned if that is a GPU.

        They hold image uint8 (N, 3, H, W), label uint8 (N, H, W), of which 255 does not count, and index (N,).
        """
        if split not in self.splits:
            raise unknown("split", split, self.splits)
        if masks:
            raise UserError(f"data.name={self.name} has classes of pixels, but no masks of single objects")
        shuffle = epoch_seed(seed, epoch) if split == "train" else None
        order: EpochBatches
        if shuffle is None:
            order = CanvasBatches(canvases(self._sizes(split)), batch, rank, world)
        else:
            order = EpochBatches(len(self.splits[split]), batch, shuffle, rank, world)
        if self.held:
            held = HeldCrops(self, self.held_on(split, device), shuffle)
            return Batches(order, held, device)
        return Batches(order, partial(self._gather, split, shuffle), device, workers=self.options.workers)

    def views(self, sample: Tensor, size: Tensor, seed: int | None) -> Tensor:
        """How images are seen: at random in a training epoch, whole otherwise; see :mod:`foveal.data.images.crops`."""
        if seed is None:
            return plain_views(len(sample))
        return random_views(sample, size, self.crop, self.scale, self.flip, seed)

    def _gather(self, split: str, seed: int | None, index: Tensor) -> Batch:
        """A batch of images that are read from their files."""
        files = self.splits[split]
        assert isinstance(files, MaskedFiles)
        pairs = MaskedImages.of(**self._read(files, index))
        view = self.views(index, pairs.images.size, seed)
        return self.batch(pairs, torch.arange(len(index)), view, self.fill, seed) | {"index": index}

    def batch(self, pairs: MaskedImages, index: Tensor, view: Tensor, fill: Tensor, seed: int | None) -> Batch:
        """Images and labels of a batch, as :func:`~foveal.data.images.crops.cropped` takes them."""
        crop = self.crop
        if seed is None:
            height, width = canvases(pairs.images.size[index]).amax(0).tolist()
            crop = (height, width)
        scaled = seed is not None and self.scale != (1.0, 1.0)
        image, label = cropped(pairs, index, view, crop, fill, scaled=scaled)
        return {"image": image, "label": label}


class HeldCrops:
    """Gathers batches of images that lie on the device already, augmented there.

    Args:
        source: the dataset.
        pairs: the images of one split.
        seed: of a training epoch; None for whole images.
    """

    def __init__(self, source: SegmentData, pairs: MaskedImages, seed: int | None) -> None:
        self.source, self.pairs, self.seed = source, pairs, seed
        self.fill = source.fill.to(pairs.labels.device)

    @cached_property
    def _views(self) -> Tensor:
        """Of the whole epoch at once, because a step would wait for each of its own."""
        size = self.pairs.images.size.cpu()
        return self.source.views(torch.arange(len(size)), size, self.seed).to(self.pairs.labels.device)

    def __call__(self, index: Tensor) -> Batch:
        """The samples with these numbers as one batch."""
        return self.source.batch(self.pairs, index, self._views[index], self.fill, self.seed) | {"index": index}
