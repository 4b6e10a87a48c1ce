import pickle
import tarfile
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from foveal.data import dataset, datasets
from foveal.data.cifar import read_cifar10, read_cifar100
from foveal.data.classification import read_digits
from foveal.data.folders import image_files, read_caltech256, read_folder, read_imagenet
from foveal.data.images import ImageOptions
from foveal.data.lists import VOC_CLASSES, read_cub, read_tiny_imagenet, read_voc, read_voc2007
from foveal.errors import DataError

CPU = torch.device("cpu")
NAMES = (
    "imagefolder",
    "imagenet",
    "cifar10",
    "cifar100",
    "tiny-imagenet",
    "caltech256",
    "cub200",
    "voc2012",
    "voc2007",
)


def save(path, colour=(200, 100, 50), size=(12, 10)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)
    return path


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def listed(samples):
    """(file name, label) of every sample."""
    return [(samples.file(n).name, int(samples.labels[n])) for n in range(len(samples))]


def build(name, root, **options):
    return dataset(name).build(ImageOptions(workers=0, **options), root)


# Registered -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_registered_with_expected_files(name, tmp_path):
    entry = datasets()[name]
    assert entry.missing(tmp_path) == list(entry.expected) != []
    assert entry.how
    with pytest.raises(DataError, match="FOVEAL_DATA"):
        build(name, None)


def test_embedded_digits_need_nothing(tmp_path):
    entry = dataset("digits")
    assert entry.missing(None) == []
    found = read_digits(tmp_path)
    assert {split: len(samples) for split, samples in found.splits.items()} == {"train": 1400, "test": 397}
    pixels = found.splits["test"].images
    assert (pixels.shape[1:], pixels.dtype) == ((3, 32, 32), torch.uint8)
    assert pixels.max() > 240
    assert torch.equal(pixels[:, 0], pixels[:, 2])


# Plain folders --------------------------------------------------------------------------------------------------------


def test_folder_with_splits(tmp_path):
    for name in ("b", "a", "c"):
        save(tmp_path / "train" / name / "2.JPEG")
        save(tmp_path / "train" / name / "more" / "1.png")
    save(tmp_path / "val" / "c" / "v.jpg")
    save(tmp_path / "test" / "b" / "t.jpg")
    found = read_folder(tmp_path)
    assert found.answers == ["a", "b", "c"]
    assert listed(found.splits["train"]) == [
        ("2.JPEG", 0), ("1.png", 0), ("2.JPEG", 1), ("1.png", 1), ("2.JPEG", 2), ("1.png", 2)
    ]  # fmt: skip
    assert listed(found.splits["val"]) == [("v.jpg", 2)]
    assert listed(found.splits["test"]) == [("t.jpg", 1)]


def test_folder_of_classes_alone(tmp_path):
    for name in ("dog", "cat"):
        for n in range(10):
            save(tmp_path / "imagefolder" / name / f"{n}.jpg")
    assert list(read_folder(tmp_path / "imagefolder").splits) == ["train"]
    source = build("imagefolder", tmp_path, size=8)
    assert [source.splits[s].labels.bincount().tolist() for s in ("train", "val", "test")] == [[7, 7], [1, 1], [2, 2]]
    assert "divided at random" in source.describe()


def test_only_image_files_count(tmp_path):
    write(tmp_path / "a" / "notes.txt", "")
    write(tmp_path / "a" / "._1.jpg", "")  # what macOS puts into archives
    save(tmp_path / "a" / "1.jpg")
    assert [file.name for file in image_files(tmp_path)] == ["1.jpg"]


def test_folders_that_cannot_be_used(tmp_path):
    with pytest.raises(DataError, match="has no class folders; expected one folder of images for each class"):
        read_folder(tmp_path)
    save(tmp_path / "1.jpg")
    with pytest.raises(DataError, match="has no class folders but image files; sort them"):
        read_folder(tmp_path)
    (tmp_path / "a").mkdir()
    with pytest.raises(DataError, match=r"a holds no image files; add some or remove the folder"):
        read_folder(tmp_path)
    save(tmp_path / "test" / "a" / "1.jpg")
    with pytest.raises(DataError, match="has test but no train folder"):
        read_folder(tmp_path)
    save(tmp_path / "train" / "bird" / "1.jpg")
    save(tmp_path / "val" / "birb" / "1.jpg")
    with pytest.raises(
        DataError, match=r"val: unknown class 'birb'; did you mean 'bird'\?; training has no such folder"
    ):
        read_folder(tmp_path)


