"""Insertion into models that are out of the ordinary, and what it refuses."""

import os
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import foveal
from foveal.attention.layers import block_ends
from foveal.errors import UserError
from foveal.models.registry import any_model


def images(n=4, side=16):
    return torch.rand(n, 3, side, side, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("mechanism", ["aw", "se", "cbam"])
@pytest.mark.parametrize("name", ["hattnet", "hattnet_ctx", "soft", "hard", "stn"])
def test_in_our_own_networks_it_runs_and_learns(name, mechanism):
    torch.manual_seed(0)
    model, x, query = foveal.create_model(name).train(), torch.rand(4, 3, 100, 100), torch.tensor([1, 2, 3, 4])
    done = foveal.insert(model, mechanism, start="paper", reduction=2)
    assert not any(site.startswith("gates.") for site in done.sites)
    model(x, query).square().sum().backward()
    assert all(p.grad is not None for p in done.parameters())


def test_a_gate_can_be_named_all_the_same():
    model, x, query = foveal.create_model("hattnet").eval(), torch.rand(2, 3, 100, 100), torch.tensor([1, 2])
    before = model(x, query)
    done = foveal.insert(model, "aw", at="gates.0.score")
    torch.testing.assert_close(model(x, query), before)
    model(x, query).sum().backward()
    assert all(p.grad is not None for p in done.parameters() if p.ndim == 0)


def test_a_convolution_of_its_own_kind_is_refused():
    class Tripled(nn.Conv2d):
        def _conv_forward(self, x, weight, bias):
            return 3 * super()._conv_forward(x, weight, bias)

    with pytest.raises(UserError, match="Tripled computes its convolution in a way of its own"):
        foveal.insert(nn.Sequential(Tripled(3, 8, 3)), "aw", at="0")


@pytest.mark.parametrize("norm", [nn.BatchNorm1d, nn.BatchNorm3d, nn.InstanceNorm1d])
def test_norms_of_other_dimensions_are_no_place_for_gates(norm):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), norm(8))
    with pytest.raises(UserError, match=f"cannot be put on 1 .{norm.__name__}"):
        foveal.insert(model, "se", at="1")
    assert foveal.insert(model, "se").sites == ["0"]


def test_lazy_layers_must_have_run():
    model = nn.Sequential(nn.LazyConv2d(8, 3), nn.LazyBatchNorm2d())
    for mechanism in ("aw", "se", "cbam"):
        with pytest.raises(UserError, match="has no shape yet: run the model once"):
            foveal.insert(model, mechanism, at="0")
    model(images())
    foveal.insert(model, "se", at="1")


def test_a_parametrised_weight_is_computed_once():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(3, 8, 3), parametrizations.spectral_norm(nn.Conv2d(8, 8, 3)))
    other = nn.Sequential(nn.Conv2d(3, 8, 3), parametrizations.spectral_norm(nn.Conv2d(8, 8, 3)))
    other.load_state_dict(plain.state_dict())
    foveal.insert(other, "aw", at="1")
    torch.testing.assert_close(other(images()), plain(images()))
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], value)


def test_ejecting_what_was_parametrised_since_leaves_everything_as_it_is():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3))
    done = foveal.insert(model, "aw", at="*")
    parametrizations.weight_norm(model[1])
    expected = model.eval()(images())
    with pytest.raises(UserError, match=r"1 has become a Parametrized.*undo that first"):
        done.eject()
    torch.testing.assert_close(model(images()), expected)
    torch.nn.utils.parametrize.remove_parametrizations(model[1], "weight")
    done.eject()
    assert type(model[0]) is type(model[1]) is nn.Conv2d


def test_a_spatial_gate_of_one_number_cannot_be_normalised():
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1)).train()
    foveal.insert(model, "cbam", at="1")
    with pytest.raises(UserError, match="train with a batch of at least two"):
        model(images(1, 1))
    assert model(images(2, 1)).shape == (2, 8, 1, 1)


def test_strided_attention_exports_with_open_sizes():
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, stride=2, padding=1)).eval()
    foveal.insert(model, "aw", at="1", start="paper")
    sizes = {2: torch.export.Dim("h", min=8), 3: torch.export.Dim("w", min=8)}
    made = torch.export.export(model, (images(2, 16),), dynamic_shapes=({0: torch.export.Dim("n", min=2), **sizes},))
    x = torch.rand(3, 3, 11, 14)
    torch.testing.assert_close(made.module()(x), model(x), rtol=1e-4, atol=1e-5)


