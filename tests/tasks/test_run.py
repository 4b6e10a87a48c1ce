import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from foveal.tasks.folder import SafeCheckpointIO, read_tensors
from foveal.tasks.run import build_source, load_model
from foveal.tasks.schedule import optimiser
from safetensors.torch import load_file
from tiny import hears_ctrl_c, write_recipe
from torch.nn.utils import get_total_norm

from foveal.data.embedded.scenes import Scenes
from foveal.errors import DivergedError, InterruptedRunError, RunError, UserError
from foveal.files import writing
from foveal.recipe import load
from foveal.tasks import evaluate, fit, folder, run, task
from foveal.tasks.callbacks import read_journal
from foveal.tasks.refer import Refer


@pytest.fixture
def recipe(tmp_path):
    return load(write_recipe(tmp_path))


FILES = ["recipe.yaml", "environment.json", "metrics.jsonl", "last.ckpt", "best.ckpt"]
FILES += ["weights.safetensors", "result.json", "samples.safetensors"]


def weights(out: Path) -> dict[str, torch.Tensor]:
    return torch.load(out / "last.ckpt", weights_only=True)["state_dict"]


def assert_same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor], **tolerance: float) -> None:
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(
            a[name], b[name], **(tolerance or {"rtol": 0, "atol": 0}), msg=lambda m, n=name: f"{n}: {m}"
        )


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "foveal", *map(str, words)]


def test_a_run_leaves_everything(recipe, tmp_path):
    out = tmp_path / "run"
    result = fit(recipe, out, progress=False)
    for name in FILES:
        assert (out / name).stat().st_size > 0, name
    assert not list(out.glob(".*")), "temporary files are left"
    rows = read_journal(out / "metrics.jsonl")
    assert [row["epoch"] for row in rows] == [0, 1, 2]
    assert all({"step", "lr", "seconds", "train/loss", "val/loss", "val/accuracy"} <= row.keys() for row in rows)
    assert json.loads((out / "result.json").read_text())["metrics"] == pytest.approx(result["metrics"])
    assert load(out / "recipe.yaml") == recipe
    about = json.loads((out / "environment.json").read_text())
    assert (
        about["packages"]["torch"] == torch.__version__.split("+")[0] or about["packages"]["torch"] == torch.__version__
    )
    best = torch.load(out / "best.ckpt", weights_only=True)["state_dict"]
    for name, value in load_file(out / "weights.safetensors").items():
        assert torch.equal(value, best[f"model.{name}"])


def test_testing_again_gives_the_same(recipe, tmp_path):
    result = fit(recipe, tmp_path / "run", progress=False)
    (tmp_path / "run" / "result.json").unlink()
    again = evaluate(tmp_path / "run")
    assert again["metrics"] == pytest.approx(result["metrics"])


def test_result_is_what_the_model_says(recipe, tmp_path):
    """Accuracy and strength in result.json against a plain loop over the test set."""
    result = fit(recipe, tmp_path / "run", progress=False)
    model, _ = load_model(tmp_path / "run")
    source = build_source(recipe)
    right, inside, n = 0, 0.0, 0
    import foveal

    for batch in source.loader("test", 7, device=torch.device("cpu")):
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


def test_finished_run_is_not_run_again(recipe, tmp_path):
    fit(recipe, tmp_path / "run", progress=False)
    before = (tmp_path / "run" / "last.ckpt").stat().st_mtime_ns
    fit(recipe, tmp_path / "run", progress=False)
    assert (tmp_path / "run" / "last.ckpt").stat().st_mtime_ns == before


def test_folder_of_another_recipe_is_refused(recipe, tmp_path):
    fit(recipe, tmp_path / "run", progress=False)
    recipe.optim.lr = 0.5
    with pytest.raises(RunError, match="another recipe"):
        fit(recipe, tmp_path / "run", progress=False)


def test_seed_decides_everything(recipe, tmp_path):
    fit(recipe, tmp_path / "a", progress=False)
    fit(recipe, tmp_path / "b", progress=False)
    assert_same(weights(tmp_path / "a"), weights(tmp_path / "b"))
    recipe.seed = 1
    fit(recipe, tmp_path / "c", progress=False)
    a, c = weights(tmp_path / "a"), weights(tmp_path / "c")
    assert any(not torch.equal(a[k], c[k]) for k in a)


