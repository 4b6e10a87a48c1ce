"""Commands on one run: train, test, predict, see."""

import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tiny import write_recipe

from foveal.cli.runs import _task_options
from foveal.errors import UserError
from foveal.recipe import load
from foveal.reproduce import run_path

COLOURS = ("green", "yellow", "white", "red", "blue")


@pytest.fixture
def photo(tmp_path, monkeypatch) -> Path:
    """An image file in the current folder."""
    monkeypatch.chdir(tmp_path)
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (50, 60, 3), dtype=np.uint8)).save("photo.png")
    return tmp_path / "photo.png"


# Train, test, see -------------------------------------------------------------------------------------------


def test_train_test_see(call, tmp_path):
    out = tmp_path / "a run"
    status, trained, _ = call("train", write_recipe(tmp_path), "train.epochs=1", "--out", out)
    assert status == 0
    assert "accuracy" in trained
    assert f"`foveal see '{out}'` makes a page of it" in trained
    status, again, _ = call("train", out)
    assert status == 0
    assert "finished already" in again
    status, tested, _ = call("test", out)
    assert status == 0
    assert "true_positive_strength" in tested
    status, seen, _ = call("see", out)
    assert status == 0
    assert f"Open it in a browser: {out / 'report.html'}" in seen
    assert "<html" in (out / "report.html").read_text()[:200]


def test_a_folder_with_one_run_stands_for_it(call, run, tmp_path):
    shutil.copytree(run, tmp_path / "runs" / "tiny" / "seed0")
    status, out, _ = call("train", tmp_path / "runs")
    assert status == 0
    assert f"{tmp_path / 'runs/tiny/seed0'} is finished already" in out
    status, out, _ = call("test", tmp_path / "runs")
    assert status == 0
    status, _, err = call("train", tmp_path / "runs", "seed=3")
    assert status == 2
    assert "it is resumed as it was started, without overrides and --out" in err


@pytest.mark.parametrize("words", [("train",), ("test",), ("predict", "photo.png", "7")])
def test_a_folder_with_several_runs_names_them(call, run, tmp_path, words):
    for seed in range(2):
        shutil.copytree(run, tmp_path / "runs" / f"seed{seed}")
    command, *rest = words
    status, _, err = call(command, tmp_path / "runs", *rest)
    assert status == 2
    assert f"did you mean {tmp_path / 'runs/seed0'}, {tmp_path / 'runs/seed1'}?" in err


def test_a_folder_without_runs(call, tmp_path):
    status, _, err = call("train", tmp_path)
    assert status == 2
    assert "is not a run folder: it has no recipe.yaml" in err


