"""Attributes in Visual Genome, from the annotation files to samples."""

import json
import math
import os
import pickle

import pytest
import torch
from small_genome import COLOURS, HEIGHT, IMAGES, WIDTH, scene, write
from torch.utils.data import DataLoader

from foveal.data.formats.visual_genome import annotations
from foveal.data.formats.visual_genome.attributes import VisualGenomeAttributes, split_images, split_sizes, union_mask
from foveal.errors import DataError, UnknownNameError, UserError
from foveal.models.attribute import AttributeNet

OPTIONS = {"image_size": 32, "min_count": 3}


@pytest.fixture(scope="module")
def genome(tmp_path_factory):
    return write(tmp_path_factory.mktemp("data") / "genome")


@pytest.fixture
def broken(tmp_path):
    """A copy of one's own, to be damaged."""
    return write(tmp_path / "genome")


def load(root, split="train", **options):
    return VisualGenomeAttributes(root, split, **{**OPTIONS, **options})


def rewrite(path, change):
    content = json.loads(path.read_text())
    path.write_text(json.dumps(change(content)))


# Classes and samples --------------------------------------------------------------------------------------------------


def test_classes_by_frequency_then_name(genome):
    data = load(genome)
    assert data.queries == ["ball", "box"]  # 36 and 30 objects; sky has no attributes, hat appears once
    # round 30, red 22 and one from the hat, blue and green 19 each, big 6, striped 1
    assert data.answers == ["round", "red", "blue", "green", "big"] == load(genome, "test").answers
    # More than min_count, not at least: there are 6 big ones.
    assert "big" not in load(genome, min_count=6).answers
    assert "big" in load(genome, min_count=5).answers


