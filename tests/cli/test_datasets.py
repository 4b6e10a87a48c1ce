"""Commands on datasets: foveal data, foveal data NAME, foveal data check NAME."""

import pytest
from PIL import Image

from foveal import registry
from foveal.cli.terminal import console
from foveal.data import Entry, dataset, datasets, register_data
from foveal.data.problems import Problem
from foveal.registry import Registry


def test_all_datasets(call, monkeypatch):
    monkeypatch.delenv("FOVEAL_DATA", raising=False)
    status, out, _ = call("data")
    assert status == 0
    assert out.startswith("No data folder: set FOVEAL_DATA or --data")
    for name, entry in datasets().items():
        assert f"{name} {'there' if entry.place is None else 'missing'}" in out


def test_one_dataset(call):
    status, out, _ = call("data", "digits")
    assert status == 0
    assert "digits there" in out
    assert "mref" not in out


@pytest.mark.parametrize("words", [("data", "mref", "--data"), ("data", "--data"), ("data", "show", "mref", "--data")])
def test_brackets_in_a_path_are_no_markup(call, tmp_path, words):
    (tmp_path / "[red]x").mkdir()
    status, out, _ = call(*words, tmp_path / "[red]x")
    assert status == 0
    assert str(tmp_path / "[red]x") in out


def test_what_is_missing(call, tmp_path):
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "train-images-idx3-ubyte.gz").write_bytes(b"")
    status, out, _ = call("data", "mref", "--data", tmp_path)
    assert status == 0
    assert "missing" in out
    assert f"✓ {tmp_path}/mnist/train-images-idx3-ubyte" in out
    assert f"– {tmp_path}/mnist/t10k-images-idx3-ubyte" in out
    assert dataset("mref").status(tmp_path).how in out


def test_a_folder_called_check(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "check").mkdir()
    status, out, _ = call("data", "--data", "check", "digits")
    assert status == 0
    assert "digits there" in out


def test_help_names_both_uses(call):
    status, out, _ = call("data", "--help")
    assert status == 0
    assert "foveal data [NAME]" in out
    assert "foveal data check NAME" in out


# Check ------------------------------------------------------------------------------------------------------


def test_check_data_that_needs_no_files(call):
    assert call("data", "check", "digits") == (0, "digits: every file could be read\n", "")


@pytest.fixture
def birds(tmp_path):
    """Class folders with two images each."""
    for split in ("train", "test"):
        for name in ("crow", "gull"):
            folder = tmp_path / "birds" / split / name
            folder.mkdir(parents=True)
            for number in range(2):
                Image.new("RGB", (8, 8), (40 * number, 90, 20)).save(folder / f"{number}.png")
    return tmp_path


def test_check_every_file(call, birds):
    words = ("data", "check", "imagefolder", "folder=birds", "--data", birds)
    assert call(*words) == (0, "imagefolder: every file could be read\n", "")
    damaged = [birds / "birds" / "train" / "crow" / "0.png", birds / "birds" / "test" / "gull" / "1.png"]
    for path in damaged:
        path.write_bytes(b"no image")
    status, out, err = call(*words)
    assert status == 2
    assert [line for line in out.splitlines() if not line.startswith("  ")] == []
    assert all(str(path) in out for path in damaged)
    assert "imagefolder: 2 problem(s) found" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("option", ["folder=birds", "data.folder=birds"])
def test_options_as_in_a_recipe(call, birds, option):
    assert call("data", "check", "imagefolder", option, "--data", birds).status == 0


def test_a_dataset_that_is_missing(call, tmp_path):
    status, out, err = call("data", "check", "cifar10", "--data", tmp_path)
    assert status == 2
    assert "cifar" in out
    assert "cifar10: 1 problem(s) found" in err


def test_remarks_do_not_fail(call, monkeypatch):
    def check(options, root, progress):
        for number in progress(range(3), description="reading", total=3):
            yield Problem(f"[file {number}] looks odd", stops=False)

    digits = dataset("digits")
    monkeypatch.setattr(registry, "datasets", Registry("dataset"))
    register_data(Entry("odd", "for a test", digits.options, digits.build, check=check))
    status, out, err = call("data", "check", "odd")
    assert (status, err) == (0, "")
    assert "  remark: [file 0] looks odd\n" in out
    assert "odd: every file could be read; 3 remark(s)" in out


def test_a_progress_bar_in_a_terminal(call, birds, monkeypatch):
    monkeypatch.setattr(console, "is_interactive", True)
    monkeypatch.setattr(console, "_force_terminal", True)
    status, out, _ = call("data", "check", "imagefolder", "folder=birds", "--data", birds)
    assert status == 0
    assert "━" in out
    assert "imagefolder: every file could be read" in out
