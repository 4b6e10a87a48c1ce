"""Rings, highlighted text and matrices of words."""

import math
import re
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from foveal.errors import UserError
from foveal.see import all_pairs, pairs, words
from foveal.see.draw._type import PALE, STRONG
from foveal.see.draw.ring import INNER, REACH, ring, ring_svg

SENTENCE = ["the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog"]
IMPORTANCE = [0.2, 1.5, 0.7, 2.0, 1.1, 0.3, 0.2, 1.0, 2.0]


def near(picture, colour, within=24):
    """Which pixels are close to a colour, bool (H, W)."""
    return (np.abs(np.asarray(picture).astype(int) - np.array(colour)).max(2) <= within).astype(bool)


def test_the_most_important_word_has_the_longest_and_strongest_bar():
    """Four words at noon, three, six and nine o'clock: only the second is strong, so the strong colour is right."""
    picture = words(["up", "right", "down", "left"], [0.1, 2.0, 0.1, 0.1], size=400)
    rows, columns = near(picture, STRONG).nonzero()
    assert len(columns) > 200
    assert columns.min() > 230
    assert abs(rows.mean() - 200) < 5
    weaker = words(["up", "right", "down", "left"], [0.1, 2.0, 0.1, 2.0], size=400)
    assert (near(weaker, STRONG).nonzero()[1] < 170).any()


def test_words_go_clockwise_from_the_top():
    svg = ring_svg(ring(["a", "b", "c", "d"], [1, 1, 1, 1]))
    places = [tuple(map(float, p)) for p in re.findall(r'transform="translate\((\S+) (\S+)\)', svg)]
    angles = [math.degrees(math.atan2(x, -y)) % 360 for x, y in places]
    assert angles == pytest.approx([0, 90, 180, 270])


def test_the_ring_is_well_formed_svg():
    hostile = ["<script>", "a&b", '"quoted"', "ünï", ""]
    root = ElementTree.fromstring(ring_svg(ring(hostile, [1, 0, 2, 0.5, 0.1], torch.rand(5, 5))))
    texts = [element.text for element in root.iter("text")]
    assert texts == ["<script>", "a&b", '"quoted"', "ünï", None]
    chords = [p for p in root.iter("path") if "Q0 0" in p.get("d")]
    assert len(chords) == 10  # every pair of five words


def test_chords_join_the_words_of_the_strongest_pair():
    weights = torch.zeros(4, 4)
    weights[0, 1] = 1.0
    svg = ring_svg(ring(list("abcd"), [1] * 4, weights))
    (chord,) = re.findall(r"M(\S+) (\S+)Q0 0 (\S+) (\S+)\"", svg)
    assert [float(x) for x in chord] == pytest.approx([0, -INNER, INNER, 0], abs=0.1)


def test_the_picture_and_the_svg_share_one_layout():
    """Where the SVG has the strongest bar, the picture is strong."""
    layout = ring(SENTENCE, IMPORTANCE)
    size = 400
    strong = near(words(SENTENCE, IMPORTANCE, size=size), STRONG)
    svg = ElementTree.fromstring(ring_svg(layout))
    bars = [group.find("path").get("d") for group in svg.iter("g")]
    for spoke, bar in zip(layout.spokes, bars, strict=True):
        corners = np.array([tuple(map(float, pair.split())) for pair in re.findall(r"-?[\d.]+ -?[\d.]+", bar)])
        assert corners == pytest.approx(np.array(spoke.bar()), abs=0.06)
        x, y = ((corners.mean(0) / REACH + 1) * size / 2).round().astype(int)
        assert strong[y, x] == (spoke.strength == 1)


def test_many_words_have_small_letters_and_long_words_are_cut():
    layout = ring(["pneumonoultramicroscopicsilicovolcanoconiosis"] * 100, [1.0] * 100)
    assert layout.letters < 2 * math.pi * 110 / 100  # no two overlap
    assert ring(["a"], [1.0]).letters == 12.5
    long, short = ring(["pneumonoultramicroscopicsilicovolcanoconiosis", "cat"], [1.0, 0.5]).spokes
    assert long.label.endswith("…")
    assert short.label == "cat"


