"""The classes of a photograph, and where a position looks."""

from __future__ import annotations

import pytest
import torch
from PIL import Image
from torch import nn

from foveal.attention import AttentionRecord, DeformConv2d, SpatialAttention
from foveal.attention.records.placement import map_size
from foveal.attention.records.record import Attends
from foveal.errors import UserError
from foveal.models.segmenter import Segmenter
from foveal.recipe import load
from foveal.tasks.prediction import Trained
from foveal.tasks.segment.prediction import attention_from_positions, attention_of, predict, run_lengths

ABOUT = {
    "answers": ["dark", "bright"],
    "palette": ["#000080", "#ffff00"],
    "view": {"short": None, "mean": [0.0] * 3, "std": [1.0] * 3},
}


class Everywhere(Attends):
    """Pairwise attention from every position of a map to every second one, in two heads."""

    kind = "pairwise"

    def forward(self, x):
        queries = x.flatten(2).mT
        keys = x[:, :, ::2, ::2].flatten(2).mT
        self.note((queries @ keys.mT / 10).softmax(2)[:, None].repeat(1, 2, 1, 1))
        return x


class Windows(nn.Module):
    """Attention within windows of two pixels, by PyTorch's own function."""

    def forward(self, x):
        tokens = x.reshape(-1, 1, 2, 3)
        return nn.functional.scaled_dot_product_attention(tokens, tokens, tokens).reshape(x.shape)


class Net(nn.Module):
    """Bright and dark pixels, at an eighth of the size of the image."""

    def __init__(self, attends):
        super().__init__()
        self.attend = Everywhere() if attends else nn.Identity()

    def forward(self, x):
        small = self.attend(nn.functional.avg_pool2d(x, 8, ceil_mode=True))
        bright = nn.functional.interpolate(small.mean(1, keepdim=True), x.shape[-2:], mode="nearest")
        return {"out": torch.cat([0.5 - bright, bright - 0.5], 1)}


@pytest.fixture
def run(tmp_path):
    def make(attends=False, title="net", **view):
        recipe = load("demo/segment/plain", [f"title={title}"])
        return Trained(tmp_path / title, recipe, Net(attends).eval(), {**ABOUT, "view": {**ABOUT["view"], **view}})

    return make


@pytest.fixture
def photo(tmp_path):
    image = Image.new("RGB", (64, 40))
    image.paste((255, 255, 255), (32, 0, 64, 40))
    image.save(tmp_path / "photo.png")
    return str(tmp_path / "photo.png")


def test_classes(run, photo):
    prediction = predict([run()], [photo], None, None, None)
    assert prediction.data["models"]["net"]["shares"] == {"dark": 0.5, "bright": 0.5}
    assert prediction.data["models"]["net"]["runs"] == [[n, 32] for n in (0, 1)] * 40
    assert prediction.data["size"] == [40, 64]
    assert any("50.0%" in line for line in prediction.lines["net"])
    assert prediction.stem == "photo-segmented"
    assert prediction.caption == "The classes"
    assert not prediction.remark


@pytest.mark.parametrize(("short", "window"), [(20, None), (None, 24), (100, None)])
def test_any_size(run, photo, short, window):
    """The photograph may be resized for the model, or seen through a window; the answer has its own size."""
    data = predict([run()], [photo], None, short, window).data["models"]["net"]
    assert sum(length for _, length in data["runs"]) == 64 * 40
    assert data["shares"]["bright"] == pytest.approx(0.5, abs=0.15)


def test_the_short_side_of_training(run, photo):
    seen = []
    net = run(short=16)
    net.model.register_forward_pre_hook(lambda module, inputs: seen.append(tuple(inputs[0].shape)))
    predict([net], [photo], None, None, None)
    assert seen == [(1, 3, 16, 26)]


def test_where_a_position_looks(run, photo):
    plain = predict([run()], [photo], None, None, None)
    asked = predict([run(attends=True)], [photo], "60,5", None, None)
    assert asked.picture.width > plain.picture.width  # a panel more
    assert not asked.remark
    assert asked.caption == "The classes and where it looked"
    nothing = predict([run()], [photo], "60,5", None, None)
    assert "mechanism: spatial" in nothing.remark
    assert nothing.caption == "The classes"
    both = predict([run(attends=True), run(title="other")], [photo], "60,5", None, None)
    assert list(both.data["models"]) == ["net", "other"]