def test_layers_of_several_names_and_layers_called_attached():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3)
            self.alias = self.conv
            self.attached = nn.Sequential(nn.Conv2d(8, 8, 3))

        def forward(self, x):
            return self.attached(self.conv(x))

    model = Odd()
    assert foveal.insert(model, "aw", at="alias").sites == ["alias"]
    assert foveal.insert(model, "aw", at="attached.0").sites == ["attached.0"]
    assert foveal.insert(Odd(), "aw", at=["conv", "alias"]).sites == ["conv"]
    assert model(images()).shape == (4, 8, 12, 12)


@pytest.mark.parametrize("options", [{}, {"share_in": 2}])
def test_an_empty_batch(options):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)).eval()
    foveal.insert(model, "aw", at="1", **options)
    assert model(images(0)).shape == (0, 8, 12, 12)


def test_sharing_along_the_batch():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3)).eval()
    foveal.insert(model, "aw", at="0", start="paper", share_batch=2)
    attention = model[0].attached["aw"]
    shared = attention.attend(images())
    attention.share_batch = 1
    own = attention.attend(images())
    expected = torch.stack([own[:2].mean(0), own[:2].mean(0), own[2:].mean(0), own[2:].mean(0)])
    torch.testing.assert_close(shared, expected)
    attention.share_batch = 3
    with pytest.raises(UserError, match="share_batch=3 does not divide a batch of 4"):
        model(images())


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda m: foveal.insert(m, "se", reductoin=4), "unknown key 'reductoin'; did you mean 'reduction'"),
        (lambda m: foveal.insert(m, "se", at=3), "at must be a name"),
        (lambda m: foveal.insert(m, "se", at=[0]), "at must be a name"),
        (lambda m: foveal.insert("resnet50", "se"), "model must be a torch.nn.Module, got str"),
    ],
)
def test_what_makes_no_sense(call, said):
    with pytest.raises(UserError, match=said):
        call(nn.Sequential(nn.Conv2d(3, 8, 3)))


def test_a_detector_of_torchvision_is_built_without_fetching_weights(monkeypatch):
    def fetch(*_, **__):
        raise AssertionError("weights were fetched")

    monkeypatch.setattr("torch.hub.load_state_dict_from_url", fetch)
    assert any_model("lraspp_mobilenet_v3_large", num_classes=2) is not None


def test_a_module_of_ones_own_is_found_by_the_command_line(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from foveal.attention import Gate, register_mechanism\n"
        "@register_mechanism('mine')\n"
        "class Mine(Gate):\n"
        '    """Mine."""\n'
        "    kind = 'channel'\n"
    )
    code = "import foveal; print('mine' in foveal.mechanisms())"
    around = {**os.environ, "PYTHONPATH": str(tmp_path), "FOVEAL_PLUGINS": "mine"}
    words = [sys.executable, "-c", code]
    assert subprocess.run(words, env=around, capture_output=True, text=True, check=True).stdout == "True\n"
    around["FOVEAL_PLUGINS"] = "nowhere"
    failed = subprocess.run(words, env=around, capture_output=True, text=True, check=False)
    assert "FOVEAL_PLUGINS: nowhere cannot be imported" in failed.stderr


@pytest.mark.parametrize(
    ("name", "count", "first", "last"),
    [
        ("mobilenet_v2", 18, "features.1.conv.0.1", "features.17.conv.3"),
        ("mobilenetv2_100", 18, "blocks.0.0.bn1", "blocks.6.0.bn3"),
        ("regnetx_002", 13, "s1.b1.conv3.bn", "s4.b7.conv3.bn"),
        ("regnet_x_400mf", 22, "trunk_output.block1.block1-0.f.c.1", "trunk_output.block4.block4-11.f.c.1"),
        ("vgg11_bn", 8, "features.1", "features.26"),
        ("squeezenet1_0", 25, "features.0", "features.12.expand3x3"),
    ],
)
def test_gates_go_to_the_ends_of_blocks_however_these_are_built(name, count, first, last):
    found = block_ends(any_model(name))
    assert (len(found), found[0], found[-1]) == (count, first, last)
