"""Two recipes over seeds."""

import pytest
from typer.testing import CliRunner

from foveal.cli import app
from foveal.errors import DataError, UserError
from foveal.reproduce import against_first, compare

HEAD = "table,recipe,metric,values\n"


def test_file(tmp_path):
    path = tmp_path / "results.csv"
    path.write_text(HEAD + "t,a,accuracy,0.1 0.2 0.4\nt,b,accuracy,0.2 0.4 0.5\nt,b,center_mass,0.2 0.4 0.5\n")
    assert compare(path, "a", "b").difference == pytest.approx(0.4 / 3)
    for wrong in (("a", "c"), ("a", "b", "accuracies")):
        with pytest.raises(UserError, match="unknown"):
            compare(path, *wrong)
    with pytest.raises(UserError, match=r"it has accuracy: choose one with --metric"):
        compare(path, "a", "b", "center_mass")
    result = CliRunner().invoke(app, ["compare", str(path), "a", "b"])
    assert result.exit_code == 0
    assert "+13.33 points" in result.output
    assert "(not paired: Welch's t-test, 3 and 3 runs)" in result.output  # the file does not say which seeds


def test_rows_that_do_not_say_their_seeds_are_not_paired(tmp_path):
    path = tmp_path / "results.csv"
    rows = "a,accuracy,0.1 0.2 0.4,,lr changed\nb,accuracy,0.3 0.5,0 1,\nc,accuracy,0.2,,\n"
    path.write_text("recipe,metric,values,run_seeds,older\n" + rows)
    comparison = compare(path, "a", "b")
    assert (comparison.seeds, comparison.others, comparison.older) == (3, 2, ("a",))
    assert comparison.difference == pytest.approx(0.4 - 0.7 / 3)
    output = CliRunner().invoke(app, ["compare", str(path), "a", "b"]).output
    assert "(not paired: Welch's t-test, 3 and 2 runs; of older code: a)" in output
    with pytest.raises(UserError, match=r"b has seeds 0, 1, c has not recorded: fewer than two to compare"):
        compare(path, "b", "c")


def test_pairs_on_request_only(tmp_path):
    path = tmp_path / "results.csv"
    path.write_text("recipe,metric,values,run_seeds\na,accuracy,0.1 0.2 0.4,1 2 3\nb,accuracy,0.5 0.3,3 4\n")
    comparison = compare(path, "a", "b", pairs=False)
    assert (comparison.seeds, comparison.others) == (3, 2)
    assert comparison.difference == pytest.approx(0.4 - 0.7 / 3)
    result = CliRunner().invoke(app, ["compare", str(path), "a", "b", "--unpaired"])
    assert "(not paired: Welch's t-test, 3 and 2 runs)" in result.output


def test_differences_that_do_not_vary(tmp_path):
    path = tmp_path / "results.csv"
    path.write_text("recipe,metric,values,run_seeds\na,accuracy,0.85 0.87,0 1\nb,accuracy,0.86 0.88,0 1\n")
    output = CliRunner().invoke(app, ["compare", str(path), "a", "b"]).output
    assert output == (
        "b − a: accuracy +1.00 points, the differences do not vary, so no interval and no p (paired t-test, 2 seeds)\n"
    )


def test_only_runs_of_the_same_seed_are_pairs(tmp_path):
    path = tmp_path / "results.csv"
    path.write_text("recipe,metric,values,run_seeds\na,accuracy,0.1 0.2 0.4,1 2 3\nb,accuracy,0.5 0.3 0.2,3 2 1\n")
    assert compare(path, "a", "b").difference == pytest.approx(0.1)
    path.write_text("recipe,metric,values,run_seeds\na,accuracy,0.1 0.2,1 2\nb,accuracy,0.5 0.3,0 1\n")
    with pytest.raises(UserError, match=r"seeds 1, 2, b has 0, 1.*same --seeds and --first-seed"):
        compare(path, "a", "b")


