"""What scenes consist of."""

from dataclasses import fields

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_files import assert_same_scenes

from foveal.data.embedded.scenes import COLOURS, Scenes, SceneSpec, Sources, digit_counts, images_for
from foveal.errors import DataError, UserError


def part(scenes, where):
    return Scenes(*(getattr(scenes, f.name)[where] for f in fields(Scenes)))


def test_the_number_of_digits_is_uniform():
    counts = digit_counts(SceneSpec(), 0, torch.arange(50_000))
    shares = counts.bincount(minlength=10) / 50_000
    assert counts.min() == 5
    assert counts.max() == 9
    assert (shares[5:] - 0.2).abs().max() < 0.01


def test_triples_and_masks(paper):
    image, slot = paper.triples()
    assert len(image) == (paper.digit >= 0).sum()
    assert image.tolist() == sorted(image.tolist())
    masks = paper.mask(image, slot)
    assert masks.dtype == torch.bool
    assert masks.flatten(1).any(1).all()
    for i in range(len(paper)):  # disjoint, and together all that is painted
        together = masks[image == i].sum(0)
        assert together.max() == 1
        assert torch.equal(together > 0, paper.owner[i] > 0)


def test_reference_colours():
    assert COLOURS == {
        "green": (16, 166, 81),
        "yellow": (255, 241, 78),
        "white": (224, 224, 224),
        "red": (146, 16, 16),
        "blue": (16, 98, 192),
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"digits": (0, 5)}, r"data\.count=\[0, 5\]: expected 1 ≤ least ≤ greatest ≤ 10"),
        ({"digits": (5, 11)}, r"data\.count=\[5, 11\]"),
        ({"digits": (6, 5)}, r"data\.count=\[6, 5\]"),
        ({"scale": (2.0, 1.0)}, r"data\.scale=\[2.0, 1.0\]: expected least ≤ greatest"),
        ({"scale": (0.0, 1.0)}, r"data\.scale=\[0.0, 1.0\]"),
        ({"scale": (0.05, 1.0)}, r"floor\(28·least\) ≥ 2"),
        (
            {"canvas": 83},
            r"data\.canvas=83: expected at least 84, the side of a digit of scale 3; or lower data\.scale",
        ),
    ],
)
def test_impossible_specs(options, message):
    with pytest.raises(UserError, match=message):
        SceneSpec(**options)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 400), st.integers(0, 50), st.integers(0, 1000))
def test_images_for_is_the_least_number_that_holds_the_triples(triples, seed, start):
    spec = SceneSpec()
    count = images_for(spec, seed, triples, start)
    held = digit_counts(spec, seed, torch.arange(start, start + count))
    assert held.sum() >= triples
    assert held[:-1].sum() < triples


def test_moving_scenes_keeps_everything(paper, embedded):
    assert_same_scenes(paper.to("cpu"), paper)
    assert embedded.to("cpu").pictures is None


def test_sorting_by_class(images, labels):
    sources = Sources.by_class(images, labels.long())
    assert sources.starts.tolist() == list(range(0, 21, 2))
    for label in range(10):
        assert torch.equal(sources.digits[2 * label : 2 * label + 2], images[[label, label + 10]])


@pytest.mark.parametrize("labels", [[0] * 20, [*range(9)] * 2 + [0, 1], [*range(10)] + [11] * 10])
def test_all_ten_classes_are_needed(labels, images):
    with pytest.raises(DataError, match="expected digits of all ten classes 0–9"):
        Sources.by_class(images, torch.tensor(labels))
