"""How the images of a dataset are read, what is usual with them, and the options of a recipe's ``data`` section."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, TypeVar

from foveal.data.images.labelled import ImageSet
from foveal.data.place import Place
from foveal.data.problems import Problem, collected, collecting
from foveal.errors import UserError

Found = TypeVar("Found")


@dataclass(frozen=True)
class ImageOptions:
    """The ``data`` section of a recipe; null stands for what is usual with the dataset.

    Attributes:
        folder: folder of the files, absolute or relative to the data folder.
        size: side of the images that the model sees.
        augment: ``large``, ``crop``, ``small`` or ``none`` (see :mod:`foveal.data.images.augment`).
        flip: whether ``large``, ``crop`` and ``small`` also mirror images at random.
        keep: a random crop must show at least this part of one object's box for each class of the image: the first
            of ten crops that does is used, or else the whole image; null: any crop. For ``large`` and ``crop``, with
            ``hold`` and boxes.
        val_fraction: part of the training images used for validation, if the dataset has no validation split; 0:
            validate on the test images, as some papers do.
        test_fraction: part of the images used for testing, if the dataset has no official splits.
        per_class: numbers of training and test images of each class, if the dataset has no official splits; replaces
            ``test_fraction``, and the test images are used for validation too.
        seed: seed of the random splits; independent of the training seed, so that all runs have the same test set.
        workers: processes that read images, per training process; 0: the training process reads them itself.
        hold: decode all image files once, keep them in the cache, and train from the device's memory; null: do so
            if ``augment`` is ``small`` or ``none`` and they take less than 4 GB. For ``large`` and ``crop`` whole
            images are held, with a short side of at most 256/224 of ``size``.
        mean, std: mean and standard deviation of each colour, for pixels in [0, 1]; the model sees
            (pixel − mean) / std.
    """

    folder: str | None = None
    size: int | None = None
    augment: Literal["none", "small", "crop", "large"] | None = None
    flip: bool | None = None
    keep: float | None = None
    val_fraction: float | None = None
    test_fraction: float = 0.2
    per_class: tuple[int, int] | None = None
    seed: int = 0
    workers: int = 2
    hold: bool | None = None
    mean: tuple[float, float, float] | None = None
    std: tuple[float, float, float] | None = None


@dataclass(frozen=True)
class ImageFormat(Generic[Found]):
    """What formats of images have in common, whatever is to be said of the images.

    Attributes:
        name, title: in recipes, and for people.
        read: finds classes and samples in the folder.
        place: where the folder is; None for an embedded dataset.
        flip, val_fraction, mean, std: what is usual; as in the options of the dataset.
        note: added to the description.
        own_files: whether the images are the user's own, so that the dataset is called after their folder.
    """

    name: str
    title: str
    read: Callable[[Path], Found]
    place: Place | None = None
    flip: bool = True
    val_fraction: float = 0.1
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)  # ImageNet's
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    note: str = ""
    own_files: bool = False

    def try_read(self, root: Path | None, folder: str | None) -> tuple[Found | None, list[Problem]]:
        """What :attr:`read` finds, None if it cannot or the dataset is embedded; and what is wrong with the files."""
        if self.place is None:
            return None, []
        found: Found | None = None
        with collecting() as problems, collected():
            found = self.read(self.place.find(root, folder, name=self.name))
        return found, problems


def check_reading(short: int | None, workers: int, val_fraction: float, test_fraction: float) -> None:
    """Raise unless these options of a ``data`` section make sense."""
    if short is not None and short < 1:
        raise UserError(f"data.short={short}: expected 1 or more")
    if workers < 0:
        raise UserError(f"data.workers={workers}: expected 0 or more")
    if not 0 <= val_fraction < 1 or not 0 < test_fraction < 1:
        raise UserError(
            f"data.val_fraction={val_fraction}, data.test_fraction={test_fraction}: expected less than 1, and more "
            "than 0 for the test"
        )


@dataclass(frozen=True)
class Format(ImageFormat[ImageSet]):
    """A format of images with labels; ``size`` and ``augment`` as in :class:`ImageOptions`."""

    size: int = 224
    augment: Literal["none", "small", "crop", "large"] = "large"


def described(
    form: ImageFormat[Found],
    classes: int,
    splits: Mapping[str, Sized],
    official: Collection[str],
    *,
    size: str = "",
    first: Iterable[str] = (),
    last: Iterable[str] = (),
) -> str:
    """One line on a dataset of images.

    Args:
        form: of its files.
        classes: how many there are.
        splits: the samples of ``train``, ``val`` and ``test``.
        official: names of the splits that the files have.
        size: of the images, if they have one.
        first: remarks that stand before those on the splits.
        last: remarks that stand behind them.
    """
    counts = " + ".join(f"{len(split):,}" for split in splits.values())
    line = f"{form.title}, {classes} classes, {counts} images for training, validation and test{size}"
    notes = [*filter(None, [form.note]), *first]
    if splits["val"] is splits["test"]:
        notes.append("validation and test are the same images")
    if set(official) == {"train"}:
        notes.append("no official splits: divided at random")
    elif "test" not in official:
        notes.append("tested on the official validation images")
    return "; ".join([line, *notes, *last])
