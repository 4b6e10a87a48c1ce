"""Every metric knows its name, unit and direction."""

import inspect
import re
import subprocess
import sys

import pytest
from torchmetrics import Metric

from foveal import measure, registry
from foveal.measure.info import MetricInfo

METRICS = [thing for thing in vars(measure).values() if inspect.isclass(thing) and issubclass(thing, Metric)]


def test_there_are_some():
    assert len(METRICS) >= 11


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.__name__)
def test_a_metric_describes_itself(metric):
    info = metric.info
    assert isinstance(info, MetricInfo)
    function = getattr(measure, info.key)  # the pure function of the same name
    assert re.sub("_", "", info.key) == metric.__name__.lower()
    assert callable(function)
    assert registry.metrics.get(info.key) is info
    assert info.title
    assert info.about.endswith(".")
    assert {"higher": True, "lower": False, None: None}[info.better] == metric.higher_is_better


def test_costs_are_known_without_their_task():
    """A results file has the keys alone; pages and tables are made of it without any task."""
    code = "from foveal.metric_info import metric_info as i; print(i('mflops').heading, i('peak_memory').heading)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "Arithmetic, MFLOP Memory, MiB"
