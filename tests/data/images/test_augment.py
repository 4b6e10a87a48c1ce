"""Augmentation of image files and of batches on the device."""

import numpy as np
import pytest
import torch
from PIL import Image

from foveal.data.images.augment import crop_and_flip, seeded, shifts, view


def noise(n, side=24):
    """An image in which every crop differs from every other."""
    return Image.fromarray(np.random.default_rng(n).integers(0, 256, (side, side + 8, 3), dtype=np.uint8))


@pytest.mark.parametrize("augment", ["none", "small", "large"])
def test_views_have_the_asked_for_size(augment):
    for training in (False, True):
        for size in ((40, 30), (9, 200), (16, 16), (3, 3)):
            pixels = view(16, augment, True, training)(Image.new("RGB", size, (9, 99, 200)))
            assert (pixels.shape, pixels.dtype) == ((3, 16, 16), torch.uint8)


def test_evaluation_sees_the_middle():
    image = Image.new("RGB", (512, 256), (255, 0, 0))
    image.paste((0, 0, 255), (144, 16, 368, 240))  # the middle 224 × 224
    for augment in ("large", "none"):
        pixels = view(224, augment, True, False)(image)
        assert torch.equal(pixels[:, 0, 0], torch.tensor([0, 0, 255], dtype=torch.uint8))
        assert pixels.flatten(1).float().mean(1).tolist() == [0, 0, 255]
    assert view(224, "small", True, False)(image)[0].float().mean() > 20  # of the short side, all


def test_a_sample_has_its_own_random_numbers():
    image, make = noise(1, 40), view(16, "large", True, True)
    pixels = seeded(make, image, seed=1, sample=2)
    before = torch.get_rng_state()
    assert torch.equal(seeded(make, image, 1, 2), pixels)
    assert not torch.equal(seeded(make, image, 1, 3), pixels)
    assert not torch.equal(seeded(make, image, 2, 2), pixels)
    assert torch.equal(torch.get_rng_state(), before)


def test_crops_and_flips_are_those_of_a_padded_image():
    """A slow reference: every result is one of the crops of the padded image, and all kinds occur."""
    side, border = 16, 2
    image = torch.randint(1, 256, (1, 3, side, side), dtype=torch.uint8)
    pixels = crop_and_flip(image.repeat(400, 1, 1, 1), shifts(torch.arange(400), side, seed=0, flip=True))
    padded = torch.nn.functional.pad(image[0], (border,) * 4)
    crops = {}
    for y in range(2 * border + 1):
        for x in range(2 * border + 1):
            crop = padded[:, y : y + side, x : x + side]
            crops[crop.numpy().tobytes()] = (y, x, False)
            crops[crop.flip(2).numpy().tobytes()] = (y, x, True)
    kinds = [crops[m.numpy().tobytes()] for m in pixels]
    assert len(set(kinds)) == 50
    assert 150 < sum(flipped for *_, flipped in kinds) < 250


def test_held_images_are_not_mirrored_unless_asked():
    image = torch.arange(64, dtype=torch.uint8).view(1, 1, 8, 8).repeat(50, 3, 1, 1)
    pixels = crop_and_flip(image, shifts(torch.arange(50), 8, seed=0, flip=False))
    assert (pixels[:, 0, 4, 5] > pixels[:, 0, 4, 2]).all()


def test_crops_of_the_resized_image() -> None:
    """Every pixel tells where it came from: the short side becomes 8/7 of the size, and crops lie at random in it."""
    ramp = torch.arange(64).expand(64, 64)
    image = Image.fromarray(torch.stack([ramp, ramp.T, ramp * 0], 2).to(torch.uint8).mul(4).numpy())
    make = view(56, "crop", False, True)
    torch.manual_seed(0)
    corners = {(int(c[0, 0, 0]) // 4, int(c[1, 0, 0]) // 4) for c in (make(image) for _ in range(60))}
    assert {x for x, _ in corners} == {y for _, y in corners} == set(range(9))
    assert make(image).shape == (3, 56, 56)
    middle = view(56, "crop", False, False)(image)
    assert (int(middle[0, 0, 0]) // 4, int(middle[1, 0, 0]) // 4) == (4, 4)
    flipped = [view(56, "crop", True, True)(image) for _ in range(20)]
    assert {bool(f[0, 0, 0] > f[0, 0, -1]) for f in flipped} == {True, False}
