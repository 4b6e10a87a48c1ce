"""Images as people have them give the maps of the tensor that the model was trained on."""

from __future__ import annotations

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch import nn
from torchvision.transforms.functional import normalize

import foveal
from foveal.errors import UserError

RGB = np.random.default_rng(0).integers(0, 256, (2, 40, 48, 3), dtype=np.uint8)
FIRST = RGB.transpose(0, 3, 1, 2)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return timm.create_model("resnet10t", num_classes=3).eval()


@pytest.fixture(scope="module")
def prepared(model):
    """The same images as the model takes them."""
    mean, std = model.pretrained_cfg["mean"], model.pretrained_cfg["std"]
    return normalize(torch.from_numpy(FIRST.copy()) / 255, mean, std)


@pytest.mark.parametrize(
    "x",
    [[Image.fromarray(image) for image in RGB], RGB, FIRST, torch.from_numpy(FIRST.copy())],
    ids=["PIL", "array", "array, channels first", "bytes"],
)
def test_bytes_are_normalised_as_the_model_states(x, model, prepared):
    torch.testing.assert_close(foveal.cam(model, x, 1), foveal.cam(model, prepared, 1))


@pytest.mark.parametrize("x", [Image.fromarray(RGB[0]), RGB[0]], ids=["PIL", "array"])
def test_one_image(x, model, prepared):
    torch.testing.assert_close(foveal.cam(model, x, 1), foveal.cam(model, prepared[:1], 1))


def test_arrays_of_floats_are_taken_as_they_are(model, prepared):
    expected = foveal.cam(model, prepared, 1)
    for array in (prepared.numpy(), prepared.double().numpy(), prepared.permute(0, 2, 3, 1).numpy()):
        torch.testing.assert_close(foveal.cam(model, array, 1), expected)


@pytest.mark.parametrize(
    ("x", "advice"),
    [
        (RGB[:, :3], "either axis could be the channels"),
        (RGB[0, 0], r"got an array \(48, 3\)"),
        (RGB[0] / 255, r"got an array \(40, 48, 3\)"),
        ([Image.new("RGB", (8, 8)), Image.new("RGB", (9, 8))], "8×8, 9×8"),
        (torch.zeros(1, 5, 8, 8, dtype=torch.uint8), r"\(x / 255 - mean\) / std"),
    ],
    ids=["both axes", "a row", "one image of floats", "sizes", "five channels"],
)
def test_what_is_not_clear_is_refused(x, advice, model):
    with pytest.raises(UserError, match=advice):
        foveal.cam(model, x, 1)


@pytest.mark.parametrize("x", [Image.fromarray(RGB[0]), RGB, torch.from_numpy(FIRST.copy())])
def test_a_model_that_states_nothing_gets_no_bytes(x):
    plain = nn.Sequential(nn.Conv2d(3, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(UserError, match="does not state how they are normalised"):
        foveal.cam(plain, x, 0, at="0")


@pytest.mark.parametrize(
    ("x", "advice"),
    [
        ("photo.png", "open the image first"),
        (torch.rand(3, 64, 64), r"one image is x\[None\]"),
        (torch.rand(2, 1, 64, 64), "takes images of 3 channels, x has 1"),
        (torch.rand(2, 3, 64, 64).double(), "x is torch.float64, the model torch.float32"),
        (torch.randint(0, 256, (2, 3, 64, 64)), r"x is torch.int64.*bytes \(uint8\)"),
        ([[1.0, 2.0]], r"as a tensor \(N, 3, H, W\), got list"),
        ([RGB[0], RGB[1, :30]], r"different shapes \(\(30, 48, 3\), \(40, 48, 3\)\)"),
    ],
    ids=["path", "one image", "channels", "float64", "int64", "list", "shapes"],
)
@pytest.mark.parametrize("at", [None, "layer4"])
def test_what_does_not_fit_the_model_is_explained(x, advice, at, model):
    with pytest.raises(UserError, match=advice):
        foveal.cam(model, x, 1, at)


def test_a_list_of_arrays(model, prepared):
    torch.testing.assert_close(foveal.cam(model, list(RGB), 1), foveal.cam(model, prepared, 1))


def test_an_error_of_the_models_own_stays():
    class Fails(nn.Module):
        def forward(self, x):
            raise RuntimeError("my own")

    with pytest.raises(RuntimeError, match="my own"):
        foveal.cam(nn.Sequential(nn.Conv2d(3, 2, 3), Fails()), torch.rand(1, 3, 8, 8), 0, "0")
