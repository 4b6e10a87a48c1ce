"""The models that come with foveal."""

import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

import foveal
from foveal.recipe import load
from foveal.runs import RunFolder
from foveal.runs.folder import comparable
from foveal.runs.zoo import cards, model_folder
from foveal.tasks import evaluate


@pytest.mark.parametrize("name", cards())
def test_a_model_is_what_its_card_says(name):
    card, folder = cards()[name], RunFolder(model_folder(name))
    model = foveal.load(name)
    assert not model.training
    assert card.parameters == sum(p.numel() for p in model.parameters())
    assert comparable(folder.recipe()) == comparable(load(card.recipe)), "train it anew and pack it"
    assert card.licence
    assert not card.revision.endswith("-dirty")
    assert {tensor.dtype for tensor in load_file(folder.file("weights.safetensors")).values()} <= {
        torch.float16,
        torch.int64,
    }
    assert sum(file.stat().st_size for file in folder.path.iterdir()) < 500_000


@pytest.mark.slow
@pytest.mark.parametrize("name", cards())
def test_the_metrics_of_the_card_are_measured_again(name, real_data):
    metrics = evaluate(name, data=real_data)["metrics"]
    assert {key: metrics[key] for key in cards()[name].metrics} == pytest.approx(cards()[name].metrics, abs=2e-3)


def test_it_is_listed_without_importing_pytorch():
    code = (
        "import sys; from foveal.cli.catalogue import listed; print(listed('zoo')); assert 'torch' not in sys.modules"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert all(name in ran.stdout for name in cards())
