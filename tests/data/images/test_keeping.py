"""Crops that keep labelled objects in view."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from small_files import build, write

from foveal.data.formats.voc import VOC_CLASSES
from foveal.data.images.augment import crops, resized_crops
from foveal.data.images.keeping import keeping, objects_in, shows
from foveal.errors import UserError

CPU = torch.device("cpu")
DOG, PERSON = VOC_CLASSES.index("dog"), VOC_CLASSES.index("person")


def slow_shares(part, objects):
    """Class and share in view of every object of one image, pixel by pixel."""
    top, left, height, width, _ = part.tolist()
    shares = []
    for kind, x0, y0, x1, y1 in objects.tolist():
        if kind >= 0:
            pixels = [(y, x) for y in range(int(y0), int(y1)) for x in range(int(x0), int(x1))]
            seen = [top <= y < top + height and left <= x < left + width for y, x in pixels]
            shares.append((int(kind), sum(seen) / len(seen)))
    return shares


@st.composite
def images(draw):
    size = torch.tensor([[draw(st.integers(16, 40)), draw(st.integers(16, 40))] for _ in range(4)])
    objects = torch.full((4, 3, 5), -1.0)
    for n, (height, width) in enumerate(size.tolist()):
        for m in range(draw(st.integers(0, 3))):
            x, y = draw(st.integers(0, width - 2)), draw(st.integers(0, height - 2))
            right, bottom = draw(st.integers(x + 1, width)), draw(st.integers(y + 1, height))
            objects[n, m] = torch.tensor([draw(st.integers(0, 1)), x, y, right, bottom])
    return size, objects


@given(images(), st.integers(0, 99), st.sampled_from([0.1, 0.5, 1.0]), st.booleans())
def test_an_object_of_every_class_stays_in_view(drawn, seed, keep, large):
    size, objects = drawn

    def draw(seed):
        number = torch.arange(len(size))
        return resized_crops(number, size, seed, True) if large else crops(number, size, 14, seed, True)

    parts, plain = keeping(draw, seed, size, objects, keep), draw(seed)
    for n, part in enumerate(parts):
        shares = slow_shares(part, objects[n])
        for kind in {kind for kind, _ in shares}:
            assert max(share for k, share in shares if k == kind) >= keep - 1e-9
        before = slow_shares(plain[n], objects[n])
        enough = all(max(s for k, s in before if k == kind) >= keep for kind, _ in before)
        assert shows(plain[n : n + 1], objects[n : n + 1], keep).item() == enough
        assert not enough or torch.equal(part, plain[n])  # what was good enough is not drawn again


def test_objects_in_pixels():
    boxes = torch.tensor([[[3.0, -1.0, -0.5, 0.0, 0.5], [5.0, 0.0, 0.0, 9.0, 9.0], [-1.0, -1, -1, -1, -1]]])
    size = torch.tensor([[20, 40]])
    expected = torch.tensor([[[3.0, 0, 0, 20, 20], [5.0, 20, 10, 40, 20]]])  # cut off at the border
    several = torch.eye(20)[[3]] + torch.eye(20)[[5]]
    assert torch.equal(objects_in(boxes, several, size)[:, :2], expected)
    assert objects_in(boxes, several, size)[0, 2, 0] == -1
    assert objects_in(boxes, torch.tensor([5]), size)[0, :, 0].tolist() == [-1, 5, -1]


# VOC 2012 -----------------------------------------------------------------------------------------------------


@pytest.fixture
def voc(tmp_path):
    """White images of 40×60 pixels with a small red dog in a corner, and a green person that is not labelled."""
    folder = tmp_path / "VOCdevkit" / "VOC2012"
    (folder / "JPEGImages").mkdir(parents=True)
    for split, count in (("train", 24), ("val", 2)):
        names = [f"2008_{split}{n:02}" for n in range(count)]
        write(folder / "ImageSets/Main" / f"{split}.txt", "".join(f"{name}\n" for name in names))
        for kind in VOC_CLASSES:
            mark = {"dog": 1, "person": 0}.get(kind, -1)
            write(folder / "ImageSets/Main" / f"{kind}_{split}.txt", "".join(f"{name} {mark}\n" for name in names))
        for n, name in enumerate(names):
            image = Image.new("RGB", (60, 40), "white")
            image.paste("red", (48, 28, 60, 40) if n % 2 else (0, 0, 12, 12))
            image.save(folder / "JPEGImages" / f"{name}.jpg", quality=95, subsampling=0)
            box = (49, 29, 60, 40) if n % 2 else (1, 1, 12, 12)
            write(folder / "Annotations" / f"{name}.xml", ANNOTATION.format(*box))
    return tmp_path


OBJECT = "<bndbox><xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax><ymax>{}</ymax></bndbox></object>"
ANNOTATION = (
    "<annotation><size><width>60</width><height>40</height></size><object><name>dog</name>"
    + OBJECT
    + "<object><name>person</name><difficult>1</difficult>"
    + OBJECT.format(30, 1, 35, 5)
    + "</annotation>"
)


def red(image):
    """Red pixels of an image (3, S, S)."""
    return ((image[0] > 180) & (image[1] < 90)).sum().item()


@pytest.mark.parametrize("augment", ["large", "crop"])
def test_the_labelled_object_of_a_training_image_is_seen(voc, augment):
    options = {"size": 24, "augment": augment, "hold": True, "workers": 0, "val_fraction": 0.25}
    least = {}
    for keep in (None, 0.5):
        source = build("voc2012", voc, keep=keep, **options)
        batches = [source.loader("train", 18, epoch=epoch, device=CPU) for epoch in range(4)]
        least[keep] = min(red(image) for loader in batches for batch in loader for image in batch["image"])
    assert least[None] == 0
    assert least[0.5] > 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": 0.0, "hold": True}, "more than 0 and at most 1"),
        ({"keep": 0.5}, "data.hold=true"),
        ({"keep": 0.5, "hold": True, "augment": "none"}, "data.augment=large"),
    ],
)
def test_wrong_options(voc, options, message):
    with pytest.raises(UserError, match=message):
        build("voc2012", voc, size=24, workers=0, **options)


def test_data_without_boxes(voc):
    for file in (voc / "VOCdevkit/VOC2012/Annotations").iterdir():
        file.unlink()
    (voc / "VOCdevkit/VOC2012/Annotations").rmdir()
    with pytest.raises(UserError, match="no boxes"):
        build("voc2012", voc, size=24, workers=0, hold=True, keep=0.5)