def test_each_term_and_sampling_points(run, photo, monkeypatch):
    """Beside all terms together there is each term of the last layer; of a deformable convolution, its points."""
    titles, drawn = [], []
    monkeypatch.setattr(
        "foveal.tasks.segment.prediction.segmentation",
        lambda *a, panels: titles.extend(panels) or Image.new("RGB", (1, 1)),
    )
    monkeypatch.setattr(
        "foveal.tasks.segment.prediction.sampling",
        lambda image, points, at, modulation: drawn.append((points, at)) or Image.new("RGB", (192, 120)),
    )
    net = run()
    net.model.attend = nn.Sequential(DeformConv2d(3, 3, 3, padding=1), SpatialAttention(3, heads=1, terms="0110"))
    predict([net], [photo], "60,5", None, None)
    assert titles == ["attend.0.deform", "attend.1", "attend.1 E2", "attend.1 E3"]
    (points, at), *_ = drawn
    assert at == pytest.approx((60, 5))
    window = 8 * torch.tensor([[x, y] for y in (-1, 0, 1) for x in (6, 7, 8)]) + 3.5  # offsets are zero at first
    torch.testing.assert_close(points[0], window.float())
    saliency = run(title="other")
    saliency.model.attend = SpatialAttention(3, heads=1, terms="0010")
    titles.clear()
    predict([saliency], [photo], "60,5", None, None)
    assert titles == ["attend"]  # one term is all there is


def test_the_points_of_a_strided_convolution_are_inside_the_photograph(run, photo, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        "foveal.tasks.segment.prediction.sampling",
        lambda image, points, at, modulation: drawn.append((points, modulation)) or Image.new("RGB", (192, 120)),
    )
    net = run()
    net.model.attend = nn.Sequential(DeformConv2d(3, 3, 3, stride=2, padding=1, modulated=True))
    bias = net.model.attend[0].deform.offset.bias
    bias.data[18] = 2.0  # of the first tap's modulation
    predict([net], [photo], "60,5", None, None)
    ((points, modulation),) = drawn
    window = 8 * torch.tensor([[x, y] for y in (-1, 0, 1) for x in (5, 6, 7)]) + 3.5  # the input is a map of 5×8
    torch.testing.assert_close(points[0], window.float())
    torch.testing.assert_close(modulation[0], torch.tensor([2.0, *[0.0] * 8]).sigmoid())


def test_the_row_of_a_position():
    """Every query of a 5×8 map looks at one key of a 3×4 map: the right row and the right shape are taken."""
    weights = torch.zeros(1, 2, 40, 12)
    weights[0, :, torch.arange(40), torch.arange(40) % 12] = 1
    record = AttentionRecord("site", "pairwise", weights, True)
    for column, row in ((0, 0), (7, 4), (3, 2)):
        position = ((column + 0.5) / 8, (row + 0.5) / 5)
        attention = attention_of(record, position, (40, 64))
        assert attention.shape == (3, 4)
        assert int(attention.argmax()) == (row * 8 + column) % 12
    windows = AttentionRecord("site", "pairwise", torch.zeros(6, 2, 40, 40), True)
    assert attention_of(windows, (0, 0), (40, 64)) is None
    padded = AttentionRecord("site", "pairwise", torch.zeros(1, 2, 49, 49), True)  # one window of 7×7
    assert attention_of(padded, (0, 0), (64, 96)) is None


def test_a_transformer_attends_from_its_patches():
    """timm's ViT knows nothing of foveal; it has a class token before 3×4 patches."""
    options = {"dynamic_img_size": True, "depth": 2, "embed_dim": 12, "num_heads": 2}
    model = Segmenter("vit_tiny_patch16_224", num_classes=2, width=4, options=options).eval()
    seen = attention_from_positions(model, torch.rand(1, 3, 48, 64))
    assert {tuple(record.shape) for record in seen.values()} == {(1, 2, 13, 13)}
    record = seen["backbone.model.blocks.1.attn"]
    attention = attention_of(record, (0.9, 0.4), (48, 64))  # row 1, column 3
    torch.testing.assert_close(attention, record.values[0, :, 1 + 4 + 3, 1:].mean(0).view(3, 4))


def test_attention_that_has_no_map(run, photo):
    """Attention within windows is seen and not drawn: the remark says which."""
    net = run()
    net.model.attend = Windows()
    remark = predict([net], [photo], "60,5", None, None).remark
    assert "that of attend, 20 × 1 × 2 × 2, is not between positions of the whole image" in remark


@pytest.mark.parametrize("size", [(40, 64), (37, 53), (176, 235), (5, 500)])
@pytest.mark.parametrize("stride", [1, 2, 8, 16, 32])
def test_sizes_of_maps(size, stride):
    height, width = (-(-side // stride) for side in size)
    assert map_size(height * width, size) == (height, width)


def test_run_lengths():
    classes = torch.randint(0, 3, (9, 7), generator=torch.Generator().manual_seed(0))
    back = [label for label, length in run_lengths(classes) for _ in range(length)]
    assert back == classes.flatten().tolist()


@pytest.mark.parametrize(
    ("at", "message"), [("5", "expected x,y in pixels"), ("a,b", "such as --at 32,20"), ("64,0", "64×40 pixels")]
)
def test_bad_positions(run, photo, at, message):
    with pytest.raises(UserError, match=message):
        predict([run()], [photo], at, None, None)


def test_bad_inputs(run, photo):
    with pytest.raises(UserError, match="leave 'sky' out"):
        predict([run()], [photo, "sky"], None, None, None)
    with pytest.raises(UserError, match="--short 0"):
        predict([run()], [photo], None, 0, None)