# CIFAR ----------------------------------------------------------------------------------------------------------------


def records(labels, seed=0):
    """Bytes of a binary file; every label is a tuple of label bytes."""
    pixels = np.random.default_rng(seed).integers(0, 256, (len(labels), 3072), dtype=np.uint8)
    return b"".join(bytes(label) + row.tobytes() for label, row in zip(labels, pixels, strict=True)), pixels


TEN = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


@pytest.fixture
def cifar10(tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    write(folder / "batches.meta.txt", "\n".join(TEN) + "\n\n")
    for n in range(1, 6):
        (folder / f"data_batch_{n}.bin").write_bytes(records([(k,) for k in range(10)] * 2, n)[0])
    (folder / "test_batch.bin").write_bytes(records([(9,), (0,), (3,)])[0])
    return tmp_path


def test_cifar10_binary(cifar10):
    found = read_cifar10(cifar10 / "cifar-10-batches-bin")
    assert found.answers == TEN
    assert found.splits["train"].labels.tolist() == list(range(10)) * 10
    assert found.splits["test"].labels.tolist() == [9, 0, 3]
    expected = records([(0,)] * 3)[1].reshape(3, 3, 32, 32)  # red, green, blue planes, row by row
    assert np.array_equal(found.splits["test"].images.numpy(), expected)
    second = records([(0,)] * 20, 2)[1].reshape(20, 3, 32, 32)
    assert np.array_equal(found.splits["train"].images[20:40].numpy(), second)
    source = build("cifar10", cifar10)
    assert "CIFAR-10, 10 classes, 90 + 10 + 3 images" in source.describe()
    assert next(iter(source.loader("train", 6, device=CPU)))["image"].shape == (6, 3, 32, 32)
    assert dataset("cifar10").missing(cifar10) == []


def test_cifar100_binary_has_fine_labels(tmp_path):
    names = [f"class_{n:02}" for n in range(100)]
    write(tmp_path / "fine_label_names.txt", "\n".join(names))
    (tmp_path / "train.bin").write_bytes(records([(1, 99), (2, 5)])[0])
    (tmp_path / "test.bin").write_bytes(records([(19, 42)])[0])
    found = read_cifar100(tmp_path)
    assert found.answers == names
    assert [found.splits[s].labels.tolist() for s in ("train", "test")] == [[99, 5], [42]]
    assert np.array_equal(found.splits["test"].images[0].numpy().ravel(), records([(0, 0)])[1][0])


def test_cifar10_as_class_folders_is_read_once(tmp_path, monkeypatch):
    for split, count in (("train", 3), ("test", 1)):
        for k, name in enumerate(TEN):
            for n in range(count):
                save(tmp_path / "cifar10" / split / name / f"{n:04}.png", (20 * k, n, 7), (32, 32))
    source = build("cifar10", tmp_path, val_fraction=0.0)
    assert source.answers == TEN
    assert {s: len(samples) for s, samples in source.splits.items()} == {"train": 30, "val": 10, "test": 10}
    train = source.splits["train"]
    assert train.images.shape == (30, 3, 32, 32)
    assert train.images[:, 0, 0, 0].tolist() == [20 * k for k in train.labels.tolist()]
    monkeypatch.setattr("foveal.data.images.read_image", None)  # the second time comes from the cache
    again = build("cifar10", tmp_path, val_fraction=0.0, folder="cifar10")
    assert torch.equal(again.splits["train"].images, train.images)


class Dangerous:
    def __reduce__(self):
        return pytest.fail, ("unpickled",)


@pytest.mark.parametrize(
    ("read", "name", "files"),
    [
        (read_cifar10, "cifar-10-batches-py", ["data_batch_1", "test_batch", "batches.meta"]),
        (read_cifar100, "cifar-100-python", ["train", "test", "meta"]),
    ],
)
def test_the_python_version_is_not_unpickled(tmp_path, read, name, files):
    for file in files:
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / file).write_bytes(pickle.dumps(Dangerous()))
    with pytest.raises(DataError, match=r"pickles that could run any code.*get the binary version from https"):
        read(tmp_path / name)
    with pytest.raises(DataError, match="python version"):
        build("cifar10" if read is read_cifar10 else "cifar100", tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("data_batch_3.bin", None, r"data_batch_3\.bin is missing; get the binary version"),
        ("data_batch_3.bin", b"", r"data_batch_3\.bin is damaged: 0 bytes are not whole records of 3,073"),
        ("test_batch.bin", b"x" * 5000, r"test_batch\.bin is damaged: 5,000 bytes"),
        ("test_batch.bin", bytes([10]) + bytes(3072), r"test_batch\.bin has a label 10, expected 0 to 9"),
        ("batches.meta.txt", None, r"batches\.meta\.txt, the names of the classes, cannot be read"),
        ("batches.meta.txt", b"cat\ndog\n", r"batches\.meta\.txt names 2 classes instead of 10"),
    ],
)
def test_damaged_cifar(cifar10, file, content, message):
    path = cifar10 / "cifar-10-batches-bin" / file
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        build("cifar10", cifar10)


