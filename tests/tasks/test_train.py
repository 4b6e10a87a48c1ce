"""Whole runs: what they leave, stopped and resumed, diverged, on a full disk, in several processes, damaged."""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import lightning as L
import pytest
import torch
from forked import Forked, run_command, start
from lightning.pytorch.loggers import CSVLogger
from PIL import Image
from safetensors.torch import load_file, save_file
from tiny import RECIPE, SHARPEN, tiny_recipe, wait_for_epochs, write_recipe
from torch.nn.utils import get_total_norm

import foveal
from foveal.data.embedded.scenes import Scenes
from foveal.errors import DivergedError, InterruptedRunError, RunError, UserError
from foveal.recipe import complete, load
from foveal.runs import RunFolder
from foveal.tasks import base, evaluate, fit, load_model, predict, train
from foveal.tasks.optim import optimiser
from foveal.tasks.refer import Refer
from foveal.tasks.train import build_source


@pytest.fixture
def recipe(tmp_path):
    return tiny_recipe(tmp_path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Recipe, folder and result of a run that no test may change."""
    folder = tmp_path_factory.mktemp("finished")
    plan = tiny_recipe(folder)
    return plan, folder / "run", fit(plan, folder / "run", progress=False)


@pytest.fixture
def copied(finished, tmp_path):
    """The same run, for a test that changes it."""
    return finished[0], Path(shutil.copytree(finished[1], tmp_path / "a run"))


FILES = ["run.json", "recipe.yaml", "environment.json", "metrics.jsonl", "last.ckpt", "best.ckpt"]
FILES += ["weights.safetensors", "result.json", "samples.safetensors"]


def weights(out: Path) -> dict[str, torch.Tensor]:
    return torch.load(out / "last.ckpt", weights_only=True)["state_dict"]


def assert_same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor], **tolerance: float) -> None:
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(
            a[name], b[name], **(tolerance or {"rtol": 0, "atol": 0}), msg=lambda m, n=name: f"{n}: {m}"
        )


# What a run leaves ----------------------------------------------------------------------------------------------------


def test_a_run_leaves_everything(finished):
    plan, out, result = finished
    for name in FILES:
        assert (out / name).stat().st_size > 0, name
    assert not list(out.glob(".*")), "temporary files are left"
    rows = RunFolder(out).epochs()
    assert [row["epoch"] for row in rows] == [0, 1, 2]
    assert all({"step", "lr", "seconds", "train/loss", "val/loss", "val/accuracy"} <= row.keys() for row in rows)
    assert json.loads((out / "result.json").read_text())["metrics"] == pytest.approx(result["metrics"])
    assert load(out / "recipe.yaml") == complete(plan)
    packages = json.loads((out / "environment.json").read_text())["packages"]
    assert packages["torch"].split("+")[0] == torch.__version__.split("+")[0]
    best = torch.load(out / "best.ckpt", weights_only=True)["state_dict"]
    for name, value in load_file(out / "weights.safetensors").items():
        assert torch.equal(value, best[f"model.{name}"])


def test_the_header_says_what_the_run_is(finished):
    assert RunFolder(finished[1]).header() == {
        "format": 2,
        "task": "refer",
        "dataset": "MREF",
        "embedded": True,
        "plugins": [],
        "jobs": 1,
    }


def test_the_result_has_format_2(finished):
    plan, out, _ = finished
    result = json.loads((out / "result.json").read_text())
    assert result.keys() == {
        *("format", "task", "recipe", "title", "dataset", "cell", "seed", "embedded", "data", "parameters", "epochs"),
        *("best_epoch", "seconds", "step_seconds", "published", "metrics", "infos", "parts", "curves", "notes"),
    }
    assert (result["format"], result["task"], result["recipe"], result["title"]) == (2, "refer", plan.name, "tiny")
    assert (result["dataset"], result["cell"], result["published"], result["parts"]) == ("MREF", None, {}, {})
    assert result["infos"].keys() == result["metrics"].keys()
    assert result["infos"]["accuracy"] == {"title": "Accuracy", "unit": "%", "better": "higher", "about": ""}
    assert result["infos"]["target_area"]["better"] is None
    assert {len(values) for values in result["curves"]["pixel_pr"].values()} == {101}


def test_the_place_in_a_table_and_the_published_numbers_are_in_the_result(tmp_path):
    changes = ["cell={table: t, row: R, column: C, place: [2, 1]}", "published={accuracy: 0.5, bleu: 27.3}"]
    result = fit(tiny_recipe(tmp_path, "train.epochs=1", *changes), tmp_path / "run", progress=False)
    stored = json.loads((tmp_path / "run" / "result.json").read_text())
    assert stored["cell"] == {"table": "t", "row": "R", "column": "C", "place": [2, 1]}
    assert stored["published"] == result["published"] == {"accuracy": 0.5, "bleu": 27.3}


def test_testing_again_gives_the_same(copied):
    _, out = copied
    before = json.loads((out / "result.json").read_text())
    (out / "result.json").unlink()
    told = []
    assert evaluate(out, tell=told.append) == told[0]
    assert json.loads((out / "result.json").read_text()) == before


def test_result_is_what_the_model_says(finished):
    """Accuracy and strength in result.json against a plain loop over the test set."""
    plan, out, result = finished
    model, _ = load_model(out)
    right, inside, n = 0, 0.0, 0
    for batch in build_source(plan).loader("test", 7, device=torch.device("cpu")):
        with torch.no_grad(), foveal.watch(model) as seen:
            logits = model(batch["image"] / 255, batch["query"])
        right += int((logits.argmax(1) == batch["label"]).sum())
        maps = foveal.measure.attention_map(seen, batch["image"].shape[-2:])
        for attention, mask in zip(maps, batch["mask"], strict=True):
            inside += float(attention[mask].sum() / attention.sum())
            n += 1
    assert n == 40
    assert result["metrics"]["accuracy"] == pytest.approx(right / n)
    assert result["metrics"]["true_positive_strength"] == pytest.approx(inside / n, rel=1e-4)


def test_samples_are_of_the_test_set(finished):
    plan, out, _ = finished
    samples = load_file(out / "samples.safetensors")
    scenes: Scenes = build_source(plan).scenes("test")
    for image in samples["image"]:
        assert any(torch.equal(image, other) for other in scenes.images)
    assert samples["gate.0"].shape[1:] == (14, 14)


def test_seed_decides_everything(recipe, finished, tmp_path):
    fit(recipe, tmp_path / "again", progress=False)
    assert_same(weights(tmp_path / "again"), weights(finished[1]))
    recipe.seed = 1
    fit(recipe, tmp_path / "other", progress=False)
    a, b = weights(finished[1]), weights(tmp_path / "other")
    assert any(not torch.equal(a[name], b[name]) for name in a)


def test_a_recipe_of_version_1_trains_as_before(finished, tmp_path):
    """The same run as with the recipe of today, and its folder holds a recipe of today."""
    old = tiny_recipe(tmp_path, text=RECIPE.replace("version: 2", "version: 1"))
    fit(old, tmp_path / "run", progress=False)
    assert_same(weights(tmp_path / "run"), weights(finished[1]))
    assert "version: 2" in (tmp_path / "run" / "recipe.yaml").read_text()


# Opened again ---------------------------------------------------------------------------------------------------------


def test_finished_run_is_not_run_again(copied):
    plan, out = copied
    before = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    fit(plan, out, progress=False)
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == before


def test_folder_of_another_recipe_is_refused(copied):
    plan, out = copied
    with pytest.raises(RunError, match="choose another --out"):
        fit(load(plan.name, ["optim.lr=0.5"]), out, progress=False)


def test_how_the_recipe_was_named_is_no_matter(copied, monkeypatch):
    plan, out = copied
    write_recipe(out.parent)
    monkeypatch.chdir(out.parent)
    again = load("tiny.yaml")
    assert again.name != plan.name
    assert fit(again, out.name, progress=False)["epochs"] == 3


def fail(*args):
    """The power fails."""
    raise ConnectionError


def fail_in(epoch: int, batch: int = 0):
    """A training step that fails at one batch."""
    plain = Refer.training_step

    def step(self, data, batch_idx):
        return (fail if (self.current_epoch, batch_idx) == (epoch, batch) else plain)(self, data, batch_idx)

    return step


@pytest.mark.parametrize("fresh", [False, True])
def test_a_run_that_failed_in_the_middle_of_an_epoch_is_resumed_to_the_same_weights(tmp_path, monkeypatch, fresh):
    changes = ["train.epochs=4", f"data.fresh={str(fresh).lower()}", "optim.schedule=onecycle", "train.patience=3"]
    plan, whole, cut = tiny_recipe(tmp_path, *changes), tmp_path / "whole", tmp_path / "cut"
    fit(plan, whole, progress=False)
    with monkeypatch.context() as patch:
        patch.setattr(Refer, "training_step", fail_in(2, 3))
        with pytest.raises(ConnectionError):
            fit(plan, cut, progress=False)
    assert len(RunFolder(cut).epochs()) == 2
    fit(plan, cut, progress=False)
    assert_same(weights(cut), weights(whole))
    rows, expected = (RunFolder(out).epochs() for out in (cut, whole))
    assert [(row["epoch"], row["val/loss"]) for row in rows] == [(row["epoch"], row["val/loss"]) for row in expected]


@pytest.mark.slow
def test_killed_and_resumed(tmp_path):
    """SIGKILL, then resume: the same weights as a run that was never disturbed."""
    path = write_recipe(tmp_path)
    changes = ["train.epochs=40", "train.batch=8", "optim.schedule=onecycle", "train.patience=39"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    fit(load(path, changes), whole, progress=False)
    child = start("train", path, *changes, "--out", cut)
    wait_for_epochs(child, cut, 3)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert len(RunFolder(cut).epochs()) < 40, "the run was over before it was killed; nothing was tested"
    fit(load(path, changes), cut, progress=False)
    assert_same(weights(cut), weights(whole))
    rows, expected = (RunFolder(out).epochs() for out in (cut, whole))
    assert [(row["epoch"], row["val/loss"]) for row in rows] == [(row["epoch"], row["val/loss"]) for row in expected]


@pytest.mark.slow
def test_ctrl_c_says_how_to_resume(tmp_path):
    out = tmp_path / "run"
    child = start("train", write_recipe(tmp_path), "train.epochs=4000", "--out", out)
    wait_for_epochs(child, out, 2)
    child.send_signal(signal.SIGINT)
    status, _, message = child.wait(60)
    assert status == 130, message
    assert f"foveal train {out}" in message
    assert "Traceback" not in message
    assert (out / "last.ckpt").exists()


def test_ctrl_c_during_the_test(recipe, tmp_path, monkeypatch):
    """The message says how to resume; testing again a run that has a result leaves that alone."""

    def stopped(*args):
        raise KeyboardInterrupt

    out = tmp_path / "a run"
    with monkeypatch.context() as patch:
        patch.setattr(Refer, "test_step", stopped)
        with pytest.raises(InterruptedRunError, match=f"foveal train '{out}'"):
            fit(recipe, out, progress=False)
    result = fit(recipe, out, progress=False)
    monkeypatch.setattr(Refer, "test_step", stopped)
    with pytest.raises(InterruptedRunError, match=r"earlier result .* untouched"):
        evaluate(out)
    assert fit(recipe, out, progress=False)["metrics"] == pytest.approx(result["metrics"])


def test_a_moved_run_keeps_its_best_epoch(recipe, tmp_path, monkeypatch):
    recipe.optim.lr, recipe.model["norm"] = 0.0, False  # no epoch is better than the first
    with monkeypatch.context() as patch:
        patch.setattr(Refer, "training_step", fail_in(2))
        with pytest.raises(ConnectionError):
            fit(recipe, tmp_path / "run", progress=False)
    (tmp_path / "run").rename(tmp_path / "moved")
    result = fit(recipe, tmp_path / "moved", progress=False)
    assert (result["epochs"], result["best_epoch"]) == (3, 0)
    assert torch.load(tmp_path / "moved" / "best.ckpt", weights_only=True)["epoch"] == 0
    assert not (tmp_path / "run").exists()


def test_a_run_that_stopped_early_stays_stopped(recipe, tmp_path, monkeypatch):
    """Killed between the end of training and its test, it is only tested when resumed."""
    recipe.optim.lr, recipe.model["norm"] = 0.0, False
    recipe.train.epochs, recipe.train.patience = 30, 2
    with monkeypatch.context() as patch:
        patch.setattr(train, "_test", fail)
        with pytest.raises(ConnectionError):
            fit(recipe, tmp_path / "run", progress=False)
    assert len(RunFolder(tmp_path / "run").epochs()) == 3
    assert fit(recipe, tmp_path / "run", progress=False)["epochs"] == 3


def test_a_folder_with_a_recipe_has_its_environment(recipe, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("foveal.runs.folder.environment", fail)
        with pytest.raises(ConnectionError):
            fit(recipe, tmp_path / "run", progress=False)
    fit(recipe, tmp_path / "run", progress=False)
    assert (tmp_path / "run" / "environment.json").exists()


# Divergence -----------------------------------------------------------------------------------------------------------


def test_nan_stops_with_step_batch_and_last_value(recipe, tmp_path, monkeypatch):
    """In the third epoch one batch is not a number; the checkpoint of the second epoch stays good."""
    plain, steps = Refer.losses, itertools.count()

    def broken(self, batch):
        factor = float("nan") if next(steps) == 15 else 1.0
        return {name: factor * loss for name, loss in plain(self, batch).items()}

    monkeypatch.setattr(Refer, "losses", broken)
    with pytest.raises(
        DivergedError, match=r"became nan at step 16 \(epoch 2, batch 3\); the last finite value was \d"
    ):
        fit(recipe, tmp_path / "run", progress=False)
    saved = torch.load(tmp_path / "run" / "last.ckpt", weights_only=True)
    assert saved["epoch"] == 1
    assert all(torch.isfinite(v).all() for v in saved["state_dict"].values() if v.is_floating_point())


def test_weights_spoilt_by_the_last_step_of_an_epoch_are_not_saved(recipe, tmp_path, monkeypatch):
    """No loss has seen them yet, but a checkpoint would have kept them for good."""

    def spoil(self, outputs, batch, batch_idx):
        if self.current_epoch == 1 and batch_idx == 5:
            with torch.no_grad():
                next(self.parameters()).fill_(float("nan"))

    monkeypatch.setattr(Refer, "on_train_batch_end", spoil)
    with pytest.raises(DivergedError, match=r"not finite after step 12 \(epoch 1, batch 5\); the last finite"):
        fit(recipe, tmp_path / "run", progress=False)
    assert torch.load(tmp_path / "run" / "last.ckpt", weights_only=True)["epoch"] == 0


# Files that cannot be written -----------------------------------------------------------------------------------------


def test_full_disk_while_the_journal_is_written(recipe, tmp_path, monkeypatch):
    plain = os.replace

    def full(source, target):
        if Path(target).name == "metrics.jsonl":
            raise OSError(28, "No space left on device")
        plain(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(RunError, match=r"metrics\.jsonl: No space left.*resume with: foveal train"):
        fit(recipe, tmp_path / "run", progress=False)


FULL_DISK = """
import resource, sys
from pathlib import Path
from foveal.recipe import load
from foveal.tasks import evaluate, fit
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))  # like a full disk: writing fails part way through a file
from foveal.errors import UserError
try:
    fit(load(sys.argv[1], ["train.epochs=5"]), sys.argv[2], progress=False)
