"""Images to classify, whatever their format on disk.

A reader (:attr:`Format.read`) says which images and labels there are; this file divides them into splits and makes
batches. Image files are read by worker processes, or decoded once, held on the training device and augmented there, a
batch at a time (:mod:`foveal.data.images.held`): by default if they are not cropped from the whole image and fit into
memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from foveal.data.batches import Batches, Collated, EpochBatches, epoch_seed
from foveal.data.cache import cached, files_state
from foveal.data.check import check_files
from foveal.data.images.augment import resized, resized_masks, seeded, short_side, view, whole
from foveal.data.images.format import Format, ImageOptions, described
from foveal.data.images.held import HeldImages, decode
from foveal.data.images.labelled import ImageSet, LabelledImages, WholeImages
from foveal.data.images.reading import read_header, read_image
from foveal.data.problems import Problem, Progress, collected, collecting
from foveal.data.registry import Entry, register_data
from foveal.data.splits import complete, mapped, some_of_each
from foveal.errors import DataError, UserError, unknown

__all__ = ["Format", "ImageData", "ImageOptions", "check_images", "register_images"]

MOST_HELD = 4 * 2**30  # bytes
CROPPED = ("large", "crop")  # from the whole image, in training


def register_images(form: Format, summary: str) -> Entry:
    """Make a dataset of images to classify known by its format."""
    build, check = partial(ImageData, form), partial(check_images, form)
    return register_data(Entry(form.name, summary, ImageOptions, build, form.place, check))


def check_images(form: Format, options: ImageOptions, root: Path | None, progress: Progress) -> Iterator[Problem]:
    """Read all lists, images and boxes of a dataset and yield what is wrong with them."""
    images, problems = form.try_read(root, options.folder)
    yield from problems
    if images is None:
        return
    damaged: list[str] = []
    for split, samples in images.splits.items():
        if samples.are_files:
            files = [samples.file(n) for n in range(len(samples))]
            for problem in check_files(files, progress, f"reading {split} images"):
                damaged.append(str(problem.file))
                yield problem
    if images.boxes is not None:
        with collecting() as problems, collected():
            images.boxes(_tested(images.splits))
        yield from (p for p in problems if not any(file in p.message for file in damaged))


class ImageFiles(Dataset[dict[str, Any]]):
    """Image files of one split, read one by one.

    Args:
        samples: the files and their labels.
        view: makes uint8 (3, S, S) of an image.
        seed: of a training epoch, if ``view`` is random.
    """

    def __init__(self, samples: LabelledImages, view: Callable[[Any], Tensor], seed: int | None) -> None:
        self.samples, self.view, self.seed = samples, view, seed

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, n: int) -> dict[str, Any]:
        image = read_image(self.samples.file(n))
        pixels = self.view(image) if self.seed is None else seeded(self.view, image, self.seed, n)
        return {"image": pixels, **self.samples.labels_of(n), "index": n}


class ImageData:
    """A classification dataset, ready to be trained on.

    Attributes:
        answers: names of the classes.
        multilabel: whether an image may have several.
        splits: the images of ``train``, ``val`` and ``test``.
    """

    def __init__(self, form: Format, options: ImageOptions, root: Path | None) -> None:
        self.form, self.name, self.options, self.root = form, form.name, options, root
        self.embedded = form.place is None
        self.size = _or(options.size, form.size)
        self.augment = _or(options.augment, form.augment)
        self.flip = _or(options.flip, form.flip)
        self.val_fraction = _or(options.val_fraction, form.val_fraction)
        self.mean, self.std = _or(options.mean, form.mean), _or(options.std, form.std)
        self._check_options()
        self.folder = Path() if form.place is None else form.place.find(root, options.folder, name=form.name)
        self.title = self.folder.resolve().name if form.own_files else form.title
        images = form.read(self.folder)  # what is missing stops here
        self.answers, self.official, self._boxes = images.answers, tuple(images.splits), images.boxes
        files = sum(len(samples) for samples in images.splits.values() if samples.are_files)
        self.held = not files or self._holds(files)
        if files and form.own_files and not self.held:  # those that are held are decoded now
            self._check_headers(images)
        if not files and self.augment in CROPPED:
            raise UserError(
                f"data.augment={self.augment} needs image files; {self.name} is held in memory: use small or none"
            )
        if options.keep is not None:
            images.splits["train"] = self._with_boxes(images)
        self._short = short_side(self.size) if files and self.augment != "small" else self.size
        self.splits = self._divide(images.splits)
        if files and self.held:  # only now, because each split is decoded as it is used
            self.splits = mapped(self.splits, self._decode)
        self.multilabel = self.splits["train"].labels.ndim == 2
        self._on_device: dict[tuple[str, str], LabelledImages] = {}

    def _check_headers(self, images: ImageSet) -> None:
        """Find a file that is no image now, and not in the test after training."""
        files = [s.file(n) for s in images.splits.values() if s.are_files for n in range(len(s))]
        problems = list(check_files(files, read=read_header))
        if problems:
            more = f"; {len(problems)} files cannot be read, `foveal data check {self.name}` names all"
            raise DataError(f"{problems[0]}{more if len(problems) > 1 else ''}")

    def _with_boxes(self, images: ImageSet) -> LabelledImages:
        """The training images with the boxes that their crops have to keep in view."""
        if images.boxes is None:
            raise UserError(f"data.keep={self.options.keep}: {self.name} has no boxes of objects here; leave it out")
        if self.augment not in CROPPED or not self.held:
            raise UserError(
                f"data.keep={self.options.keep} is for crops of held images: add data.hold=true and data.augment=large "
                "or crop"
            )
        return replace(images.splits["train"], boxes=images.boxes("train"))

    def _divide(self, splits: dict[str, LabelledImages]) -> dict[str, LabelledImages]:
        o = self.options
        if o.per_class is None:
            return complete(splits, self.val_fraction, o.test_fraction, o.seed)
        if set(splits) != {"train"}:
            raise UserError(f"data.per_class is for datasets without official splits; {self.name} has {sorted(splits)}")
        train, test = some_of_each(splits["train"], o.per_class, o.seed)
        return {"train": train, "val": test, "test": test}

    def _holds(self, files: int) -> bool:
        small = self.augment not in CROPPED and 3 * self.size**2 * files < MOST_HELD
        return _or(self.options.hold, small)

    def _decode(self, split: str, samples: LabelledImages) -> LabelledImages:
        """The image files of a split as pixels, by way of the disk cache: opening 50,000 files takes a while."""
        files = files_state(samples.file(n) for n in range(len(samples)))
        key: dict[str, object] = {"files": files, "size": self.size, "small": self.augment == "small"}
        seen_as: Callable[[Any], Tensor] = view(self.size, self.augment, self.flip, False)
        cropped = split == "train" and self.augment in CROPPED
        if cropped:
            key["whole"] = self.augment
            seen_as = partial(whole, short=short_side(self.size), enlarge=self.augment == "crop")
        pixels = cached(f"{self.name}-{split}", key, lambda: decode(samples, seen_as, self.options.workers, cropped))
        images = WholeImages.of(**pixels) if cropped else pixels["pixels"]
        return LabelledImages(images, samples.labels, samples.valid, boxes=samples.boxes)

    def _check_options(self) -> None:
        o = self.options
        if self.size < 1:
            raise UserError(f"data.size={self.size}: expected 1 or more")
        if o.workers < 0:
            raise UserError(f"data.workers={o.workers}: expected 0 or more")
        if not 0 <= self.val_fraction < 1:
            raise UserError(f"data.val_fraction={self.val_fraction}: expected 0 or more and less than 1")
        if not 0 < o.test_fraction < 1:
            raise UserError(f"data.test_fraction={o.test_fraction}: expected more than 0 and less than 1")
        if o.keep is not None and not 0 < o.keep <= 1:
            raise UserError(f"data.keep={o.keep}: expected more than 0 and at most 1")
        if not min(self.std) > 0:
            raise UserError(f"data.std={list(self.std)}: expected three numbers above 0")

    def describe(self) -> str:
        """One line on what the data is."""
        size = f", {self.size}×{self.size}"
        return described(self.form, len(self.answers), self.splits, self.official, size=size)

    def about(self) -> dict[str, Any]:
        """Names of the classes, and how an image becomes the model's input."""
        return {
            "answers": self.answers,
            "multilabel": self.multilabel,
            "size": self.size,
            "view": {"size": self.size, "augment": self.augment, "mean": list(self.mean), "std": list(self.std)},
            "question": "What does this show?",
            "asked": f"what they show ({len(self.answers)} classes)",
        }

    def boxes(self) -> Tensor | None:
        """Where objects are in the test images as the model sees them; None if the dataset does not say.

        Returns:
            float (N, M, 5): class, or -1 for no object, and x0, y0, x1, y1 in pixels, also of what is cut off.
        """
        if self._boxes is None:
            return None
        boxes = self._boxes(_tested(self.official))
        return torch.cat([boxes[..., :1], boxes[..., 1:] * self._short + self.size / 2], 2)

    def held_on(self, split: str, device: torch.device) -> LabelledImages:
        """Pixels and labels of ``split`` on ``device``, moved there once."""
        samples, key = self.splits[split], (split, str(device))
        if key not in self._on_device:
            images, valid, masks = samples.images, samples.valid, samples.masks
            assert isinstance(images, Tensor | WholeImages)
            self._on_device[key] = LabelledImages(
                (resized(images, self.size) if isinstance(images, Tensor) else images).to(device),
                samples.labels.to(device),
                None if valid is None else valid.to(device),
                None if masks is None else resized_masks(masks, self.size).to(device),
                samples.boxes,
            )
        return self._on_device[key]

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

        They hold image uint8 (N, 3, S, S), label int64 (N,) or of 0 and 1 float (N, K), index (N,) and, where the
        official evaluation leaves some labels out, valid bool (N, K); with ``masks`` also mask bool (N, S, S).
        """
        if split not in self.splits:
            raise unknown("split", split, self.splits)
        samples = self.splits[split]
        if masks and samples.masks is None:
            raise UserError(f"data.name={self.name} has no masks of objects; use a dataset that has, such as confusion")
        shuffle = epoch_seed(seed, epoch) if split == "train" else None
        order = EpochBatches(len(samples), batch, shuffle, rank, world)
        augment_seed = shuffle if self.augment != "none" else None
        if not self.held:
            seen_as = view(self.size, self.augment, self.flip, split == "train")
            files = ImageFiles(samples, seen_as, augment_seed)
            return Batches(order, Collated(files), device, workers=self.options.workers)
        held = self.held_on(split, device)
        options: dict[str, Any] = {
            "augment": self.augment,
            "flip": self.flip,
            "masks": masks,
            "keep": self.options.keep,
        }
        return Batches(order, HeldImages(held, side=self.size, seed=augment_seed, **options), device)


def _tested(splits: Collection[str]) -> str:
    """The official split that models are tested on."""
    return "test" if "test" in splits else "val"


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value
