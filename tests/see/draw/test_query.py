import pytest
import torch
from PIL import ImageColor

import foveal
from foveal.attention import AttentionRecord, DeformConv2d, DotProduct, FocusedAttention, SpatialAttention
from foveal.errors import UserError
from foveal.see.draw.query import DOT, MARK, query, query_maps, sampling


def record(terms="1111", size=(6, 8), **options):
    torch.manual_seed(0)
    module = SpatialAttention(8, terms=terms, heads=2, **options)
    with foveal.watch(module) as seen:
        module(torch.randn(2, 8, *size))
    return seen[""]


def colours(picture):
    return {colour for _, colour in picture.getcolors(picture.width * picture.height)}


def test_maps_are_those_of_the_query_under_the_position():
    attention = record("0110")
    maps = query_maps(attention, (79, 0), (60, 80), sample=1)  # the last column of the first row: query 7
    assert list(maps) == ["together", "E2", "E3"]
    torch.testing.assert_close(maps["together"], attention.rows([7])[1].mean(0).reshape(3, 4))
    torch.testing.assert_close(maps["E3"], attention.parts["E3"].rows([0])[1].mean(0).reshape(3, 4))


def test_a_picture_for_every_term():
    image = torch.full((3, 60, 80), 0.2)
    one, four = query(image, record("0010"), (40, 30)), query(image, record(), (40, 30))
    assert four.width - one.width == 3 * 170  # "0010": together and its one term; "1111": together and four
    several = query(image, {"a": record("0010"), "b": {"E3": torch.rand(3, 4)}}, (40, 30))
    assert several.height > 1.8 * one.height


def test_the_query_is_marked_where_it_is():
    image, tile = torch.zeros(3, 40, 160), 160
    maps = {"E3": torch.zeros(2, 2)}
    left, right = (query(image, maps, (x, 20), tile=tile) for x in (20, 140))
    first = 10  # left edge of the first tile
    bright = [
        [x for x in range(first, first + tile) if picture.getpixel((x, 10 + 22 + 20))[2] > 150]
        for picture in (left, right)
    ]
    assert bright[0]
    assert max(bright[0]) < first + 40
    assert min(bright[1]) > first + 120


def test_sampling_points_are_drawn():
    image = torch.zeros(3, 20, 30)
    picture = sampling(
        image, torch.tensor([[[5.0, 5.0]], [[25.0, 15.0]]]), (15, 10), modulation=torch.tensor([[1.0], [0.2]])
    )
    assert picture.getpixel((16, 16)) == picture.getpixel((76, 46)) == ImageColor.getrgb(DOT)
    assert ImageColor.getrgb(MARK) in colours(picture)
    assert ImageColor.getrgb(MARK) not in colours(sampling(image, torch.tensor([[5.0, 5.0]])))


def test_points_of_a_record():
    conv = DeformConv2d(3, 4, 3, padding=1, modulated=True)
    with foveal.watch(conv) as seen:
        conv(torch.rand(1, 3, 9, 9))
    points, modulation = seen["deform"].values, seen["deform"].parts["modulation"].values
    assert points[0, 0, :, 4, 4].tolist() == [[x, y] for y in (3, 4, 5) for x in (3, 4, 5)]  # offsets start at zero
    picture = sampling(torch.rand(3, 9, 9), points[0, 0, :, 4, 4], (4, 4), modulation=modulation[0, 0, :, 4, 4])
    assert {ImageColor.getrgb(DOT), ImageColor.getrgb(MARK)} <= set(colours(picture))


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: query(torch.rand(3, 6, 8), {"a": torch.rand(2, 2)}, (8, 0)), r"inside the image of 8×6 pixels"),
        (lambda: query(torch.rand(3, 6, 8), {}, (0, 0)), "no attention to draw"),
        (lambda: query(torch.rand(3, 6, 8), {"a": torch.rand(2, 2)}, (0, 0), tile=3), "at least 32"),
        (lambda: query(torch.rand(3, 6, 8), record(), (0, 0), sample=2), "has recorded 2"),
        (lambda: sampling(torch.rand(3, 6, 8), torch.rand(4, 3)), "x and y of each"),
        (lambda: sampling(torch.rand(3, 6, 8), torch.full((4, 2), torch.nan)), "must be finite"),
        (lambda: sampling(torch.rand(3, 6, 8), torch.rand(4, 2), modulation=torch.rand(3)), "one for each point"),
    ],
)
def test_bad_input(draw, message):
    with pytest.raises(UserError, match=message):
        draw()


def test_other_attention_has_no_query_maps():
    attention = FocusedAttention(8)
    with foveal.watch(attention) as seen:
        attention(torch.rand(1, 100, 8))
    with pytest.raises(UserError, match="no map of an image"):
        query(torch.rand(3, 6, 8), seen[""], (0, 0))
    with pytest.raises(UserError, match=r"use \.rows or \.values"):
        seen[""].map_at((0, 0))
    with pytest.raises(UserError, match="8×6 queries"):
        record().map_at((8, 0))


def transformer_record(tokens, keys=None, heads=2):
    g = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, heads, count, 4, generator=g) for count in (tokens, keys or tokens))
    return AttentionRecord("blocks.0.attn", "pairwise", DotProduct(q, k, heads=True), True)


@pytest.mark.parametrize(("tokens", "extra"), [(12, 0), (13, 1), (17, 5)])
def test_the_patches_of_a_transformer(tokens, extra):
    attention = transformer_record(tokens)
    maps = query_maps(attention, (79, 0), (60, 80), sample=1)  # three rows of four patches: the fourth
    expected = attention.rows([extra + 3])[1].mean(0)[0, extra:].reshape(3, 4)
    torch.testing.assert_close(maps["attention"], expected)
    one, two = (query(torch.rand(3, 60, 80), dict.fromkeys(names, attention), (79, 0)) for names in ("a", "ab"))
    assert two.height > 1.8 * one.height


def test_the_class_token_of_a_transformer():
    attention, image = transformer_record(13), torch.zeros(3, 60, 80)
    maps = query_maps(attention, None, (60, 80))
    torch.testing.assert_close(maps["attention"], attention.rows([0])[0].mean(0)[0, 1:].reshape(3, 4))
    first = (10, 32, 170, 152)  # the image without attention, here black
    assert max(colours(query(image, attention).crop(first))) == (0, 0, 0)
    assert max(colour[2] for colour in colours(query(image, attention, (40, 30)).crop(first))) > 150  # a mark
    one = query_maps(transformer_record(1, 13), None, (60, 80))  # a class token alone attends, as in CaiT
    assert one["attention"].shape == (3, 4)


@pytest.mark.parametrize(
    ("attention", "at", "message"),
    [
        (transformer_record(12), None, "no class token; give at"),
        (transformer_record(400), (1, 1), r"no map of an image of 80×60 pixels; use record\.rows"),
        (record(), None, "no class token; give at"),
        (AttentionRecord("gate", "channel", torch.ones(1, 3), False), (1, 1), "only pairwise attention"),
    ],
)
def test_tokens_that_are_no_map(attention, at, message):
    with pytest.raises(UserError, match=message):
        query(torch.rand(3, 60, 80), attention, at)