def test_a_recipe_is_not_mistaken_for_the_folder_of_its_runs(call, run, tmp_path, monkeypatch):
    """As after ``foveal train demo/classify`` with the current folder as --out."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run, "demo/classify/seed0")
    status, _, err = call("train", "demo/classify", "train.epoch=3")
    assert status == 2
    assert "did you mean 'epochs'" in err


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("hattnet/table1/mref-soft", "runs/hattnet/table1/mref-soft/seed3"),
        ("demo/classify", "runs/demo/classify/seed3"),
        ("./mine.yaml", "runs/mine/seed3"),
        ("../here/mine.yaml", "runs/here/mine/seed3"),
        ("table.yaml/soft", "runs/table/soft/seed3"),
        ("./table.yaml/soft", "runs/table/soft/seed3"),
    ],
)
def test_the_folder_of_a_run_that_names_none(name, folder, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path("mine.yaml").write_text("extends: demo/refer/soft\n")
    Path("table.yaml").write_text("settings: {extends: demo/refer/soft}\nrows: {soft: }\n")
    assert run_path(load(name, ["seed=3"])) == Path(folder)


def test_the_folder_of_a_file_elsewhere_is_below_runs(tmp_path):
    (tmp_path / "mine.yaml").write_text("extends: demo/refer/soft\n")
    assert run_path(load(tmp_path / "mine.yaml")) == Path("runs", *tmp_path.parts[1:], "mine", "seed0")


def test_train_without_out(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_recipe(tmp_path)
    status, out, _ = call("train", "./tiny.yaml", "train.epochs=1", "seed=2")
    assert status == 0
    assert "Everything is in runs/tiny/seed2; `foveal see runs/tiny/seed2` makes a page of it" in out
    assert json.loads(Path("runs/tiny/seed2/result.json").read_text())["recipe"] == "./tiny.yaml"
    status, _, err = call("train", "./tiny.yaml", "train.epochs=2", "seed=2")
    assert status == 2
    assert "holds a run of another recipe; choose another --out" in err


def test_several_runs_in_one_report(call, run, classifiers, tmp_path):
    status, out, _ = call("see", run, classifiers, "--out", tmp_path / "all.html")
    assert status == 0
    assert str(tmp_path / "all.html") in out
    page = (tmp_path / "all.html").read_text()
    assert all(title in page for title in ("MREF", "digits"))


def test_an_unfinished_run(call, run, tmp_path):
    (tmp_path / "recipe.yaml").write_text((run / "recipe.yaml").read_text())
    status, _, err = call("test", tmp_path)
    assert status == 2
    assert f"is the run finished? `foveal train {tmp_path}` resumes it" in err


def test_testing_a_run_that_cannot_be_written_shows_the_result(call, run, monkeypatch):
    plain = tempfile.mkstemp

    def mkstemp(*args, **options):
        if options.get("dir") == run:
            raise PermissionError(13, "Permission denied")
        return plain(*args, **options)

    monkeypatch.setattr(tempfile, "mkstemp", mkstemp)
    status, out, err = call("test", run)
    assert status == 2
    assert "true_positive_strength" in out
    assert "Everything is in" not in out
    assert err.count("\n") == 1
    assert "samples.safetensors: Permission denied" in err
    assert err.endswith(f"make the folder writable, then test again with: foveal test {run}\n")


def test_see_tells_what_it_left_out(call, run, tmp_path):
    damaged = shutil.copytree(run, tmp_path / "run")
    (damaged / "samples.safetensors").write_bytes(b"")
    (damaged / "metrics.jsonl").write_bytes(b"\xff\xfe\n" + (run / "metrics.jsonl").read_bytes())
    status, _, err = call("see", damaged)
    assert status == 0
    lines = err.splitlines()
    assert [line.split()[:2] for line in lines] == [["left", "out:"]] * 2
    assert "metrics.jsonl: 1 line(s) cannot be read" in lines[0]
    assert "samples.safetensors is damaged" in lines[1]
    assert f"`foveal test {damaged}` writes it again" in lines[1]
    page = (damaged / "report.html").read_text()
    assert "metrics.jsonl: 1 line(s) cannot be read" in page


# Predict ----------------------------------------------------------------------------------------------------


def test_predict(call, run, photo):
    status, out, _ = call("predict", run, photo, "7")
    assert status == 0
    assert any(colour in out for colour in COLOURS)
    assert f"Where it looked: {photo.with_name('photo-7.png')}" in out
    assert Image.open("photo-7.png").width > 300


def test_a_second_prediction_does_not_overwrite_the_first(call, run, photo):
    call("predict", run, photo, "7")
    first = Path("photo-7.png").stat()
    out = call("predict", run, photo, "7").out
    assert f"Where it looked: {photo.with_name('photo-7-2.png')}" in out
    assert Path("photo-7.png").stat() == first


def test_predict_beside_another_run_of_the_same_task(call, run, photo, tmp_path):
    other = shutil.copytree(run, tmp_path / "other")
    words = ("predict", run, photo, "7", "--out", "one.png"), ("--beside", other, "--label", "red", "--out", "two.png")
    assert call(*words[0]).status == 0
    status, out, _ = call(*words[0][:-2], *words[1])
    assert status == 0
    assert out.count("  true\n") == 2
    assert Image.open("two.png").width > Image.open("one.png").width + 200  # the gates of both


def test_predict_beside_several_runs(call, run, photo, tmp_path):
    others = [shutil.copytree(run, tmp_path / name) for name in ("second", "third")]
    beside = [word for other in others for word in ("--beside", other)]
    status, out, _ = call("predict", run, photo, "7", *beside, "--out", "three.png")
    assert status == 0
    assert [line for line in out.splitlines() if line in map(str, (run, *others))] == [str(run), *map(str, others)]
    status, _, err = call("predict", run, photo, "7", *beside, "--beside", others[0])
    assert status == 2
    assert "name another one" in err


def test_predict_from_the_folder_above_a_run(call, run, photo, tmp_path):
    shutil.copytree(run, tmp_path / "runs" / "seed0")
    assert call("predict", tmp_path / "runs", photo, "7", "--out", "out.png").status == 0


def test_predict_a_class(call, classifiers, photo):
    status, out, _ = call("predict", classifiers / "aw_cbam", "photo.png")
    assert status == 0
    lines = out.splitlines()
    assert [line.split()[0] in "0123456789" for line in lines[:5]] == [True] * 5
    assert "%" in lines[4]
    assert lines[5].startswith("Where it looked: ")
    assert Image.open("photo-seen.png").size[0] > 600
    status, out, _ = call("predict", classifiers / "aw_se", "photo.png", "--out", "none.png")
    assert status == 0
    assert "No picture: this model has no attention over positions." in out
    assert not Path("none.png").exists()
    status, _, err = call("predict", classifiers / "aw_se", "photo.png", "7")
    assert status == 2
    assert "classifies whole images; leave '7' out" in err


def test_predict_beside_another_run(call, classifiers, photo, tmp_path):
    words = (photo, "--beside", classifiers / "aw_se", "--label", "3", "--out", tmp_path / "x.png")
    status, out, _ = call("predict", classifiers / "aw_cbam", *words)
    assert status == 0
    lines = out.splitlines()
    assert lines[0] == str(classifiers / "aw_cbam")  # both recipes have the same title
    assert lines[6] == str(classifiers / "aw_se")
    for line in lines[1:6] + lines[7:12]:
        assert line.endswith("  true") == line.startswith("3 ")
    assert (tmp_path / "x.png").exists()
    status, _, err = call("predict", classifiers / "aw_se", photo, "--label", "33")
    assert status == 2
    assert "unknown class '33'; did you mean '3'?" in err


def test_predict_beside_a_run_of_another_task(call, run, classifiers, photo):
    status, _, err = call("predict", run, photo, "7", "--beside", classifiers / "aw_se")
    assert status == 2
    assert "is a run of task classify and cannot be compared with" in err


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (["--lable", "red"], "unknown key 'lable'; did you mean 'label'"),
        (["--runs", "red"], "unknown key 'runs'"),
        (["--label"], "--label needs a value: --label VALUE"),
        (["--label", "pink"], "unknown"),
    ],
)
def test_wrong_options_of_a_task(call, run, photo, words, advice):
    status, _, err = call("predict", run, photo, "7", *words)
    assert status == 2
    assert advice in err
    assert err.count("\n") == 1


def test_a_picture_that_cannot_be_written(call, run, photo):
    for out in ("nowhere/x.png", "x.unknown"):
        status, _, err = call("predict", run, photo, "7", "--out", out)
        assert status == 2
        assert f"cannot write {out}" in err
        assert "choose another --out ending in .png" in err


def test_predict_needs_a_query_where_the_model_does(call, run, photo):
    status, _, err = call("predict", run, photo)
    assert status == 2
    assert "say what to ask for after the image: 0, 1, 2, 3, 4 or another of 10" in err


@pytest.mark.parametrize(
    ("image", "query", "advice"),
    [
        ("missing.png", "3", "no such image file"),
        ("broken.jpg", "3", "cannot be read as an image"),
        ("empty.png", "3", "cannot be read as an image"),
        ("photo.png", "11", "unknown query '11'"),
        ("photo.png", "-1", "unknown query '-1'; did you mean '1'"),
        ("photo.png", "three", "unknown query 'three'; known: 0, 1, 2"),
    ],
)
def test_predict_mistakes(call, run, photo, tmp_path, image, query, advice):
    Image.new("RGB", (400, 400)).save(tmp_path / "whole.jpg")
    (tmp_path / "broken.jpg").write_bytes((tmp_path / "whole.jpg").read_bytes()[:200])
    (tmp_path / "empty.png").write_bytes(b"")
    status, _, err = call("predict", run, tmp_path / image, query, "--out", tmp_path / "x.png")
    assert status == 2
    assert advice in err
    assert err.count("\n") == 1
    assert not (tmp_path / "x.png").exists()


def test_weights_that_do_not_fit(call, run, photo, tmp_path):
    for name in ("recipe.yaml", "weights.safetensors"):
        (tmp_path / name).write_bytes((run / name).read_bytes())
    recipe = (tmp_path / "recipe.yaml").read_text()
    (tmp_path / "recipe.yaml").write_text(recipe.replace("channels: 4", "channels: 5"))
    status, _, err = call("predict", tmp_path, photo, "1")
    assert status == 2
    assert "does not fit" in err


@pytest.mark.parametrize(
    ("words", "positional", "options"),
    [
        ([], [], {}),
        (["photo.png", "7"], ["photo.png", "7"], {}),
        (["photo.png", "--label", "cow"], ["photo.png"], {"label": "cow"}),
        (["--label", "cow", "photo.png", "--label=dog"], ["photo.png"], {"label": ["cow", "dog"]}),
        (["--beam-size=3", "a text"], ["a text"], {"beam_size": "3"}),
        (["--equation", "a=b", "--text=x=y"], [], {"equation": "a=b", "text": "x=y"}),
        (["--label=", "-1", "-"], ["-1", "-"], {"label": ""}),
        (["--label", "--other"], [], {"label": "--other"}),
    ],
)
def test_options_of_a_task(words, positional, options):
    assert _task_options(words) == (positional, options)


def test_an_option_of_a_task_without_a_value():
    with pytest.raises(UserError, match="--label needs a value: --label VALUE"):
        _task_options(["photo.png", "--label"])