def test_cifar_folder_with_nothing_in_it(tmp_path):
    with pytest.raises(DataError, match=r"has no train\.bin; get the binary version .* or class folders of images"):
        read_cifar100(tmp_path)


# CUB-200-2011 ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def cub(tmp_path):
    folder = tmp_path / "CUB_200_2011"
    classes = ["001.Black_footed_Albatross", "002.Laysan_Albatross"]
    images = [f"{name}/{n}.jpg" for name in classes for n in range(6)]
    for image in images:
        save(folder / "images" / image)
    write(folder / "classes.txt", "".join(f"{k + 1} {name}\n" for k, name in enumerate(classes)))
    write(folder / "images.txt", "".join(f"{n + 1} {image}\n" for n, image in enumerate(images)))
    write(folder / "image_class_labels.txt", "".join(f"{n + 1} {1 + n // 6}\n" for n in range(12)))
    write(folder / "train_test_split.txt", "".join(f"{n + 1} {int(n % 3 > 0)}\n" for n in range(12)))
    return tmp_path


def test_cub_official(cub):
    found = read_cub(cub / "CUB_200_2011")
    assert found.answers == ["Black footed Albatross", "Laysan Albatross"]
    assert listed(found.splits["test"]) == [("0.jpg", 0), ("3.jpg", 0), ("0.jpg", 1), ("3.jpg", 1)]
    assert len(found.splits["train"]) == 8
    source = build("cub200", cub, size=16, val_fraction=0.25)
    assert "CUB-200-2011, 2 classes, 6 + 2 + 4 images" in source.describe()
    assert next(iter(source.loader("test", 4, device=CPU)))["label"].tolist() == [0, 0, 1, 1]
    assert dataset("cub200").missing(cub) == []


def test_boxes_of_cub(cub):
    assert build("cub200", cub, val_fraction=0.0).boxes() is None
    boxes = cub / "CUB_200_2011" / "bounding_boxes.txt"
    write(boxes, "".join(f"{n + 1} 0.0 5.0 6.0 {n}.0\n" for n in range(12)))  # of images of 12 × 10
    found = build("cub200", cub, val_fraction=0.0, size=20, augment="small").boxes()
    assert found.shape == (4, 1, 5)
    assert found[:, 0, 0].tolist() == [0, 0, 1, 1]
    torch.testing.assert_close(found[1, 0, 1:], torch.tensor([-2.0, 10, 10, 16]))  # image 4: twice as large, cut to 20
    write(boxes, "1 0.0 5.0 6.0 1.0\n")
    with pytest.raises(DataError, match=r"bounding_boxes.txt: expected x, y, width and height of 3.jpg"):
        build("cub200", cub, val_fraction=0.0).boxes()
    write(boxes, "".join(f"{n + 1} 0.0 5.0 6.0 {n}.0\n" for n in range(12)))
    image = cub / "CUB_200_2011" / "images" / "001.Black_footed_Albatross" / "3.jpg"
    source = build("cub200", cub, val_fraction=0.0)
    image.write_bytes(b"no image")
    with pytest.raises(DataError, match=r"3.jpg cannot be read as an image"):
        source.boxes()


