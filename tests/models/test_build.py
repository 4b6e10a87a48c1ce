"""The model of a recipe, of foveal, timm or torchvision, with attention and weights put in."""

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from small_detector import small_detector

import foveal
from foveal.errors import UserError
from foveal.models.build import build_model, find_checkpoint, insert_all
from foveal.models.registry import any_model

CLASSES = {"num_classes": 7}
CIFAR = {"name": "cifar_resnet20", "depth": 8, "width": 4}


@pytest.mark.parametrize(
    ("section", "sites"),
    [
        ({"name": "resnet18", "insert": "aw"}, 16),  # of timm; the convolutions of the shortcuts are 1×1
        ({"name": "squeezenet1_0", "insert": ["se"]}, 16),  # of torchvision; both halves of a block's output
        ({"name": "cifar_resnet20", "depth": 8, "insert": [{"mechanism": "aw", "at": "layer3.*.conv*"}, "cbam"]}, 5),
        ({"name": "resnet18"}, 0),
        ({"name": "resnet18", "insert": []}, 0),
    ],
)
def test_attention_in_any_model(section, sites):
    model = build_model(section, CLASSES)
    attached = [name for name, _ in model.named_modules() if re.search(r"\.attached\.\w+$", name)]
    assert model(torch.rand(2, 3, 32, 32)).shape == (2, 7)
    assert len(attached) == sites


def test_options_reach_the_mechanism():
    model = any_model("cifar_resnet20")
    insert_all(model, [{"mechanism": "se", "at": ["layer1.*.bn2"], "start": "paper", "reduction": 2}])
    assert model.layer1[2].bn2.attached["se"].squeeze.out_features == 8
    assert model.layer1[2].bn2.attached["se"].blend.amount is None
    assert not hasattr(model.layer2[0].bn2, "attached")


def test_a_model_gets_the_sizes_that_it_takes():
    """``soft`` takes no image size, ``stn`` does; a foreign model takes the number of classes alone."""
    sizes = {"queries": 3, "classes": 4, "image_size": 40}
    for name in ("soft", "stn"):
        model = build_model({"name": name, "channels": 4, "stages": 2}, sizes)
        assert model(torch.rand(2, 3, 40, 40), torch.tensor([0, 2])).shape == (2, 4)
    assert build_model({"name": "resnet18"}, {**CLASSES, "vocabulary": 9}).fc.out_features == 7


def test_attention_in_a_model_of_another_task():
    model = build_model({"name": "soft", "insert": [{"mechanism": "se", "at": "stages.*.conv"}]}, {"classes": 4})
    assert hasattr(model.stages[0].conv, "attached")


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"insert": "sse"}, r"model\.insert\[0\]: unknown mechanism 'sse'; did you mean 'se'"),
        ({"insert": ["se", "sse"]}, r"model\.insert\[1\]"),
        ({"insert": [{"at": "layer1.*"}]}, r"model\.insert\[0\]: expected .*mechanism: NAME"),
        ({"insert": 3}, r"model\.insert\[0\]: expected the name of a mechanism"),
        ({"insert": [{"mechanism": "se", "at": 3}]}, r"model\.insert\[0\]\.at: expected a glob on layer names"),
        (
            {"insert": [{"mechanism": "se", "at": "layer9.*.bn2"}]},
            r"model\.insert\[0\]: unknown layer 'layer9\.\*\.bn2'",
        ),
        ({"insert": [{"mechanism": "se", "at": "layer1.0.bn1", "reductoin": 3}]}, "did you mean 'reduction'"),
        ({"insert": [{"mechanism": "se", "model": 3}]}, r"model\.insert\[0\]: "),
        ({"name": "aw_cifar_resnet20", "insert": "aw"}, r"model\.insert\[0\]: layer1\.0\.conv1 has 'aw' already"),
        ({"num_classes": 3}, r"model\.num_classes comes from the data"),
        ({"name": "resnet81"}, "unknown model 'resnet81'; did you mean"),
        ({"name": "resnet18", "nonsense": 3}, "model resnet18: "),
        ({"wdith": 4}, "did you mean 'width'"),
        ({"checkpoint": "gone.safetensors"}, r"model\.checkpoint: .*gone\.safetensors.*model\.checkpoint=null"),
    ],
)
def test_mistakes(section, message):
    with pytest.raises(UserError, match=message) as caught:
        build_model({"name": "cifar_resnet20", **section}, CLASSES)
    assert "\n" not in str(caught.value)


