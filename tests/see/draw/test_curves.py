import re
import xml.etree.ElementTree as ElementTree

import pytest

from foveal.errors import UserError
from foveal.measure.info import MetricInfo
from foveal.see import precision_recall, relation_recall, scale_accuracy, training
from foveal.see.draw.chart import BOTTOM, LEFT, RIGHT, TOP, Axis, Line, chart, slots


def paths(figure, title):
    """The points of every line of ``title``."""
    drawn = re.findall(rf'<path d="([^"]+)"[^>]*><title>{re.escape(title)}</title>', figure)
    return [[tuple(map(float, point.split())) for point in re.split("[ML]", path)[1:]] for path in drawn]


def test_points_land_where_the_axes_say():
    figure = chart("t", [Line("a", [0, 5, 10], [0.0, 1.0, 2.0])], Axis("x", 10), Axis("y", 2))
    assert paths(figure, "a") == [[(LEFT, BOTTOM), ((LEFT + RIGHT) / 2, (TOP + BOTTOM) / 2), (RIGHT, TOP)]]


def test_gaps_outliers_and_single_points():
    lines = [
        Line("gap", [0, 1, 2, 3], [1.0, None, float("nan"), 1.0]),
        Line("wild", [0, 1], [1.0, 1e9]),
        Line("no", [0], [None]),
    ]
    figure = chart("t", lines, Axis("x", 3), Axis("y", 2))
    (gap,) = re.findall(r'd="(M[^"]+)" [^>]*><title>gap', figure)
    assert gap.count("M") == 2
    assert paths(figure, "wild")[0][1][1] == TOP
    assert paths(figure, "no") == []
    assert chart("t", [Line("one", [0], [1.0])], Axis("x", 1), Axis("y", 1)).count("<circle") == 1


def test_many_points_are_thinned_and_the_last_is_kept():
    figure = chart("t", [Line("a", range(5001), [0.5] * 5001)], Axis("x", 5000), Axis("y", 1))
    points = paths(figure, "a")[0]
    assert len(points) < 300
    assert points[-1][0] == RIGHT


def test_a_figure_is_well_formed_and_escaped():
    figure = chart("<t>", [Line("<script>&", [0, 1], [0, 1])], Axis("<x>", 1), Axis("y", 1), note="<n>")
    ElementTree.fromstring(figure)
    assert "<script>" not in figure


def test_colours_go_by_place_and_never_repeat_with_their_dashes():
    many = slots([f"model {i}" for i in range(20)])
    assert list(many.values()) == list(range(20))
    lines = [Line(name, [0, 1], [0, 1], slot) for name, slot in many.items()]
    figure = chart("t", lines, Axis("x", 1), Axis("y", 1))
    styles = re.findall(r'style="([^"]+)"><title>', figure)
    assert len(set(styles)) == 20  # where colours run out, the dashes differ


def test_precision_recall_is_drawn_by_recall_without_undefined_points():
    figure = precision_recall({"SOFT": ([None, 0.8, 0.1], [0.0, 0.2, 1.0]), "HARD": ([], [])}, even=0.02)
    (points,) = paths(figure, "SOFT")
    assert [x for x, _ in points] == pytest.approx([LEFT + 0.2 * (RIGHT - LEFT), RIGHT], abs=0.06)
    assert "spread evenly, 2.0" in figure
    assert "HARD" not in figure
    assert precision_recall({}) == ""
    with pytest.raises(UserError, match="1 precisions and 2 recalls"):
        precision_recall({"SOFT": ([0.1], [0.1, 0.2])})


def test_scale_accuracy():
    figure = scale_accuracy([0.5, 1, 1.5, 2], {"SOFT": [0.5, None, 0.7]})
    assert figure.count("<circle") == 2
    assert scale_accuracy([0.5, 1], {"SOFT": [None]}) == ""
    with pytest.raises(UserError, match="1 accuracies for 2 bins"):
        scale_accuracy([0.5, 1, 2], {"SOFT": [0.5]})


def test_training_draws_one_line_a_run():
    run = [
        {"epoch": e, "train/loss": 2.0 - e / 10, "val/loss": 2.1 - e / 10, "val/accuracy": e / 10} for e in range(10)
    ]
    loss, accuracy = training({"SOFT": [run, run[:4]], "HARD": [run]})
    assert len(paths(accuracy, "SOFT")) == 2
    assert len(paths(loss, "HARD")) == 2  # training and validation
    assert loss.count("<li>") == 2
    assert training({"SOFT": [[]]}) == []
    assert training({}) == []


