"""A small VOC 2012 in the official layout, with difficult labels."""

from pathlib import Path

import torch
from PIL import Image

from foveal.data.formats.voc import VOC_CLASSES


def write_voc(root: Path, train: int = 24, val: int = 12, marks: int = 4) -> Path:
    """Write images of noise that are coloured by their classes.

    Args:
        root: folder of datasets.
        train: number of training images.
        val: number of validation images.
        marks: one of so many labels is there and one is difficult.
    """
    main, pictures = root / "VOCdevkit/VOC2012/ImageSets/Main", root / "VOCdevkit/VOC2012/JPEGImages"
    main.mkdir(parents=True)
    pictures.mkdir()
    draw = torch.Generator().manual_seed(0)
    for split, count in (("train", train), ("val", val)):
        names = [f"2008_{split}{n}" for n in range(count)]
        labels = torch.randint(0, marks, (count, len(VOC_CLASSES)), generator=draw)  # 0: difficult, 1: there, else: not
        if marks > 4:
            labels[0] = 2  # an image without any class
        for name, label in zip(names, labels, strict=True):
            noise = torch.randint(0, 100, (30, 40, 3), generator=draw) + 60 * (label[:3] == 1)
            Image.fromarray(noise.byte().numpy()).save(pictures / f"{name}.jpg")
        (main / f"{split}.txt").write_text("".join(f"{name}\n" for name in names))
        for k, title in enumerate(VOC_CLASSES):
            rows = (f"{n} {int(m) if m < 2 else -1}\n" for n, m in zip(names, labels[:, k], strict=True))
            (main / f"{title}_{split}.txt").write_text("".join(rows))
    return root