def test_cub_as_class_folders(tmp_path):
    for split in ("train", "test"):
        for name in ("001.Black_footed_Albatross", "100.Brown_Pelican"):
            save(tmp_path / "cub100" / split / name / f"{split}.jpg")
    found = read_cub(tmp_path / "cub100")
    assert found.answers == ["Black footed Albatross", "Brown Pelican"]
    assert listed(found.splits["test"]) == [("test.jpg", 0), ("test.jpg", 1)]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("classes.txt", None, r"classes\.txt is missing; it comes with the official archive"),
        ("images.txt", "", r"images\.txt is empty"),
        ("images.txt", "1 a.jpg\n2\n", r"images\.txt line 2: expected 2 words, got '2'"),
        ("image_class_labels.txt", "1 1\n", r"image 2 .* has no class in image_class_labels\.txt"),
        ("train_test_split.txt", "1 yes\n", r"image 1 .* no 0 or 1 in train_test_split\.txt"),
        ("train_test_split.txt", "".join(f"{n} 1\n" for n in range(1, 13)), "leaves no image for test"),
    ],
)
def test_damaged_cub(cub, file, content, message):
    path = cub / "CUB_200_2011" / file
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(DataError, match=message):
        build("cub200", cub)


# VOC ------------------------------------------------------------------------------------------------------------------

VOC = {  # image: classes with an ordinary object, classes with difficult objects only
    "train": {"2008_1": (["dog", "person"], ["chair"]), "2008_2": (["aeroplane"], [])},
    "val": {"2008_3": (["tvmonitor"], ["dog"])},
    "test": {"2008_4": ([], ["train"]), "2008_5": (["train"], [])},
}


def write_voc(folder, splits):
    main = folder / "ImageSets" / "Main"
    for split in splits:
        write(main / f"{split}.txt", "".join(f"{image}\n" for image in VOC[split]))
        for name in VOC_CLASSES:
            marks = {i: 1 if name in sure else 0 if name in hard else -1 for i, (sure, hard) in VOC[split].items()}
            write(main / f"{name}_{split}.txt", "".join(f"{image} {mark:2}\n" for image, mark in marks.items()))
        for image in VOC[split]:
            save(folder / "JPEGImages" / f"{image}.jpg")
    return folder


def named(row):
    return [VOC_CLASSES[k] for k in row.nonzero().flatten().tolist()]


def test_voc2012(tmp_path):
    found = read_voc(write_voc(tmp_path / "VOCdevkit" / "VOC2012", ("train", "val")))
    assert found.answers == sorted(found.answers) == list(VOC_CLASSES)
    train = found.splits["train"]
    assert [train.file(n).name for n in range(2)] == ["2008_1.jpg", "2008_2.jpg"]
    assert [named(row) for row in train.labels] == [["dog", "person"], ["aeroplane"]]
    assert [named(~row) for row in train.valid] == [["chair"], []]
    source = build("voc2012", tmp_path, size=16, val_fraction=0.5)
    assert source.multilabel
    assert "tested on the official validation images" in source.describe()
    batch = next(iter(source.loader("test", 4, device=CPU)))
    assert {k: (tuple(v.shape), v.dtype) for k, v in batch.items()} == {
        "image": ((1, 3, 16, 16), torch.uint8),
        "label": ((1, 20), torch.float32),
        "valid": ((1, 20), torch.bool),
        "index": ((1,), torch.int64),
    }
    assert named(batch["label"][0]) == ["tvmonitor"]
    assert named(~batch["valid"][0]) == ["dog"]


