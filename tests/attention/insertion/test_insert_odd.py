"""Insertion into models that are out of the ordinary, and what it refuses."""

import numpy
import pytest
import timm.layers
import torch
from small_net import tree
from torch import nn
from torch.nn.utils import parametrizations

import foveal
from foveal.attention import reattach
from foveal.attention.insertion.layers import block_ends
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

    with pytest.raises(UserError, match="Tripled has a convolution of its own"):
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


@pytest.mark.parametrize("convert", [nn.SyncBatchNorm.convert_sync_batchnorm, timm.layers.convert_sync_batchnorm])
@pytest.mark.parametrize("again", [True, False])
def test_ejecting_from_norms_that_took_the_place_of_others(convert, again):
    def result():
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8))

    model, plain = result(), convert(result())
    dones = [foveal.insert(model, "se", at=["1", "3"]), foveal.insert(model, "cbam", at="1")]
    model = convert(model)
    if again:
        reattach(model)
    parameters = dones[0].parameters()
    assert {id(p) for p in parameters} <= {id(p) for p in model.parameters()}
    dones[0].eject()
    assert list(model[1].attached) == ["cbam"]
    dones[1].eject()
    assert tree(model) == tree(plain)
    assert repr(model) == repr(plain)
    assert type(model[1]) is type(plain[1])
    assert dones[0].parameters() == []
    assert foveal.insert(model, "se", at="1").sites == ["1"]


@pytest.mark.parametrize("mechanism", ["aw", "se", "cbam"])
def test_a_layer_with_a_forward_of_its_own_would_never_run_it(mechanism):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3))
    model[1].forward = lambda x: 2 * x
    before = tree(model)
    with pytest.raises(UserError, match=r"1 \(Conv2d\) has been replaced.*insert before that is done, or undo it"):
        foveal.insert(model, mechanism, at="*")
    assert tree(model) == before


@pytest.mark.parametrize("mechanism", ["aw", "se", "cbam"])
def test_a_convolution_called_by_keyword(mechanism):
    model = nn.Sequential(nn.Conv2d(3, 8, 3)).eval()
    foveal.insert(model, mechanism, at="0", start="paper")
    expected = model(images())
    torch.testing.assert_close(model[0](input=images()), expected, rtol=0, atol=0)
    compiled = torch.compile(lambda x: model[0](input=x), fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(images()), expected)


@pytest.mark.parametrize("mechanism", ["aw", "se", "cbam"])
def test_a_sample_without_a_batch(mechanism):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)).eval()
    foveal.insert(model, mechanism, at="1")
    with pytest.raises(UserError, match=r"^1: attention needs a batch \(N, C, H, W\), got \(8, 1[24], 1[24]\)"):
        model(images()[0])


def test_a_spatial_gate_of_one_number_cannot_be_normalised():
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1)).train()
    foveal.insert(model, "cbam", at="1")
    with pytest.raises(UserError, match=r"^1: one sample .* train with a batch of at least two"):
        model(images(1, 1))
    assert model(images(2, 1)).shape == (2, 8, 1, 1)


@pytest.mark.slow
def test_strided_attention_exports_with_open_sizes():
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, stride=2, padding=1)).eval()
    foveal.insert(model, "aw", at="1", start="paper")
    sizes = {2: torch.export.Dim("h", min=8), 3: torch.export.Dim("w", min=8)}
    result = torch.export.export(model, (images(2, 16),), dynamic_shapes=({0: torch.export.Dim("n", min=2), **sizes},))
    x = torch.rand(3, 3, 11, 14)
    torch.testing.assert_close(result.module()(x), model(x), rtol=1e-4, atol=1e-5)


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
    ("call", "message"),
    [
        (lambda m: foveal.insert(m, "se", reductoin=4), "unknown key 'reductoin'; did you mean 'reduction'"),
        (lambda m: foveal.insert(m, "se", at=3), "at must be a name"),
        (lambda m: foveal.insert(m, "se", at=[0]), "at must be a name"),
        (lambda m: foveal.insert("resnet50", "se"), "not scripted or traced, got str"),
        (lambda m: foveal.insert(m, "aw", strat="paper"), "unknown key 'strat'; did you mean 'start'"),
        (lambda m: foveal.insert(m, "se", stak=True), "unknown key 'stak'; did you mean 'stack'"),
        (
            lambda m: foveal.insert(m, "aw", groups=2),
            "unknown key 'groups'; known: at, mode, path, reduction, residual, share_batch, share_in, share_kernel, "
            "share_out, stack, start$",
        ),
        (lambda m: foveal.insert(m, 3), "mechanism must be a name, one of aw, .*, got 3"),
        (lambda m: foveal.insert(m, None), "mechanism must be a name, .* got None"),
        (lambda m: foveal.insert(m, foveal.attention.SqueezeExcite), "mechanism must be a name, .* got <class"),
        (lambda m: foveal.insert(m[0], "aw", at="*"), r"model itself is one layer \(Conv2d\); wrap it.*Sequential"),
        (lambda m: foveal.insert(m[0], "se"), r"model itself is one layer \(Conv2d\)"),
        (lambda m: foveal.insert(m, "aw", reduction=2.5), "'aw': reduction: expected a whole number, got 2.5"),
        (lambda m: foveal.insert(m, "se", reduction="16"), "'se': reduction: expected a whole number, got '16'"),
        (lambda m: foveal.insert(m, "aw", share_in=2.0), "'aw': share_in: expected a whole number, got 2.0"),
        (lambda m: foveal.insert(m, "aw", share_batch=1.5), "'aw': share_batch: expected a whole number, got 1.5"),
        (lambda m: foveal.insert(m, "aw", residual="no"), "'aw': residual: expected true or false, got 'no'"),
        (lambda m: foveal.insert(m, "aw", mode="x"), "'aw': mode: expected one of kernel, .*, got 'x'"),
        (lambda m: foveal.insert(m, "cbam", pools=[3]), "pools: expected a text"),
    ],
)
def test_what_makes_no_sense(call, message):
    model = nn.Sequential(nn.Conv2d(3, 8, 3))
    before = tree(model)
    with pytest.raises(UserError, match=message):
        call(model)
    assert tree(model) == before


@pytest.mark.parametrize("pools", ["max", ["avg"], ("max",), ("avg", "max")])
def test_options_of_the_right_kind(pools):
    model = nn.Sequential(nn.Conv2d(3, 8, 3))
    foveal.insert(model, "cbam", at="0", pools=pools, spatial=False)
    foveal.insert(model, "aw", at="0", share_in=None, mode="local", path="taps")
    assert model[0].attached["cbam"].channel.pools == (("max",) if pools == "max" else tuple(pools))


def test_a_name_that_looks_like_a_glob():
    model = nn.Sequential()
    for name in ("a[0]", "a0"):
        model.add_module(name, nn.Conv2d(3, 3, 1))
    assert foveal.insert(model, "se", at="a[0]").sites == ["a[0]"]
    assert foveal.insert(model, "se", at="a[01]").sites == ["a0"]


def test_a_detector_of_torchvision_is_built_without_fetching_weights(monkeypatch):
    def fetch(*_, **__):
        raise AssertionError("weights were fetched")

    monkeypatch.setattr("torch.hub.load_state_dict_from_url", fetch)
    assert any_model("lraspp_mobilenet_v3_large", num_classes=2) is not None


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
    actual = block_ends(any_model(name))
    assert (len(actual), actual[0], actual[-1]) == (count, first, last)


def test_whole_numbers_of_numpy_are_options_too() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    assert foveal.insert(model, "se", at="1", reduction=numpy.int64(2)).sites == ["1"]
