from dataclasses import replace

import numpy as np
import pytest

from foveal.errors import UserError
from foveal.see import gates
from foveal.see.draw.gates import GAP, LINE, WRONG, looks
from foveal.see.draw.overlay import attended, heatmap


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
    unknown = replace(seen, label=None)
    assert hexed(WRONG) not in colours_in(gates({"m": right})) | colours_in(gates({"m": unknown}))
    assert hexed(WRONG) in colours_in(gates({"m": wrong}))


def test_what_is_prepared_for_a_picture_and_for_a_page(samples_of):
    seen = samples_of("HAttNet", 2)
    first, second = looks({"m": seen})
    assert np.array_equal(first.picture, seen.image[0].permute(1, 2, 0))
    assert (first.question, first.truth) == (seen.asks(0), seen.names(seen.truth(0)))
    assert first.box == seen.box(0)
    look = second.looks["m"]
    assert np.array_equal(look.attended, attended(seen.image[1], seen.map[1]))
    assert [gate.size for gate in look.maps] == [(49, 49), (23, 23), (10, 10), (4, 4)]
    assert [gate.site for gate in look.maps] == [f"gates.{i}" for i in range(4)]
    assert look.maps[3].highest == pytest.approx(float(seen.gates[3][1].max()))
    assert (look.verdict, look.confidence) == (seen.verdict(1), seen.confidence(1))


def test_some_of_many_gates(samples_of):
    seen = samples_of("HAttNet", 1)
    (row,) = looks({"m": replace(seen, gates=seen.gates * 5, sites=tuple(map(str, range(20))))}, most_gates=3)
    look = row.looks["m"]
    assert ([gate.site for gate in look.maps], look.total_gates) == (["0", "10", "19"], 20)
    (row,) = looks({"m": replace(seen, total_gates=12)}, most_gates=3)
    assert (len(row.looks["m"].maps), row.looks["m"].total_gates) == (3, 12)
    narrow, noted = gates({"m": seen}, size=20), gates({"m": replace(seen, total_gates=12)}, size=20)
    assert noted.size == narrow.size
    assert not np.array_equal(noted, narrow)  # the panel says that some are missing


def test_long_titles_are_wrapped_not_cut(samples_of):
    seen = samples_of("SOFT", 1)
    short, long = "model", "a_model_with_a_name_that_does_not_end_" * 2
    one, other = (gates({title: seen}, size=100) for title in (short, long))
    extra = other.height - one.height
    assert extra % LINE == 0
    assert extra > 0
    assert other.width == one.width
    ends = [np.asarray(gates({long + end: seen}, size=100)) for end in "xy"]
    assert not np.array_equal(*ends)  # names with the same beginning differ


def test_a_diverged_model_leaves_its_tiles_empty(samples_of):
    seen = samples_of("SOFT", 1)
    diverged = replace(seen, map=seen.map * float("nan"), gates=(seen.gates[0] * float("nan"),))
    assert gates({"m": diverged}).size == gates({"m": seen}).size
    (row,) = looks({"m": diverged})
    assert row.looks["m"].attended is None
    assert row.looks["m"].maps[0].picture is None


def test_nothing_to_show():
    with pytest.raises(UserError, match="no models"):
        gates({})


def test_a_model_without_gates_has_its_answer_alone(samples_of):
    seen = replace(samples_of("SOFT", 1), query=None, mask=None)
    bare = replace(seen, map=None, gates=(), sites=())
    picture = np.asarray(gates({"with": seen, "without": bare}, size=50))
    left = GAP + 3 * (50 + GAP)
    assert (picture[2 * GAP + LINE : 2 * GAP + LINE + 46, left : left + 46] == 255).all()
    assert (picture[2 * GAP + LINE + 52 :, left:] < 128).any()
