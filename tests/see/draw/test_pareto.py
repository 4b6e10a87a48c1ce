from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveal.errors import UserError
from foveal.see import pareto
from foveal.see.draw.pareto import Tradeoff, front, tradeoffs

numbers = st.integers(0, 20).map(float)


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=30))
def test_the_front_by_brute_force(pairs):
    points = [Tradeoff(str(n), "", value, cost) for n, (value, cost) in enumerate(pairs)]
    beaten = {
        p.name
        for p in points
        if any((q.value >= p.value and q.cost < p.cost) or (q.value > p.value and q.cost <= p.cost) for q in points)
    }
    best = front(points)
    assert {(p.value, p.cost) for p in best} == {(p.value, p.cost) for p in points if p.name not in beaten}
    assert [p.cost for p in best] == sorted({p.cost for p in best})


def test_the_picture():
    points = [
        Tradeoff("none", "plain", 0.55, 20),
        Tradeoff("1111", "plain", 0.57, 30),
        Tradeoff("0010", "deformable", 0.6, 25),
    ]
    figure = pareto(points, value="mean IoU, %", cost="GFLOPs", note="The paper agrees.")
    assert "none, plain (55.0 at 20); 0010, deformable (60.0 at 25)." in figure
    assert "1111, plain (" not in figure[figure.index("Nothing cheaper") :]
    assert figure.index("The paper agrees.") > figure.index("Nothing cheaper")
    assert re.findall(r"<circle[^>]*><title>([^<]*)", figure) == [
        "none, plain (55.0 at 20)",
        "1111, plain (57.0 at 30)",
        "0010, deformable (60.0 at 25)",
    ]
    assert [name for name in ("none", "1111", "0010") if f">{name}</text>" in figure] == ["none", "0010"]  # the front
    assert pareto([], value="a", cost="b") == ""
    assert pareto([Tradeoff("a", "", float("nan"), 1)], value="a", cost="b") == ""


@pytest.mark.parametrize(("costs", "spread"), [((40.0, 44.0), 0.8), ((10.0, 44.0), 0.6)])
def test_costs_that_are_close_together_are_drawn_apart(costs, spread):
    points = [Tradeoff(str(cost), "", 0.5, cost) for cost in costs]
    circles = re.findall(r'<circle cx="([\d.]+)"', pareto(points, value="a", cost="b"))
    width = float(re.search(r'viewBox="0 0 ([\d.]+)', pareto(points, value="a", cost="b"))[1])
    assert abs(float(circles[0]) - float(circles[1])) > spread * 0.8 * width


def test_great_costs_have_no_exponent():
    points = [Tradeoff("none", "plain", 0.55, 41234.5), Tradeoff("1111", "plain", 0.57, 48765.4)]
    figure = pareto(points, value="mean IoU, %", cost="MFLOPs")
    assert "none, plain (55.0 at 41,234); 1111, plain (57.0 at 48,765)." in figure
    assert re.findall(r">(4\d,\d{3})</text>", figure) == ["42,000", "44,000", "46,000", "48,000"]
    assert "e+" not in figure


def test_results_and_costs_are_joined():
    results = [
        {"recipe": "t/a", "model": "A", "dataset": "none", "metric": "mean_iou", "mean": "0.5"},
        {"recipe": "t/a", "model": "A", "dataset": "none", "metric": "pixel_accuracy", "mean": "0.9"},
        {"recipe": "t/b", "model": "B", "dataset": "none", "metric": "mean_iou", "mean": "0.6"},
        {"recipe": "t/c", "model": "C", "dataset": "none", "metric": "mean_iou", "mean": "0.7"},
    ]
    costs = [{"recipe": "t/a", "ms": "12.5"}, {"recipe": "t/b", "ms": "13"}, {"recipe": "t/c", "ms": ""}]
    assert tradeoffs(results, costs, "mean_iou", "ms") == [
        Tradeoff("A", "none", 0.5, 12.5),
        Tradeoff("B", "none", 0.6, 13.0),
    ]
    with pytest.raises(UserError, match="they have recipe, ms"):
        tradeoffs(results, costs, "mean_iou", "flops")
