"""PASCAL VOC: several classes an image, difficult objects, boxes."""

import tarfile
import zipfile

import pytest
import torch
from small_files import build, needed, save, write

from foveal.data.formats.voc import VOC_CLASSES, read_voc, read_voc2007
from foveal.errors import DataError

CPU = torch.device("cpu")


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
    image_set = read_voc(write_voc(tmp_path / "VOCdevkit" / "VOC2012", ("train", "val")))
    assert image_set.answers == sorted(image_set.answers) == list(VOC_CLASSES)
    train = image_set.splits["train"]
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
    image_set = read_voc2007(folder)
    assert [named(row) for row in image_set.splits["test"].labels] == [[], ["train"]]
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
    assert source.loader("test", 4, device=CPU).gather(torch.tensor([there]))["image"].float().std() > 10
