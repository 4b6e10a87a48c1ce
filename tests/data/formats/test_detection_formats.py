"""The official forms of boxes, on a few small files."""

from __future__ import annotations

import pytest
import torch
from PIL import Image
from small_boxes import build, coco, save, voc_annotation, write_cocofolder, write_json, write_voc

from foveal.data.check import check
from foveal.errors import DataError

CPU = torch.device("cpu")


def target(source, split, number=0):
    """What is said of an image of a split, by its number."""
    targets = [t for batch in source.loader(split, 1, device=CPU) for t in batch["target"]]
    return next(t for t in targets if t["image_id"] == number)


def problems(name, root, **options):
    return [str(problem) for problem in check(name, {"workers": 0, **options}, root)]


# VOC --------------------------------------------------------------------------------


@pytest.fixture
def voc(tmp_path):
    cat, dog = ("cat", 0, 1, 1, 10, 20), ("dog", 1, 5, 6, 40, 30)
    return tmp_path, write_voc(tmp_path, {"train": {"a": [cat, dog], "b": [cat]}, "val": {"c": [dog, cat]}})


def test_voc(voc):
    source = build("voc2012-detection", voc[0])
    assert (len(source.answers), source.answers[7]) == (20, "cat")
    assert source.splits["val"] is source.splits["test"]
    train = target(source, "train")
    assert train["boxes"].tolist() in ([[0, 0, 10, 20]], [[30, 0, 40, 20]])  # the difficult one is not trained on
    test = target(source, "test")
    assert test["boxes"].tolist() == [[4, 5, 40, 30], [0, 0, 10, 20]]
    assert test["labels"].tolist() == [12, 8]
    assert test["difficult"].tolist() == [True, False]
    assert not test["iscrowd"].any()
    assert "relations" not in test


def test_voc_2007_trains_on_trainval(tmp_path):
    one = [("cat", 0, 1, 1, 10, 20)]
    write_voc(tmp_path, {"trainval": {"a": one, "b": one}, "test": {"c": one}}, "2007", ("trainval", "test"))
    source = build("voc2007-detection", tmp_path)
    assert [len(source.splits[split]) for split in ("train", "val", "test")] == [2, 1, 1]


def test_voc_problems(voc):
    root, folder = voc
    voc_annotation(folder / "Annotations/a.xml", [("unicorn", 0, 1, 1, 10, 20)])
    with pytest.raises(DataError, match=r"a\.xml cannot be read as an annotation of VOC \('unicorn' is none of its 20"):
        build("voc2012-detection", root)
    voc_annotation(folder / "Annotations/b.xml", [("cat", 0, 20, 1, 10, 20)])
    (folder / "JPEGImages/c.jpg").unlink()
    listed = problems("voc2012-detection", root)
    for part in ("a.xml cannot be read", "the box [19, 0, 10, 20]", "names no image that can be used"):
        assert any(part in problem for problem in listed), (part, listed)


# COCO -------------------------------------------------------------------------------


def test_coco(tmp_path):
    images = [(5, "a.jpg", 40, 30), (9, "b.jpg", 40, 30)]
    boxes = [(5, 7, [2, 3, 10, 12], 0), (5, 3, [0, 0, 40, 30], 1), (9, 3, [1, 1, 5, 5], 0)]
    for split, year in (("train", "2017"), ("val", "2017")):
        write_json(tmp_path / f"coco/annotations/instances_{split}{year}.json", coco(images, boxes))
        for name in ("a", "b"):
            save(tmp_path / f"coco/{split}{year}/{name}.jpg")
    source = build("coco", tmp_path, flip=False)
    assert source.answers == ["cat", "dog"]  # ids 3 and 7 become labels 1 and 2
    test = target(source, "test")
    assert test["boxes"].tolist() == [[2, 3, 12, 15], [0, 0, 40, 30]]
    assert (test["labels"].tolist(), test["iscrowd"].tolist()) == ([2, 1], [False, True])
    assert target(source, "train")["labels"].tolist() == [2]


def test_minicoco(tmp_path):
    for name, image in (("valminusminival2014", "a.jpg"), ("minival2014", "b.jpg")):
        content = coco([(1, image, 40, 30)], [(1, 3, [1, 2, 5, 6], 0)])
        write_json(tmp_path / f"coco/annotations/instances_{name}.json", content)
        save(tmp_path / f"coco/val2014/{image}")
    source = build("minicoco", tmp_path)
    assert [len(source.splits[split]) for split in ("train", "test")] == [1, 1]
    assert source.splits["val"] is source.splits["test"]