@pytest.mark.parametrize("fresh", [False, True])
def test_killed_in_the_middle_of_an_epoch_and_resumed(tmp_path, fresh):
    """SIGKILL, then resume: the same weights as a run that was never disturbed."""
    path = write_recipe(tmp_path)
    changes = [
        "train.epochs=25",
        "train.batch=8",
        f"data.fresh={str(fresh).lower()}",
        "optim.schedule=onecycle",
        "train.patience=24",
    ]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    fit(load(path, changes), whole, progress=False)
    child = subprocess.Popen(
        command("train", path, *changes, "--out", cut), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 120
    while len(read_journal(cut / "metrics.jsonl")) < 3:
        assert child.poll() is None, child.stderr.read().decode()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    child.kill()
    child.wait()
    done = len(read_journal(cut / "metrics.jsonl"))
    assert done < 25, "the run was over before it was killed; nothing was tested"
    fit(load(path, changes), cut, progress=False)
    assert_same(weights(cut), weights(whole))
    rows, reference = (read_journal(f / "metrics.jsonl") for f in (cut, whole))
    assert [r["epoch"] for r in rows] == list(range(len(reference)))
    assert [r["val/loss"] for r in rows] == [r["val/loss"] for r in reference]


def test_ctrl_c_says_how_to_resume(tmp_path):
    path = write_recipe(tmp_path)
    out = tmp_path / "run"
    words = command("train", path, "train.epochs=400", "--out", out)
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=hears_ctrl_c)
    deadline = time.monotonic() + 120
    while len(read_journal(out / "metrics.jsonl")) < 2:
        assert child.poll() is None, child.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=60)
    assert child.returncode == 130, said
    assert f"foveal train {out}" in said
    assert "Traceback" not in said
    assert (out / "last.ckpt").exists()


def test_nan_stops_with_step_batch_and_last_value(recipe, tmp_path, monkeypatch):
    """From the third epoch on one batch is not a number; the checkpoint of the second epoch stays good."""
    plain = Refer.training_step

    def broken(self, batch, batch_idx):
        loss = plain(self, batch, batch_idx)
        return loss * float("nan") if self.current_epoch == 2 and batch_idx == 3 else loss

    monkeypatch.setattr(Refer, "training_step", broken)
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


def fail(*args):
    """The power fails."""
    raise ConnectionError


def test_a_moved_run_keeps_its_best_epoch(recipe, tmp_path, monkeypatch):
    recipe.optim.lr, recipe.model["norm"] = 0.0, False  # no epoch is better than the first
    plain = Refer.training_step

    def fail_late(self, batch, batch_idx):
        return (fail if self.current_epoch == 2 else plain)(self, batch, batch_idx)

    with monkeypatch.context() as patch:
        patch.setattr(Refer, "training_step", fail_late)
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
        patch.setattr(run, "_test", fail)
        with pytest.raises(ConnectionError):
            fit(recipe, tmp_path / "run", progress=False)
    assert len(read_journal(tmp_path / "run" / "metrics.jsonl")) == 3
    assert fit(recipe, tmp_path / "run", progress=False)["epochs"] == 3


def test_ctrl_c_during_the_test(recipe, tmp_path, monkeypatch):
    """It says how to resume; testing again a run that has a result leaves that alone."""

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


def test_how_the_recipe_was_named_is_no_matter(recipe, tmp_path, monkeypatch):
    fit(recipe, tmp_path / "run", progress=False)
    monkeypatch.chdir(tmp_path)
    again = load("tiny.yaml")
    assert again.name != recipe.name
    assert fit(again, "run", progress=False)["epochs"] == 3