VOC_XML = """<annotation><size><width>40</width><height>20</height></size>
<object><name>dog</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>20</xmax><ymax>20</ymax></bndbox>
<part><name>head</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox></part></object>
</annotation>"""


def test_boxes_of_voc(tmp_path):
    folder = write_voc(tmp_path / "VOCdevkit" / "VOC2012", ("train", "val"))
    assert build("voc2012", tmp_path, val_fraction=0.0).boxes() is None
    write(folder / "Annotations" / "2008_3.xml", VOC_XML)
    boxes = build("voc2012", tmp_path, val_fraction=0.0, size=20, augment="small").boxes()
    assert boxes.tolist() == [[[VOC_CLASSES.index("dog"), -10, 0, 10, 20]]]  # the middle is seen: columns 10 to 30
    boxes = build("voc2012", tmp_path, val_fraction=0.0, size=224).boxes()
    assert boxes[0, 0, 1:].tolist() == [-144, -16, 112, 240]  # resized to 256 × 512, the middle of which is seen
    write(folder / "Annotations" / "2008_3.xml", VOC_XML.replace("dog", "hound"))
    with pytest.raises(DataError, match=r"2008_3.xml cannot be read as an annotation of VOC"):
        build("voc2012", tmp_path, val_fraction=0.0).boxes()


def test_voc2007_has_a_test_split(tmp_path):
    folder = write_voc(tmp_path / "VOCdevkit" / "VOC2007", VOC)
    found = read_voc2007(folder)
    assert [named(row) for row in found.splits["test"].labels] == [[], ["train"]]
    source = build("voc2007", tmp_path)
    assert "2 + 1 + 2 images for training, validation and test, 224×224" in source.describe()
    (folder / "ImageSets" / "Main" / "test.txt").unlink()
    with pytest.raises(DataError, match=r"has no test images; unpack VOCtest_06-Nov-2007\.tar"):
        read_voc2007(folder)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("val.txt", None, r"val\.txt is missing"),
        ("cat_train.txt", None, r"cat_train\.txt is missing"),
        ("cat_train.txt", "2008_1 -1\n", r"cat_train\.txt has no line for image 2008_2"),
        ("cat_train.txt", "2008_1 2\n", r"cat_train\.txt: expected an image of train\.txt and 1, 0 or -1, got"),
        ("cat_train.txt", "2008_9 1\n", r"got '2008_9 1'"),
        ("cat_train.txt", "2008_1\n", r"cat_train\.txt line 1: expected 2 words"),
    ],
)
def test_damaged_voc(tmp_path, file, content, message):
    folder = write_voc(tmp_path, ("train", "val"))
    path = folder / "ImageSets" / "Main" / file
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(DataError, match=message):
        read_voc(folder)


def test_voc_without_image_sets(tmp_path):
    with pytest.raises(DataError, match="Main is missing; unpack the official VOCtrainval archive"):
        read_voc(tmp_path)


# Tiny-ImageNet, ImageNet, Caltech-256 ---------------------------------------------------------------------------------


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
    found = read_tiny_imagenet(tiny)
    assert found.answers == ["goldfish", "bullfrog"]
    assert listed(found.splits["val"]) == [("val_0.JPEG", 0), ("val_1.JPEG", 1), ("val_2.JPEG", 0)]
    assert listed(found.splits["train"])[9:11] == [("n01_9.JPEG", 0), ("n02_0.JPEG", 1)]
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


