"""Images with boxes around their objects, whatever their format on disk.

A reader (:attr:`BoxFormat.read`) says which images there are and what is in them; this file divides them into splits
and makes batches. A batch holds lists, because images have different sizes and numbers of objects, in the form that
torchvision's detectors take. Images are decoded once, kept in the cache and held on the training device, if they fit;
otherwise worker processes read them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.functional import pil_to_tensor

from foveal.data._random import uniform
from foveal.data.batches import CPU, Batches, EpochBatches, Gather, epoch_seed
from foveal.data.cache import cached, files_state
from foveal.data.check import check_files
from foveal.data.images.boxed import BoxedImages, BoxFormat, BoxOptions, BoxSet, read_sized, turned_files
from foveal.data.images.boxes import BoxedFiles, Objects, Target
from foveal.data.images.crops import CanvasBatches, canvases
from foveal.data.images.format import check_reading, described
from foveal.data.images.labelled import WholeImages
from foveal.data.images.masked import resized_to
from foveal.data.problems import Problem, Progress
from foveal.data.registry import Entry, register_data
from foveal.data.splits import divide, mapped
from foveal.errors import DataError, UserError, unknown

__all__ = ["BoxData", "BoxFormat", "BoxOptions", "BoxSet", "register_boxes"]

MOST_HELD = 4 * 2**30  # bytes
NOTHING = "no training image has an object that counts; there is nothing to learn"
FLIP = 0  # stream of random numbers


def register_boxes(form: BoxFormat, summary: str) -> Entry:
    """Make a dataset of images with boxes known by its format."""
    build, check = partial(BoxData, form), partial(check_boxes, form)
    return register_data(Entry(form.name, summary, BoxOptions, build, form.place, check))


def check_boxes(form: BoxFormat, options: BoxOptions, root: Path | None, progress: Progress) -> Iterator[Problem]:
    """Read all annotations and images of a dataset and yield what is wrong with them."""
    found, problems = form.try_read(root, options.folder)
    yield from problems
    if found is None:
        return
    for split, images in found.splits.items():
        assert isinstance(images, BoxedFiles)
        sizes = dict(zip(images.files, images.sizes, strict=True))

        def read(file: Path, sizes: dict[Path, tuple[int, int]] = sizes) -> None:
            read_sized(file, sizes[file])

        unread = set()
        for problem in check_files(images.files, progress, f"reading {split} images", read):
            unread.add(problem.file)
            yield problem
        yield from turned_files({file: size for file, size in sizes.items() if file not in unread})
    if "test" in found.splits and not len(found.splits["test"].objects.counted().labels):
        yield Problem("no test image has an object: nothing can be measured", stops=False)
    if "train" in found.splits:
        absent = absent_classes(found.answers, found.splits["train"].objects)
        if len(absent) == len(found.answers):
            yield Problem(NOTHING)
            return
        for name in absent:
            yield Problem(f"class {name!r} is in no training image: no model can learn it", stops=False)


def absent_classes(answers: Sequence[str], objects: Objects) -> list[str]:
    """Names of the classes of which there is no object that counts."""
    counts = objects.counted().labels.bincount(minlength=len(answers) + 1)[1:]
    return [name for name, count in zip(answers, counts.tolist(), strict=False) if not count]


class BoxData:
    """A dataset of images with boxes, ready to be trained on.

    Attributes:
        answers: names of the classes; the first has label 1.
        scenes: names of the classes of whole images, or None.
        related: whether relations between objects are annotated.
        splits: the samples of ``train``, ``val`` and ``test``.
    """

    flip: bool
    val_fraction: float

    def __init__(self, form: BoxFormat, options: BoxOptions, root: Path | None) -> None:
        self.form, self.name, self.options, self.root = form, form.name, options, root
        self.embedded = form.place is None
        self.flip = form.flip if options.flip is None else options.flip
        self.val_fraction = form.val_fraction if options.val_fraction is None else options.val_fraction
        check_reading(options.short, options.workers, self.val_fraction, options.test_fraction)
        self.folder = Path() if form.place is None else form.place.find(root, options.folder, name=form.name)
        self.title = self.folder.resolve().name if form.own_files else form.title
        found = form.read(self.folder)  # what is missing stops here
        self.answers, self.scenes, self.official = found.answers, found.scenes, tuple(found.splits)
        self.splits: dict[str, BoxedFiles | BoxedImages]
        self.splits = divide(found.splits, self.val_fraction, options.test_fraction, options.seed)
        self.related = self.splits["test"].objects.related
        self.splits["train"] = self._training(self.splits["train"])
        self.held = self._holds()
        if self.held:
            self.splits = mapped(self.splits, self._decode)
        self._on_device: dict[tuple[int, str], BoxedImages] = {}

    def _training(self, images: Any) -> Any:
        """The images to train on, without crowds and difficult objects, and without empty images if asked for."""
        images = replace(images, objects=images.objects.counted())
        full = torch.tensor(images.objects.first).diff() > 0
        if not bool(full.any()):
            raise DataError(f"data.name={self.name}: {NOTHING}")
        return images if self.options.empty or bool(full.all()) else images.take(full.nonzero()[:, 0])

    # Decoding ----------------------------------------------------------------------

    def _holds(self) -> bool:
        files = {id(images): images for images in self.splits.values() if isinstance(images, BoxedFiles)}
        if not files or self.options.hold is not None:
            return not files or bool(self.options.hold)
        sizes = (resized_to(size, self.options.short) for images in files.values() for size in images.sizes)
        return 3 * sum(width * height for width, height in sizes) < MOST_HELD

    def _decode(self, split: str, images: BoxedFiles | BoxedImages) -> BoxedImages:
        """The files of a split as pixels, by way of the disk cache."""
        if isinstance(images, BoxedImages):
            return images
        key: dict[str, object] = {"files": files_state(images.files), "short": self.options.short}
        key["sizes"] = hash(tuple(images.sizes))  # of integers: the same in every process

        def make() -> dict[str, Tensor]:
            order, read = EpochBatches(len(images), 64), cast(Gather, partial(self._pixels, images))
            # A copy, because what comes from another process lies in shared memory, of which there may be little.
            parts = [part["pixels"].clone() for part in Batches(order, read, CPU, workers=self.options.workers)]
            return {"pixels": torch.cat(parts)}

        pixels = cached(f"{self.name}-{split}", key, make)["pixels"]
        size = torch.tensor([resized_to(size, self.options.short)[::-1] for size in images.sizes])
        return BoxedImages(WholeImages.of(pixels, size), self._resized(images))

    def _pixels(self, images: BoxedFiles, index: Tensor) -> dict[str, Tensor]:
        parts = [self._read(images.files[n], images.sizes[n]).permute(1, 2, 0).flatten(0, 1) for n in index.tolist()]
        return {"pixels": torch.cat(parts)}

    def _read(self, file: Path, size: tuple[int, int]) -> Tensor:
        """An image file as uint8 (3, H, W)."""
        image, resized = read_sized(file, size), resized_to(size, self.options.short)
        return pil_to_tensor(image if image.size == resized else image.resize(resized, Image.Resampling.BILINEAR))

    def _resized(self, images: BoxedFiles) -> Objects:
        """Objects in pixels of the images that :meth:`_read` makes."""
        objects = images.objects
        if self.options.short is None:
            return objects
        factors = torch.tensor(
            [[n / o for n, o in zip(resized_to(s, self.options.short), s, strict=True)] * 2 for s in images.sizes]
        )
        return replace(objects, boxes=objects.boxes * factors.repeat_interleave(torch.tensor(objects.first).diff(), 0))

    # What a task asks --------------------------------------------------------------

    def describe(self) -> str:
        """One line on what the data is."""
        short, absent = self.options.short, absent_classes(self.answers, self.splits["train"].objects)
        listed = ", ".join(absent[:5]) + (f" and {len(absent) - 5} more" if len(absent) > 5 else "")
        return described(
            self.form,
            len(self.answers),
            self.splits,
            self.official,
            first=[f"short side {short}"] if short else [],
            last=[f"in no training image: {listed}"] if absent else [],
        )

    def about(self) -> dict[str, Any]:
        """Names of the classes, and how an image becomes the model's input."""
        about: dict[str, Any] = {
            "answers": self.answers,
            "view": {"short": self.options.short},
            "asked": f"what is where ({len(self.answers)} classes)",
        }
        return about if self.scenes is None else about | {"scenes": self.scenes}

    def held_on(self, split: str, device: torch.device) -> BoxedImages:
        """Images and objects of ``split`` on ``device``, moved there once; sizes stay where Python reads them."""
        images = self.splits[split]
        assert isinstance(images, BoxedImages)
        key = (id(images), str(device))  # validation and test may be the same images
        if key not in self._on_device:
            whole = WholeImages(images.images.pixels.to(device), images.images.size, images.images.first)
            self._on_device[key] = BoxedImages(whole, images.objects.to(device))
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

        They hold lists: image uint8 (3, H, W) of any sizes, and target, a dict with boxes float (m, 4), labels int64
        (m,) from 1 on, iscrowd and difficult bool (m,), image_id, and where the dataset has them relations int64
        (r, 2), rows of subject and object, and scene int64 (). Training targets have no crowds and no difficult
        objects. Beside the lists there is index, int64 (N,).
        """
        if split not in self.splits:
            raise unknown("split", split, self.splits)
        if masks:
            raise UserError(f"data.name={self.name} has boxes, but no masks of single objects")
        shuffle = epoch_seed(seed, epoch) if split == "train" else None
        order: EpochBatches
        if shuffle is None:
            order = CanvasBatches(canvases(self._sizes(split)), batch, rank, world)
        else:
            order = EpochBatches(len(self.splits[split]), batch, shuffle, rank, world)
        if self.held:
            gather = HeldBoxes(self, self.held_on(split, device), shuffle)
            return Batches(order, cast(Gather, gather), CPU)  # numbers stay on the CPU: a GPU need not wait for them
        files = FileBoxes(self, cast(BoxedFiles, self.splits[split]), shuffle)
        return Batches(order, cast(Gather, files), device, workers=self.options.workers)

    def _sizes(self, split: str) -> Tensor:
        """Height and width of each image, int64 (N, 2)."""
        images = self.splits[split]
        if isinstance(images, BoxedImages):
            return images.images.size
        return torch.tensor([resized_to(size, self.options.short)[::-1] for size in images.sizes])


class _Boxes(ABC):
    """Gathers batches; subclasses say where an image comes from.

    Args:
        source: the dataset.
        objects: of the images of one split.
        seed: of a training epoch; None for images as they are.
    """

    def __init__(self, source: BoxData, objects: Objects, seed: int | None) -> None:
        self.source, self.objects, self.seed = source, objects, seed

    @abstractmethod
    def image(self, number: int) -> Tensor:
        """uint8 (3, H, W)."""

    def __call__(self, index: Tensor) -> dict[str, Any]:
        """The samples with these numbers as one batch."""
        numbers = index.tolist()
        samples = [self._sample(n, flipped) for n, flipped in zip(numbers, self._flipped(index).tolist(), strict=True)]
        images, targets = zip(*samples, strict=True)
        return {"image": list(images), "target": list(targets), "index": index}

    def _flipped(self, index: Tensor) -> Tensor:
        if self.seed is None or not self.source.flip:
            return torch.zeros(len(index), dtype=torch.bool)
        return uniform(self.seed, FLIP, index) < 0.5

    def _sample(self, number: int, flipped: bool) -> tuple[Tensor, Target]:
        image, target = self.image(number), self.objects.target(number)
        target["image_id"] = number
        if flipped:
            image, target["boxes"] = mirrored(image, target["boxes"])
        return image, target


def mirrored(image: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
    """An image (3, H, W) and its boxes (m, 4), left and right exchanged."""
    left, top, right, bottom = boxes.unbind(1)
    width = image.shape[-1]
    return image.flip(-1), torch.stack([width - right, top, width - left, bottom], 1)


class HeldBoxes(_Boxes):
    """Batches of images that lie on the device already."""

    def __init__(self, source: BoxData, images: BoxedImages, seed: int | None) -> None:
        super().__init__(source, images.objects, seed)
        self.pixels = images.images.pixels
        self.sizes, self.first = images.images.size.tolist(), images.images.first.tolist()

    def image(self, number: int) -> Tensor:
        """A view of the held pixels, uint8 (3, H, W)."""
        height, width = self.sizes[number]
        first = self.first[number]
        return self.pixels[first : first + height * width].view(height, width, 3).permute(2, 0, 1)


class FileBoxes(_Boxes):
    """Batches of images that are read from their files."""

    def __init__(self, source: BoxData, images: BoxedFiles, seed: int | None) -> None:
        super().__init__(source, source._resized(images), seed)
        self.images = images

    def image(self, number: int) -> Tensor:
        """uint8 (3, H, W)."""
        return self.source._read(self.images.files[number], self.images.sizes[number])
