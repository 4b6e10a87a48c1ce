"""Tiny-ImageNet."""

import pytest
import torch
from small_files import build, listed, save, write

from foveal.data.formats.tiny_imagenet import read_tiny_imagenet
from foveal.errors import DataError

CPU = torch.device("cpu")


@pytest.fixture
def tiny(tmp_path):
    folder = tmp_path / "tiny-imagenet-200"
    for wnid in ("n02", "n01"):
        for n in range(10):
            save(folder / "train" / wnid / "images" / f"{wnid}_{n}.JPEG", size=(64, 64))
        write(folder / "train" / wnid / f"{wnid}_boxes.txt", f"{wnid}_0.JPEG\t0\t0\t5\t5\n")
    for n in range(3):
        save(folder / "val" / "images" / f"val_{n}.JPEG", size=(64, 64))
    save(folder / "test" / "images" / "test_0.JPEG")
    write(
        folder / "val" / "val_annotations.txt", "".join(f"val_{n}.JPEG\tn0{1 + n % 2}\t0\t0\t9\t9\n" for n in range(3))
    )
    write(folder / "words.txt", "n01\tgoldfish, Carassius auratus\nn02\tbullfrog\nn03\tentity\n")
    return folder


def test_tiny_imagenet(tiny):
    image_set = read_tiny_imagenet(tiny)
    assert image_set.answers == ["goldfish", "bullfrog"]
    assert listed(image_set.splits["val"]) == [("val_0.JPEG", 0), ("val_1.JPEG", 1), ("val_2.JPEG", 0)]
    assert listed(image_set.splits["train"])[9:11] == [("n01_9.JPEG", 0), ("n02_0.JPEG", 1)]
    source = build("tiny-imagenet", tiny.parent)
    assert "Tiny-ImageNet, 2 classes, 18 + 2 + 3 images" in source.describe()
    assert next(iter(source.loader("train", 4, device=CPU)))["image"].shape == (4, 3, 64, 64)


def test_damaged_tiny_imagenet(tiny):
    (tiny / "val" / "images" / "val_1.JPEG").unlink()
    with pytest.raises(DataError, match=r"val_1\.JPEG is missing; unpack"):
        read_tiny_imagenet(tiny)
    write(tiny / "val" / "val_annotations.txt", "val_0.JPEG\tn77\n")
    with pytest.raises(DataError, match=r"val_0\.JPEG is of class n77, which has no folder"):
        read_tiny_imagenet(tiny)
    (tiny / "val" / "val_annotations.txt").unlink()
    with pytest.raises(DataError, match=r"val_annotations\.txt is missing"):
        read_tiny_imagenet(tiny)
    with pytest.raises(DataError, match=r"has no train and val folders; unpack tiny-imagenet-200\.zip"):
        read_tiny_imagenet(tiny / "train")
