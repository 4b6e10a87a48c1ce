"""Usual sites in all families of networks: the committed table is what insertion does today."""

import csv
import sys
import warnings
from pathlib import Path

import pytest
import timm
import torch
import torchvision
from timm.models._registry import _module_to_models
from torch import nn

import foveal
from foveal.attention.insertion.insert import find
from foveal.errors import UserError

TABLE = Path(__file__).with_name("families.csv")
SMALL = ("tiny", "nano", "small", "_xs", "18", "atto")


def built(name):
    with torch.device("meta"):
        if timm.is_model(name):
            return timm.create_model(name)
        weights = {"weights_backbone": None} if "rcnn" in name else {}
        return torchvision.models.get_model(name, **weights)


def sites(model, mechanism):
    """Number of sites, the first and the last; or why there is none."""
    try:
        names = list(find(model, mechanism))
    except UserError as error:
        return "tokens" if "works on tokens" in str(error) else "none"
    return f"{len(names)}: {names[0]} … {names[-1]}"


def rows():
    """One small network of every family of timm."""
    for family, names in sorted(_module_to_models.items()):
        if f"timm.models.{family}" not in sys.modules:  # networks of foveal, which timm knows as well
            continue
        name = min(names, key=lambda n: (not any(word in n for word in SMALL), len(n), n))
        model = built(name)
        yield {"family": family, "model": name, "se": sites(model, "se"), "aw": sites(model, "aw")}


def write():
    with TABLE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["family", "model", "se", "aw"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows())


@pytest.mark.slow
def test_every_family_of_timm():
    with TABLE.open(newline="", encoding="utf-8") as file:
        expected = {row["family"]: row for row in csv.DictReader(file)}
    measured = {row["family"]: row for row in rows()}
    assert {name: row for name, row in measured.items() if name in expected} == {
        name: row
        for name, row in expected.items()
        if name in measured  # another timm may have other families
    }


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "swin_s3_tiny_224", "gmixer_12_224", "vit_b_16"])
@pytest.mark.parametrize("mechanism", ["se", "aw"])
def test_networks_of_tokens_are_refused(name, mechanism):
    with pytest.raises(UserError, match=r"works on tokens.*2-D feature maps.*foveal\.cam shows where it looks"):
        find(built(name), mechanism)


@pytest.mark.parametrize(
    ("name", "count", "first", "last"),
    [
        ("convnext_atto", 12, "stages.0.blocks.0.mlp.fc2", "stages.3.blocks.1.mlp.fc2"),
        ("convnext_tiny", 18, "stages.0.blocks.0.conv_dw", "stages.3.blocks.2.conv_dw"),
        ("poolformer_s12", 12, "stages.0.blocks.0.mlp.fc2", "stages.3.blocks.1.mlp.fc2"),
        ("skresnet18", 8, "layer1.0.conv2.bn", "layer4.1.conv2.bn"),
        ("resnet50", 16, "layer1.0.bn3", "layer4.2.bn3"),
        ("googlenet", 36, "inception3a.branch1.bn", "inception5b.branch4.1.bn"),
        ("efficientnet_b0", 16, "blocks.0.0.bn2", "blocks.6.0.bn3"),
        ("mobilenetv1_100", 26, "blocks.0.0.bn1", "blocks.4.1.bn2"),  # two a block, as published
        ("mobilenetv4_conv_small", 12, "blocks.2.0.pw_proj.bn", "blocks.3.5.pw_proj.bn"),
        ("xception", 12, "block1.rep.4", "block12.rep.5"),
        ("xception41p", 13, "blocks.0.stack.conv3.conv_pw", "blocks.12.stack.conv3.conv_pw"),
        (
            "rdnet_tiny",
            21,
            "dense_stages.0.0.dense_block0.layers.layers.4",
            "dense_stages.6.2.dense_block2.layers.layers.4",
        ),
        ("repghostnet_050", 16, "blocks.0.0.ghost2.cheap_operation.1", "blocks.8.3.ghost2.cheap_operation.1"),
        ("efficientvit_m0", 6, "stages.0.blocks.0.ffn1.m.pw2.bn", "stages.2.blocks.2.ffn1.m.pw2.bn"),
        ("csatv2", 14, "stages.0.0.dwconv", "stages.3.4.dwconv"),
        ("hgnetv2_b0", 5, "stages.0.blocks.0.aggregation.1.bn", "stages.3.blocks.0.aggregation.1.bn"),
    ],
)
def test_one_gate_a_block(name, count, first, last):
    names = list(find(built(name), "se"))
    assert (len(names), names[0], names[-1]) == (count, first, last)


