"""The classification datasets that recipes can name: their readers, where their files are and what is usual."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from foveal.data import cifar, digits, folders, lists
from foveal.data.augment import resized
from foveal.data.images import Format, ImageData, ImageOptions
from foveal.data.registry import Entry, register_data
from foveal.data.samples import Found, Samples


def read_digits(_: Path) -> Found:
    """scikit-learn's 8×8 handwritten digits as grey 32×32 images, the first 1,400 for training."""
    splits = {}
    for split in ("train", "test"):
        images, labels = digits.embedded(split)
        splits[split] = Samples(resized(images[:, None], 32).repeat(1, 3, 1, 1), labels)
    return Found([str(digit) for digit in range(10)], splits)


def _register(form: Format, summary: str, expected: tuple[str, ...] = ()) -> None:
    register_data(Entry(form.name, summary, ImageOptions, partial(ImageData, form), expected, form.how))


_register(
    Format(
        "digits",
        "scikit-learn's 8×8 digits",
        read_digits,
        size=32,
        augment="small",
        flip=False,
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
        note="embedded, for trying things out",
    ),
    "handwritten digits that come with scikit-learn; embedded",
)
_register(
    Format(
        "imagefolder",
        "image folder",
        folders.read_folder,
        ("imagefolder",),
        "put images there as train/CLASS/*.jpg, val/CLASS/*.jpg and test/CLASS/*.jpg, or as CLASS/*.jpg",
    ),
    "any images sorted into one folder for each class",
    ("imagefolder",),
)
_register(
    Format(
        "cifar10",
        "CIFAR-10",
        cifar.read_cifar10,
        ("cifar-10-batches-bin", "cifar10", "CIFAR-10-images", "cifar-10-batches-py"),
        f"cifar-10-binary.tar.gz from {cifar.SITE}; or train/CLASS and test/CLASS folders of images in cifar10/",
        size=32,
        augment="small",
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
    ),
    "60,000 tiny images of 10 classes",
    ("cifar-10-batches-bin/data_batch_[1-5].bin", "cifar-10-batches-bin/test_batch.bin"),
)
_register(
    Format(
        "cifar100",
        "CIFAR-100",
        cifar.read_cifar100,
        ("cifar-100-binary", "cifar100", "cifar-100-python"),
        f"cifar-100-binary.tar.gz from {cifar.SITE}; or train/CLASS and test/CLASS folders of images in cifar100/",
        size=32,
        augment="small",
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
    ),
    "60,000 tiny images of 100 classes",
    ("cifar-100-binary/train.bin", "cifar-100-binary/test.bin", "cifar-100-binary/fine_label_names.txt"),
)
_register(
    Format(
        "cub200",
        "CUB-200-2011",
        lists.read_cub,
        ("CUB_200_2011", "cub200", "cub100"),
        "CUB_200_2011.tgz from https://www.vision.caltech.edu/datasets/cub_200_2011/; or train/CLASS and test/CLASS "
        "folders of images in cub200/",
    ),
    "birds of 200 species",
    tuple(
        f"CUB_200_2011/{name}"
        for name in ("images", "images.txt", "classes.txt", "image_class_labels.txt", "train_test_split.txt")
    ),
)
_VOC = "http://host.robots.ox.ac.uk/pascal/VOC"
_register(
    Format(
        "voc2012",
        "VOC 2012 classification",
        lists.read_voc,
        ("VOCdevkit/VOC2012", "VOC2012"),
        f"VOCtrainval_11-May-2012.tar from {_VOC}/voc2012/",
    ),
    "photographs with several of 20 classes each",
    ("VOCdevkit/VOC2012/ImageSets/Main", "VOCdevkit/VOC2012/JPEGImages"),
)
_register(
    Format(
        "voc2007",
        "VOC 2007 classification",
        lists.read_voc2007,
        ("VOCdevkit/VOC2007", "VOC2007"),
        f"VOCtrainval_06-Nov-2007.tar and VOCtest_06-Nov-2007.tar from {_VOC}/voc2007/",
    ),
    "photographs with several of 20 classes each",
    ("VOCdevkit/VOC2007/ImageSets/Main/*_test.txt", "VOCdevkit/VOC2007/JPEGImages"),
)
_register(
    Format(
        "tiny-imagenet",
        "Tiny-ImageNet",
        lists.read_tiny_imagenet,
        ("tiny-imagenet-200",),
        "tiny-imagenet-200.zip from http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        size=64,
        augment="small",
    ),
    "110,000 small photographs of 200 classes",
    ("tiny-imagenet-200/train", "tiny-imagenet-200/val/val_annotations.txt"),
)
_register(
    Format(
        "imagenet",
        "ImageNet",
        folders.read_imagenet,
        ("imagenet", "ILSVRC2012", "ILSVRC/Data/CLS-LOC"),
        "ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar from https://image-net.org, as train/WNID/*.JPEG and "
        "val/WNID/*.JPEG in imagenet/",
        val_fraction=0.01,
    ),
    "1.3 million photographs of 1,000 classes",
    ("imagenet/train", "imagenet/val"),
)
_register(
    Format(
        "caltech256",
        "Caltech-256",
        folders.read_caltech256,
        ("256_ObjectCategories", "caltech256"),
        "256_ObjectCategories.tar from https://data.caltech.edu/records/nyy15-4j048",
    ),
    "29,780 photographs of 256 classes",
    ("256_ObjectCategories",),
)
