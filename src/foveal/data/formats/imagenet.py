"""ImageNet (ILSVRC 2012): ``train/WNID/*.JPEG`` and ``val/WNID/*.JPEG``, tested on the latter as the papers do.

Deng et al., "ImageNet: A large-scale hierarchical image database" (CVPR 2009).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from foveal.data.formats.image_folders import read_folder
from foveal.data.images.classification import Format, register_images
from foveal.data.images.labelled import ImageSet
from foveal.data.place import Place
from foveal.errors import DataError


def read_imagenet(folder: Path) -> ImageSet:
    """Training and validation images; classes get English names if ``LOC_synset_mapping.txt`` is there."""
    for split in ("train", "val"):
        if not (folder / split).is_dir():
            raise DataError(
                f"{folder / split} is missing; expected train/WNID/*.JPEG and val/WNID/*.JPEG, unpacked from "
                "ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar"
            )
    if not any(p.is_dir() for p in (folder / "val").iterdir()):
        raise DataError(
            f"{folder / 'val'} has no class folders; the official archive is flat: sort its images into folders by "
            "class (torchvision.datasets.ImageNet or the script valprep.sh does that)"
        )
    images = read_folder(folder)
    names = wordnet_names(images.answers, folder / "LOC_synset_mapping.txt")
    return ImageSet(names, {split: images.splits[split] for split in ("train", "val")})


def wordnet_names(wnids: Sequence[str], table: Path) -> list[str]:
    """First English word of each class from a table of lines ``WNID words``, if there is one.

    Words that several classes share (``crane``, a bird and a machine) are followed by the WNID.
    """
    try:
        lines = table.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return list(wnids)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{table} cannot be read ({error}); remove it or get it again") from error
    rows = (re.sub(r"\s", " ", line).partition(" ") for line in lines)
    words = {wnid: rest.split(",")[0].strip() for wnid, _, rest in rows}
    names = [words.get(wnid) or wnid for wnid in wnids]
    counts = Counter(names)
    return [name if counts[name] == 1 else f"{name} ({wnid})" for name, wnid in zip(names, wnids, strict=True)]


register_images(
    Format(
        "imagenet",
        "ImageNet",
        read_imagenet,
        Place(
            folders=("imagenet", "ILSVRC2012", "ILSVRC/Data/CLS-LOC"),
            needs=("train/*/*", "val/*/*"),
            how="ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar from https://image-net.org, as train/WNID/*.JPEG "
            "and val/WNID/*.JPEG in imagenet/",
        ),
        val_fraction=0.01,
    ),
    "1.3 million photographs of 1,000 classes",
)