def test_own_images_in_the_form_of_coco(tmp_path):
    write_cocofolder(tmp_path, splits=("train",))
    source = build("cocofolder", tmp_path, val_fraction=0.25, test_fraction=0.25)
    assert [len(source.splits[split]) for split in ("train", "val", "test")] == [2, 1, 1]
    assert "divided at random" in source.describe()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["annotations"][0].update(category_id=4), "category 4, which is not listed"),
        (lambda c: c["annotations"][0].update(image_id=77), "image 77, which is not listed"),
        (lambda c: c["annotations"][0].update(bbox=[1, 2, 3]), r"expected 4 numbers, got \[1, 2, 3\]"),
        (lambda c: c["annotations"][0].update(bbox=[1, 2, -3, 4]), "left ≤ right"),
        (lambda c: c["annotations"][0].update(bbox=[1, 2, float("nan"), 4]), "finite numbers"),
        (lambda c: c["images"][0].update(file_name="absent.jpg"), r"absent\.jpg, which is not there"),
        (lambda c: c["images"][0].pop("width"), "expected 'width' of type int"),
        (lambda c: c["images"][0].update(width=41), "and its boxes are for 41×30"),
        (lambda c: c["categories"].append({"id": 3, "name": "again"}), "two categories with id 3"),
        (lambda c: c["categories"].append({"id": 9, "name": "dog"}), "two categories with the name 'dog'"),
        (lambda c: c.pop("annotations"), "expected 'annotations' of type list"),
        (lambda c: c["images"].append(c["images"][0]), "two images with id 0"),
        (lambda c: c["images"].append([1]), "expected 'id' of type int"),
    ],
)
def test_coco_problems(tmp_path, change, message):
    write_cocofolder(tmp_path, sizes=((40, 30),))
    content = coco([(0, "0.png", 40, 30)], [(0, 3, [4, 5, 12, 14], 0)])
    change(content)
    write_json(tmp_path / "cocofolder/annotations/instances_train.json", content)
    with pytest.raises(DataError, match=message):
        build("cocofolder", tmp_path)
    assert problems("cocofolder", tmp_path)


def test_the_check_lists_everything(tmp_path):
    """Every bad annotation and file at once, and what does not stop training."""
    write_cocofolder(tmp_path)
    images = [(n, f"{n}.png", w, h) for n, (w, h) in enumerate(((40, 30), (30, 40), (36, 36), (44, 28)))]
    boxes = [(0, 4, [1, 1, 5, 5], 0), (1, 3, [50, 1, 5, 5], 0), (2, 3, [1, 1, 0, 5], 0), (3, 3, [1, 1, 9, 9], 0)]
    write_json(tmp_path / "cocofolder/annotations/instances_train.json", coco(images, boxes))
    (tmp_path / "cocofolder/val/0.png").unlink()
    (tmp_path / "cocofolder/test/1.png").write_bytes(b"no image")
    found = list(check("cocofolder", {"workers": 0}, tmp_path))
    expected = {
        "category 4": True,
        "[50, 1, 55, 6] in image 1.png of 30×40 pixels has no area": False,
        "[1, 1, 1, 6] in image 2.png": False,
        "val/0.png, which is not there": True,
        "test/1.png cannot be read as an image": True,
        "class 'dog' is in no training image": False,
    }
    for part, stops in expected.items():
        assert [problem.stops for problem in found if part in str(problem)] == [stops], (part, found)
    assert len(found) == len(expected)


