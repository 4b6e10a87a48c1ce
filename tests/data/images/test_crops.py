from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from foveal.data.images.crops import CanvasBatches, MaskedImages, canvases, cropped, plain_views, random_views
from foveal.data.images.masks import IGNORED

FILL = torch.tensor([1, 2, 3], dtype=torch.uint8)
SIZES = torch.tensor([[5, 7], [9, 4], [6, 6]])


def pairs() -> tuple[MaskedImages, list[torch.Tensor], list[torch.Tensor]]:
    draw = torch.Generator().manual_seed(0)
    images = [torch.randint(0, 256, (*size, 3), generator=draw, dtype=torch.uint8) for size in SIZES.tolist()]
    labels = [torch.randint(0, 4, tuple(size), generator=draw, dtype=torch.uint8) for size in SIZES.tolist()]
    flat = torch.cat([image.view(-1, 3) for image in images]), torch.cat([label.flatten() for label in labels])
    return MaskedImages.of(*flat, SIZES), images, labels


def naive(image, label, view, crop):
    """Pixel by pixel: scale, then cut out, then mirror."""
    factor, top, left, mirrored = view.tolist()
    height, width = label.shape
    pixels, classes = FILL.repeat(*crop, 1), torch.full(crop, IGNORED, dtype=torch.uint8)
    for i in range(crop[0]):
        for j in range(crop[1]):
            y = (i + 0.5 + top) / factor - 0.5
            x = ((crop[1] - 1 - j if mirrored else j) + 0.5 + left) / factor - 0.5
            if not (-0.5 <= y < height - 0.5 and -0.5 <= x < width - 0.5):
                continue
            classes[i, j] = label[int(y + 0.5), int(x + 0.5)]
            spot = torch.tensor([[[[(2 * x + 1) / width - 1, (2 * y + 1) / height - 1]]]])
            source = image.permute(2, 0, 1)[None].float()
            value = F.grid_sample(source, spot, padding_mode="border", align_corners=False)[0, :, 0, 0]
            pixels[i, j] = value.round().to(torch.uint8)
    return pixels.permute(2, 0, 1), classes


@pytest.mark.parametrize("crop", [(8, 8), (4, 11)])
def test_crops_are_those_of_a_plain_loop(crop):
    held, images, labels = pairs()
    index = torch.tensor([2, 0, 1])
    view = torch.tensor([[1.7, 3, -2, 1], [0.6, -3, -1, 0], [1.0, 2, 1, 1]], dtype=torch.float64)
    image, label = cropped(held, index, view, crop, FILL)
    for k, n in enumerate(index.tolist()):
        expected, classes = naive(images[n], labels[n], view[k], crop)
        assert (image[k].int() - expected.int()).abs().max() <= 1  # rounding
        assert torch.equal(label[k], classes)
    assert image.is_contiguous(memory_format=torch.channels_last)


def test_images_as_they_are():
    """Pixels are copied exactly, with and without interpolation; beyond the image is the fill, which does not count."""
    held, images, labels = pairs()
    for scaled in (False, True):
        image, label = cropped(held, torch.arange(3), plain_views(3), (32, 32), FILL, scaled=scaled)
        for n, (height, width) in enumerate(SIZES.tolist()):
            assert torch.equal(image[n, :, :height, :width], images[n].permute(2, 0, 1))
            assert torch.equal(label[n, :height, :width], labels[n])
            assert (image[n, :, height:] == FILL[:, None, None]).all()
            assert (label[n, :, width:] == IGNORED).all()


def test_a_sample_does_not_depend_on_its_batch():
    held, _, _ = pairs()
    view = random_views(torch.arange(3), SIZES, (8, 8), (0.5, 2.0), True, seed=3)
    together = cropped(held, torch.arange(3), view, (8, 8), FILL)
    for n in range(3):
        alone = cropped(held, torch.tensor([n]), view[n : n + 1], (8, 8), FILL)
        assert all(torch.equal(one[0], many[n]) for one, many in zip(alone, together, strict=True))


@given(st.integers(0, 1000))
def test_views(seed):
    sample, size = torch.arange(40), torch.tensor([[30, 50]]).repeat(40, 1)
    view = random_views(sample, size, (24, 64), (0.5, 2.0), True, seed)
    factor, top, left, mirrored = view.unbind(1)
    assert ((factor >= 0.5) & (factor < 2)).all()
    for first, length, side in ((top, 30, 24), (left, 50, 64)):
        room = factor * length - side
        assert (first >= room.clamp(max=0).floor()).all()
        assert (first <= room.clamp(min=0).ceil()).all()
        assert torch.equal(first, first.round())
    assert 0 < mirrored.sum() < 40
    assert torch.equal(view[7:9], random_views(sample[7:9], size[7:9], (24, 64), (0.5, 2.0), True, seed))
    assert not random_views(sample, size, (24, 64), (1.0, 1.0), False, seed)[:, 3].any()


@given(st.lists(st.tuples(st.integers(1, 70), st.integers(1, 70)), min_size=1, max_size=30), st.integers(1, 7))
def test_canvas_batches(sizes, batch):
    canvas = canvases(torch.tensor(sizes))
    assert (canvas % 32 == 0).all()
    assert ((canvas - torch.tensor(sizes) >= 0) & (canvas - torch.tensor(sizes) < 32)).all()
    for world in (1, 2):
        orders = [CanvasBatches(canvas, batch, rank, world) for rank in range(world)]
        numbers = [part for order in orders for part in order]
        assert sorted(torch.cat(numbers).tolist()) == list(range(len(sizes)))
        assert all(len(canvas[part].unique(dim=0)) == 1 and len(part) <= batch for part in numbers)
        assert [len(order) for order in orders] == [len(list(order)) for order in orders]
        if len(sizes) >= world:
            assert all(len(order) for order in orders)