def test_imagenet(tmp_path):
    folder = tmp_path / "imagenet"
    for wnid in ("n03", "n01", "n02"):
        save(folder / "train" / wnid / f"{wnid}_1.JPEG")
        save(folder / "val" / wnid / "ILSVRC2012_val_1.JPEG")
    assert read_imagenet(folder).answers == ["n01", "n02", "n03"]
    write(folder / "LOC_synset_mapping.txt", "n01 crane\nn02 tench, Tinca tinca\nn03 crane, lifting device\n")
    found = read_imagenet(folder)
    assert found.answers == ["crane (n01)", "tench", "crane (n03)"]
    assert listed(found.splits["train"]) == [("n01_1.JPEG", 0), ("n02_1.JPEG", 1), ("n03_1.JPEG", 2)]
    source = build("imagenet", tmp_path, val_fraction=0.0)
    assert [len(samples) for samples in source.splits.values()] == [3, 3, 3]
    (folder / "LOC_synset_mapping.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match=r"LOC_synset_mapping\.txt cannot be read"):
        read_imagenet(folder)


def test_imagenet_that_is_not_sorted_yet(tmp_path):
    with pytest.raises(DataError, match=r"train is missing; .*ILSVRC2012_img_train\.tar"):
        read_imagenet(tmp_path)
    save(tmp_path / "train" / "n01" / "1.JPEG")
    save(tmp_path / "val" / "ILSVRC2012_val_00000001.JPEG")
    with pytest.raises(DataError, match="has no class folders; the official archive is flat"):
        read_imagenet(tmp_path)


def test_caltech256(tmp_path):
    folder = tmp_path / "256_ObjectCategories"
    for name in ("002.american-flag", "001.ak47", "257.clutter"):
        for n in range(10):
            save(folder / name / f"{name[:3]}_{n:04}.jpg")
    save(folder / "001.ak47" / "greg" / "again.jpg")
    write(folder / "002.american-flag" / "RENAME2", "")
    for place in (folder, tmp_path):
        found = read_caltech256(place)
        assert found.answers == ["ak47", "american-flag"]
        assert len(found.splits["train"]) == 20
    source = build("caltech256", tmp_path, test_fraction=0.3)
    assert "Caltech-256, 2 classes, 12 + 2 + 6 images" in source.describe()
    with pytest.raises(DataError, match=r"has no folders like 001\.ak47"):
        read_caltech256(folder / "001.ak47")


# Real files -----------------------------------------------------------------------------------------------------------


def needed(folder, *names):
    for name in names:
        if not (folder / name).is_file():
            pytest.skip(f"real data: {name} is not in FOVEAL_DATA")


def test_real_birds(real_data, tmp_path):
    needed(real_data, "cub100-112.zip")
    with zipfile.ZipFile(real_data / "cub100-112.zip") as archive:
        names = [n for n in archive.namelist() if "/001." in n or "/100." in n]
        archive.extractall(tmp_path, names)
    source = build("cub200", tmp_path, size=112)
    assert source.answers == ["Black footed Albatross", "Brown Pelican"]
    assert [len(source.splits[s]) for s in ("train", "val", "test")] == [54, 6, 60]
    batch = next(iter(source.loader("train", 16, device=CPU)))
    assert batch["image"].float().std() > 20
    assert set(batch["label"].tolist()) == {0, 1}


def test_real_voc2012(real_data, tmp_path):
    needed(real_data, "voc2012-176-labels.tar.gz", "voc2012-176-val-1.zip")
    with tarfile.open(real_data / "voc2012-176-labels.tar.gz") as archive:
        members = [m for m in archive.getmembers() if "ImageSets/Main" in m.name]
        archive.extractall(tmp_path, members, filter="data")
    with zipfile.ZipFile(real_data / "voc2012-176-val-1.zip") as archive:
        archive.extractall(tmp_path, [name for name in archive.namelist() if "/2008_" in name][:20])
    source = build("voc2012", tmp_path, size=64, val_fraction=0.0)
    assert [len(source.splits[s]) for s in ("train", "test")] == [5717, 5823]
    for official, split in (("train", "train"), ("val", "test")):
        texts = [next(tmp_path.rglob(f"Main/{name}_{official}.txt")).read_text() for name in source.answers]
        samples = source.splits[split]
        assert samples.labels.sum(0).tolist() == [text.count(" 1\n") for text in texts]
        assert (~samples.valid).sum(0).tolist() == [text.count(" 0\n") for text in texts]
    assert not (source.splits["train"].labels.bool() & ~source.splits["train"].valid).any()
    there = next(n for n in range(5823) if source.splits["test"].file(n).is_file())
    assert source.loader("test", 4, device=CPU).dataset[there]["image"].float().std() > 10
