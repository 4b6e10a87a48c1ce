import csv
import json
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import pytest
from PIL import Image
from tiny import write_recipe

from foveal import cli
from foveal.errors import UserError
from foveal.recipe import load
from foveal.tasks import fit
from foveal.tasks.reproduce import cells


def call(monkeypatch, capsys, *words: object) -> tuple[int, str, str]:
    """Run the command line in this process; exit status, what it printed and what it complained."""
    monkeypatch.setattr(sys, "argv", ["foveal", *map(str, words)])
    try:
        cli.main()
        status = 0
    except SystemExit as stop:
        status = stop.code or 0
    said = capsys.readouterr()
    return status, said.out, said.err


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    fit(load(write_recipe(folder)), folder / "run", progress=False)
    return folder / "run"


def test_help_does_not_import_torch():
    code = """if True:
        import sys
        sys.argv = ["foveal", "--help"]
        from foveal.cli import main
        try:
            main()
        except SystemExit:
            pass
        loaded = {"torch", "lightning", "torchvision", "matplotlib", "timm", "numpy"} & set(sys.modules)
        assert not loaded, loaded
    """
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    for command in ("demo", "list", "train", "test", "predict", "see", "reproduce", "data", "bench"):
        assert command in ran.stdout


def test_list(monkeypatch, capsys):
    status, out, _ = call(monkeypatch, capsys, "list")
    assert status == 0
    for name in ("hattnet/mref-hattnet-ctx", "hattnet/table1", "hattnet_ctx", "mdist", "aw/cifar10", "cifar_resnet20"):
        assert name in out
    status, _, err = call(monkeypatch, capsys, "list", "modles")
    assert (status, "did you mean 'models'" in err) == (2, True)


def test_train_test_see(monkeypatch, capsys, tmp_path):
    out = tmp_path / "a run"
    status, said, _ = call(monkeypatch, capsys, "train", write_recipe(tmp_path), "train.epochs=1", "--out", out)
    assert status == 0
    assert "accuracy" in said
    status, again, _ = call(monkeypatch, capsys, "train", out)
    assert status == 0
    assert "finished already" in again
    status, tested, _ = call(monkeypatch, capsys, "test", out)
    assert status == 0
    assert "true_positive_strength" in tested
    status, seen, _ = call(monkeypatch, capsys, "see", out)
    assert status == 0
    assert "report.html" in seen
    assert "<html" in (out / "report.html").read_text()[:200]


def test_predict(monkeypatch, capsys, run, tmp_path):
    image = tmp_path / "scene.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (50, 60, 3), dtype=np.uint8)).save(image)
    picture = tmp_path / "out.png"
    status, out, _ = call(monkeypatch, capsys, "predict", run, image, "7", "--out", picture)
    assert status == 0
    assert any(colour in out for colour in ("green", "yellow", "white", "red", "blue"))
    width = Image.open(picture).width
    assert width > 300
    other = shutil.copytree(run, tmp_path / "other")
    words = ("predict", run, image, "7", "--beside", other, "--label", "red", "--out", picture)
    status, out, _ = call(monkeypatch, capsys, *words)
    assert status == 0
    assert out.count("  true\n") == 2
    assert Image.open(picture).width > width + 200  # the gates of both


@pytest.fixture(scope="module")
def classifiers(tmp_path_factory):
    """Two classifiers, of which only the first has attention over positions."""
    folder = tmp_path_factory.mktemp("classifiers")
    small = ["data.size=8", "model.width=4", "train.epochs=1", "train.batch=200"]
    for name in ("aw_cbam", "aw_se"):
        recipe = load("demo/classify", [*small, f"model.name={name}_cifar_resnet20"])
        fit(recipe, folder / name, progress=False)
    return folder


def test_predict_a_class(monkeypatch, capsys, classifiers, tmp_path):
    monkeypatch.chdir(tmp_path)
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (50, 60, 3), dtype=np.uint8)).save("photo.png")
    status, out, _ = call(monkeypatch, capsys, "predict", classifiers / "aw_cbam", "photo.png")
    assert status == 0
    lines = out.splitlines()
    assert [line.split()[0] in "0123456789" for line in lines[:5]] == [True] * 5
    assert "%" in lines[4]
    assert lines[5].startswith("Where it looked: ")
    assert Image.open("photo-seen.png").size[0] > 600
    status, out, _ = call(monkeypatch, capsys, "predict", classifiers / "aw_se", "photo.png", "--out", "none.png")
    assert status == 0
    assert "No picture: this model has no attention over positions." in out
    status, _, err = call(monkeypatch, capsys, "predict", classifiers / "aw_se", "photo.png", "7")
    assert status == 2
    assert "classifies whole images; leave '7' out" in err