def test_photographs_of_all_kinds(tmp_path):
    """Grey, CMYK, of 16 bits, turned by the camera: no problem, and RGB images as large as their boxes say."""
    write_cocofolder(tmp_path)
    turn = Image.Exif()
    turn[0x0112] = 6
    sides = {"grey.png": (40, 30), "cmyk.jpg": (40, 30), "deep.png": (40, 30), "turned.jpg": (30, 40)}
    for name, mode in (("grey.png", "L"), ("cmyk.jpg", "CMYK"), ("deep.png", "I;16"), ("turned.jpg", "RGB")):
        more = {"exif": turn} if name == "turned.jpg" else {}
        Image.new(mode, (40, 30)).save(tmp_path / "cocofolder/train" / name, **more)
    boxes = [(n, 3 + 4 * (n % 2), [2, 3, 10, 12], 0) for n in range(4)]
    content = coco([(n, name, *size) for n, (name, size) in enumerate(sides.items())], boxes)
    write_json(tmp_path / "cocofolder/annotations/instances_train.json", content)
    assert problems("cocofolder", tmp_path) == []
    for hold in (True, False):
        source = build("cocofolder", tmp_path, flip=False, hold=hold)
        (batch,) = source.loader("train", 4, device=CPU)
        shapes = {t["image_id"]: tuple(i.shape) for i, t in zip(batch["image"], batch["target"], strict=True)}
        assert shapes == {n: (3, height, width) for n, (width, height) in enumerate(sides.values())}
    turn[0x0112] = 3  # the other way up: the same sides
    Image.new("RGB", (40, 30)).save(tmp_path / "cocofolder/test/0.png", exif=turn)
    (remark,) = check("cocofolder", {"workers": 0}, tmp_path)
    assert "do not tell whether its boxes" in str(remark)
    assert not remark.stops


# Relations --------------------------------------------------------------------------


def test_vcoco(tmp_path):
    person, other, ball, skis = [1, 1, 10, 20], [20, 1, 30, 25], [12, 3, 18, 9], [2, 20, 30, 28]
    entry = {
        "boxes_h": [person, person, other, person],
        "boxes_o": [ball, skis, ball, ball],
        "objects": [3, 2, 3, 3],
        "actions": [0, 1, 2, 3],
        "file_name": "a.jpg",
        "width": 40,
        "height": 30,
    }
    empty = {**entry, "boxes_h": [], "boxes_o": [], "objects": [], "actions": []}
    names = ["background", "person", "skis", "sports ball"]
    for name in ("trainval", "test"):
        write_json(tmp_path / f"vcoco/{name}.json", {"objects": names, "annotations": [entry, empty]})
    save(tmp_path / "vcoco/images/a.jpg")
    source = build("vcoco", tmp_path, flip=False)
    assert source.answers == names[1:]
    test = target(source, "test")
    assert test["boxes"].tolist() == [person, ball, skis, other]  # each once
    assert test["labels"].tolist() == [1, 3, 2, 1]
    assert test["relations"].tolist() == [[0, 1], [0, 2], [3, 1]]
    assert target(source, "test", 1)["relations"].shape == (0, 2)
    entry["objects"][0] = 4
    write_json(tmp_path / "vcoco/test.json", {"objects": names, "annotations": [entry]})
    with pytest.raises(DataError, match="object class 4 is not from 1 to 3"):
        build("vcoco", tmp_path)


def test_vcoco_of_its_authors(tmp_path):
    """Two actions of one pair are one relation; a person who does nothing, or uses nothing, has none."""
    images = [(n, f"{n}.jpg", 40, 30) for n in (5, 6, 9)]
    boxes = [(5, 3, [1, 1, 9, 19], 0), (5, 7, [12, 3, 6, 6], 0), (5, 3, [20, 1, 10, 24], 0), (6, 3, [1, 1, 9, 9], 0)]
    content = coco(images, boxes)
    for number, entry in enumerate(content["annotations"]):
        entry["id"] = 100 + number
    write_json(tmp_path / "vcoco/data/instances_vcoco_all_2014.json", content)
    people = {"image_id": [5, 5, 6], "ann_id": [100, 102, 103]}
    ends = [*people["ann_id"], 101, 0, 0]  # role by role
    actions = [
        {**people, "action_name": name, "role_name": ["agent", "obj"], "role_object_id": ends, "label": [1, 1, 0]}
        for name in ("hold", "look")
    ]
    actions.append(
        {**people, "action_name": "run", "role_name": ["agent"], "role_object_id": ends[:3], "label": [1] * 3}
    )
    for name in ("trainval", "test"):
        write_json(tmp_path / f"vcoco/data/vcoco/vcoco_{name}.json", actions)
    for n in (5, 6, 9):
        save(tmp_path / f"vcoco/images/{n}.jpg")
    source = build("vcoco", tmp_path, flip=False)
    assert source.answers == ["cat", "dog"]
    assert len(source.splits["test"]) == 2  # image 9 is not listed
    test = target(source, "test")
    assert test["labels"].tolist() == [1, 2, 1]
    assert test["relations"].tolist() == [[0, 1]]
    assert target(source, "test", 1)["relations"].shape == (0, 2)
    actions[0]["role_object_id"] = [*ends[:3], 103, 0, 0]  # of another image
    write_json(tmp_path / "vcoco/data/vcoco/vcoco_test.json", actions)
    with pytest.raises(DataError, match="not among its annotations"):
        build("vcoco", tmp_path)
    actions[0]["label"].pop()
    write_json(tmp_path / "vcoco/data/vcoco/vcoco_test.json", actions)
    with pytest.raises(DataError, match="action 'hold': expected as many image_id"):
        build("vcoco", tmp_path)


