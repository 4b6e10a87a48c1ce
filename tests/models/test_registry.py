"""Networks by name: foveal's own, and those of timm and torchvision."""

import pytest
import timm
import torch
from torch import nn

import foveal
from foveal.errors import UnknownNameError, UserError
from foveal.models import registry
from foveal.models.registry import any_model

REFERENCE = ["hard", "hattnet", "hattnet_ctx", "soft", "stn"]


def test_list_models_takes_a_glob():
    assert set(REFERENCE) <= set(foveal.list_models())
    assert foveal.list_models("s*") == sorted(n for n in foveal.list_models() if n.startswith("s"))
    assert foveal.list_models("s?ft") == ["soft"]
    assert foveal.list_models("nothing*") == []


@pytest.mark.parametrize("name", REFERENCE)
def test_every_model_is_known_to_timm_and_has_a_summary(name):
    assert timm.is_model(name)
    assert len(registry.summary(name)) > 10


def test_unknown_model():
    with pytest.raises(UnknownNameError, match="unknown model 'hatnet_ctx'; did you mean 'hattnet_ctx'"):
        foveal.create_model("hatnet_ctx")


@pytest.mark.parametrize("create", [foveal.create_model, timm.create_model])
def test_unknown_options_name_a_close_match(create):
    with pytest.raises(UserError, match="model hattnet: unknown key 'drop_out'; did you mean 'dropout'"):
        create("hattnet", drop_out=0.1)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("hattnet", {"channels": "many"}, r"model hattnet\.channels: expected a whole number, got 'many'"),
        ("hattnet", {"dropout": True}, r"model hattnet\.dropout: expected a number, got True"),
        ("soft", {"attend": "firm"}, r"model soft\.attend: expected one of soft, hard, got 'firm'"),
        ("hard", {"predict": "sample"}, r"model hard\.predict: expected one of marginal, argmax"),
        ("stn", {"context": 3}, "model stn: unknown key 'context'"),
        ("hattnet", {"self": 1}, "model hattnet: unknown key 'self'"),
    ],
)
def test_wrong_options(name, options, message):
    with pytest.raises(UserError, match=message):
        foveal.create_model(name, **options)


def test_options_override_what_the_name_stands_for():
    assert foveal.create_model("soft", attend="hard").attend == "hard"
    assert foveal.create_model("hattnet", context=5).gates["0"].features.kernel_size == (5, 5)


@pytest.mark.parametrize("name", REFERENCE)
def test_no_pretrained_weights(name):
    with pytest.raises(UserError, match=f"no pretrained weights are published for {name}; train it"):
        timm.create_model(name, pretrained=True)


def test_accepts():
    assert registry.accepts("stn", "image_size")
    assert not registry.accepts("soft", "image_size")
    assert not registry.accepts("nothing", "image_size")


def test_a_new_model_can_be_registered(monkeypatch):
    monkeypatch.setattr(registry, "_MODELS", dict(registry._MODELS))

    class Tiny(nn.Module):
        def __init__(self, channels: int = 3):
            super().__init__()
            self.conv = nn.Conv2d(channels, 1, 1)

    @registry.register(Tiny)
    def tiny_for_test(**options):
        """A tiny network.

        More about it.
        """
        return Tiny(**options)

    assert foveal.create_model("tiny_for_test", channels=7).conv.in_channels == 7
    assert timm.create_model("tiny_for_test", channels=8).conv.in_channels == 8
    assert registry.summary("tiny_for_test") == "A tiny network."
    with pytest.raises(UserError, match="did you mean 'channels'"):
        foveal.create_model("tiny_for_test", chanels=7)


@pytest.mark.parametrize("name", ["cifar_resnet20", "resnet18", "resnet18.a1_in1k", "squeezenet1_1"])
def test_models_of_foveal_timm_and_torchvision(name):
    model = any_model(name, num_classes=7).eval()
    assert model(torch.rand(1, 3, 32, 32)).shape == (1, 7)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet81", {}, "unknown model 'resnet81'; did you mean"),
        ("resnet18", {"depth": 3}, "model resnet18: .*unexpected keyword argument 'depth'"),
        ("squeezenet1_1", {"depth": 3}, "model squeezenet1_1: .*unexpected keyword argument 'depth'"),
        ("cifar_resnet20", {"detph": 3}, "did you mean 'depth'"),
    ],
)
def test_mistakes_with_any_model(name, options, message):
    with pytest.raises(UserError, match=message):
        any_model(name, **options)
