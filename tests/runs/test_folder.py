"""One run folder: who may write to it, what its files hold, and how a run is found."""

import contextlib
import json
import os
import subprocess
import sys

import pytest
import torch
from fake_runs import write_run
from tiny import tiny_recipe

from foveal.errors import RunError, UserError
from foveal.files import writing
from foveal.recipe import Cell, load
from foveal.runs import RunFolder, Stored, find_run
from foveal.tasks import evaluate, fit, load_model, predict


@pytest.fixture
def folder(tmp_path):
    return RunFolder(write_run(tmp_path / "a run"))


# Opening --------------------------------------------------------------------------------------------------------------


def test_opening_writes_what_the_run_is(tmp_path):
    recipe, folder = tiny_recipe(tmp_path), RunFolder(tmp_path / "run")
    assert not folder.exists
    with folder.opened(recipe, {"dataset": "MREF"}):
        assert folder.exists
        assert not folder.finished
    assert folder.header() == {"format": 2, "task": "refer", "dataset": "MREF"}
    assert folder.recipe() == recipe
    assert folder.epochs() == []
    (folder.path / ".last.ckpt.x.partial").write_bytes(b"half")
    with folder.opened(recipe, {"dataset": "another"}):
        assert folder.header()["dataset"] == "MREF"  # an earlier run of the same recipe goes on
    assert not list(folder.path.glob(".*"))


