from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from foveal.errors import UserError
from foveal.tasks.segment.inference import logits_of, segment, starts
from foveal.tasks.segment.options import SegmentMeasure


class Net(nn.Module):
    """Logits that depend on neighbours, so that a window's border shows."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, (3, 5), padding=(1, 2))
        self.sizes = []

    def forward(self, x):
        self.sizes.append(tuple(x.shape[-2:]))
        return {"out": self.conv(x)}


@pytest.mark.parametrize("size", [(20, 31), (6, 40), (9, 9)])
@pytest.mark.parametrize("flip", [False, True])
@torch.no_grad()
def test_windows_are_averaged(size, flip):
    """Each pixel by a plain loop: the mean over the windows that hold it, of the padded image and its mirror image."""
    net, x, window = Net(), torch.randn(2, 3, *size), (8, 12)
    logits = segment(net, x, SegmentMeasure(window=window, stride=0.5, flip=flip))
    expected = torch.zeros(2, 4, *size)
    for image, mirrored in ((x, False), (x.flip(3), True))[: 1 + flip]:
        padded = torch.zeros(2, 3, max(8, size[0]), max(12, size[1]))
        padded[..., : size[0], : size[1]] = image
        one, count = torch.zeros(2, 4, *padded.shape[-2:]), torch.zeros(padded.shape[-2:])
        for top in starts(size[0], 8, 0.5):
            for left in starts(size[1], 12, 0.5):
                part = net(padded[..., top : top + 8, left : left + 12])["out"].log_softmax(1)
                one[..., top : top + 8, left : left + 12] += part
                count[top : top + 8, left : left + 12] += 1
        one = (one / count)[..., : size[0], : size[1]].log_softmax(1)
        expected += (one.flip(3) if mirrored else one) / (1 + flip)
    torch.testing.assert_close(logits.log_softmax(1), expected.log_softmax(1), atol=2e-5, rtol=1e-4)


@torch.no_grad()
def test_an_image_that_fits_the_window_is_predicted_whole():
    net, x = Net(), torch.randn(1, 3, 7, 9)
    torch.testing.assert_close(segment(net, x, SegmentMeasure(window=(8, 12))), net(x)["out"])
    torch.testing.assert_close(segment(net, x), net(x)["out"])
    assert set(net.sizes) == {(7, 9)}


class Pixelwise(nn.Module):
    """Logits of each pixel from that pixel alone: no window can change them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 1)

    def forward(self, x):
        return self.conv(x)


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize(("window", "stride"), [((8, 12), 0.5), ((5, 7), 1.0), ((20, 3), 0.3), ((100, 6), 0.67)])
@torch.no_grad()
def test_windows_give_what_the_whole_image_does_where_pixels_are_independent(window, stride, flip):
    net, x = Pixelwise(), torch.randn(2, 3, 20, 31)
    windows = segment(net, x, SegmentMeasure(window=window, stride=stride, flip=flip))
    torch.testing.assert_close(windows.softmax(1), net(x).softmax(1))


@pytest.mark.parametrize("window", [(7, 9), (7, 100), (100, 9)])
@torch.no_grad()
def test_a_window_as_large_as_the_image_is_the_whole_image(window):
    net, x = Net(), torch.randn(2, 3, 7, 9)
    for flip in (False, True):
        whole, windowed = (segment(net, x, SegmentMeasure(window=w, flip=flip)) for w in (None, window))
        torch.testing.assert_close(windowed, whole, rtol=0, atol=0)
    assert set(net.sizes) == {(7, 9)}


@torch.no_grad()
def test_mirrored_images_give_mirrored_answers():
    net, x, options = Net(), torch.randn(1, 3, 10, 14), SegmentMeasure(flip=True)
    torch.testing.assert_close(segment(net, x, options).flip(3), segment(net, x.flip(3), options))


@given(st.integers(1, 300), st.integers(1, 100), st.floats(0.05, 1))
def test_windows_cover_everything(length, window, stride):
    first = starts(length, window, stride)
    assert first[0] == 0
    assert first[-1] == max(0, length - window)
    assert all(0 < b - a <= max(1, round(window * stride)) for a, b in pairwise(first))


def test_what_a_model_may_put_out():
    logits = torch.zeros(1, 2, 3, 3)
    assert logits_of(logits)["out"] is logits
    assert set(logits_of({"out": logits, "aux": logits})) == {"out", "aux"}
    for output in ([logits], {"logits": logits}):
        with pytest.raises(UserError, match="dict with 'out'"):
            logits_of(output)
