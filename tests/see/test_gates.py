from dataclasses import replace

import numpy as np
import pytest
import torch

from foveal.errors import UserError
from foveal.see import gates, gates_html
from foveal.see.cards import data_uri
from foveal.see.gates import GAP, LINE, WRONG, shared
from foveal.see.overlay import heatmap


def colours_in(picture):
    return {tuple(pixel) for pixel in np.asarray(picture).reshape(-1, 3)}


def hexed(colour):
    return tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5))


def test_the_panel_has_a_column_a_picture_and_a_row_a_sample(samples_of):
    models = {title: samples_of(title) for title in ("SOFT", "HAttNet")}
    picture = gates(models, limit=3, size=50)
    assert picture.size == (GAP + (1 + 2 + 5) * (50 + GAP), 2 * GAP + LINE + 3 * (50 + 2 * LINE + GAP))


def test_tiles_hold_the_input_and_the_maps(samples_of):
    seen = replace(samples_of("SOFT", 1), mask=None)
    picture = np.asarray(gates({"SOFT": seen}, size=100))
    top = 2 * GAP + LINE
    assert np.array_equal(picture[top : top + 100, GAP : GAP + 100], seen.image[0].permute(1, 2, 0))
    left = GAP + 2 * (100 + GAP)
    tile = picture[top : top + 100, left : left + 100]
    assert np.array_equal(tile[12::25, 12::25], np.asarray(heatmap(seen.gates[0][0])))


def test_only_a_wrong_answer_has_a_red_frame(samples_of):
    seen = samples_of("SOFT", 1)
    right, wrong = replace(seen, prediction=seen.label), replace(seen, prediction=(seen.label + 1) % 5)
    assert hexed(WRONG) not in colours_in(gates({"m": right}))
    assert hexed(WRONG) in colours_in(gates({"m": wrong}))
    assert 'class="look right"' in gates_html({"m": right})
    assert 'class="look wrong"' in gates_html({"m": wrong})


def test_an_unknown_truth_has_neither_tick_nor_cross(samples_of):
    html = gates_html({"m": replace(samples_of("SOFT", 1), label=None)})
    assert "look unknown" in html
    assert "aria-label" not in html
    gates({"m": replace(samples_of("SOFT", 1), label=None)})


def test_samples_are_matched_by_image_and_query(samples_of):
    first = samples_of("SOFT", 4)
    order = torch.tensor([2, 0])
    names = ("image", "query", "label", "prediction", "probability", "mask", "map")
    second = replace(first, **{n: getattr(first, n)[order] for n in names}, gates=(first.gates[0][order],))
    assert shared({"a": first, "b": second}) == [{"a": 0, "b": 1}, {"a": 2, "b": 0}, {"a": 1}, {"a": 3}]
    html = gates_html({"a": first, "b": second})
    assert html.count("not recorded for this sample") == 2
    gates({"a": first, "b": second})


def test_a_diverged_model_leaves_its_tiles_empty(samples_of):
    seen = samples_of("SOFT", 1)
    diverged = replace(seen, map=seen.map * float("nan"), gates=(seen.gates[0] * float("nan"),))
    assert gates({"m": diverged}).size == gates({"m": seen}).size
    assert gates_html({"m": diverged}).count("<img") == 1  # the input


def test_names_are_escaped(samples_of):
    seen = replace(samples_of("SOFT", 1), answers=("<b>x",) * 5, queries=('"><script>',) * 10, sites=("<i>",))
    html = gates_html({"<script>alert(1)</script>": seen})
    assert "<script" not in html
    assert "<b>x" not in html
    assert "<i>" not in html


def test_nothing_to_show():
    with pytest.raises(UserError, match="no models"):
        gates({})


def test_large_pictures_are_shrunk_and_photographs_compressed():
    noise = heatmap(torch.rand(400, 300))
    uri = data_uri(noise)
    assert uri.startswith("data:image/webp;base64,")
    assert len(uri) < 80_000
    assert data_uri(heatmap(torch.rand(4, 4))).startswith("data:image/png;base64,")


def test_a_model_without_gates_has_its_answer_alone(samples_of):
    seen = replace(samples_of("SOFT", 1), query=None, mask=None)
    bare = replace(seen, map=None, gates=(), sites=())
    picture = np.asarray(gates({"with": seen, "without": bare}, size=50))
    left = GAP + 3 * (50 + GAP)
    assert (picture[2 * GAP + LINE : 2 * GAP + LINE + 46, left : left + 46] == 255).all()
    page = gates_html({"with": seen, "without": bare})
    assert "What does this show?" in page
    assert page.count("the attended image") == 2  # once as text and once as title, for one of the two
    assert page.count('class="answer"') == 2
