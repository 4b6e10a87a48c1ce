from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import foveal
from foveal.errors import UserError
from foveal.measure import attention_overlap
from foveal.see import TopClasses, class_maps, top_classes
from foveal.see.draw.class_maps import FRAME, GAP, LINE, TRUE, class_looks, remark

SIZE = 60
GREEN = tuple(int(TRUE[i : i + 2], 16) for i in (1, 3, 5))


class Net(nn.Module):
    def __init__(self, classes: int = 7) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 6, 3, 2, 1), nn.BatchNorm2d(6), nn.ReLU())
        self.head = nn.Linear(6, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).mean((2, 3)))


def images(n: int = 2) -> Tensor:
    return torch.rand(n, 3, 16, 20, generator=torch.Generator().manual_seed(0))


def net(**options) -> Net:
    torch.manual_seed(0)
    return Net(**options)


def tile(k: int, row: int = 0) -> tuple[int, int]:
    """Upper left corner of tile ``k`` of the first image."""
    return 2 * GAP + SIZE + k * (SIZE + GAP), GAP + LINE + 6 + row * (LINE + 6 + SIZE + 2 * LINE + GAP)


def framed(picture: Image.Image, k: int, row: int = 0) -> bool:
    x, y = tile(k, row)
    around = [(x - 2, y + 9), (x + SIZE + 1, y + 9), (x + 9, y - 2), (x + 9, y + SIZE + 1)]
    found = {picture.getpixel(at) == GREEN for at in around}
    assert len(found) == 1
    return found.pop()


def test_top_classes_are_the_best_and_their_maps_those_of_cam() -> None:
    model, x = net().train(), images()
    model.features[1].eval()
    before = [m.training for m in model.modules()]
    look = top_classes(model, x, "features", top=3)
    assert [m.training for m in model.modules()] == before
    model.eval()
    probability = model(x).softmax(1)
    expected = probability.topk(3)
    assert torch.equal(look.classes, expected.indices)
    torch.testing.assert_close(look.probability, expected.values.detach())
    torch.testing.assert_close(look.maps, foveal.cam(model, x, look.classes, "features").detach())
    for n in range(2):
        assert [int(look.rank[n, c]) for c in probability[n].argsort(descending=True)] == list(range(7))


def test_probabilities_of_several_labels_and_of_few_classes() -> None:
    model, x = net(classes=3).eval(), images()
    look = top_classes(model, x, "features", multilabel=True)
    assert look.classes.shape == (2, 3)
    torch.testing.assert_close(look.probability, model(x).sigmoid().gather(1, look.classes).detach())


def test_a_model_that_returns_an_object_with_logits() -> None:
    class Wrapped(Net):
        def forward(self, x: Tensor) -> SimpleNamespace:
            return SimpleNamespace(logits=super().forward(x))

    plain, x = net(), images()
    wrapped = Wrapped()
    wrapped.load_state_dict(plain.state_dict())
    expected, found = (top_classes(model, x, "features", kind="gradcam") for model in (plain, wrapped))
    assert expected.kind == found.kind == "gradcam"
    for name, value in expected.tensors().items():
        assert torch.equal(found.tensors()[name], value)


def test_one_image_of_several() -> None:
    model, x = net(), images(3)
    look = top_classes(model, x, "features")
    one, label = look.only(1), look.classes[:, 2]
    assert (len(one), one.kind) == (1, "channel")
    alone = class_maps({"one": one}, x[1:2], label[1:2], size=SIZE)
    top, block = GAP, alone.height  # the blocks of a panel are as high as a panel of one image
    whole = class_maps({"one": look}, x, label, size=SIZE)
    assert (
        whole.crop((0, block + top, whole.width, 2 * block)).tobytes()
        == alone.crop((0, top, alone.width, block)).tobytes()
    )


def test_the_kind_of_maps_is_named() -> None:
    model, x = net(), images()
    look = top_classes(model, x, "features")
    kinds = ("channel", "gradcam", None)
    pictures = [class_maps({"one": replace(look, kind=kind)}, x, size=SIZE) for kind in kinds]
    x0, y0 = tile(0)
    titles = {picture.crop((x0, GAP, picture.width, y0 - FRAME)).tobytes() for picture in pictures}
    maps = {picture.crop((x0, y0, picture.width, y0 + SIZE)).tobytes() for picture in pictures}
    assert (len(titles), len(maps)) == (3, 1)


@pytest.mark.parametrize("place", range(5))
def test_the_true_class_is_framed_and_no_other(place: int) -> None:
    model, x = net(), images()
    look = top_classes(model, x, "features")
    label = look.classes[:, place]
    picture = class_maps({"one": look, "two": look}, x, label, size=SIZE)
    for row in range(2):
        assert [framed(picture, k, row) for k in range(5)] == [k == place for k in range(5)]
    unknown = class_maps({"one": look}, x, size=SIZE)
    assert not any(framed(unknown, k) for k in range(5))


def test_several_true_classes_are_all_framed() -> None:
    model, x = net(), images()
    look = top_classes(model, x, "features")
    label = torch.zeros(2, 7).scatter(1, look.classes[:, [1, 3]], 1.0)
    picture = class_maps({"one": look}, x, label, size=SIZE)
    assert [framed(picture, k) for k in range(5)] == [False, True, False, True, False]