def test_predict_beside_another_run(monkeypatch, capsys, classifiers, tmp_path):
    Image.new("RGB", (40, 40), (90, 20, 200)).save(tmp_path / "photo.png")
    words = (tmp_path / "photo.png", "--beside", classifiers / "aw_se", "--label", "3", "--out", tmp_path / "x.png")
    status, out, _ = call(monkeypatch, capsys, "predict", classifiers / "aw_cbam", *words)
    assert status == 0
    lines = out.splitlines()
    assert lines[0] == str(classifiers / "aw_cbam")  # both recipes have the same title
    assert lines[6] == str(classifiers / "aw_se")
    for line in lines[1:6] + lines[7:12]:
        assert line.endswith("  true") == line.startswith("3 ")
    assert (tmp_path / "x.png").exists()
    status, _, err = call(monkeypatch, capsys, "predict", classifiers / "aw_se", words[0], "--label", "33")
    assert status == 2
    assert "unknown class '33'; did you mean '3'?" in err


def test_predict_needs_a_query_where_the_model_does(monkeypatch, capsys, run, tmp_path):
    Image.new("RGB", (40, 40)).save(tmp_path / "x.png")
    status, _, err = call(monkeypatch, capsys, "predict", run, tmp_path / "x.png")
    assert status == 2
    assert "say what to ask for after the image: 0, 1, 2, 3, 4 or another of 10" in err


def test_what_is_finished_of_a_table_is_shown_and_nothing_is_run(monkeypatch, capsys, tmp_path):
    cell = cells("hattnet/table1", 1, tmp_path)[3]
    cell.out.mkdir(parents=True)
    result = {"metrics": {"accuracy": 0.4321}, "parameters": 7, "epochs": 2, "seconds": 3.0, "embedded": False}
    result |= {"title": "T", "dataset": "D", "data": "digits"}
    (cell.out / "result.json").write_text(json.dumps(result))
    (cell.out / "environment.json").write_text(json.dumps({"gpu": None, "packages": {"torch": "2"}}))
    monkeypatch.setattr("foveal.see.report", lambda folder: folder / "report.html")
    words = ("reproduce", "hattnet/table1", "--seeds", 2, "--out", tmp_path, "--csv", tmp_path / "x.csv", "--finished")
    status, out, _ = call(monkeypatch, capsys, *words)
    assert status == 0
    assert "30 runs, 1 finished before" in out
    assert "43.21" in out
    rows = list(csv.DictReader((tmp_path / "x.csv").open()))
    assert [(row["recipe"], row["run_seeds"]) for row in rows] == [(cell.recipe.name, "0")]
    assert [path.parent for path in tmp_path.rglob("result.json")] == [cell.out]


def test_a_table_without_its_data_is_one_line(monkeypatch, capsys, tmp_path):
    monkeypatch.delenv("FOVEAL_DATA", raising=False)
    status, out, err = call(monkeypatch, capsys, "reproduce", "hattnet/table1", "--out", tmp_path)
    assert status == 2
    assert out == "hattnet/table1: 15 runs, 0 finished before\n"
    assert "needs the official MNIST files" in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("problem", "status"), [(UserError("mistake"), 2), (ValueError("bug"), 1)])