def test_models_of_another_task_are_refused():
    sizes = {"vocabulary": 5, "classes": 2}
    with pytest.raises(UserError, match=r"model soft .* use .*hatt"):
        build_model({"name": "soft"}, sizes, needs=("vocabulary",))
    with pytest.raises(UserError, match=r"model resnet18 .* use .*hatt"):
        build_model({"name": "resnet18"}, sizes, needs=("vocabulary",))
    with pytest.raises(UserError, match="unknown model 'hat'; did you mean 'hatt'"):
        build_model({"name": "hat"}, sizes, needs=("vocabulary",))


# Pretrained weights ---------------------------------------------------------------------------------------------------


@pytest.fixture
def weights(tmp_path):
    """Weights of a plain network for other classes."""
    state = foveal.create_model("cifar_resnet20", depth=8, width=4, num_classes=3).state_dict()
    save_file(state, tmp_path / "plain.safetensors")
    return state


@pytest.mark.parametrize("extra", [{}, {"insert": "se"}, {"name": "aw_se_cifar_resnet20", "start": "identity"}])
def test_a_model_starts_from_a_checkpoint(weights, tmp_path, extra):
    section = {**CIFAR, **extra, "checkpoint": "plain.safetensors"}
    model = build_model(section, CLASSES, root=tmp_path)
    own = model.state_dict()
    assert all(torch.equal(own[name], value) for name, value in weights.items() if not name.startswith("fc."))
    assert own["fc.weight"].shape[0] == 7


def test_weights_that_are_loaded_next_need_no_checkpoint():
    model = build_model({**CIFAR, "checkpoint": "gone.safetensors"}, CLASSES, trained=True)
    assert model.fc.out_features == 7
    other = build_model({"name": "resnet18", "pretrained": True}, CLASSES, trained=True)
    assert other.fc.out_features == 7


def test_a_checkpoint_that_does_not_fit(tmp_path):
    save_file(foveal.create_model("cifar_resnet20", depth=8, width=8).state_dict(), tmp_path / "wide.safetensors")
    with pytest.raises(UserError, match=r"model\.checkpoint: .*wide\.safetensors does not fit .*conv1"):
        build_model({**CIFAR, "checkpoint": str(tmp_path / "wide.safetensors")}, CLASSES)


def test_where_a_checkpoint_is_looked_for(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.safetensors").write_bytes(b"")
    monkeypatch.chdir(tmp_path / "here")
    assert find_checkpoint("a.safetensors", tmp_path / "data") == tmp_path / "data" / "a.safetensors"
    (tmp_path / "here" / "a.safetensors").write_bytes(b"")
    assert find_checkpoint("a.safetensors", tmp_path / "data") == Path("a.safetensors")
    assert find_checkpoint(str(tmp_path / "data" / "a.safetensors"), None).is_file()
    with pytest.raises(UserError, match=rf"b\.safetensors or {tmp_path}/data/b\.safetensors"):
        find_checkpoint("b.safetensors", tmp_path / "data")


def test_a_mechanism_of_the_heads_goes_into_the_heads():
    model = small_detector()
    insert_all(model, ["se", {"mechanism": "focused", "key_channels": 8}])
    attached = [name for name, _ in model.named_modules() if re.search(r"\.attached\.\w+$", name)]
    assert [name for name in attached if name.endswith("focused")] == [
        "roi_heads.box_roi_pool.attached.focused",
        "roi_heads.box_head.attached.focused",
    ]
    assert all(name.startswith("backbone.") for name in attached if name.endswith(".se"))