def test_samples_are_the_union_over_the_objects_of_a_class(genome):
    seen = {}
    for split in ("train", "val", "test"):
        data = load(genome, split)
        for n, sample in enumerate(data.samples):
            item = data[n]
            assert item["index"] == n
            names = {data.answers[k] for k in item["label"].nonzero().flatten().tolist()}
            seen[sample.image, data.queries[item["query"]]] = names, item["mask"]
    assert len(seen) == 2 * IMAGES
    for i in range(1, IMAGES + 1):
        colour, other = list(COLOURS)[i % 3], list(COLOURS)[((i - 1) // 3) % 3]
        assert seen[i, "ball"][0] == {colour, "round"} | ({"big"} if i % 5 == 0 else set())
        assert seen[i, "box"][0] == {other}
        boxes = [(5, 10, 20, 20)] + ([(55, 30, 20, 20)] if i % 5 == 0 else [])
        assert torch.equal(seen[i, "ball"][1], union_mask(boxes, (WIDTH, HEIGHT), 32))


def test_items(genome):
    data = load(genome)
    item = data[0]
    assert item.keys() == {"image", "query", "label", "mask", "index"}
    assert (item["image"].shape, item["image"].dtype) == ((3, 32, 32), torch.uint8)
    assert (item["mask"].shape, item["mask"].dtype) == ((32, 32), torch.bool)
    assert (item["label"].shape, item["label"].dtype) == ((5,), torch.float32)
    assert type(item["query"]) is int
    assert load(genome, image_size=48)[0]["image"].shape == (3, 48, 48)


def test_the_mask_lies_on_the_object(genome):
    """Away from its border the box has the colour of the label: image, mask and label belong together."""
    data = load(genome)
    for n in range(len(data)):
        item = data[n]
        if data.queries[item["query"]] != "box":
            continue
        colour = next(c for c in COLOURS if item["label"][data.answers.index(c)])
        inside = ~torch.nn.functional.max_pool2d((~item["mask"])[None].float(), 5, 1, 2)[0].bool()
        assert inside.sum() > 20
        average = item["image"][:, inside].float().mean(1)
        assert (average - torch.tensor(COLOURS[colour])).abs().max() < 25


def test_union_mask_equals_a_loop():
    torch.manual_seed(0)
    width, height, side = 50, 30, 20
    for _ in range(20):
        boxes = [
            tuple(map(float, row))
            for row in (torch.rand(3, 4) * torch.tensor([70, 40, 30, 20]) + torch.tensor([-15, -15, 1, 1]))
            .round()
            .tolist()
        ]
        mask = union_mask(boxes, (width, height), side)
        for row in range(side):
            for col in range(side):
                left, right = col * width / side, (col + 1) * width / side
                top, bottom = row * height / side, (row + 1) * height / side
                touched = any(x < right and x + w > left and y < bottom and y + h > top for x, y, w, h in boxes)
                assert mask[row, col] == touched


def test_older_release(broken):
    """Version 1.0 says id and object_names."""

    def rename(content):
        for entry in content:
            entry["id"] = entry.pop("image_id")
            for thing in entry["attributes"]:
                thing["object_names"] = thing.pop("names")
                thing["id"] = thing.pop("object_id")
        return content

    new = load(broken).samples
    rewrite(broken / "attributes.json", rename)
    assert load(broken).samples == new


def test_objects_json_fills_in_names_and_boxes(broken):
    new = load(broken).samples
    objects = [{"image_id": i, "objects": scene(i)} for i in range(1, IMAGES + 1)]

    def strip(content):
        for entry in content:
            for thing in entry["attributes"]:
                for key in ("names", "x", "y", "w", "h"):
                    del thing[key]
        return content

    rewrite(broken / "attributes.json", strip)
    with pytest.raises(DataError, match="no object class"):
        load(broken)
    (broken / "objects.json").write_text(json.dumps(objects))
    assert load(broken).samples == new


# Splits ---------------------------------------------------------------------------------------------------------------


def images(data):
    return {sample.image for sample in data.samples}


def test_splits_share_no_image_and_leave_none_out(genome):
    parts = [images(load(genome, split)) for split in ("train", "val", "test")]
    assert [len(part) for part in parts] == list(split_sizes(IMAGES)) == [17, 7, 6]
    assert set().union(*parts) == set(range(1, IMAGES + 1))


def test_splits_depend_on_the_seed_alone(genome):
    assert load(genome).samples == load(genome, image_size=64).samples
    assert images(load(genome, seed=1)) != images(load(genome, seed=0))
    shuffled = torch.randperm(50).tolist()
    assert split_images(shuffled, "val", seed=3) == split_images(range(50), "val", seed=3)


def test_sizes(genome):
    assert [len(images(load(genome, s, sizes=(4, 3, 2)))) for s in ("train", "val", "test")] == [4, 3, 2]
    with pytest.raises(UserError, match=r"ask for 31 images, but only 30"):
        load(genome, sizes=(29, 1, 1))
    with pytest.raises(UserError, match=r"three numbers .* got \[3, 4\]"):
        load(genome, sizes=(3, 4))
    with pytest.raises(DataError, match=r"the val split of .* is empty"):
        load(genome, "val", sizes=(3, 0, 3))


def test_annotations_are_parsed_once_until_they_change(broken, monkeypatch):
    opened = []
    read = annotations.read_list
    monkeypatch.setattr(annotations, "read_list", lambda path: opened.append(path.name) or read(path))
    before = sorted(os.listdir(broken))
    parts = [load(broken, split) for split in ("train", "val", "test")]
    parts[2].prior()
    assert opened == ["attributes.json", "image_data.json"]
    assert sorted(os.listdir(broken)) == before  # nothing is written
    rewrite(broken / "attributes.json", lambda content: content[:20])
    os.utime(broken / "attributes.json", (1, 1))
    assert sum(len(images(load(broken, split))) for split in ("train", "val", "test")) == 20


def test_pickles_for_worker_processes(genome):
    data = load(genome)
    copy = pickle.loads(pickle.dumps(data))
    assert torch.equal(copy[3]["image"], data[3]["image"])


# The prior ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("smoothing", [1.0, 0.25])
def test_prior_equals_a_loop_over_the_training_split(genome, smoothing):
    train = load(genome)
    table = load(genome, "test").prior(smoothing)
    assert table.shape == (2, 5)
    assert torch.equal(table, train.prior(smoothing))
    items = [train[n] for n in range(len(train))]
    for q in range(2):
        labels = [item["label"] for item in items if item["query"] == q]
        for a in range(5):
            p = (sum(float(label[a]) for label in labels) + smoothing) / (len(labels) + 2 * smoothing)
            assert table[q, a].item() == pytest.approx(math.log(p / (1 - p)), rel=1e-5, abs=1e-6)


def test_prior_needs_smoothing(genome):
    with pytest.raises(UserError, match=r"above zero.*got 0"):
        load(genome).prior(0)


# Training -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_few_steps_learn(genome):
    torch.manual_seed(0)
    data = load(genome)
    model = AttributeNet(len(data.queries), classes=len(data.answers), gates="all", hidden=8, prior="fixed")
    model.set_prior(data.prior())
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-4)
    batch = next(iter(DataLoader(data, batch_size=8)))
    losses = []
    for _ in range(8):
        logits = model(batch["image"] / 255, batch["query"])
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, batch["label"])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.85 * losses[0]


