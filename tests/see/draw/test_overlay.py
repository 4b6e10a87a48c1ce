import numpy as np
import pytest
import torch
from PIL import Image

from foveal.errors import UnknownNameError, UserError
from foveal.see import attended, heatmap, overlay
from foveal.see.draw.overlay import scaled

GREY = torch.full((3, 20, 30), 100, dtype=torch.uint8)
HALF = torch.tensor([[0.0, 3.0]])  # nothing on the left, everything on the right


def test_overlay_leaves_the_image_where_nothing_is_attended_and_blends_at_the_peak():
    picture = overlay(GREY, HALF, alpha=0.5)
    assert (picture.mode, picture.size) == ("RGB", (30, 20))
    assert picture.getpixel((0, 10)) == (100, 100, 100)
    assert picture.getpixel((29, 10)) == (176, 176, 146)  # half grey 100, half magma's last colour (252, 253, 191)


def test_attended_is_the_image_times_attention():
    linear = attended(GREY, HALF, floor=0.2, gamma=1)
    assert linear.getpixel((0, 0)) == (20, 20, 20)
    assert linear.getpixel((29, 0)) == (100, 100, 100)
    middle = scaled(HALF, (20, 30))[0, 14]
    expected = round(float(100 * (0.2 + 0.8 * middle)))
    assert linear.getpixel((14, 0)) == (expected,) * 3
    assert attended(GREY, HALF, floor=0.2).getpixel((14, 0))[0] > expected  # the default gamma lifts the middle


def test_a_float_image_and_a_byte_image_give_the_same_picture():
    image = torch.randint(0, 256, (3, 9, 7), dtype=torch.uint8)
    maps = torch.rand(3, 5)
    for draw in (overlay, attended):
        assert np.array_equal(draw(image, maps), draw(image.double() / 255, maps.double()))


def test_heatmap_keeps_positions_or_resizes():
    attention = torch.tensor([[0.0, 1.0], [2.0, 4.0]])
    small = heatmap(attention)
    assert small.getpixel((0, 0)) == (0, 0, 4)  # magma's first colour
    assert small.getpixel((1, 1)) == (252, 253, 191)
    assert heatmap(attention, 10).size == (10, 10)
    assert heatmap(attention, (5, 8), cmap="gray").getpixel((7, 4)) == (255, 255, 255)


def test_only_relative_attention_counts():
    attention = torch.rand(4, 4)
    assert np.array_equal(heatmap(attention), heatmap(attention * 1e-6))


def test_no_attention_at_all_is_dark_not_an_error():
    nothing = torch.zeros(4, 4)
    assert attended(GREY, nothing, floor=0).getextrema() == ((0, 0),) * 3
    assert np.array_equal(overlay(GREY, nothing), overlay(GREY, HALF, alpha=0))


def test_scaled_matches_bilinear_and_leaves_the_graph():
    attention = torch.rand(4, 6, requires_grad=True)
    out = scaled(attention, (12, 18))
    big = torch.nn.functional.interpolate(attention[None, None], (12, 18), mode="bilinear")[0, 0]
    torch.testing.assert_close(out, (big / big.max()).detach())
    assert not out.requires_grad
    assert out.max() == 1


@pytest.mark.parametrize("draw", [overlay, attended])
@pytest.mark.parametrize(
    ("image", "says"),
    [
        (torch.zeros(1, 8, 8), r"expected one RGB image \(3, H, W\)"),
        (torch.zeros(2, 3, 8, 8), r"\(2, 3, 8, 8\)"),
        (torch.zeros(3, 0, 8), r"\(3, 0, 8\)"),
        (torch.zeros(3, 8, 8, dtype=torch.int64), "uint8, or float"),
        (torch.full((3, 8, 8), 2.0), "undo its normalisation"),
        (torch.full((3, 8, 8), -1.0), "undo its normalisation"),
        (torch.full((3, 8, 8), float("nan")), "expected"),
        (np.zeros((4, 8, 8)), r"expected one RGB image \(3, H, W\)"),
        ([[0.0]], "a list"),
    ],
)
def test_wrong_images(draw, image, says):
    with pytest.raises(UserError, match=says):
        draw(image, torch.ones(4, 4))


@pytest.mark.parametrize(
    ("attention", "says"),
    [
        (torch.ones(1, 4, 4), r"\(1, 4, 4\)"),
        (torch.ones(4), r"\(4,\)"),
        (torch.ones(0, 4), r"\(0, 4\)"),
        (torch.tensor([[1.0, float("nan")]]), "NaN or infinity"),
        (torch.tensor([[1.0, float("inf")]]), "NaN or infinity"),
        (torch.tensor([[1.0, -0.5]]), "down to -0.5"),
        ([[1.0]], "a list"),
    ],
)
def test_wrong_attention(attention, says):
    for draw in (lambda a: overlay(GREY, a), lambda a: attended(GREY, a), heatmap):
        with pytest.raises(UserError, match=says):
            draw(attention)


def test_wrong_options():
    with pytest.raises(UnknownNameError, match="'magma'"):
        heatmap(HALF, cmap="magmaa")
    with pytest.raises(UserError, match="alpha=2"):
        overlay(GREY, HALF, alpha=2)
    with pytest.raises(UserError, match="floor=-1"):
        attended(GREY, HALF, floor=-1)
    with pytest.raises(UserError, match="gamma=0"):
        attended(GREY, HALF, gamma=0)
    for size in (torch.rand(3, 4), np.zeros((4, 4)), (3,), (3, 0), 2.5, "4"):
        with pytest.raises(UserError, match=r"give \(height, width\)"):
            heatmap(torch.eye(4), size)
    with pytest.raises(UserError, match="size=0"):
        heatmap(HALF, 0)


@pytest.mark.parametrize("draw", [overlay, attended])
def test_pil_and_numpy(draw):
    image, attention = torch.randint(0, 256, (3, 6, 8), dtype=torch.uint8), torch.rand(3, 4)
    expected = draw(image, attention).tobytes()
    last = image.permute(1, 2, 0).numpy()
    for same in (Image.fromarray(last), last, image.numpy(), last.astype(np.float32) / 255):
        assert draw(same, attention.numpy()).tobytes() == expected
    grey = draw(last[..., 0], attention)
    assert grey.tobytes() == draw(image[:1].expand(3, -1, -1), attention).tobytes()
    assert heatmap(attention.numpy()).tobytes() == heatmap(attention).tobytes()
