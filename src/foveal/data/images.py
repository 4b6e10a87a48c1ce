"""Images to be classified as a dataset of recipes, whatever the format on disk.

The readers of :mod:`foveal.data.classification` say which images and labels there are; this file divides them into
splits and makes batches. Image files are read by worker processes, or decoded once, held on the training device and
augmented there, a batch at a time (:mod:`foveal.data.held`): by default if they are not cropped from the whole image
and fit into memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from foveal.data.augment import resized, seeded, short_side, view, whole
from foveal.data.batches import EpochBatches, epoch_seed, read_batches
from foveal.data.cache import cached
from foveal.data.held import HeldImages, decode
from foveal.data.pictures import read_image
from foveal.data.samples import Found, Samples, WholeImages, complete, some_of_each
from foveal.errors import DataError, UserError, unknown

HELD = 4 * 2**30  # bytes
CROPPED = ("large", "crop")  # from the whole image, in training


@dataclass(frozen=True)
class ImageOptions:
    """The ``data`` section of a recipe; null stands for what is usual with the dataset.

    Attributes:
        folder: folder with the files, below the data folder or absolute.
        size: side of the images that the model sees.
        augment: ``large``, ``crop``, ``small`` or ``none`` (see :mod:`foveal.data.augment`).
        flip: whether the first three also mirror images.
        val_fraction: part of the training images to choose models by, where the dataset has no split for that; 0 to
            choose by the test images, as some papers do.
        test_fraction: part of the images to test on, where the dataset has no official splits at all.
        per_class: so many training and test images of each class, where the dataset has no official splits; instead of
            ``test_fraction``, and then the test images choose the epoch.
        seed: which division into splits; independent of the training seed, so that all runs see the same test set.
        workers: processes that read images, in each training process; 0 to read in the training process itself.
        hold: decode all image files once, keep them in the cache, and train from the device's memory; null: if
            ``augment`` is ``small`` or ``none`` and they take less than 4 GB. For ``large`` and ``crop`` whole images
            are held, with a short side of at most 256/224 of ``size``.
        mean, std: of each colour, in [0, 1]; the model sees (pixel − mean) / std.
    """

    folder: str | None = None
    size: int | None = None
    augment: Literal["none", "small", "crop", "large"] | None = None
    flip: bool | None = None
    val_fraction: float | None = None
    test_fraction: float = 0.2
    per_class: tuple[int, int] | None = None
    seed: int = 0
    workers: int = 2
    hold: bool | None = None
    mean: tuple[float, float, float] | None = None
    std: tuple[float, float, float] | None = None


@dataclass(frozen=True)
class Format:
    """A dataset's format and what is usual with it.

    Attributes:
        name, title: in recipes, and for people.
        read: finds classes and samples in the folder.
        folders: names that the folder may have below the data folder; none for an embedded dataset.
        how: where to get the files.
        size, augment, flip, val_fraction, mean, std: as in :class:`ImageOptions`.
        note: added to the description.
    """

    name: str
    title: str
    read: Callable[[Path], Found]
    folders: tuple[str, ...] = ()
    how: str = ""
    size: int = 224
    augment: Literal["none", "small", "crop", "large"] = "large"
    flip: bool = True
    val_fraction: float = 0.1
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)  # ImageNet's
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    note: str = ""


class ImageFiles(Dataset[dict[str, Any]]):
    """Image files of one split, read one by one; augmented if ``seed`` is that of a training epoch."""

    def __init__(self, samples: Samples, make: Callable[[Any], Tensor], seed: int | None) -> None:
        self.samples, self.make, self.seed = samples, make, seed

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, n: int) -> dict[str, Any]:
        image = read_image(self.samples.file(n))
        made = self.make(image) if self.seed is None else seeded(self.make, image, self.seed, n)
        return {"image": made, **self.samples.labels_of(n), "index": n}


class ImageData:
    """A classification dataset, ready to be trained on."""

    def __init__(self, form: Format, options: ImageOptions, root: Path | None) -> None:
        self.form, self.name, self.options, self.root = form, form.name, options, root
        self.embedded = not form.folders
        self.size = _or(options.size, form.size)
        self.augment = _or(options.augment, form.augment)
        self.flip = _or(options.flip, form.flip)
        self.val_fraction = _or(options.val_fraction, form.val_fraction)
        self.mean, self.std = _or(options.mean, form.mean), _or(options.std, form.std)
        self._check()
        folder = Path() if self.embedded else _locate(form, options.folder, root)
        found = form.read(folder)  # what is missing stops here
        self.queries: list[str] = []
        self.answers, self.official, self._boxes = found.answers, tuple(found.splits), found.boxes
        files = sum(len(samples) for samples in found.splits.values() if not isinstance(samples.images, Tensor))
        self.held = not files or self._hold(files)
        if not files and self.augment in CROPPED:
            raise UserError(
                f"data.augment={self.augment} needs image files; {self.name} is held in memory: use small or none"
            )
        self._short = short_side(self.size) if files and self.augment != "small" else self.size
        self.splits = self._divided(found.splits)
        if files and self.held:  # only now, for each split is decoded as it is used
            self.splits = self._all_decoded(self.splits)
        self.multilabel = self.splits["train"].labels.ndim == 2
        self._on: dict[tuple[str, str], Samples] = {}

    def _divided(self, splits: dict[str, Samples]) -> dict[str, Samples]:
        o = self.options
        if o.per_class is None:
            return complete(splits, self.val_fraction, o.test_fraction, o.seed)
        if set(splits) != {"train"}:
            raise UserError(f"data.per_class is for datasets without official splits; {self.name} has {sorted(splits)}")
        train, test = some_of_each(splits["train"], o.per_class, o.seed)
        return {"train": train, "val": test, "test": test}

    def _hold(self, files: int) -> bool:
        small = self.augment not in CROPPED and 3 * self.size**2 * files < HELD
        return _or(self.options.hold, small)

    def _all_decoded(self, splits: dict[str, Samples]) -> dict[str, Samples]:
        """The splits as pixels; where validation and test are the same images, they still are."""
        train, test = self._decoded("train", splits["train"]), self._decoded("test", splits["test"])
        val = test if splits["val"] is splits["test"] else self._decoded("val", splits["val"])
        return {"train": train, "val": val, "test": test}

    def _decoded(self, split: str, samples: Samples) -> Samples:
        """The image files of a split as pixels, by way of the disk cache: opening 50,000 files takes a while."""
        state = hashlib.sha256()
        for n in range(len(samples)):
            file = samples.file(n)
            try:
                about = file.stat()
            except OSError as error:
                raise DataError(f"{file}: no such image file") from error
            state.update(f"{file}\0{about.st_size}\0{about.st_mtime_ns}\n".encode(errors="surrogateescape"))
        key: dict[str, object] = {"files": state.hexdigest(), "size": self.size, "small": self.augment == "small"}
        make = view(self.size, self.augment, self.flip, False)
        cropped = split == "train" and self.augment in CROPPED
        if cropped:
            key["whole"] = self.augment
            make = partial(whole, short=short_side(self.size), enlarge=self.augment == "crop")
        data = ImageFiles(samples, make, None)
        found = cached(f"{self.name}-{split}", key, lambda: decode(data, self.options.workers, cropped))
        images = WholeImages.of(**found) if cropped else found["pixels"]
        return Samples(images, samples.labels, samples.valid)

    def _check(self) -> None:
        o = self.options
        if self.size < 1:
            raise UserError(f"data.size={self.size}: expected 1 or more")
        if o.workers < 0:
            raise UserError(f"data.workers={o.workers}: expected 0 or more")
        if not 0 <= self.val_fraction < 1:
            raise UserError(f"data.val_fraction={self.val_fraction}: expected 0 or more and less than 1")
        if not 0 < o.test_fraction < 1:
            raise UserError(f"data.test_fraction={o.test_fraction}: expected more than 0 and less than 1")
        if not min(self.std) > 0:
            raise UserError(f"data.std={list(self.std)}: expected three numbers above 0")

    def describe(self) -> str:
        """One line on what the data is."""
        sizes = " + ".join(f"{len(split):,}" for split in self.splits.values())
        said = f"{self.form.title}, {len(self.answers)} classes, {sizes} images for training, validation and test"
        notes = [self.form.note] if self.form.note else []
        if self.splits["val"] is self.splits["test"]:
            notes.append("validation and test are the same images")
        if self.official == ("train",):
            notes.append("no official splits: divided at random")
        elif "test" not in self.official:
            notes.append("tested on the official validation images")
        return f"{said}, {self.size}×{self.size}" + "".join(f"; {note}" for note in notes)

    def boxes(self) -> Tensor | None:
        """Where things are in the test images as the model sees them; None if the dataset does not say.

        Returns:
            float (N, M, 5): class, or -1 for no thing, and x0, y0, x1, y1 in pixels, also of what is cut off.
        """
        if self._boxes is None:
            return None
        found = self._boxes()
        return torch.cat([found[..., :1], found[..., 1:] * self._short + self.size / 2], 2)

    def held_on(self, split: str, device: torch.device) -> Samples:
        """Pixels and labels of ``split`` on ``device``, moved there once."""
        samples, key = self.splits[split], (split, str(device))
        if key not in self._on:
            images = samples.images
            assert not isinstance(images, np.ndarray)
            images = resized(images, self.size) if isinstance(images, Tensor) else images
            valid = None if samples.valid is None else samples.valid.to(device)
            self._on[key] = Samples(images.to(device), samples.labels.to(device), valid)
        return self._on[key]

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
    ) -> Iterable[dict[str, Tensor]]:
        """Batches of ``split`` for one epoch; held images on ``device``, others in memory pinned if that is a GPU.

        They hold image uint8 (N, 3, S, S), label int64 (N,) or of 0 and 1 float (N, K), index (N,) and, where the
        official evaluation leaves some labels out, valid bool (N, K).
        """
        if split not in self.splits:
            raise unknown("split", split, self.splits)
        shuffle = epoch_seed(seed, epoch) if split == "train" else None
        number = shuffle if self.augment != "none" else None
        if not self.held:
            data = ImageFiles(self.splits[split], view(self.size, self.augment, self.flip, split == "train"), number)
            where: dict[str, Any] = {"rank": rank, "world": world, "device": device}
            return read_batches(data, batch, shuffle=shuffle, workers=self.options.workers, **where)
        samples = self.held_on(split, device)
        batches = EpochBatches(len(samples), batch, shuffle, rank, world)
        return HeldImages(samples, batches, side=self.size, seed=number, augment=self.augment, flip=self.flip)


def _or(given: Any, usual: Any) -> Any:
    return usual if given is None else given


def _locate(form: Format, folder: str | None, root: Path | None) -> Path:
    """The folder with the dataset's files."""
    names = [Path(name).expanduser() for name in ([folder] if folder else form.folders)]
    if root is None and not names[0].is_absolute():
        raise DataError(
            f"{form.name}: set FOVEAL_DATA (or --data) to a folder that holds {names[0]}/, or data.folder to its full "
            f"path; {form.how}"
        )
    places = [(root or Path()) / name for name in names]
    for place in places:
        if place.is_dir():
            return place
    raise DataError(f"{form.name}: no folder {' or '.join(map(str, places))}; {form.how}")