def test_a_folder_without_a_whole_epoch_is_taken_over(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with folder.opened(tiny_recipe(tmp_path), {"dataset": "MREF"}):
        pass
    mended = tiny_recipe(tmp_path, "train.batch=7")
    with folder.opened(mended, {"dataset": "other"}):
        assert folder.recipe() == mended
        assert folder.header()["dataset"] == "other"
    folder.write_epochs([{"epoch": 0}])
    with pytest.raises(RunError, match="another recipe; choose another --out"):
        folder.check(tiny_recipe(tmp_path))


def test_a_recipe_that_the_user_put_there_is_not_replaced(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.file("recipe.yaml").write_text(tiny_recipe(tmp_path).dump())
    with pytest.raises(RunError, match="another recipe"):
        folder.check(tiny_recipe(tmp_path, "train.batch=7"))


def test_two_in_one_folder(tmp_path):
    recipe, folder = tiny_recipe(tmp_path), RunFolder(tmp_path / "run")
    with (
        folder.opened(recipe, {}),
        pytest.raises(RunError, match=r"another process.*choose another --out"),
        folder.opened(recipe, {}),
    ):
        pass
    with folder.opened(recipe, {}):
        pass


OTHER_PROCESS = """
import sys, filelock
with filelock.FileLock(sys.argv[1]):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_two_processes_in_one_folder(tmp_path):
    recipe, folder = tiny_recipe(tmp_path), RunFolder(tmp_path / "run")
    with folder.opened(recipe, {}):
        pass
    words = [sys.executable, "-c", OTHER_PROCESS, folder.file("lock")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(RunError, match="another process"), folder.opened(recipe, {}):
            pass
        other.communicate("")
    with folder.opened(recipe, {}):
        pass


def test_the_name_and_the_place_in_a_table_do_not_matter(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with folder.opened(tiny_recipe(tmp_path), {}):
        pass
    folder.write_epochs([{"epoch": 0}])
    same = tiny_recipe(tmp_path, "loss.weights.answer=1")
    same.name, same.cell = "other", Cell("t", "R", "C", (1, 2))
    folder.check(same)
    for change in ("seed=1", "loss.weights.answer=2", "train.accumulate=2", "title=other"):
        with pytest.raises(RunError, match="choose another --out"):
            folder.check(tiny_recipe(tmp_path, change))


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written(tmp_path):
    recipe, folder = tiny_recipe(tmp_path), RunFolder(tmp_path / "run")
    with folder.opened(recipe, {}):
        pass
    folder.path.chmod(0o500)
    with pytest.raises(RunError, match="make it writable"), folder.opened(recipe, {}):
        pass


def test_a_run_of_a_plugin_says_which_one_it_needs(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with folder.opened(tiny_recipe(tmp_path), {"plugins": ["mine", "other"]}):
        pass
    text = folder.file("recipe.yaml").read_text()
    folder.file("recipe.yaml").write_text(text.replace("task: refer", "task: mine"))
    with pytest.raises(RunError, match="was made with FOVEAL_PLUGINS=mine,other"):
        folder.recipe()


# The header -----------------------------------------------------------------------------------------------------------


def test_a_newer_format_is_refused_in_one_line_by_everything(folder):
    folder.write_json("run.json", {"format": 3, "task": "dream"})
    recipe = load(folder.file("recipe.yaml"))
    uses = [folder.header, folder.recipe, lambda: load_model(folder.path), lambda: evaluate(folder.path)]
    uses += [lambda: fit(recipe, folder.path, progress=False), lambda: predict(folder.path, "photo.png", "3")]
    for use in uses:
        with pytest.raises(RunError, match=r"run format 3.*upgrade foveal") as caught:
            use()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": "two"}', "\x00"])
def test_a_damaged_header_is_named(folder, content):
    folder.file("run.json").write_text(content)
    with pytest.raises(RunError, match=r"run\.json is damaged .*restore it"):
        folder.recipe()


# Files ----------------------------------------------------------------------------------------------------------------


def test_numbers_that_are_not_finite_become_null(folder):
    folder.write_json("x.json", {"a": float("nan"), "b": [float("inf"), 1.5, {"c": -float("inf")}], "d": (1, "x")})
    assert json.loads(folder.file("x.json").read_text()) == {"a": None, "b": [None, 1.5, {"c": None}], "d": [1, "x"]}


def test_tensors_and_their_header(folder):
    stored = Stored({"x": torch.arange(6.0).view(2, 3).T}, {"answers": ["ä", "b"], "size": 3})
    folder.write_tensors("x.safetensors", stored)
    again = folder.tensors("x.safetensors")
    assert torch.equal(again.tensors["x"], stored.tensors["x"])
    assert again.about == stored.about
    folder.write_tensors("x.safetensors", Stored({}, {}))  # a task that keeps nothing
    assert folder.tensors("x.safetensors") == Stored({}, {})


def test_tensors_that_are_missing_or_damaged(folder):
    with pytest.raises(RunError, match=rf"is missing.*foveal train '{folder}'"):
        folder.tensors("weights.safetensors")
    for content in (b"", b"nonsense" * 9):
        folder.file("weights.safetensors").write_bytes(content)
        with pytest.raises(RunError, match=rf"weights\.safetensors is damaged .*foveal train '{folder}'"):
            folder.tensors("weights.safetensors")


def test_results_that_are_missing_or_damaged(folder):
    folder.file("result.json").write_text('{"metrics": {}, "title": "SOFT"}')
    with pytest.raises(RunError, match=rf"holds no dataset.*foveal test '{folder}'"):
        folder.result()
    folder.file("result.json").unlink()
    with pytest.raises(RunError, match=rf"no result yet.*foveal train '{folder}'"):
        folder.result()


def test_writing_replaces_all_or_nothing(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with contextlib.suppress(ZeroDivisionError), writing(path) as partial:
        partial.write_text("half")
        raise ZeroDivisionError
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


# Finding a run --------------------------------------------------------------------------------------------------------


def test_the_only_run_below_a_folder_is_meant(tmp_path):
    run = write_run(tmp_path / "runs" / "demo" / "soft" / "seed0", kept=False)
    for path in (run, run.parent, tmp_path / "runs", str(tmp_path)):
        assert find_run(path) == RunFolder(run)


def test_of_several_runs_below_a_folder_some_are_named(tmp_path):
    runs = [write_run(tmp_path / "soft" / f"seed{seed}", seed=seed, kept=False) for seed in range(5)]
    with pytest.raises(RunError, match=rf"did you mean {runs[0]}, .* or another of 5\?"):
        find_run(tmp_path / "soft")
    with pytest.raises(RunError, match="did you mean"):
        RunFolder(tmp_path / "soft").recipe()
    with pytest.raises(RunError, match="did you mean"):
        predict(tmp_path / "soft", "photo.png", "3")


def test_no_run_to_be_found(tmp_path):
    with pytest.raises(RunError, match=r"no recipe\.yaml"):
        find_run(tmp_path)
    with pytest.raises(RunError, match=f"no run folder {tmp_path / 'gone'}"):
        find_run(tmp_path / "gone")
    with pytest.raises(UserError, match=r"no recipe\.yaml"):
        RunFolder(tmp_path).recipe()
