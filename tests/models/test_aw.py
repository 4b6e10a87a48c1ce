"""ResNets and MobileNet with attention: sizes, cost, initialisation and plain weights."""

import pytest
import timm
import torch
from torch.utils.flop_counter import FlopCounterMode

import foveal
from foveal.errors import UserError
from foveal.models.aw import attended_mobilenet, attended_resnet


def count(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "options", "parameters"),
    [
        ("aw_resnet50", {}, 25_722_240),
        ("se_resnet50", {}, 28_088_024),
        ("aw_se_resnet50", {}, 28_253_232),
        ("aw_cbam_resnet50", {"spatial": False}, 28_253_232),
        ("aw_cbam_resnet50", {"pools": ["avg"]}, 28_254_832),
        ("aw_resnet101", {}, 44_862_880),
        ("se_resnet101", {}, 49_326_872),
        ("aw_se_resnet101", {}, 49_640_592),
        ("aw_cbam_resnet101", {"pools": ["avg"]}, 49_643_892),
        ("se_mobilenet", {}, 5_072_114),
        ("aw_se_mobilenet", {}, 5_520_858),
    ],
)
def test_published_parameter_counts(name, options, parameters):
    with torch.device("meta"):
        assert count(foveal.create_model(name, **options)) == parameters


@pytest.mark.parametrize(
    ("build", "options", "gmacs"),
    [
        (attended_resnet, {"depth": 50}, 3.858),
        (attended_resnet, {"depth": 50, "stride_first": False}, 4.089),
        (attended_resnet, {"depth": 101}, 7.570),
        (attended_mobilenet, {}, 0.5687),
    ],
)
def test_multiply_accumulates_of_the_plain_networks(build, options, gmacs):
    with torch.device("meta"):
        model = build(**options).eval()
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(torch.zeros(1, 3, 224, 224))
    assert counter.get_total_flops() / 2e9 == pytest.approx(gmacs, abs=0.0006)


def test_every_name_of_the_contract_exists_and_is_known_to_timm():
    for base in ("resnet50", "resnet101", "mobilenet"):
        for prefix in ("aw", "se", "cbam", "aw_se", "aw_cbam"):
            assert f"{prefix}_{base}" in foveal.list_models()
            assert f"{prefix}_{base}" in timm.list_models()


def test_identity_start_is_the_plain_network():
    plain = timm.create_model("mobilenetv1_100", num_classes=7).eval()
    attended = foveal.create_model("aw_cbam_mobilenet", num_classes=7, start="identity").eval()
    missing, unexpected = attended.load_state_dict(plain.state_dict(), strict=False)
    assert not unexpected
    assert missing
    assert all(".attached." in key for key in missing)
    images = torch.rand(2, 3, 64, 64)
    torch.testing.assert_close(attended(images), plain(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["aw_resnet50", "aw_mobilenet"])
def test_unknown_option(name):
    with pytest.raises(UserError, match="did you mean 'reduction'"):
        foveal.create_model(name, reductoin=8)


@pytest.mark.parametrize("create", [foveal.create_model, timm.create_model])
@pytest.mark.parametrize("name", ["se_resnet50", "cbam_mobilenet"])
def test_options_of_timm_are_passed_on(create, name):
    with torch.device("meta"):
        model = create(name, drop_rate=0.25, drop_path_rate=0.1, global_pool="max")
    assert model.drop_rate == 0.25
    assert type(model.global_pool.pool).__name__ == "AdaptiveMaxPool2d"
    assert any(getattr(module, "drop_prob", 0) > 0 for module in model.modules())


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("aw_resnet50", {"block": None}, "unknown key 'block'"),
        ("aw_mobilenet", {"stem_size": 16}, "model aw_mobilenet: .*stem_size"),
        ("cbam_resnet50", {"pools": []}, "pools is empty"),
        ("cbam_mobilenet", {"pools": "avg"}, r"pools: expected a list, got 'avg'"),
    ],
)
def test_options_that_do_not_fit(name, options, message):
    with torch.device("meta"), pytest.raises(UserError, match=message):
        foveal.create_model(name, **options)


@pytest.mark.parametrize("name", ["aw_se_resnet50", "cbam_resnet50"])
def test_attention_learns_from_the_first_step(name):
    torch.manual_seed(0)
    model = foveal.create_model(name, num_classes=3)
    assert all((block.bn3.weight == 1).all() for stage in (model.layer1, model.layer4) for block in stage)
    model(torch.randn(2, 3, 32, 32)).square().sum().backward()
    learns = {n: bool(p.grad.abs().max() > 0) for n, p in model.named_parameters() if ".attached." in n}
    later = "spatial.conv.weight"  # before a norm whose weight starts at zero, as in the authors' code
    assert all(learns[n] for n in learns if not n.endswith(later))


@pytest.mark.parametrize("stride_first", [True, False])
def test_plain_weights_need_the_stride_of_the_plain_network(stride_first):
    torch.manual_seed(0)
    plain = timm.create_model("resnet50", num_classes=5, zero_init_last=False).eval()
    model = foveal.create_model("aw_resnet50", num_classes=5, start="identity", stride_first=stride_first).eval()
    model.load_state_dict(plain.state_dict(), strict=False)
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.allclose(model(x), plain(x), rtol=1e-3, atol=1e-3) is not stride_first
