"""Two runs asked about one image, and the true class framed."""

from __future__ import annotations

import shutil

import pytest
import torch
from PIL import Image
from tiny import SHARPEN, tiny_recipe

from foveal.errors import UserError
from foveal.runs import RunFolder, Stored
from foveal.see.draw.class_maps import TRUE
from foveal.tasks import fit, load_model, predict
from foveal.tasks.answers import answer_lines, true_answers

RUNS = {
    "sharpened": ["loss.sharpen.kind=gradcam", "title=sharpened"],
    "plain": ["loss.sharpen=null", "title=plain"],
    "gated": ["model.insert=cbam", "title=gated"],
}
GREEN = tuple(int(TRUE[i : i + 2], 16) for i in (1, 3, 5))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("predict")
    for name, changes in RUNS.items():
        fit(tiny_recipe(folder, "train.batch=200", *changes, text=SHARPEN), folder / name, progress=False)
    Image.new("RGB", (20, 20), (90, 20, 200)).save(folder / "photo.png")
    return folder


def green(picture: Image.Image) -> int:
    """How many pixels the frames of true classes have, and their names."""
    return sum(count for count, colour in picture.getcolors(1 << 20) if colour == GREEN)


def test_two_runs_beside_each_other(runs) -> None:
    photo = runs / "photo.png"
    one, other = (predict(runs / name, photo) for name in ("sharpened", "plain"))
    both = predict(runs / "sharpened", photo, beside=runs / "plain")
    assert both.models == {"sharpened": one.answers, "plain": other.answers}
    assert other.picture is None  # its recipe neither trains on class maps nor measures them
    assert one.picture is not None
    assert both.picture is not None
    assert both.picture.size == (one.picture.width, 2 * one.picture.height)
    assert both.picture.crop((0, 0, *one.picture.size)).tobytes() == one.picture.tobytes()
    turned = predict(runs / "plain", photo, beside=runs / "sharpened")
    assert list(turned.models) == ["plain", "sharpened"]
    assert turned.picture is not None
    assert turned.picture.size == both.picture.size


def test_the_true_class_is_framed(runs) -> None:
    plain, marked = (predict(runs / "sharpened", runs / "photo.png", label=label) for label in ([], ["3"]))
    assert plain.picture is not None
    assert marked.picture is not None
    assert green(plain.picture) == 0
    assert green(marked.picture) > 0
    first = marked.answers[0][0]
    framed = predict(runs / "sharpened", runs / "photo.png", label=[first], beside=runs / "plain").picture
    assert framed is not None
    assert green(framed) > 4 * 4 * 180


def test_gates_and_class_maps_of_an_inserted_mechanism(runs) -> None:
    assert "cbam" in str(load_model(runs / "gated")[0])
    gated, alone = (predict(runs / name, runs / "photo.png").picture for name in ("gated", "sharpened"))
    assert gated is not None
    assert alone is not None
    assert gated.height > alone.height + 180  # the gates above, the class maps below


def test_runs_that_cannot_stand_beside_each_other(runs, tmp_path) -> None:
    other = tmp_path / "other"
    shutil.copytree(runs / "plain", other)
    stored = RunFolder(other).tensors("weights.safetensors")
    about = {**stored.about, "answers": [f"class {i}" for i in range(10)]}
    RunFolder(other).write_tensors("weights.safetensors", Stored(stored.tensors, about))
    with pytest.raises(UserError, match=r"class 0, .* than .*0, 1, .*; give a run on the same dataset"):
        predict(runs / "sharpened", runs / "photo.png", beside=other)
    with pytest.raises(UserError, match="name another one"):
        predict(runs / "plain", runs / "photo.png", beside=runs / "gated" / ".." / "plain")


def test_true_classes_by_name() -> None:
    about = {"answers": ["cow", "dog", "sheep"], "multilabel": False}
    assert true_answers(about, []) is None
    assert torch.equal(true_answers(about, ["sheep"]), torch.tensor([2]))
    assert torch.equal(true_answers(about | {"multilabel": True}, ["cow", "sheep"]), torch.tensor([[1, 0, 1]]))
    with pytest.raises(UserError, match="give one true class instead of cow, dog"):
        true_answers(about, ["cow", "dog"])
    with pytest.raises(UserError, match=r"unknown class 'shep'; did you mean 'sheep'\?"):
        true_answers(about, ["shep"])


def test_a_run_of_another_task_cannot_stand_beside(runs, tmp_path) -> None:
    fit(tiny_recipe(tmp_path, "train.epochs=1"), tmp_path / "refer", progress=False)
    with pytest.raises(UserError, match=r"of task refer and cannot be compared with .* of task classify"):
        predict(runs / "plain", runs / "photo.png", beside=tmp_path / "refer")


def test_long_names_are_aligned():
    lines = answer_lines([("cat", 0.5), ("American Staffordshire terrier", 0.3), ("dog", 0.2)], ["dog"])
    assert len({line.index("%") for line in lines}) == 1
