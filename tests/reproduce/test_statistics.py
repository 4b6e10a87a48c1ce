"""The tests and their correction, against scipy and by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_1samp, ttest_ind, ttest_rel

from foveal.errors import UserError
from foveal.reproduce import Comparison, holm, paired, together, unpaired


def test_equal_to_scipy():
    first, second = [0.61, 0.64, 0.60, 0.66, 0.59], [0.66, 0.63, 0.65, 0.67, 0.66]
    expected = ttest_rel(second, first)
    comparison = paired(first, second)
    interval = ttest_1samp(np.subtract(second, first), 0).confidence_interval(0.95)
    assert comparison.p == pytest.approx(expected.pvalue)
    assert comparison.interval == pytest.approx((interval.low, interval.high))
    assert comparison.difference == pytest.approx(0.034)


@pytest.mark.parametrize("second", [[0.66, 0.63, 0.65], [0.5, 0.9, 0.4, 0.8, 0.7, 0.6], [0.7, 0.71]])
def test_welch_is_equal_to_scipy(second):
    first = [0.61, 0.64, 0.60, 0.66]
    expected = ttest_ind(second, first, equal_var=False)
    interval = expected.confidence_interval(0.95)
    comparison = unpaired(first, second)
    assert comparison.p == pytest.approx(expected.pvalue)
    assert comparison.interval == pytest.approx((interval.low, interval.high))
    assert comparison.difference == pytest.approx(np.mean(second) - np.mean(first))
    assert (comparison.seeds, comparison.others) == (4, len(second))
    assert paired(first, first[::-1]).others is None


@pytest.mark.parametrize(
    ("first", "second", "difference"),
    [
        ([0.5, 0.6], [0.5, 0.6], 0),
        ([0.5, 0.75], [0.25, 0.5], -0.25),
        ([0.85, 0.87], [0.86, 0.88], 0.01),  # the differences are not quite equal as floats
    ],
)
def test_differences_that_do_not_vary_have_neither_interval_nor_p(first, second, difference):
    comparison = paired(first, second)
    assert comparison.difference == pytest.approx(difference)
    assert (comparison.interval, comparison.p) == (None, None)


def test_values_that_do_not_vary_have_neither_interval_nor_p():
    comparison = unpaired([0.1, 0.1, 0.1], [0.3, 0.3])
    assert comparison.difference == pytest.approx(0.2)
    assert (comparison.interval, comparison.p) == (None, None)


@pytest.mark.parametrize("test", [paired, unpaired])
@pytest.mark.parametrize(("first", "second"), [([0.1, 0.2], [0.1]), ([0.1], [0.2]), ([], [])])
def test_too_few_seeds(test, first, second):
    with pytest.raises(UserError, match="seed"):
        test(first, second)


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([3 * 0.01, 2 * 0.03, 2 * 0.03, 4 * 0.005])
    assert holm([0.2, 0.5, 0.9]) == pytest.approx([0.6, 1, 1])
    assert holm([0.02]) == [0.02]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(0.001, 0.5))
def test_holm_rejects_what_its_procedure_rejects(values, level):
    """Step down: from the smallest p on, compare with level / (tests left), and stop at the first that fails."""
    rejected = set()
    for rank, place in enumerate(np.argsort(values, kind="stable")):
        if values[place] * (len(values) - rank) > level:
            break
        rejected.add(int(place))
    assert {i for i, p in enumerate(holm(values)) if p <= level} == rejected


def test_more_than_three_tests_are_corrected_together():
    tests = [Comparison(3, 0.1, (0.0, 0.2), p) for p in (0.01, 0.02, 0.04, 0.03)]
    assert [test.holm for test in together(tests[:3])] == [None] * 3
    assert [test.holm for test in together(tests)] == pytest.approx([0.04, 0.06, 0.06, 0.06])
    assert [test.p for test in together(tests)] == [0.01, 0.02, 0.04, 0.03]


def test_what_has_no_p_is_not_corrected_and_does_not_count():
    tests = [Comparison(3, 0.1, (0.0, 0.2), p) for p in (0.01, 0.02, 0.04)]
    equal = Comparison(3, 0.1, None, None)
    assert [test.holm for test in together([*tests, equal])] == [None] * 4
    corrected = together([equal, *tests, replace(tests[0], p=0.03)])
    assert [test.holm for test in corrected] == [None, *map(pytest.approx, (0.04, 0.06, 0.06, 0.06))]
