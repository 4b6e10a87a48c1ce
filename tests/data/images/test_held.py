"""Image files held on the device: parts of whole images, resized a batch at a time."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms import v2
from torchvision.transforms.v2.functional import resized_crop

from foveal.data import dataset
from foveal.data.embedded.textures import textures
from foveal.data.images.augment import crops, resized_crops, short_side, view, whole
from foveal.data.images.classification import ImageOptions
from foveal.data.images.held import FINE, ONE, filters, resized_parts
from foveal.data.images.labelled import WholeImages

CPU = torch.device("cpu")


def noise(height, width, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (height, width, 3), dtype=torch.uint8, generator=generator)


def together(images):
    """Images uint8 (H, W, 3) as they are held."""
    return WholeImages.of(torch.cat([i.flatten(0, 1) for i in images]), torch.tensor([i.shape[:2] for i in images]))


def reference(image, part, side):
    """The slow way, by the definition: cut out, resize, mirror."""
    *box, mirrored = part.tolist()
    pixels = resized_crop(image.permute(2, 0, 1).float(), *box, [side, side], antialias=True)
    return (pixels.flip(2) if mirrored else pixels).round()  # its own uint8 also rounds between height and width


def resized_and_expected(images, parts, side):
    parts = torch.tensor(parts)
    room = parts[:, 2:4].amax(0).tolist()
    pixels = resized_parts(together(images), torch.arange(len(images)), parts, side, tuple(room))
    assert (pixels.shape, pixels.dtype) == ((len(images), 3, side, side), torch.uint8)
    expected = torch.stack([reference(image, part, side) for image, part in zip(images, parts, strict=True)])
    return pixels.int(), expected.int()


# Resizing -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mirrored", [0, 1])
def test_enlarged_parts_are_those_of_torchvision(mirrored):
    images = [noise(40, 50, 1), noise(33, 9, 2), noise(1, 32, 3), noise(7, 1, 4), noise(32, 32, 5)]
    parts = [[3, 5, 20, 31, mirrored], [0, 0, 32, 9, mirrored], [0, 3, 1, 29, mirrored], [2, 0, 5, 1, mirrored]]
    pixels, expected = resized_and_expected(images, [*parts, [0, 0, 32, 32, mirrored]], 32)
    assert (pixels - expected).abs().max() <= 1
    assert torch.equal(pixels[4], expected[4])  # as large as the square: nothing is interpolated


@pytest.mark.parametrize("side", [64, 128, 192])
def test_reduced_parts_are_those_of_torchvision(side):
    photographs = textures(256, "train", 8).permute(0, 2, 3, 1)
    parts = [[n, 2 * n, 250 - 4 * n, 200 + 5 * n, n % 2] for n in range(8)]
    pixels, expected = resized_and_expected(photographs, parts, side)
    assert (pixels - expected).abs().max() <= 1
    assert (pixels - expected).abs().float().mean() < 0.05


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_part_of_any_image(data):
    height, width, side = (data.draw(st.integers(1, most)) for most in (40, 90, 40))
    top, left = (data.draw(st.integers(0, length - 1)) for length in (height, width))
    extent = [data.draw(st.integers(1, length)) for length in (height - top, width - left)]
    images = [noise(3, 5), noise(height, width, 1), noise(2, 2)]  # the others would show in a wrong pixel
    parts = [[0, 0, 3, 5, 0], [top, left, *extent, data.draw(st.integers(0, 1))], [0, 0, 2, 2, 1]]
    pixels, expected = resized_and_expected(images, parts, side)
    assert (pixels - expected).abs().max() <= 1


def test_one_colour_stays_what_it_is():
    colour = torch.tensor([0, 130, 255], dtype=torch.uint8)
    images = [colour.expand(height, 300 - height, 3) for height in range(1, 300, 7)]
    parts = torch.tensor([[0, 0, *image.shape[:2], 0] for image in images])
    pixels = resized_parts(together(images), torch.arange(len(images)), parts, 190, (300, 300))
    assert (pixels == colour[:, None, None]).all()


def test_a_part_depends_neither_on_its_batch_nor_on_the_room():
    images = [noise(60 + 7 * n, 110 - 3 * n, n) for n in range(12)]
    held, number = together(images), torch.arange(12)
    parts = resized_crops(number, held.size, seed=3, flip=True)
    pixels = resized_parts(held, number, parts, 48, (140, 112))
    order = torch.randperm(12)
    assert torch.equal(resized_parts(held, order, parts[order], 48, (151, 200)), pixels[order])
    for n in range(12):
        room = tuple(parts[n, 2:4].tolist())
        assert torch.equal(resized_parts(held, number[n, None], parts[n, None], 48, room)[0], pixels[n])


def test_float32_adds_up_without_error():
    """The same products with integers; a sum with an error would depend on its order, and so on device and batch."""
    image, part, side = noise(250, 290), torch.tensor([[4, 9, 240, 277, 0]]), 192
    pixels = resized_parts(together([image]), torch.tensor([0]), part, side, (240, 277))[0]
    down, across = (filters(torch.tensor([[length]]), length, side)[0].long() for length in (240, 277))
    rows = torch.einsum("yr,rcn->ycn", down, image[4:244, 9:286].long())
    rows = (rows.double() * FINE / ONE).round().long()
    assert rows.max() <= 2**11  # as few bits as the weights have
    exact = torch.einsum("xc,ycn->nyx", across, rows).double() / (FINE * ONE)
    assert torch.equal(pixels, exact.round().clamp(0, 255).to(torch.uint8))


@pytest.mark.parametrize("side", [1, 7, *(pytest.param(side, marks=pytest.mark.slow) for side in (192, 224))])
def test_weights_are_whole_numbers(side):
    """Of eleven bits, and adding up to one but for a few roundings."""
    length = torch.arange(1, 400)[:, None]
    weight = filters(length, 400, side)
    assert weight.shape == (399, side, 400)
    assert torch.equal(weight, weight.round())
    assert 0 <= weight.min() <= weight.max() <= ONE
    taps = (weight > 0).sum(2)
    assert ((weight.sum(2) - ONE).abs() <= taps / 2).all()
    assert (taps <= 2 * (length / side).clamp(min=1).ceil() + 1).all()
    assert (weight * (torch.arange(400) >= length[:, :, None]) == 0).all()


# Random parts ---------------------------------------------------------------------------------------------------------


def drawn(height, width, count=20_000, seed=0):
    size = torch.tensor([[height, width]]).expand(count, -1)
    return resized_crops(torch.arange(count), size, seed, True)


@pytest.mark.parametrize(("height", "width"), [(219, 292), (219, 219), (292, 219), (50, 90), (100, 700)])
def test_parts_are_distributed_as_torchvision_draws_them(height, width):
    transform, count = v2.RandomResizedCrop(8), 3000
    torch.manual_seed(0)
    image = torch.empty(3, height, width)
    boxes = [transform.make_params([image]) for _ in range(count)]
    theirs = torch.tensor([[box[key] for key in ("top", "left", "height", "width")] for box in boxes]).double()
    ours = drawn(height, width)[:, :4].double()
    for of in (
        lambda box: box[:, 0],
        lambda box: box[:, 1],
        lambda box: box[:, 2] * box[:, 3] / (height * width),
        lambda box: (box[:, 3] / box[:, 2]).log(),
    ):
        a, b = of(ours), of(theirs)
        places = torch.linspace(0.02, 0.98, 25, dtype=torch.float64)
        for place in b.quantile(places):  # Kolmogorov and Smirnov
            assert abs((a <= place).double().mean() - (b <= place).double().mean()) < 0.035


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 400), st.integers(1, 400), st.integers(0, 2**40))
def test_parts_lie_in_the_image(height, width, seed):
    parts = drawn(height, width, 50, seed)
    top, left, rows, columns, mirrored = parts.unbind(1)
    assert min(top.min(), left.min()) >= 0
    assert min(rows.min(), columns.min()) >= 1
    assert (top + rows).max() <= height
    assert (left + columns).max() <= width
    assert set(mirrored.tolist()) <= {0, 1}
    slack = 0.5 * (1 / rows + 1 / columns) + 1e-6  # sides are rounded
    assert ((columns / rows).log().abs() <= math.log(4 / 3) + 2 * slack).all()


@pytest.mark.parametrize(
    ("size", "part"),
    [
        ((1, 200), (0, 99, 1, 1)),
        ((200, 1), (99, 0, 1, 1)),
        ((20, 2000), (0, 986, 20, 27)),
        ((3000, 30), (1480, 0, 40, 30)),
    ],
)
def test_long_images_give_their_middle(size, part):
    """No part of 8% of the area fits; the same as torchvision."""
    assert (drawn(*size, 100)[:, :4] == torch.tensor(part)).all()
    params = v2.RandomResizedCrop(8).make_params([torch.empty(3, *size)])
    assert tuple(params[key] for key in ("top", "left", "height", "width")) == part


def test_parts_depend_on_seed_and_sample_alone():
    size = torch.randint(20, 300, (60, 2), generator=torch.Generator().manual_seed(0))
    number = torch.arange(60)
    for draw in (resized_crops, lambda sample, size, seed, flip: crops(sample, size, 16, seed, flip)):
        parts = draw(number, size, 5, True)
        order = torch.randperm(60)
        assert torch.equal(draw(number[order], size[order], 5, True), parts[order])
        assert torch.equal(draw(number[7:9], size[7:9], 5, True), parts[7:9])
        assert (draw(number, size, 6, True) != parts).any(1).sum() > 50
        assert 15 < parts[:, 4].sum() < 45
        assert torch.equal(draw(number, size, 5, False), parts * torch.tensor([1, 1, 1, 1, 0]))


def test_crops_lie_anywhere():
    size = torch.tensor([[18, 20]]).expand(2000, -1)
    parts = crops(torch.arange(2000), size, 16, 0, True)
    assert (parts[:, 2:4] == 16).all()
    assert {tuple(corner) for corner in parts[:, :2].tolist()} == {(y, x) for y in range(3) for x in range(5)}


# Whole images ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "enlarge", "expected"),
    [
        ((50, 30), False, (30, 50)),
        ((30, 50), True, (60, 36)),
        ((100, 50), False, (36, 72)),
        ((1, 200), False, (200, 1)),
        ((36, 36), False, (36, 36)),
    ],
)
def test_images_are_held_at_the_size_of_evaluation(size, enlarge, expected):
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (*size[::-1], 3), dtype=np.uint8))
    pixels = whole(image, short_side(32) - 1, enlarge)
    assert short_side(32) - 1 == 36
    assert (tuple(pixels.shape), pixels.dtype) == ((*expected, 3), torch.uint8)
    shown = image if size[::-1] == expected else v2.Resize(36)(image)
    assert torch.equal(pixels, v2.PILToTensor()(shown).permute(1, 2, 0))


# A dataset ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Photographs of many sizes: two classes with official splits, and as a folder without."""
    folder = tmp_path_factory.mktemp("photographs")
    tiles = textures(64, "train", 40).permute(0, 2, 3, 1).numpy()
    for n, tile in enumerate(tiles):
        image = Image.fromarray(tile[: 64 - n, : 64 - 3 * (n % 7)])
        for place in (folder / "imagefolder", folder / "cub200" / ("test" if n % 4 == 3 else "train")):
            (place / "ab"[n // 2 % 2]).mkdir(parents=True, exist_ok=True)
            image.save(place / "ab"[n // 2 % 2] / f"{n:02}.png")
    return folder


def build(root, name="imagefolder", **options):
    return dataset(name).build(ImageOptions(**{"workers": 0, "size": 28, "hold": True} | options), root)


def by_number(source, split="train", **where):
    batches = source.loader(split, 4, **{"device": CPU} | where)
    return {int(n): image for batch in batches for n, image in zip(batch["index"], batch["image"], strict=True)}


@pytest.mark.parametrize("augment", ["large", "crop"])
def test_held_and_read_files_differ_in_the_random_numbers_alone(root, augment):
    """Evaluation sees the same; in training each image is the part of the file that the numbers say."""
    held, read = build(root, augment=augment), build(root, augment=augment, hold=False)
    assert held.held
    assert held.describe() == read.describe()
    for split in ("val", "test"):
        expected = by_number(read, split)
        images = by_number(held, split)
        assert images.keys() == expected.keys()
        assert all(torch.equal(images[n], expected[n]) for n in expected)
    files = read.splits["train"]
    assert torch.equal(held.splits["train"].labels, files.labels)
    images = [whole(Image.open(files.file(n)), short_side(28), augment == "crop") for n in range(len(files))]
    size, number, epoch = torch.tensor([image.shape[:2] for image in images]), torch.arange(len(images)), 100_003 + 2
    parts = crops(number, size, 28, epoch, True) if augment == "crop" else resized_crops(number, size, epoch, True)
    batch_images = by_number(held, seed=1, epoch=2)
    assert len(batch_images) == 28
    for n, image in batch_images.items():
        expected = reference(images[n], parts[n], 28)
        assert (image.int() - expected.int()).abs().max() <= (augment == "large")


@pytest.mark.parametrize("augment", ["large", "crop"])
def test_workers_decode_the_same(root, augment, monkeypatch, tmp_path):
    monkeypatch.setenv("FOVEAL_CACHE", str(tmp_path))
    alone = build(root, augment=augment).splits["train"].images
    monkeypatch.setenv("FOVEAL_CACHE", str(tmp_path / "other"))
    several = build(root, augment=augment, workers=2).splits["train"].images
    assert torch.equal(alone.pixels, several.pixels)
    assert torch.equal(alone.size, several.size)


def test_official_splits_and_several_ways_to_divide(root, monkeypatch):
    divided = build(root, "cub200", val_fraction=0.2)
    assert {split: len(samples) for split, samples in divided.splits.items()} == {"train": 24, "val": 6, "test": 10}
    chosen_by_test = build(root, "cub200", val_fraction=0.0)
    assert len(chosen_by_test.splits["train"]) == 30
    assert chosen_by_test.splits["val"] is chosen_by_test.splits["test"]
    assert "validation and test are the same images" in chosen_by_test.describe()
    few = build(root, per_class=(5, 2))
    assert few.splits["train"].images.size.shape == (10, 2)
    assert few.splits["val"] is few.splits["test"]
    monkeypatch.setattr("foveal.data.images.held.read_image", None)  # from the cache
    again = build(root, "cub200", val_fraction=0.2)
    assert torch.equal(again.splits["train"].images.pixels, divided.splits["train"].images.pixels)
    with pytest.raises(TypeError, match="not callable"):
        build(root, "cub200", val_fraction=0.2, augment="crop")  # is held in another way


@pytest.mark.parametrize("augment", ["large", "crop"])
def test_a_file_of_any_shape(tmp_path, augment):
    sizes = [(1, 60), (60, 1), (1, 1), (300, 3), (20, 20), (90, 40)]
    for n, size in enumerate(sizes * 2):
        path = tmp_path / "imagefolder" / "ab"[n % 2] / f"{n}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size, (9, 99, 200)).save(path)
    images = by_number(build(tmp_path, augment=augment, val_fraction=0.0, size=15))
    assert len(images) == 8
    assert all((image == torch.tensor([9, 99, 200])[:, None, None]).all() for image in images.values())


def test_large_and_crop_are_held_only_if_asked(root):
    for augment in ("large", "crop"):
        assert not build(root, augment=augment, hold=None).held
        assert not build(root, augment=augment, hold=False).held


def test_none_still_trains_on_what_evaluation_sees(root):
    source = build(root, augment="none")
    read = build(root, augment="none", hold=False)
    make = view(28, "none", True, False)
    for n, image in by_number(source).items():
        assert torch.equal(image, make(Image.open(read.splits["train"].file(n))))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("augment", ["large", "crop"])
@pytest.mark.parametrize("precision", ["highest", "high"])
def test_a_gpu_makes_what_the_cpu_makes(root, augment, precision):
    source, before = build(root, augment=augment), torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        images, expected = by_number(source, device=torch.device("cuda")), by_number(source)
    finally:
        torch.set_float32_matmul_precision(before)
    assert all(torch.equal(images[n].cpu(), expected[n]) for n in expected)