def test_vrd(tmp_path):
    person, horse = {"category": 0, "bbox": [1, 20, 3, 10]}, {"category": 1, "bbox": [5, 30, 2, 40]}
    triples = [
        {"subject": person, "predicate": 0, "object": horse},
        {"subject": person, "predicate": 1, "object": horse},
    ]
    write_json(tmp_path / "vrd/objects.json", ["person", "horse"])
    for split in ("train", "test"):
        write_json(tmp_path / f"vrd/annotations_{split}.json", {f"{split}.jpg": triples})
        save(tmp_path / f"vrd/sg_dataset/sg_{split}_images/{split}.jpg")
    source = build("vrd", tmp_path)
    test = target(source, "test")
    assert test["boxes"].tolist() == [[3, 1, 10, 20], [2, 5, 40, 30]]  # the files say top, bottom, left, right
    assert (test["labels"].tolist(), test["relations"].tolist()) == ([1, 2], [[0, 1]])
    write_json(tmp_path / "vrd/annotations_test.json", {"absent.jpg": triples})
    with pytest.raises(DataError, match=r"absent\.jpg, which is not there"):
        build("vrd", tmp_path)


def test_scene_graphs_of_visual_genome(tmp_path):
    def thing(number, name, *box):
        return {"object_id": number, "names": [name], **dict(zip("xywh", box, strict=True))}

    graphs = [
        {
            "image_id": n,
            "objects": [
                thing(1, "Man", 1, 2, 10, 12),
                thing(2, "horse ", 5, 5, 20, 20),
                thing(3, f"rare{n}", 0, 0, 9, 9),
            ],
            "relationships": [
                {"predicate": "rides", "subject_id": 1, "object_id": 2},
                {"predicate": "near", "subject_id": 3, "object_id": 2},
            ],
        }
        for n in range(10)
    ]
    folder = tmp_path / "visual_genome"
    write_json(folder / "scene_graphs.json", graphs)
    write_json(folder / "image_data.json", [{"image_id": n, "width": 40, "height": 30} for n in range(10)])
    for n in range(10):
        save(folder / f"VG_100K/{n}.jpg")
    from foveal.data.formats.visual_genome.graphs import read_graphs

    found = read_graphs(folder, classes=2)
    assert found.answers == ["horse", "man"]
    assert [len(found.splits[split]) for split in ("train", "test")] == [7, 3]
    objects = found.splits["test"].objects.target(0)
    assert objects["boxes"].tolist() == [[1, 2, 11, 14], [5, 5, 25, 25]]
    assert (objects["labels"].tolist(), objects["relations"].tolist()) == ([2, 1], [[0, 1]])
    assert len(build("visual-genome-graphs", tmp_path).answers) == 12
    (folder / "VG_100K/3.jpg").unlink()
    with pytest.raises(DataError, match=r"image 3\.jpg is annotated but"):
        build("visual-genome-graphs", tmp_path)


# Real files -------------------------------------------------------------------------


def test_the_genuine_sample_of_coco(real_data):
    if not (real_data / "coco-sample").is_dir():
        pytest.skip("real data: coco-sample is not in FOVEAL_DATA")
    source = build("coco", real_data, folder="coco-sample", hold=False)
    assert (len(source.answers), source.answers[0], source.answers[-1]) == (80, "person", "toothbrush")
    crowds = sum(int(t["iscrowd"].sum()) for batch in source.loader("test", 8, device=CPU) for t in batch["target"])
    assert crowds == 3
    assert not [p for p in check("coco", {"folder": "coco-sample"}, real_data) if p.stops]
