import pytest
from scipy.stats import ttest_rel
from typer.testing import CliRunner

from foveal.cli import app
from foveal.errors import DataError, UserError
from foveal.tasks.compare import compare, paired

HEAD = "table,recipe,metric,values\n"


def test_equal_to_scipy():
    first, second = [0.61, 0.64, 0.60, 0.66, 0.59], [0.66, 0.63, 0.65, 0.67, 0.66]
    expected = ttest_rel(second, first)
    found = paired(first, second)
    interval = expected.confidence_interval(0.95)
    assert found.p == pytest.approx(expected.pvalue)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))


def test_no_spread():
    assert paired([0.5, 0.6], [0.5, 0.6]).p == 1
    assert paired([0.5, 0.75], [0.25, 0.5]).p == 0


@pytest.mark.parametrize(("first", "second"), [([0.1, 0.2], [0.1]), ([0.1], [0.2])])
def test_too_few_seeds(first, second):
    with pytest.raises(UserError, match="seed"):
        paired(first, second)


def test_file(tmp_path):
    path = tmp_path / "results.csv"
    path.write_text(HEAD + "t,a,accuracy,0.1 0.2 0.4\nt,b,accuracy,0.2 0.4 0.5\nt,b,center_mass,0.2 0.4 0.5\n")
    assert compare(path, "a", "b").difference == pytest.approx(0.4 / 3)
    for wrong in (("a", "c"), ("a", "b", "accuracies")):
        with pytest.raises(UserError, match="unknown"):
            compare(path, *wrong)
    with pytest.raises(UserError, match=r"a has no center_mass; it has accuracy: choose one with --metric"):
        compare(path, "a", "b", "center_mass")
    result = CliRunner().invoke(app, ["compare", str(path), "a", "b"])
    assert result.exit_code == 0
    assert "+13.33 points" in result.output


def test_only_runs_of_the_same_seed_are_pairs(tmp_path):
    path = tmp_path / "results.csv"
    path.write_text("recipe,metric,values,run_seeds\na,accuracy,0.1 0.2 0.4,1 2 3\nb,accuracy,0.5 0.3 0.2,3 2 1\n")
    assert compare(path, "a", "b").difference == pytest.approx(0.1)
    path.write_text("recipe,metric,values,run_seeds\na,accuracy,0.1 0.2,1 2\nb,accuracy,0.5 0.3,0 1\n")
    with pytest.raises(UserError, match="a has seeds 1, 2, b has 0, 1"):
        compare(path, "a", "b")


@pytest.mark.parametrize("content", ["", "no,such,columns\n1,2,3\n", HEAD + "t,a,accuracy,high\n", "\xff\x00"])
def test_other_files(tmp_path, content):
    path = tmp_path / "results.csv"
    path.write_text(content, encoding="latin-1")
    with pytest.raises((DataError, UserError)):
        compare(path, "a", "a")