def test_epochs_count_from_one():
    run = [{"epoch": e, "val/accuracy": 0.5} for e in range(3)]
    (figure,) = training({"SOFT": [run]})
    (points,) = paths(figure, "SOFT")
    assert (points[0][0], points[-1][0]) == (LEFT, RIGHT)
    ticks = [(n, float(x)) for x, n in re.findall(rf'<text x="([\d.]+)" y="{BOTTOM + 18}[^>]*>([^<]+)</text>', figure)]
    assert ticks == [("1", LEFT), ("2", (LEFT + RIGHT) / 2), ("3", RIGHT)]


def test_every_score_has_a_chart_in_its_unit():
    run = [{"epoch": e, "val/bleu": 20.0 + e, "val/ap": 0.2, "val/loss": None, "val/loss/x": 1.0} for e in range(3)]
    infos = {"bleu": MetricInfo("bleu", "BLEU", unit=""), "ap": MetricInfo("ap", "Average precision")}
    bleu, precision = training({"SOFT": [run]}, info=infos.__getitem__)
    assert "<figcaption>BLEU in validation</figcaption>" in bleu
    assert ">25<" in bleu
    assert "Average precision, %" in precision
    assert ">20<" in precision


def test_training_without_infos_names_a_score_by_its_key():
    (figure,) = training({"SOFT": [[{"epoch": e, "val/weighted_average_precision": 0.2} for e in range(3)]]})
    assert "eighted average precision, %" in figure


def test_negative_losses_are_inside():
    (figure,) = training({"SOFT": [[{"epoch": e, "train/loss": 1.0 - e} for e in range(3)]]})
    assert [y for _, y in paths(figure, "SOFT")[0]] == [TOP, (TOP + BOTTOM) / 2, BOTTOM]


def test_relation_recall_is_drawn_by_pairs_with_the_papers_paler():
    ours = {"FAN": {1000: 0.2, 2000: 0.5}, "other": {1000: float("nan")}}
    figure = relation_recall(ours, {"FAN": {1000: 0.4, 2000: 1.0}})
    ((first, last),) = paths(figure, "FAN")
    assert last == (RIGHT, (TOP + BOTTOM) / 2)
    assert first[0] == pytest.approx((LEFT + RIGHT) / 2)
    assert paths(figure, "FAN, published")[0][1] == (RIGHT, TOP)
    assert "Pale lines" in figure
    assert "other" not in figure
    assert "Pale lines" not in relation_recall(ours)
    assert relation_recall({"FAN": {}}, {"FAN": {1000: 0.5}}) == ""


def axis_numbers(axis):
    svg = chart("t", [Line("a", [axis.start, axis.end], [0, 1])], axis, Axis("y", 1, ticks=[]))
    return re.findall(r'text-anchor="middle"[^>]*opacity="0.7"[^>]*>([^<]+)<', svg)


@pytest.mark.parametrize(
    ("start", "end", "numbers"),
    [
        (0, 100, ["0", "20", "40", "60", "80", "100"]),
        (8.578, 13.89, ["10", "12"]),
        (19, 33, ["20", "25", "30"]),
        (-1.5, 1.5, ["-1", "0", "1"]),
        (35.6981, 35.7019, ["35.699", "35.7", "35.701"]),
    ],
)
def test_numbers_of_an_axis_are_round_and_differ(start, end, numbers):
    assert axis_numbers(Axis("x", end, start=start)) == numbers


def test_labels_stay_inside_and_do_not_overlap():
    line = Line("front", [0, 3, 3.01, 9], [0, 5, 5, 9], labels=["at the left end", "first", "hidden", "last"])
    figure = chart("t", [line], Axis("x", 10), Axis("y", 10))
    texts = re.findall(r'x="([\d.]+)"[^>]*text-anchor="(\w+)"[^>]*font-size="11"[^>]*>([^<]+)<', figure)
    assert [(anchor, text) for _, anchor, text in texts] == [
        ("start", "at the left end"),
        ("end", "first"),
        ("end", "last"),
    ]
    assert all(LEFT <= float(left) <= RIGHT for left, _, _ in texts)