def test_full_disk_while_the_journal_is_written(recipe, tmp_path, monkeypatch):
    plain = os.replace

    def full(source, target):
        if Path(target).name == "metrics.jsonl":
            raise OSError(28, "No space left on device")
        plain(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(RunError, match=r"cannot write .*metrics\.jsonl: No space left"):
        fit(recipe, tmp_path / "run", progress=False)


def test_a_folder_with_a_recipe_has_its_environment(recipe, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(folder, "environment", fail)
        with pytest.raises(ConnectionError):
            fit(recipe, tmp_path / "run", progress=False)
    fit(recipe, tmp_path / "run", progress=False)
    assert (tmp_path / "run" / "environment.json").exists()


def test_the_revision_is_that_of_foveal_alone(tmp_path, monkeypatch):
    """Installed inside a repository of somebody else, it does not pass that one's revision for its own."""
    monkeypatch.delenv("FOVEAL_REVISION", raising=False)
    for words in (["init", "-q"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x", "--allow-empty"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    monkeypatch.setattr(folder, "__file__", str(tmp_path / "folder.py"))
    assert folder.environment()["revision"] is None


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
    print("SAID", error)
    sys.exit(2)
"""


def test_full_disk_during_a_checkpoint_keeps_the_last_good_one(tmp_path):
    path = write_recipe(tmp_path)
    out = tmp_path / "run"
    recipe = load(path, ["train.epochs=5"])
    child = subprocess.Popen(
        command("train", path, "train.epochs=5", "--out", out), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    while len(read_journal(out / "metrics.jsonl")) < 2:
        assert child.poll() is None
        time.sleep(0.005)
    child.kill()
    child.wait()
    before = (out / "last.ckpt").read_bytes()
    assert len(before) > 20_000
    ran = subprocess.run([sys.executable, "-c", FULL_DISK, path, out], capture_output=True, text=True)
    assert ran.returncode == 2, ran.stderr
    assert "cannot write" in ran.stdout
    assert "File too large" in ran.stdout, ran.stdout
    assert f"untouched. Free some space or make the folder writable, then resume with: foveal train {out}" in ran.stdout
    assert (out / "last.ckpt").read_bytes() == before
    assert not list(out.glob(".*.partial")), "a partial file is left"
    fit(recipe, out, progress=False)
    assert (out / "result.json").exists()


def test_a_full_disk_is_called_so(tmp_path, monkeypatch):
    """Also where torch gives no reason, or one of its own."""

    def save(*args):
        raise RuntimeError("[enforce fail at inline_container.cc:671] . unexpected pos 704 vs 598")

    monkeypatch.setattr(torch, "save", save)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=0))
    with pytest.raises(RunError, match=r"last\.ckpt: No space left on device; .* then resume with: foveal train "):
        SafeCheckpointIO().save_checkpoint({}, tmp_path / "last.ckpt")
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1 << 30))
    with pytest.raises(RunError, match=r"last\.ckpt: .*unexpected pos"):
        SafeCheckpointIO().save_checkpoint({}, tmp_path / "last.ckpt")


def test_unwritable_run_folder(recipe, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"cannot write to the run folder .*file/run"):
        fit(recipe, tmp_path / "file" / "run", progress=False)


def test_two_processes_in_one_folder(recipe, tmp_path):
    from foveal.tasks.folder import open_run

    with open_run(recipe, tmp_path / "run"), pytest.raises(RunError, match="another process is training"):
        fit(recipe, tmp_path / "run", progress=False)


def test_damaged_checkpoint(recipe, tmp_path):
    fit(recipe, tmp_path / "run", progress=False)
    (tmp_path / "run" / "result.json").unlink()
    (tmp_path / "run" / "last.ckpt").write_bytes(b"nonsense")
    with pytest.raises(RunError, match=r"last\.ckpt is damaged"):
        fit(recipe, tmp_path / "run", progress=False)


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(b"nonsense")])
def test_weights_of_a_finished_run_are_written_again(recipe, tmp_path, damage):
    out = tmp_path / "run"
    result = fit(recipe, out, progress=False)
    path, checkpoint = out / "weights.safetensors", (out / "last.ckpt").stat().st_mtime_ns
    kept = out / "kept.safetensors"
    kept.write_bytes(path.read_bytes())
    damage(path)
    with pytest.raises(RunError, match=f"foveal train {out}"):
        load_model(out)
    assert fit(recipe, out, progress=False)["metrics"] == pytest.approx(result["metrics"])
    (again, about), (before, said) = read_tensors(path), read_tensors(kept)
    assert_same(again, before)
    assert about == said
    assert (out / "last.ckpt").stat().st_mtime_ns == checkpoint


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize("damaged", [False, True])
def test_without_its_best_checkpoint_a_run_says_what_starts_it_again(recipe, tmp_path, finished, damaged):
    out = tmp_path / "a run"
    fit(recipe, out, progress=False)
    (out / "weights.safetensors").unlink()
    if not finished:
        (out / "result.json").unlink()
    if damaged:
        (out / "best.ckpt").write_bytes(b"nonsense")
    else:
        (out / "best.ckpt").unlink()
    with pytest.raises(RunError, match=r"best\.ckpt is (damaged \(\w+\)|missing);") as caught:
        fit(recipe, out, progress=False)
    said = str(caught.value)
    assert ("is damaged" in said) == damaged
    remove, _, train = said.partition("beginning: ")[2].partition("; ")
    subprocess.run(remove, shell=True, check=True)
    assert train == f"foveal train '{out}'"
    assert fit(recipe, out, progress=False)["epochs"] == 3
    load_model(out)


@pytest.mark.parametrize("content", [b"", b"{}", b"[1, 2]", b"\xff", b'{"metrics": 3}'])
def test_a_damaged_result_is_written_again_by_a_test(recipe, tmp_path, content):
    recipe.train.epochs = 1
    out = tmp_path / "run"
    result = fit(recipe, out, progress=False)
    (out / "result.json").write_bytes(content)
    with pytest.raises(RunError, match=rf"result\.json is damaged \(.+\); `foveal test {out}` writes it again"):
        fit(recipe, out, progress=False)
    evaluate(out)
    assert fit(recipe, out, progress=False)["metrics"] == pytest.approx(result["metrics"])


def test_writing_replaces_all_or_nothing(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with contextlib.suppress(ZeroDivisionError), writing(path) as partial:
        partial.write_text("half")
        raise ZeroDivisionError
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_checkpoints_do_not_unpickle_code(tmp_path):
    """A checkpoint that carries code is refused, not run."""
    import pickle

    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "hacked"), "w"))

    torch.save({"x": Evil()}, tmp_path / "evil.ckpt", pickle_module=pickle)
    with pytest.raises(RunError, match="damaged"):
        SafeCheckpointIO().load_checkpoint(tmp_path / "evil.ckpt")
    assert not (tmp_path / "hacked").exists()


def test_early_stopping(recipe, tmp_path):
    recipe.optim.lr = 0.0  # never any better
    recipe.train.epochs, recipe.train.patience = 30, 2
    result = fit(recipe, tmp_path / "run", progress=False)
    assert result["epochs"] < 30


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("data.name=mreff", "did you mean 'mref'"),
        ("model.name=hatnet", "did you mean 'hattnet"),
        ("model.chanels=3", "chanels"),
        ("data.canvass=3", "did you mean 'canvas'"),
        ("data.triples=[1,2]", "data.triples: expected a list of 3"),
        ("data.digits=mnist", "FOVEAL_DATA"),
        ("train.devices=0", "train:"),
        ("train.devices=-1", "train:"),
        ("train.accelerator=abacus", "train:"),
        ("loss.label_smoothing=2", "loss.label_smoothing: expected at most 1, got 2"),
        ("model.dropout=2", "model hattnet: dropout probability"),
        ("model.stages=0", "expected at least 1"),
        ("model.stages=9", "too small for 9 stages"),
        ("model.queries=3", "model.queries comes from the data"),
    ],
)
def test_mistakes_stop_before_training(tmp_path, change, said, monkeypatch):
    monkeypatch.delenv("FOVEAL_DATA", raising=False)
    with pytest.raises(UserError, match=None) as caught:
        fit(load(write_recipe(tmp_path), [change]), tmp_path / "run", progress=False)
    assert said in str(caught.value)
    assert not (tmp_path / "run" / "last.ckpt").exists()


def test_bf16(recipe, tmp_path):
    recipe.train.precision = "bf16"
    recipe.train.epochs = 1
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

    monkeypatch.setattr(task, "optimiser", spied)
    recipe.train.precision, recipe.train.epochs, recipe.optim.clip = precision, 1, 1e-3
    fit(recipe, tmp_path / "run", progress=False)
    assert len(norms) == 6
    torch.testing.assert_close(torch.stack(norms), torch.full((6,), 1e-3), rtol=1e-2, atol=0)


def test_two_processes_equal_one_with_the_doubled_batch(tmp_path):
    """DDP over gloo. No dropout and no batch norm: their randomness and statistics are each process's own."""
    path = write_recipe(tmp_path)
    plain = ["model.dropout=0", "model.norm=false", "train.epochs=2", "optim.name=sgd"]
    one, two = tmp_path / "one", tmp_path / "two"
    fit(load(path, [*plain, "train.batch=20"]), one, progress=False)
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    flags = ["train.batch=10", "train.devices=2", "train.strategy=ddp"]
    ran = subprocess.run(
        command("train", path, *plain, *flags, "--out", two), capture_output=True, text=True, env=env, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    assert_same(weights(two), weights(one), rtol=1e-4, atol=1e-6)
    a, b = (json.loads((out / "result.json").read_text())["metrics"] for out in (one, two))
    assert a == pytest.approx(b, rel=1e-4)


def test_samples_are_of_the_test_set(recipe, tmp_path):
    fit(recipe, tmp_path / "run", progress=False)
    samples = load_file(tmp_path / "run" / "samples.safetensors")
    scenes: Scenes = build_source(recipe).scenes("test")
    for image in samples["image"]:
        assert any(torch.equal(image, other) for other in scenes.images)
    assert samples["gate.0"].shape[1:] == (14, 14)
