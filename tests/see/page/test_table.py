import re

import pytest
from readhtml import read

from foveal.measure.info import MetricInfo
from foveal.see.page import ModelRow, Value, best, metric_table, parts_table, table

ACCURACY = MetricInfo("accuracy", "Accuracy")
ERROR = MetricInfo("error", "Error", better="lower")
BLEU = MetricInfo("bleu", "BLEU", unit="")


def rows(key="accuracy", **means):
    return [ModelRow(name, {key: Value(mean)}) for name, mean in means.items()]


def marked(html):
    return re.findall(r"<strong><span[^>]*>([^<]+)", html)


def test_a_row_has_everything_about_a_model(row_of):
    infos = [ACCURACY, MetricInfo("true_positive_strength", "True-positive strength")]
    page = read(metric_table([row_of("STN"), row_of("SOFT", seeds=3)], infos))
    headings, stn, soft = page.table()
    assert headings == ["Model", "Accuracy, %", "True-positive strength, %", "Parameters", "Epochs", "Training time"]
    assert soft[1:3] == ["80.0 ± 0.4 paper 82.9 (−2.9)", "13.1 paper 13.6 (−0.5)"]
    assert soft[3:] == ["30,470", "40 best 34", "36 s 3.2 ms a step"]  # epochs count from one
    assert soft[0] == "SOFT seed 0"
    assert stn[2] == "6.0"


def test_columns_without_a_value_are_left_out():
    unfinished = ModelRow("b", epochs=7, progress="so far, validation 61.2 %")
    page = read(metric_table([*rows(a=0.5), unfinished], [ACCURACY, BLEU]))
    assert page.table() == [
        ["Model", "Accuracy, %", "Epochs"],
        ["a", "50.0", "–"],
        ["b", "–", "7 so far, validation 61.2 %"],
    ]


def test_bars_end_at_the_whole_and_have_a_tick_at_the_published_number():
    html = metric_table([ModelRow("a", {"accuracy": Value(0.8, published=0.9)})], [ACCURACY])
    assert "width:80.0%" in html
    assert "left:90.0%" in html
    assert "width:60.0%" in metric_table([ModelRow("a", {"accuracy": Value(0.12)}), *rows(b=0.2)], [ACCURACY])
    for wild in (rows("bleu", a=27.3), rows("bleu", a=0.3)):
        assert 'class="bar"' not in metric_table(wild, [BLEU])
    assert 'class="bar"' not in metric_table(rows(a=1.2), [ACCURACY])


def test_numbers_are_shown_in_the_unit_of_their_metric():
    for mean, shown in ((27.314, "27.3"), (0.03214, "0.0321"), (1234.5, "1,234.5"), (3.214, "3.21")):
        assert read(metric_table(rows("bleu", a=mean), [BLEU])).row("a")[1] == shown


@pytest.mark.parametrize(
    ("info", "means", "winners", "shown"),
    [
        (ACCURACY, {"a": 0.9, "b": 0.8}, ["a"], ["90.0"]),
        (ERROR, {"a": 0.9, "b": 0.8}, ["b"], ["80.0"]),
        (ACCURACY, {"a": 0.9001, "b": 0.9002, "c": 0.1}, ["a", "b"], []),  # a tie as shown is not marked twice
        (ACCURACY, {"a": 0.9}, [], []),
        (MetricInfo("area", "Area", better=None), {"a": 0.9, "b": 0.8}, [], []),
    ],
)
def test_the_best_is_marked_once(info, means, winners, shown):
    given = rows(info.key, **means)
    assert [row.name for row in best(given, info)] == winners
    assert marked(metric_table(given, [info])) == shown


def test_what_does_not_compare_has_no_best():
    assert marked(metric_table(rows(a=0.9, b=0.8), [ACCURACY], incomparable={"accuracy"})) == []


def test_colours_go_by_place_or_as_given():
    html = metric_table(rows(a=0.9, b=0.8), [ACCURACY])
    assert re.findall(r"dot\" style=\"background:var\(--m(\d)", html) == ["0", "1"]
    html = metric_table(rows(a=0.9, b=0.8), [ACCURACY], colours={"b": 3, "a": 5})
    assert re.findall(r"dot\" style=\"background:var\(--m(\d)", html) == ["5", "3"]


def test_names_may_break_between_their_parts():
    html = metric_table([ModelRow("mobilenetv3_small-100", {"accuracy": Value(0.5)})], [ACCURACY])
    assert "mobilenetv3_<wbr>small-<wbr>100" in html


def test_parts_of_several_metrics():
    models = {
        "a": {"accuracy": {"right": Value(0.2), "wrong": Value(0.3, 0.01)}},
        "b": {"error": {"right": Value(0.4)}, "unknown": {"x": Value(1.0)}},
    }
    assert read(parts_table(models, [ACCURACY, ERROR])).table() == [
        ["Model", "Accuracy, %", "Error, %"],
        ["right", "wrong", "right"],
        ["a", "20.0", "30.0 ± 1.0", "–"],
        ["b", "–", "–", "40.0"],
    ]
    assert parts_table(models, [BLEU]) == ""
    assert parts_table({}, [ACCURACY]) == ""


def test_many_parts_have_a_row_each():
    models = {title: {"accuracy": {f"class_{i}": Value(i / 10) for i in range(9)}} for title in "ab"}
    heading, *lines = read(parts_table(models, [ACCURACY])).table()
    assert heading == ["Accuracy, %", "a", "b"]
    assert lines[3] == ["class_3", "30.0", "30.0"]
    assert len(lines) == 9


def test_a_plain_table_is_escaped():
    html = table(["<a>", "b"], [["<i>", 1]])
    assert read(html).table() == [["<a>", "b"], ["<i>", "1"]]
    assert "<i>" not in html


def test_values_of_several_runs():
    assert Value.of([]) is None
    assert Value.of([0.5], [0.6]) == Value(0.5, None, 0.6)
    assert Value.of([0.4, 0.6]).spread == pytest.approx(0.1414, abs=1e-4)