def test_runs_that_fail_by_a_mistake_are_status_2(monkeypatch, capsys, tmp_path, problem, status):
    def fit(*args, **options):
        raise problem if "soft" in str(args) else UserError("mistake")

    monkeypatch.setattr("foveal.tasks.reproduce.fit", fit)
    found, _, err = call(monkeypatch, capsys, "demo", "--jobs", 1, "--out", tmp_path)
    assert found == status
    assert "5 run(s) failed; the first: demo/" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "hattnet/mref-sfot"], "unknown recipe 'hattnet/mref-sfot'; did you mean 'hattnet/mref-soft'"),
        (["train", "hattnet/mref-soft", "train.epoch=3"], "did you mean 'epochs'"),
        (["train", "hattnet/mref-soft", "nonsense"], "expected key=value"),
        (["train", "nowhere.yaml"], "no such recipe file"),
        (["test", "nowhere"], "not a run folder"),
        (["see", "nowhere"], "nowhere"),
        (["sites", "RESNET50"], "unknown model 'RESNET50'; did you mean 'resnet50'"),
        (["sites", "resnet18", "--mechanism", "SE"], "unknown mechanism 'SE'; did you mean 'se'"),
        (["data", "mreff"], "did you mean 'mref'"),
        (["reproduce", "hattnet/table9"], "unknown table 'hattnet/table9'"),
        (["reproduce", "hattnet/table1", "--seeds", "0"], "expected at least one"),
        (["reproduce", "hattnet/table1", "--finished", "--out", "nowhere"], "no run of hattnet/table1"),
        (["bench", "referense"], "did you mean 'reference'"),
        (["data", "--data", "/nowhere/at/all"], "does not exist"),
    ],
)
def test_mistakes_are_one_line_and_status_2(monkeypatch, capsys, words, said):
    status, _, err = call(monkeypatch, capsys, *words)
    assert status == 2
    assert said in err
    assert err.count("\n") == 1
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("image", "query", "said"),
    [
        ("missing.png", "3", "no such image file"),
        ("broken.jpg", "3", "cannot be read as an image"),
        ("empty.png", "3", "cannot be read as an image"),
        ("good.png", "11", "unknown query '11'"),
        ("good.png", "-1", "unknown query '-1'; did you mean '1'"),
        ("good.png", "three", "unknown query 'three'; known: 0, 1, 2"),
    ],
)
def test_predict_mistakes(monkeypatch, capsys, run, tmp_path, image, query, said):
    Image.new("RGB", (40, 40)).save(tmp_path / "good.png")
    Image.new("RGB", (400, 400)).save(tmp_path / "whole.jpg")
    (tmp_path / "broken.jpg").write_bytes((tmp_path / "whole.jpg").read_bytes()[:200])
    (tmp_path / "empty.png").write_bytes(b"")
    status, _, err = call(monkeypatch, capsys, "predict", run, tmp_path / image, query, "--out", tmp_path / "x.png")
    assert status == 2
    assert said in err
    assert err.count("\n") == 1
    assert not (tmp_path / "x.png").exists()


def test_unfinished_run(monkeypatch, capsys, run, tmp_path):
    (tmp_path / "recipe.yaml").write_text((run / "recipe.yaml").read_text())
    status, _, err = call(monkeypatch, capsys, "test", tmp_path)
    assert status == 2
    assert "is the run finished?" in err


def test_testing_a_run_that_cannot_be_written_shows_the_result(monkeypatch, capsys, run):
    plain = tempfile.mkstemp

    def mkstemp(*args, **options):
        if options.get("dir") == run:
            raise PermissionError(13, "Permission denied")
        return plain(*args, **options)

    monkeypatch.setattr(tempfile, "mkstemp", mkstemp)
    status, out, err = call(monkeypatch, capsys, "test", run)
    assert status == 2
    assert "true_positive_strength" in out
    assert "Everything is in" not in out
    assert err.count("\n") == 1
    assert "samples.safetensors: Permission denied" in err
    assert err.endswith(f"make the folder writable, then test again with: foveal test {run}\n")


def test_weights_that_do_not_fit(monkeypatch, capsys, run, tmp_path):
    for name in ("recipe.yaml", "weights.safetensors"):
        (tmp_path / name).write_bytes((run / name).read_bytes())
    recipe = (tmp_path / "recipe.yaml").read_text()
    (tmp_path / "recipe.yaml").write_text(recipe.replace("channels: 4", "channels: 5"))
    Image.new("RGB", (40, 40)).save(tmp_path / "x.png")
    status, _, err = call(monkeypatch, capsys, "predict", tmp_path, tmp_path / "x.png", "1")
    assert status == 2
    assert "does not fit" in err


def test_brackets_in_a_path_are_no_markup(monkeypatch, capsys, tmp_path):
    (tmp_path / "[red]x").mkdir()
    status, out, _ = call(monkeypatch, capsys, "data", "mref", "--data", tmp_path / "[red]x")
    assert status == 0
    assert str(tmp_path / "[red]x") in out


def test_data_says_what_is_missing(monkeypatch, capsys, tmp_path):
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "train-images-idx3-ubyte.gz").write_bytes(b"")
    status, out, _ = call(monkeypatch, capsys, "data", "mref", "--data", tmp_path)
    assert status == 0
    assert "missing" in out
    assert "✓ mnist/train-images-idx3-ubyte*" in out
    assert "– mnist/t10k-images-idx3-ubyte*" in out