def test_seeds_that_both_have(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("recipe,metric,values,run_seeds\na,accuracy,0.1 0.2 0.4,1 2 3\nb,accuracy,0.3 0.5,2 3\n")
    found = compare(path, "a", "b")
    assert (found.seeds, found.difference) == (2, pytest.approx(0.1))


def test_the_unit_of_the_metric(tmp_path):
    path = tmp_path / "results.csv"
    head = "recipe,metric,unit,better,values,run_seeds\n"
    path.write_text(head + "a,delay,ms,lower,3.5 4.5,0 1\nb,delay,ms,lower,3.0 4.5,0 1\n")
    comparison = compare(path, "a", "b")
    assert comparison.difference == pytest.approx(-0.25)
    assert (comparison.info.key, comparison.info.unit, comparison.info.better) == ("delay", "ms", "lower")
    result = CliRunner().invoke(app, ["compare", str(path), "a", "b"])
    assert result.exit_code == 0
    assert "-0.25 ms" in result.output
    assert "points" not in result.output


def test_former_names_of_recipes(tmp_path):
    path = tmp_path / "results.csv"
    rows = "".join(f"hattnet/table1/mref-{row},accuracy,0.1 0.{n},0 1\n" for n, row in ((2, "soft"), (3, "hard")))
    path.write_text("recipe,metric,values,run_seeds\n" + rows)
    assert compare(path, "hattnet/mref-soft", "hattnet/table1/mref-hard").difference == pytest.approx(0.05)


def test_a_metric_that_only_the_second_recipe_has(tmp_path):
    path = tmp_path / "results.csv"
    path.write_text(HEAD + "t,a,accuracy,0.1 0.2\nt,a,delay,1 2\nt,b,delay,2 3\n")
    assert compare(path, "a", "b", "delay").difference == pytest.approx(1)
    with pytest.raises(UserError, match="--metric"):
        compare(path, "a", "b")


@pytest.mark.parametrize("content", ["", "no,such,columns\n1,2,3\n", HEAD + "t,a,accuracy,high\n", "\xff\x00"])
def test_other_files(tmp_path, content):
    path = tmp_path / "results.csv"
    path.write_text(content, encoding="latin-1")
    with pytest.raises((DataError, UserError)):
        compare(path, "a", "a")


def rows(dataset, **values):
    common = {"dataset": dataset, "unit": "%", "better": "higher", "metric": "accuracy", "run_seeds": ""}
    area = {"metric": "area", "better": ""}
    return [common | kind | {"recipe": name, "values": v} for name, v in values.items() for kind in (area, {})]


def test_rows_of_a_table_against_its_first():
    """Dataset by dataset, by the first metric that can be better; more than three tests are corrected."""
    table = rows("D", a="0.1 0.2 0.4", b="0.2 0.4 0.5", c="0.3") + rows("E", x="0.1 0.2", y="0.3 0.3")
    found = against_first(table)
    assert [(one, other) for one, other, _ in found] == [("a", "b"), ("x", "y")]
    assert found[0][2].difference == pytest.approx(0.4 / 3)
    assert found[0][2].info.better == "higher"
    assert found[0][2].holm is None
    more = rows("D", a="0.1 0.2 0.4", **{name: f"0.2 0.4 0.{n}" for n, name in enumerate("bcde", 3)})
    assert all(test.holm >= test.p for *_, test in against_first(more))
    assert len(against_first(more)) == 4


def test_several_recipes_against_the_first_in_a_file(tmp_path):
    path = tmp_path / "results.csv"
    path.write_text(HEAD + "t,a,accuracy,0.1 0.2 0.4\n" + "".join(f"t,{n},accuracy,0.2 0.4 0.5\n" for n in "bcde"))
    result = CliRunner().invoke(app, ["compare", str(path), *"abcde"])
    assert result.exit_code == 0
    assert result.output.count("by Holm for all 4 tests") == 4
    assert "Holm" not in CliRunner().invoke(app, ["compare", str(path), *"abcd"]).output