def test_bright_where_the_map_is_high() -> None:
    maps = torch.zeros(1, 2, 4, 4)
    maps[0, 0, :2, :2], maps[0, 1, 2:, 2:] = 1.0, 1.0
    rank = torch.tensor([[0, 1]])
    look = TopClasses(torch.tensor([[0, 1]]), torch.tensor([[0.6, 0.4]]), maps, rank)
    picture = class_maps({"one": look}, torch.full((1, 3, 8, 8), 0.5), torch.tensor([0]), size=SIZE)
    for k, bright in ((0, 0.15), (1, 0.85)):
        x, y = tile(k)
        there, away = (picture.getpixel((x + int(f * SIZE), y + int(f * SIZE))) for f in (bright, 1 - bright))
        assert sum(there) > sum(away) + 100


def test_remarks() -> None:
    draw = torch.Generator().manual_seed(0)
    maps = torch.rand(1, 3, 4, 4, generator=draw)
    classes, rank = torch.tensor([[4, 1, 2]]), torch.tensor([[3, 1, 2, 5, 0, 4]])
    look = TopClasses(classes, torch.tensor([[0.5, 0.3, 0.1]]), maps, rank)
    names = ["ape", "bee", "cat", "dog", "eel", "fox"]
    shared = attention_overlap(maps[:, 1], maps[:, 0]).all
    assert remark(look, 0, [1], names) == f"bee and eel overlap by {shared:.2f}"
    assert remark(look, 0, [4], names) == f"eel and bee overlap by {shared:.2f}"
    assert remark(look, 0, [3], names) == "dog is number 6"
    assert remark(look, 0, [3], ()) == "class 3 is number 6"
    assert remark(look, 0, [3, 4], names).startswith("eel and bee")
    assert remark(look, 0, [], names) == remark(look, 0, [1, 2, 4], names) == ""
    maps[:, 1] = 0
    assert remark(look, 0, [1], names) == ""


def test_what_is_prepared_for_a_picture_and_for_a_page() -> None:
    model, x = net(), images(3)
    top = top_classes(model, x, "features")
    label = top.classes[:, 1]
    rows = list(class_looks({"one": top}, x, label, names=list("abcdefg"), limit=2))
    assert len(rows) == 2
    for n, row in enumerate(rows):
        tiles = row.looks["one"].tiles
        assert row.truth == ["abcdefg"[label[n]]]
        assert [tile.name for tile in tiles] == ["abcdefg"[c] for c in top.classes[n]]
        assert [tile.true for tile in tiles] == [False, True, False, False, False]
        assert [tile.probability for tile in tiles] == top.probability[n].tolist()
        assert row.looks["one"].kind == "A_ch"
    assert next(class_looks({"one": top}, x)).truth is None


def test_tensors_that_a_run_keeps() -> None:
    look = top_classes(net(), images(), "features")
    again = TopClasses.from_tensors(look.tensors() | {"image": images()}, "channel")
    assert again is not None
    assert again.kind == "channel"
    assert all(torch.equal(again.tensors()[name], tensor) for name, tensor in look.tensors().items())
    assert TopClasses.from_tensors({"image": images()}) is None


def test_size_grows_with_models_and_images_up_to_the_limit() -> None:
    model, x = net(), images(4)
    look = top_classes(model, x, "features")
    row = LINE + 6 + SIZE + 2 * LINE + GAP
    assert class_maps({"one": look}, x, size=SIZE).size == (GAP + 6 * (SIZE + GAP), GAP + 4 * (row + GAP) - GAP)
    assert class_maps({"one": look, "two": look}, x, size=SIZE, limit=1).height == GAP + 2 * row
    assert FRAME < GAP / 2  # frames of neighbours do not touch


def test_a_map_of_a_diverged_or_silent_model_is_still_drawn() -> None:
    look = TopClasses(
        torch.tensor([[0]]), torch.tensor([[1.0]]), torch.full((1, 1, 2, 2), torch.nan), torch.tensor([[0]])
    )
    assert class_maps({"one": look}, images(1), torch.tensor([0]), size=SIZE).width == GAP + 2 * (SIZE + GAP)


def test_bytes_and_fractions_look_the_same() -> None:
    model, x = net(), (images() * 255).byte()
    look = top_classes(model, x.float() / 255, "features")
    one, other = (class_maps({"one": look}, image, size=SIZE) for image in (x, x.float() / 255))
    assert one.tobytes() == other.tobytes()


def test_bad_input_says_what_to_do() -> None:
    model, x = net(), images()
    look = top_classes(model, x, "features")
    with pytest.raises(UserError, match="no models to show"):
        class_maps({}, x)
    with pytest.raises(UserError, match=r"image must be \(N, 3, H, W\), got shape \(3, 16, 20\)"):
        class_maps({"one": look}, x[0])
    with pytest.raises(UserError, match=r"one has classes of 2 images.*give the same ones"):
        class_maps({"one": look}, x[:1])
    with pytest.raises(UserError, match=r"label must be \(2,\)"):
        class_maps({"one": look}, x, torch.tensor([1]))
    for label in ([12, 0], [0, -1]):
        with pytest.raises(UserError, match=r"label must be between 0 and 6, the classes of one; got"):
            class_maps({"one": look}, x, torch.tensor(label))
    with pytest.raises(UserError, match="label has a column for each of 9 classes, one knows 7"):
        class_maps({"one": look}, x, torch.zeros(2, 9))
    with pytest.raises(UserError, match="top=0"):
        top_classes(model, x, "features", top=0)
