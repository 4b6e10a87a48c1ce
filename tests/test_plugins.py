"""Modules of the user's own, as the command line finds them."""

import os
from pathlib import Path

import pytest
from forked import Ended, run_command

from foveal import plugins
from foveal.errors import UserError

MINE = """
from foveal.attention import Gate, register_mechanism
from foveal.data import Entry, dataset, register_data
from foveal.measure.info import MetricInfo, register_metric
from foveal.models import register
from foveal.supervise import register_attention_loss

@register_mechanism("mine")
class Mine(Gate):
    '''Mine.'''
    kind = "channel"

    def __init__(self, channels, *, start="identity"):
        super().__init__()

    def forward(self, x):
        return x

register_data(Entry("my-data", "my own", dataset("digits").options, dataset("digits").build))
register_metric(MetricInfo("my_metric", "My metric", unit="ms"))

@register_attention_loss("my-loss")
def my_loss(record, batch):
    '''My loss.'''

def options(num_classes: int = 10): ...

@register(options)
def my_net(num_classes=10):
    '''My own.'''
"""
TASK = """
from foveal.tasks import register_task
from foveal.tasks.classify.task import Classify

@register_task("my-task")
class MyTask(Classify):
    '''Mine.'''
    summary = "my own task"
"""


def foveal(folder: Path, *words: str, plugins: str = "my_module") -> Ended:
    return run_command(*words, cwd=folder, env={**os.environ, "FOVEAL_PLUGINS": plugins, "COLUMNS": "200"})


@pytest.mark.slow
def test_what_a_module_in_the_current_folder_registers_is_listed(tmp_path):
    (tmp_path / "my_module.py").write_text(MINE)
    (tmp_path / "my_task.py").write_text(TASK)
    done = foveal(tmp_path, "list", plugins="my_module,my_task")
    assert done.returncode == 0, done.stderr
    rows = dict(line.strip().split(None, 1) for line in done.stdout.splitlines() if len(line.split()) > 1)
    assert rows["my_net"] == "My own."
    assert rows["my-data"] == "my own"
    assert rows["mine"] == "Mine."
    assert rows["my-loss"] == "My loss."
    assert rows["my_metric"] == "My metric, ms"
    assert rows["my-task"] == "my own task"


@pytest.mark.slow
def test_what_a_module_in_the_current_folder_registers_is_known(tmp_path):
    (tmp_path / "my_module.py").write_text(MINE)
    done = foveal(tmp_path, "sites", "resnet18", "--mechanism", "mine")
    assert done.returncode == 0, done.stderr
    assert "layer1.0.bn2" in done.stdout


@pytest.mark.slow
def test_a_module_that_is_not_there(tmp_path):
    done = foveal(tmp_path, "list", "models", plugins="nowhere")
    assert done.returncode == 2
    assert "FOVEAL_PLUGINS: nowhere cannot be imported" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import torch\n\nundefined\n", r"broken\.py, line 3: NameError"),
        ("def f(:\n", r"SyntaxError.*broken\.py, line 1"),
        (
            "from foveal.attention import register_mechanism\nregister_mechanism('mine')(1)\n",
            r"broken\.py, line 2: .*derived from foveal\.attention\.Gate",
        ),
    ],
    ids=["a name", "the syntax", "what foveal refuses"],
)
def test_the_line_that_fails_is_named(text, expected, tmp_path, monkeypatch):
    (tmp_path / "broken.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("FOVEAL_PLUGINS", "broken")
    monkeypatch.setattr(plugins, "_loaded", False)
    with pytest.raises(UserError, match=f"FOVEAL_PLUGINS: broken.*{expected}"):
        plugins.load_plugins()
    assert not plugins._loaded, "the next command says it again"
