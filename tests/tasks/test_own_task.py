"""A task from one file outside the package is known to every command; no file of foveal names it."""

import csv
import json
import os
import signal
import time
from pathlib import Path

import pytest
from forked import start
from PIL import Image

import foveal
from foveal.errors import DamagedRunWarning

HERE = Path(__file__).parent
GRID = """
about: how bright is an image
settings:
  version: 2
  task: brightness
  data: {name: grey-images}
  model: {name: brightness_net}
  optim: {lr: 0.02}
  train: {epochs: %d, batch: 16, eval_batch: 16, accelerator: cpu}
rows:
  narrow: {title: narrow, model: {channels: 2}}
  wide: {title: wide, model: {channels: 8}, loss: {weights: {shrinkage: 0}}}
published:
  brightness_error: {narrow: 3.5, wide: 2.5}
"""


def begin(folder, *words):
    environment = {**os.environ, "FOVEAL_PLUGINS": "brightness", "PYTHONPATH": str(HERE), "COLUMNS": "200"}
    return start(*words, cwd=folder, env=environment)


def run(folder, *words):
    status, out, err = begin(folder, *words).wait()
    assert status == 0, err
    return out + err


def test_no_file_of_foveal_names_the_task():
    files = [path for path in Path(foveal.__file__).parent.rglob("*") if path.suffix in (".py", ".yaml", ".j2")]
    assert len(files) > 200
    assert not [path for path in files if "brightness_net" in path.read_text() or "grey-images" in path.read_text()]


@pytest.fixture
def table(tmp_path):
    (tmp_path / "bright.yaml").write_text(GRID % 3)
    return tmp_path


@pytest.mark.slow
def test_every_command_knows_a_task_of_ones_own(table):
    assert "an image; how bright it is" in run(table, "list", "tasks")
    shown = run(table, "reproduce", "bright.yaml", "--seeds", "2", "--csv", "rows.csv")
    assert "Error of brightness, grey levels" in shown
    assert "3.50" in shown, "the published value is shown in its own unit"
    rows = list(csv.DictReader((table / "rows.csv").open()))
    assert {(row["recipe"], row["metric"], row["unit"], row["better"]) for row in rows} == {
        (f"bright.yaml/{row}", "brightness_error", "grey levels", "lower") for row in ("narrow", "wide")
    }
    page = (table / "runs" / "bright" / "report.html").read_text()
    assert "Brightness, image by image" in page
    assert "Error of brightness, grey levels" in page
    narrow, wide = table / "runs/bright/narrow/seed0", table / "runs/bright/wide/seed0"
    assert "points" not in run(table, "compare", "rows.csv", "bright.yaml/narrow", "bright.yaml/wide")
    assert "brightness_error" in run(table, "test", narrow)
    Image.new("L", (20, 20), 128).save(table / "grey.png")
    assert "brightness" in run(table, "predict", narrow, "grey.png", "--beside", wide, "--scale", "100")
    assert json.loads((table / "grey-bright.json").read_text())["image"] == "grey.png"
    epochs = [json.loads(line) for line in (narrow / "metrics.jsonl").read_text().splitlines()]
    assert {"train/loss", "train/squares", "train/shrinkage", "val/brightness_error"} <= epochs[-1].keys()
    assert epochs[-1]["train/loss"] == pytest.approx(
        epochs[-1]["train/squares"] + epochs[-1]["train/shrinkage"], abs=2e-6
    )


@pytest.mark.slow
def test_a_killed_run_of_it_is_resumed_to_the_same_result(table):
    (table / "bright.yaml").write_text(GRID % 60)
    process = begin(table, "train", "bright.yaml/narrow", "--out", "killed")
    deadline = time.monotonic() + 300
    while not (table / "killed" / "last.ckpt").exists():
        assert process.poll() is None, process.errors()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (table / "killed" / "result.json").exists()
    run(table, "train", "killed")
    run(table, "train", "bright.yaml/narrow", "--out", "whole")
    killed, whole = (json.loads((table / name / "result.json").read_text()) for name in ("killed", "whole"))
    assert killed["epochs"] == whole["epochs"] == 60
    assert killed["metrics"] == pytest.approx(whole["metrics"], rel=1e-5)


def test_a_run_whose_task_is_unknown_is_still_reported(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "recipe.yaml").write_text(
        "version: 2\ntask: unheard-of\ntitle: mine\ndata: {name: x}\nmodel: {name: y}\n"
    )
    (folder / "run.json").write_text(json.dumps({"format": 1, "plugins": ["mine", "other"]}))
    with pytest.warns(DamagedRunWarning, match="unheard-of is not known here.*FOVEAL_PLUGINS=mine,other"):
        page = foveal.see.report(folder).read_text()
    assert "unheard-of is not known here" in page
    assert "FOVEAL_PLUGINS=mine,other" in page
