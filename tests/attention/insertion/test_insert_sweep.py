"""Every mechanism in many architectures that were not made with it in mind."""

import pytest
import timm
import torch
from small_net import images, randomise, tree
from torch import nn

import foveal
from foveal.errors import UserError

QUICK = ("seresnet18", "mobilenetv3_small_050", "convnext_atto")  # the others are slow tests
ARCHITECTURES = (
    "resnet18",
    "resnet10t",
    "seresnet18",
    "skresnet18",
    "resnext26ts",
    "res2net50_14w_8s",
    "resnest14d",
    "mobilenetv1_100",
    "mobilenetv2_050",
    "mobilenetv3_small_050",
    "efficientnet_lite0",
    "efficientnet_b0",
    "regnetx_002",
    "regnety_002",
    "densenet121",
    "vgg11_bn",
    "ghostnet_050",
    "mixnet_s",
    "mnasnet_050",
    "semnasnet_050",
    "spnasnet_100",
    "hardcorenas_a",
    "fbnetc_100",
    "tinynet_e",
    "lcnet_050",
    "dla46_c",
    "hrnet_w18_small",
    "repvgg_a0",
    "rexnet_100",
    "convnext_atto",
    "mobilevit_xxs",
    "ese_vovnet19b_slim",
    "cspresnet50",
    "cs3darknet_s",
    "fasternet_t0",
    "gernet_s",
    "dpn48b",
    "pvt_v2_b0",
)
OPTIONS = {
    "vgg11_bn": {"mlp_ratio": 0.01},  # its two widest layers, a hundred million weights, are beside the point
    "convnext_atto": {"ls_init_value": 0.5},  # else its blocks hardly count before training
}


@torch.no_grad()
def settled(model, x):
    """The model with the statistics of these images in its batch norms, so that no activation explodes."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
    model.train()(x)
    return model.eval()


INSIDE = ("deform", "spatial", "dynamic")
NO_PLACE = {
    "pvt_v2_b0": ("aw",),  # its dense convolutions are between the blocks, or shorten its own attention
    "ghostnet_050": INSIDE,  # parallel branches
    "mixnet_s": INSIDE,
    "hrnet_w18_small": INSIDE,  # all resolutions side by side
    "repvgg_a0": ("aw", "se", "cbam", *INSIDE),  # branches that are summed, until they are fused
}
each_architecture = pytest.mark.parametrize(
    "architecture", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in ARCHITECTURES]
)


def prepared(architecture, size=(64, 64)):
    """A model, images and what it makes of them."""
    torch.manual_seed(0)
    model, x = timm.create_model(architecture, num_classes=5, **OPTIONS.get(architecture, {})), images(2, size)
    model = settled(randomise(model), images(4, size, seed=2))
    with torch.no_grad():
        return model, x, model(x)


def refused(model, architecture, mechanisms):
    """Those of some mechanisms that the model has no default site for; inserting them says so."""
    without = tuple(name for name in mechanisms if name in NO_PLACE.get(architecture, ()))
    for mechanism in without:
        with pytest.raises(UserError, match="no default site"):
            foveal.insert(model, mechanism)
    return without


@each_architecture
def test_inside_the_blocks(architecture):
    """Attention over positions and dynamic convolution, with deformable convolution before them."""
    model, x, _ = prepared(architecture, (96, 128))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(".gamma"):  # a layer scale of 1e-6, which would hide what is in the block
                parameter.fill_(1)
        before = model(x)
    modules, scale = tree(model), before.abs().max().item()
    if refused(model, architecture, INSIDE) == INSIDE:
        return
    dones = [foveal.insert(model, mechanism) for mechanism in INSIDE]
    out = model(x)
    torch.testing.assert_close(out, before, rtol=0, atol=1e-4 * scale)
    out.square().sum().backward()
    amounts = [p for name, p in model.named_parameters() if ".attached." in name and name.endswith("gamma")]
    assert len(amounts) == len(dones[1].sites) + len(dones[2].sites)
    assert all(p.grad.abs() > 0 for p in amounts)
    assert all(p.grad.abs().max() > 0 for p in dones[0].parameters())
    with torch.no_grad():
        for p in amounts:
            p.fill_(1.0)
        assert not torch.allclose(model(x), before, rtol=0, atol=1e-3 * scale)
    for done in dones:
        done.eject()
    assert tree(model) == modules


@each_architecture
def test_every_mechanism(architecture):
    model, x, before = prepared(architecture)
    scale = before.abs().max().item()
    assert 1e-6 < scale < 1e6
    modules, keys = tree(model), list(model.state_dict())
    without = refused(model, architecture, ("aw", "se", "cbam"))
    for mechanism in (name for name in ("aw", "se", "cbam") if name not in without):
        done = foveal.insert(model, mechanism)
        out = model(x)
        torch.testing.assert_close(out, before, rtol=0, atol=1e-4 * scale if mechanism == "aw" else 1e-6 * scale)
        assert [key for key in model.state_dict() if ".attached." not in key] == keys

        out.square().sum().backward()
        assert all(p.grad is not None for p in done.parameters())
        amounts = [p for name, p in model.named_parameters() if ".attached." in name and name.endswith("amount")]
        assert len(amounts) == len(done.sites)
        assert all(p.grad.abs() > 0 for p in amounts)
        with torch.no_grad():
            for p in amounts:
                p.fill_(0.1)
        model.zero_grad()
        out = model(x)
        assert not torch.allclose(out, before, rtol=0, atol=1e-3 * scale)
        out.square().sum().backward()
        for site, key in done.keys.items():
            attached = model.get_submodule(f"{site}.attached.{key}")
            others = [p for name, p in attached.named_parameters() if not name.endswith("amount")]
            assert any(p.grad.abs().max() > 0 for p in others), site

        done.eject()
        assert tree(model) == modules
        assert list(model.state_dict()) == keys
        model.zero_grad()
    with torch.no_grad():
        torch.testing.assert_close(model(x), before, rtol=0, atol=0)