@pytest.mark.parametrize("name", ["nasnetalarge", "pnasnet5large", "ghostnetv3_100"])
def test_cells_without_an_end(name):
    with pytest.raises(UserError, match=r"no layer is the end of a cell; choose layers with at="):
        find(built(name), "se")


@pytest.mark.parametrize(("name", "blocks"), [("inception_v3", 11), ("inception_v4", 16)])
def test_a_gate_on_every_branch(name, blocks):
    """What a block joins is gated once: as many channels as it puts out, but for those that it only pools."""
    with torch.device("meta"):
        model, x = timm.create_model(name), torch.zeros(1, 3, 299, 299)
    gated, sites = {}, list(find(model, "se"))  # channels before and after each module

    def note(name):
        return lambda module, args, out: gated.update({name: (args[0].shape[1], out.shape[1])})

    for path, module in model.named_modules():
        module.register_forward_hook(note(path))
    model.eval()(x)
    owners = {site.split(".branch")[0] for site in sites}
    assert len(owners) == blocks
    for block in owners:
        channels, (before, after) = sum(gated[s][1] for s in sites if s.startswith(f"{block}.")), gated[block]
        assert channels in (after, after - before), block


def test_stems_and_downsampling_are_no_usual_places():
    assert all("downsample" not in name for name in find(built("convnext_atto"), "aw"))
    for name in ("mambaout_tiny", "edgenext_xx_small"):
        with pytest.raises(UserError, match=r"only its stem and what reduces the resolution.*at="):
            find(built(name), "aw")


def test_both_halves_of_a_ghost_module():
    """GhostNet joins a convolution and what is made of it: a gate on one of them would see half of the channels."""
    names = list(find(built("ghostnet_050"), "se"))
    assert names[:2] == ["blocks.0.0.ghost2.primary_conv.1", "blocks.0.0.ghost2.cheap_operation.1"]
    assert len(names) == 2 * 16


@pytest.mark.parametrize(
    ("name", "count", "never"),
    [
        ("legacy_seresnet18", 16, "se_module"),  # a block called SEResNetBlock is not squeeze and excitation
        ("starnet_s1", 15, "stages.0.0."),
        ("efficientformerv2_s0", 14, "token_mixer"),
        ("ghostnetv2_100", 27, "short_conv"),
        ("vitamin_small_224", 6, "pool.proj"),
    ],
)
def test_kernels_are_those_of_blocks(name, count, never):
    names = list(find(built(name), "aw"))
    assert len(names) == count
    assert not any(never in site for site in names)


def test_of_a_detector_only_the_backbone():
    names = list(find(built("fasterrcnn_resnet50_fpn"), "aw"))
    assert len(names) == 16
    assert all(name.startswith("backbone.body.layer") for name in names)


def test_a_network_with_squeeze_and_excitation():
    model = timm.create_model("mobilenetv3_small_050")
    with pytest.warns(UserWarning, match=r"has squeeze and excitation already \(blocks\.0\.0\.se and \d+ more\)"):
        foveal.insert(model, "se").eject()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        foveal.insert(timm.create_model("resnet10t"), "se")
        foveal.insert(model, "cbam")


@pytest.mark.parametrize("layer", [nn.LayerNorm(8), nn.Conv1d(3, 8, 3), nn.BatchNorm3d(8), nn.Linear(3, 8)])
def test_layers_without_maps(layer):
    with pytest.raises(UserError, match=r"2-D feature maps \(N, C, H, W\), the only ones that are served"):
        foveal.insert(nn.Sequential(layer), "se", at="0")


@pytest.mark.parametrize("layer", [nn.Conv1d(3, 8, 3), nn.Conv3d(3, 8, 3), nn.TransformerEncoderLayer(8, 2)])
def test_a_network_without_maps_is_not_told_to_choose_a_layer(layer):
    with pytest.raises(UserError, match=r"no layer with 2-D feature maps.*foveal\.attention") as caught:
        foveal.sites(nn.Sequential(layer), "se")
    assert "at=" not in str(caught.value)
