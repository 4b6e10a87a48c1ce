"""A finished run becomes a model that comes with foveal."""

from __future__ import annotations

from pathlib import Path

import pack
import pytest
import torch
from PIL import Image
from tiny import tiny_recipe
from typer.testing import CliRunner

import foveal
from foveal.cli import app
from foveal.errors import RunError
from foveal.runs import zoo
from foveal.tasks import evaluate, fit, load_model


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A finished run, packed as ``tiny_model``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(zoo, "ZOO", tmp_path / "zoo")
    monkeypatch.setenv("FOVEAL_REVISION", "abc")
    zoo.cards.cache_clear()
    fit(tiny_recipe(tmp_path, "train.epochs=1"), tmp_path / "run", progress=False)
    pack.pack(tmp_path / "run", "tiny_model", about="What colour is the digit?", licence="none")
    zoo.cards.cache_clear()
    yield tmp_path / "run"
    zoo.cards.cache_clear()


def test_a_packed_run_is_known_by_its_name(run: Path) -> None:
    image, query = torch.rand(2, 3, 30, 30), torch.tensor([3, 4])
    model = foveal.load("tiny_model")
    torch.testing.assert_close(model(image, query), foveal.load(run)(image, query), rtol=0.01, atol=0.01)
    card = zoo.cards()["tiny_model"]
    assert (card.title, card.revision, card.licence, card.hardware) == ("tiny", "abc", "none", "CPU")
    assert card.parameters == sum(p.numel() for p in model.parameters())
    before = sorted((file, file.stat().st_mtime_ns) for file in zoo.model_folder("tiny_model").iterdir())
    assert evaluate("tiny_model")["metrics"]["accuracy"] == pytest.approx(card.metrics["accuracy"], abs=1e-4)
    assert sorted((file, file.stat().st_mtime_ns) for file in zoo.model_folder("tiny_model").iterdir()) == before

    listed = CliRunner().invoke(app, ["list", "zoo"]).output
    assert "tiny_model  What colour is the digit? Trained on MREF" in listed
    Image.new("RGB", (60, 40)).save("picture.png")
    asked = CliRunner().invoke(app, ["predict", "tiny_model", "picture.png", "3"])
    assert asked.exit_code == 0, asked.output
    assert Path("picture-3.png").exists()


def test_a_folder_of_ones_own_comes_first(run: Path) -> None:
    run.rename(run.with_name("tiny_model"))
    stored = torch.load(Path("tiny_model/best.ckpt"), weights_only=True)["state_dict"]
    name, tensor = next(iter(load_model("tiny_model")[0].state_dict().items()))
    assert torch.equal(tensor, stored[f"model.{name}"])  # not rounded to float16


def test_an_unknown_name_lists_what_there_is(run: Path) -> None:
    with pytest.raises(RunError, match=r"there is no run folder tiny_modle; models that come with foveal: tiny_model"):
        foveal.load("tiny_modle")