except UserError as error:
    print("MESSAGE", error)
    sys.exit(2)
"""


@pytest.mark.slow
def test_full_disk_during_a_checkpoint_keeps_the_last_good_one(tmp_path, monkeypatch):
    path, out = write_recipe(tmp_path), tmp_path / "run"
    recipe = load(path, ["train.epochs=5"])
    with monkeypatch.context() as patch:
        patch.setattr(Refer, "training_step", fail_in(2))
        with pytest.raises(ConnectionError):
            fit(recipe, out, progress=False)
    before = (out / "last.ckpt").read_bytes()
    assert len(before) > 20_000
    ran = Forked(FULL_DISK, path, out).wait()
    assert ran.returncode == 2, ran.stderr
    assert "cannot write" in ran.stdout
    assert "File too large" in ran.stdout, ran.stdout
    assert f"resume with: foveal train {out}" in ran.stdout
    assert (out / "last.ckpt").read_bytes() == before
    assert not list(out.glob(".*.partial")), "a partial file is left"
    fit(recipe, out, progress=False)
    assert (out / "result.json").exists()


def test_unwritable_run_folder(recipe, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"file/run: .*choose another --out"):
        fit(recipe, tmp_path / "file" / "run", progress=False)


def test_two_processes_in_one_folder(recipe, tmp_path):
    folder = RunFolder(tmp_path / "run")
    with folder.opened(recipe, {}), pytest.raises(RunError, match=r"another process .* choose another --out"):
        fit(recipe, folder.path, progress=False)


# Damaged files --------------------------------------------------------------------------------------------------------


def test_damaged_checkpoint(copied):
    plan, out = copied
    (out / "result.json").unlink()
    (out / "last.ckpt").write_bytes(b"nonsense")
    with pytest.raises(RunError, match=r"last\.ckpt is damaged"):
        fit(plan, out, progress=False)


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"nonsense")], ids=["gone", "nonsense"])
def test_weights_of_a_finished_run_are_written_again(copied, damage):
    plan, out = copied
    folder = RunFolder(out)
    stored, checkpoint = folder.tensors("weights.safetensors"), folder.last.stat().st_mtime_ns
    before = {name: tensor.clone() for name, tensor in stored.tensors.items()}  # they are mapped from the file
    damage(out / "weights.safetensors")
    with pytest.raises(RunError, match=f"foveal train '{out}'"):
        load_model(out)
    fit(plan, out, progress=False)
    again = folder.tensors("weights.safetensors")
    assert_same(again.tensors, before)
    assert again.about == stored.about
    assert folder.last.stat().st_mtime_ns == checkpoint


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("damaged", [False, True])
def test_without_its_best_checkpoint_a_run_says_what_starts_it_again(copied, done, damaged):
    plan, out = copied
    (out / "weights.safetensors").unlink()
    if not done:
        (out / "result.json").unlink()
    if damaged:
        (out / "best.ckpt").write_bytes(b"nonsense")
    else:
        (out / "best.ckpt").unlink()
    with pytest.raises(RunError, match=r"best\.ckpt is (damaged \(\w+\)|missing);") as caught:
        fit(plan, out, progress=False)
    message = str(caught.value)
    assert ("is damaged" in message) == damaged
    remove, _, again = message.partition("beginning: ")[2].partition("; ")
    subprocess.run(remove, shell=True, check=True)
    assert again == f"foveal train '{out}'"
    assert fit(plan, out, progress=False)["epochs"] == 3
    load_model(out)


@pytest.mark.parametrize("content", [b"", b"{}", b"[1, 2]", b"\xff", b'{"metrics": 3}'])
def test_a_damaged_result_is_written_again_by_a_test(copied, finished, content):
    plan, out = copied
    (out / "result.json").write_bytes(content)
    with pytest.raises(RunError, match=rf"result\.json is damaged \(.+\); `foveal test '{out}'` writes it again"):
        fit(plan, out, progress=False)
    evaluate(out)
    assert fit(plan, out, progress=False)["metrics"] == pytest.approx(finished[2]["metrics"])


def test_weights_without_what_they_say_about_the_data_are_written_again(copied):
    """Another tool saved the tensors alone: the model cannot be built, and the message says what writes the file."""
    plan, out = copied
    path = out / "weights.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    save_file(tensors, path)
    for use in (lambda: load_model(out), lambda: predict(out, "photo.png", "3"), lambda: evaluate(out)):
        with pytest.raises(RunError, match=rf"weights\.safetensors .*foveal train '{out}'"):
            use()
    fit(plan, out, progress=False)
    assert_same(load_model(out)[0].state_dict(), tensors)


def test_weights_that_do_not_fit_the_recipe(copied):
    _, out = copied
    text = (out / "recipe.yaml").read_text()
    (out / "recipe.yaml").write_text(text.replace("hidden: 4", "hidden: 5"))
    with pytest.raises(RunError, match=r"weights\.safetensors does not fit the model of recipe\.yaml") as caught:
        load_model(out)
    assert "\n" not in str(caught.value)


def test_weights_that_are_not_finite(copied):
    plan, out = copied
    folder = RunFolder(out)
    stored = folder.tensors("weights.safetensors")
    next(tensor for tensor in stored.tensors.values() if tensor.is_floating_point()).view(-1)[0] = float("nan")
    folder.write_tensors("weights.safetensors", stored)
    with pytest.raises(RunError, match=rf"weights\.safetensors is damaged .*not a number.*foveal train '{out}'"):
        load_model(out)
    fit(plan, out, progress=False)
    load_model(out)


def test_junk_in_the_journal_does_no_harm(copied, finished):
    _, out = copied
    with open(out / "metrics.jsonl", "ab") as file:
        file.write(b'\xff\xfe\n{"epoch": "two"}\n{"epoch": 1e999}\n[3]\n{"epoch": 7, "val/accuracy": "high"}\n{"epo')
    assert evaluate(out)["best_epoch"] == finished[2]["best_epoch"]
    assert "report.html" in str(foveal.see.report(out))


# Settings of training -------------------------------------------------------------------------------------------------


def test_early_stopping(recipe, tmp_path):
    recipe.optim.lr = 0.0  # never any better
    recipe.train.epochs, recipe.train.patience = 30, 2
    assert fit(recipe, tmp_path / "run", progress=False)["epochs"] < 30


MISTAKES = {
    "data.name=mreff": "did you mean 'mref'",
    "task=reffer": "did you mean 'refer'",
    "model.name=hatnet": "did you mean 'hattnet",
    "model.chanels=3": "chanels",
    "data.canvass=3": "did you mean 'canvas'",
    "data.triples=[1,2]": "data.triples: expected a list of 3",
    "data.digits=mnist": "FOVEAL_DATA",
    "train.devices=0": "train:",
    "train.devices=-1": "train:",
    "train.accelerator=abacus": "train:",
    "train.accumulate=0": "train.accumulate: expected at least 1",
    "loss.label_smoothing=2": "loss.label_smoothing: expected at most 1",
    "model.dropout=2": "model hattnet: dropout probability",
    "model.stages=0": "expected at least 1",
    "model.stages=9": "too small for 9 stages",
    "model.queries=3": "model.queries comes from the data",
    "loss.weights.anwser=2": "did you mean 'answer'",
    "loss.weights.answer=-1": "loss.weights.answer: expected at least 0",
    "loss.weights.answer=0": "loss.weights: every loss has weight 0",
    "loss.attention.mask.loss=masc": "did you mean 'mask'",
    "published.accuracy=high": "published.accuracy: expected a number",
}


@pytest.mark.parametrize("change", MISTAKES)
def test_mistakes_stop_before_training(tmp_path, change, monkeypatch):
    monkeypatch.delenv("FOVEAL_DATA", raising=False)
    with pytest.raises(UserError) as caught:
        fit(tiny_recipe(tmp_path, change), tmp_path / "run", progress=False)
    assert MISTAKES[change] in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_bf16(recipe, tmp_path):
    recipe.train.precision, recipe.train.epochs = "bf16", 1
    result = fit(recipe, tmp_path / "run", progress=False)
    assert 0 <= result["metrics"]["accuracy"] <= 1


@pytest.mark.parametrize("precision", ["32", "bf16"])
@pytest.mark.parametrize("fused", [None, True])
def test_gradients_are_clipped(recipe, tmp_path, monkeypatch, fused, precision):
    """Also before a fused step, as on a GPU."""
    norms = []

    def spied(*args, **options):
        chosen = optimiser(*args, **options | {"fused": fused})
        trained = [p for group in chosen.param_groups for p in group["params"]]
        chosen.register_step_post_hook(lambda *_: norms.append(get_total_norm([p.grad for p in trained])))
        return chosen

    monkeypatch.setattr(base, "optimiser", spied)
    recipe.train.precision, recipe.train.epochs, recipe.optim.clip = precision, 1, 1e-3
    fit(recipe, tmp_path / "run", progress=False)
    assert len(norms) == 6
    torch.testing.assert_close(torch.stack(norms), torch.full((6,), 1e-3), rtol=1e-2, atol=0)


# No dropout and no batch norm: their randomness and statistics are each batch's own.
EVEN = ["model.dropout=0", "model.norm=false", "train.epochs=2", "optim.name=sgd"]


def test_accumulated_batches_equal_one_large_batch(tmp_path):
    for name, changes in {"large": ["train.batch=20"], "small": ["train.batch=5", "train.accumulate=4"]}.items():
        fit(tiny_recipe(tmp_path, *EVEN, *changes), tmp_path / name, progress=False)
    large, small = tmp_path / "large", tmp_path / "small"
    assert_same(weights(small), weights(large), rtol=1e-4, atol=1e-6)
    assert [row["step"] for row in RunFolder(small).epochs()] == [6, 12]
    losses = [[row["train/loss"] for row in RunFolder(out).epochs()] for out in (large, small)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_the_thread_of_the_backward_pass_changes_no_weight(finished, tmp_path, monkeypatch):
    used = []
    plain = torch.autograd.set_multithreading_enabled
    monkeypatch.setattr(torch.autograd, "set_multithreading_enabled", lambda mode: used.append(mode) or plain(mode))
    fit(tiny_recipe(tmp_path, "train.threads_backward=false"), tmp_path / "run", progress=False)
    assert set(used) == {False}
    assert_same(weights(tmp_path / "run"), weights(finished[1]))


@pytest.mark.slow
def test_two_processes_equal_one_with_the_doubled_batch(tmp_path):
    """DDP over gloo."""
    path, one, two = write_recipe(tmp_path), tmp_path / "one", tmp_path / "two"
    fit(load(path, [*EVEN, "train.batch=20"]), one, progress=False)
    flags = ["train.batch=10", "train.devices=2", "train.strategy=ddp"]
    ran = run_command("train", path, *EVEN, *flags, "--out", two)
    assert ran.returncode == 0, ran.stderr
    assert_same(weights(two), weights(one), rtol=1e-4, atol=1e-6)
    a, b = (json.loads((out / "result.json").read_text())["metrics"] for out in (one, two))
    assert a == pytest.approx(b, rel=1e-4)


def test_a_class_that_is_added_or_removed_is_noticed(tmp_path):
    def names():
        recipe = load("demo/classify", [f"data={{name: imagefolder, folder: {tmp_path / 'own'}, size: 8}}"])
        return build_source(recipe).answers

    for name in ("cat", "dog"):
        write_images(tmp_path / "own" / "train" / name)
    assert names() == ["cat", "dog"]
    assert names() == ["cat", "dog"]
    write_images(tmp_path / "own" / "train" / "emu")
    assert names() == ["cat", "dog", "emu"]
    shutil.rmtree(tmp_path / "own" / "train" / "dog")
    assert names() == ["cat", "emu"]


def write_images(folder):
    folder.mkdir(parents=True)
    for i in range(10):
        Image.new("RGB", (9, 9), (20 * i, 0, 0)).save(folder / f"{i}.png")


def test_fit_needs_a_recipe(tmp_path):
    with pytest.raises(UserError, match=r"foveal\.recipe\.load\('demo/classify'\), got dict"):
        fit({}, tmp_path / "run")


def test_fit_needs_a_folder(tmp_path):
    with pytest.raises(UserError, match=r"such as 'runs/mine', got None"):
        fit(tiny_recipe(tmp_path), None)


class Epochs(L.Callback):
    """Notes the epochs it saw."""

    seen: ClassVar[list[int]] = []

    def __init__(self, factor=1):
        self.factor = factor

    def on_train_epoch_end(self, trainer, task):
        Epochs.seen.append(self.factor * trainer.current_epoch)


def test_callbacks_and_loggers(tmp_path, monkeypatch):
    monkeypatch.setattr(Epochs, "seen", [])
    monkeypatch.setattr(sys.modules["tiny"], "Epochs", Epochs, raising=False)
    keys = ("train.epochs=2", "train.callbacks={tiny:Epochs: {factor: 10}}")
    keys += (f"train.loggers={{lightning.pytorch.loggers:CSVLogger: {{save_dir: {tmp_path / 'named'}}}}}",)
    logger = CSVLogger(tmp_path / "given")
    fit(tiny_recipe(tmp_path, *keys), tmp_path / "run", progress=False, callbacks=[Epochs()], logger=logger)
    assert Epochs.seen == [0, 0, 1, 10]
    for folder in ("named", "given"):
        (file,) = (tmp_path / folder).rglob("metrics.csv")
        assert "val/accuracy" in file.read_text()


@pytest.mark.parametrize(
    ("change", "advice"),
    [
        ("train.callbacks={Epochs: {}}", "expected module:Class"),
        ("train.callbacks={tiny:Epoch: {}}", "tiny:Epoch cannot be made"),
        ("train.callbacks={pathlib:Path: {}}", "is no Callback of Lightning but PosixPath"),
        ("train.loggers={pathlib:Path: {}}", "is no Logger of Lightning"),
        ("train.loggers={lightning.pytorch.loggers:CSVLogger: {dir: x}}", "unexpected keyword"),
    ],
)
def test_callbacks_and_loggers_that_cannot_be_made(tmp_path, change, advice):
    with pytest.raises(UserError, match=advice):
        fit(tiny_recipe(tmp_path, change), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_repeatable_runs_choose_deterministic_algorithms(tmp_path, monkeypatch):
    """Otherwise cuDNN searches for the fastest convolutions, and may find others in the next run."""
    seen = []

    class Watching(L.Callback):
        def on_train_start(self, trainer, pl_module):
            deterministic = torch.are_deterministic_algorithms_enabled()
            seen.append(
                (torch.backends.cudnn.benchmark, deterministic, torch.is_deterministic_algorithms_warn_only_enabled())
            )

    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    try:
        for name, change in (("plain", []), ("again", ["train.repeatable=true"]), ("last", [])):
            fit(
                tiny_recipe(tmp_path, "train.epochs=1", *change),
                tmp_path / name,
                progress=False,
                callbacks=[Watching()],
            )
    finally:
        torch.use_deterministic_algorithms(False)
    assert seen == [(True, False, False), (False, True, True), (True, False, False)]


@pytest.mark.slow
def test_the_same_seed_gives_the_same_weights(tmp_path):
    states = []
    for name in ("one", "two"):
        fit(tiny_recipe(tmp_path, "train.repeatable=true", text=SHARPEN), tmp_path / name, progress=False)
        states.append(weights(tmp_path / name))
    torch.testing.assert_close(*states, rtol=0, atol=0)
