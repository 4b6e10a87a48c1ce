"""Asking about one object of an image file."""

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import tiny_recipe

from foveal.errors import UserError
from foveal.tasks import fit, load_model, predict


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("asked")
    for title, changes in {"one": [], "other": ["seed=1"]}.items():
        fit(tiny_recipe(folder, "train.epochs=1", f"title={title}", *changes), folder / title, progress=False)
    pixels = np.random.default_rng(0).integers(0, 255, (30, 30, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "photo.png")
    return folder


def test_answers_are_those_of_the_model(runs):
    prediction = predict(runs / "one", runs / "photo.png", "7")
    model, about = load_model(runs / "one")
    image = torch.from_numpy(np.array(Image.open(runs / "photo.png"))).permute(2, 0, 1)[None] / 255
    with torch.no_grad():
        probability = model(image, torch.tensor([about["queries"].index("7")])).softmax(1)[0]
    assert dict(prediction.answers) == pytest.approx(dict(zip(about["answers"], probability.tolist(), strict=True)))
    assert [p for _, p in prediction.answers] == sorted(probability.tolist(), reverse=True)
    assert list(prediction.lines) == ["one"]
    assert prediction.stem == "photo-7"
    assert prediction.picture.width > 2 * 180


def test_two_runs_beside_each_other(runs):
    alone, other = (predict(runs / name, runs / "photo.png", "3") for name in ("one", "other"))
    both = predict(runs / "one", runs / "photo.png", "3", beside=runs / "other", label=["red"])
    assert both.models == {"one": alone.answers, "other": other.answers}
    assert both.picture.width > alone.picture.width + 180
    assert all(sum(line.endswith("  true") for line in lines) == 1 for lines in both.lines.values())


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        (["photo.png"], {}, "ask for after the image: 0, 1"),
        ([], {}, "expected an image file and a query"),
        (["photo.png", "3", "4"], {}, "expected an image file and a query"),
        (["photo.png", "eleven"], {}, "unknown query 'eleven'"),
        (["gone.png", "3"], {}, r"gone\.png"),
        (["photo.png", "3"], {"label": ["rde"]}, "did you mean 'red'"),
        (["photo.png", "3"], {"label": ["red", "blue"]}, "give one true class"),
        (["photo.png", "3"], {"lable": ["red"]}, "did you mean 'label'"),
    ],
)
def test_mistakes(runs, monkeypatch, inputs, options, message):
    monkeypatch.chdir(runs)
    with pytest.raises(UserError, match=message):
        predict("one", *inputs, **options)