@pytest.mark.parametrize("style", ["ring", "text"])
@pytest.mark.parametrize("count", [1, 2, 9, 45])
def test_any_number_of_words(style, count):
    said = (SENTENCE * 5)[:count]
    picture = words(said, (IMPORTANCE * 5)[:count], style=style, title="a title", size=320)
    assert picture.size[0] == 320
    assert np.asarray(picture).std() > 5  # something is drawn


def test_text_colours_follow_importance():
    picture = words(["one", "two"], [0.0, 1.0], style="text", size=240)
    assert near(picture, STRONG).sum() > 100
    assert near(picture, PALE, 4).sum() == 0  # a word without importance has no patch


@pytest.mark.parametrize("style", ["ring", "text"])
def test_no_importance_at_all(style):
    assert words(["a", "b"], [0.0, 0.0], style=style).size[0] == 480


def test_very_long_and_strange_words_stay_inside():
    said = ["x" * 200, "tab\there", "né", "日本語", "\x00"]
    for style in ("ring", "text"):
        edge = np.asarray(words(said, [1.0] * 5, style=style, size=300))
        assert (edge[:, [0, -1]] == 255).all()


def test_the_matrix_shows_each_pair_in_its_place():
    weights = torch.zeros(3, 3)
    weights[0, 2] = 1.0
    picture = pairs(["aa", "bb", "cc"], weights, cell=40)
    rows, columns = near(picture, STRONG).nonzero()
    height, width = picture.size[1], picture.size[0]
    assert columns.min() > width - 12 - 41  # the last column
    assert rows.max() < height - 12 - 79  # the first row
    framed = pairs(["aa", "bb", "cc"], weights, target=torch.eye(3, dtype=torch.bool), cell=40, title="long " * 20)
    assert framed.size[0] > width


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: words([], []), "no words"),
        (lambda: words("one text", [1.0] * 8), "a list of words"),
        (lambda: words(["a"], [1.0, 2.0]), r"importance \(2,\) must be one number for each of the 1 words"),
        (lambda: words(["a"], [-1.0]), "not negative"),
        (lambda: words(["a"], [math.nan]), "finite"),
        (lambda: words(["a"], [1.0], style="rings"), "did you mean 'ring'"),
        (lambda: words(["a"], [1.0], weights=torch.ones(2, 2)), r"weights \(2, 2\) must be \(1, 1\)"),
        (lambda: pairs(["a"], torch.ones(1, 2)), r"must be \(1, 1\)"),
        (lambda: pairs(["a"], -torch.ones(1, 1)), "not negative"),
        (lambda: pairs(["a"], torch.ones(1, 1), target=torch.ones(1, 1)), "target must be bool"),
        (lambda: pairs(["a"], torch.ones(1, 1), cell=1), "at least 4"),
    ],
)
def test_what_cannot_be_drawn(call, said):
    with pytest.raises(UserError, match=said):
        call()


def test_pairs_of_two_sentences():
    picture = pairs(["aa", "bb"], torch.eye(3)[:2], columns=["x", "y", "zz"], cell=40)
    colours = picture.getcolors(1 << 16)
    assert any(colour == (196, 64, 16) for _, colour in colours)
    square = pairs(["aa", "bb"], torch.eye(2), cell=40)
    assert picture.width > square.width + 30
    with pytest.raises(UserError, match=r"must be \(2, 3\)"):
        pairs(["aa", "bb"], torch.eye(2), columns=["x", "y", "zz"])


def test_several_matrices():
    words_of = [f"w{i}" for i in range(30)]
    matrices = {f"term {i}": torch.rand(30, 30) for i in range(3)}
    narrow, wide = (all_pairs(words_of, matrices, most=most) for most in (500, 5000))
    assert wide.width > 2.5 * narrow.width
    assert narrow.height > 2.5 * wide.height
    with pytest.raises(UserError, match="no attention"):
        all_pairs(["a"], {})