# Mistakes -------------------------------------------------------------------------------------------------------------


def test_unknown_split(genome):
    with pytest.raises(UnknownNameError, match="unknown split 'validation'"):
        load(genome, "validation")
    with pytest.raises(UserError, match="image_size must be at least 1"):
        load(genome, image_size=0)


def test_missing_folder(tmp_path):
    with pytest.raises(DataError, match=r"no Visual Genome folder .*nowhere; .*attributes\.json.*https://"):
        load(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["attributes.json", "image_data.json"])
def test_missing_file(broken, name):
    (broken / name).unlink()
    with pytest.raises(DataError, match=rf"{name} is missing; get {name}\.zip from https://"):
        load(broken)


@pytest.mark.parametrize("name", ["attributes.json", "image_data.json"])
def test_invalid_json_names_file_and_line(broken, name):
    (broken / name).write_text('[\n{"image_id": 1,\n "attributes": [}]')
    with pytest.raises(DataError, match=rf"{name} is not valid JSON .*line 3, column 17.*{name}\.zip"):
        load(broken)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"images": []}', "must hold a list .* got dict"),
        ('[{"attributes": []}]', "entry 0 has no 'image_id' or 'id' of type int"),
        ('[{"image_id": 1, "attributes": []}, {"image_id": 2}]', "entry 1 has no 'attributes' of type list"),
        ("[3]", "entry 0 has no 'image_id'"),
        ('[{"image_id": 1, "attributes": ["red"]}]', "image 1 lists 'red' instead of an object"),
        ("[]", "no object class with an attribute .* more than 3 times; lower min_count"),
    ],
)
def test_content_of_another_kind(broken, content, message):
    (broken / "attributes.json").write_text(content)
    with pytest.raises(DataError, match=rf"attributes\.json.*{message}"):
        load(broken)


def test_not_text(broken):
    (broken / "attributes.json").write_bytes(b"\xff\xfe\x00[")
    with pytest.raises(DataError, match=r"cannot read .*attributes\.json"):
        load(broken)


def test_files_of_different_releases(broken):
    rewrite(broken / "image_data.json", lambda content: content[2:])
    with pytest.raises(DataError, match=r"image_data\.json does not list image 1 .*\(2 absent\).*one release"):
        load(broken)


def test_absent_images_are_found_before_training(broken):
    gone = sorted(images(load(broken)))[:2]
    for image in gone:
        (broken / ("VG_100K" if image % 2 else "VG_100K_2") / f"{image}.jpg").unlink()
    with pytest.raises(
        DataError, match=rf"image {gone[0]}\.jpg is annotated but .*\(2 of 17 are absent\).*images2\.zip"
    ):
        load(broken)
    load(broken, "test")


@pytest.mark.parametrize("damage", ["truncated", "not a picture", "empty", "gone"])
def test_damaged_image(broken, damage):
    data = load(broken)
    path = data.files[data.samples[0].image]
    if damage == "gone":
        path.unlink()
    else:
        whole = path.read_bytes()
        path.write_bytes({"truncated": whole[: len(whole) // 2], "not a picture": b"<html>", "empty": b""}[damage])
    with pytest.raises(DataError, match=rf"cannot read the image .*{path.name} .*unpack it again"):
        data[0]
