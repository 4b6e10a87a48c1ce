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


PLACES = ("se", "aw", "spatial", "deform")  # "cbam" goes where "se" does, "dynamic" where "spatial" does


def built(name, *, of_torchvision=False):
    with torch.device("cpu" if name.startswith("regnet_") else "meta"):  # torchvision's fills its weights in an odd way
        if timm.is_model(name) and not of_torchvision:
            return timm.create_model(name)
        composed = torchvision.models.get_model_builder(name).__module__.split(".")[2] in ("detection", "segmentation")
        return torchvision.models.get_model(name, **({"weights_backbone": None} if composed else {}))


def sites(model, mechanism):
    """Number of sites, the first and the last; or why there is none."""
    try:
        names = list(find(model, mechanism))
    except UserError as error:
        return REASONS[next(part for part in REASONS if part in str(error))]
    return f"{len(names)}: {names[0]} … {names[-1]}"


REASONS = {  # part of a refusal, and how the table calls it
    "works on tokens": "tokens",
    "no layer with 2-D feature maps": "no 2-D maps",
    "fuse them first": "unfused",
    "join sums of layers": "cells",
    "join parallel branches": "branches",
    "all resolutions side by side": "resolutions",
    "only its stem": "only stem",
    "no layer of the kind": "no such layer",
    "has a convolution of its own": "own convolution",
    "cannot be put on": "not served",
}


def smallest(names):
    return min(names, key=lambda n: (not any(word in n for word in SMALL), len(n), n))


def networks():
    """One small network of every family of timm and torchvision, by family."""
    for family, names in sorted(_module_to_models.items()):
        if f"timm.models.{family}" in sys.modules:  # timm knows networks of foveal as well
            name = smallest(names)
            yield family, name, built(name)
    families = {}
    for name in torchvision.models.list_models():
        family = torchvision.models.get_model_builder(name).__module__.removeprefix("torchvision.models.")
        if not family.startswith("optical_flow"):  # takes two images
            families.setdefault(f"torchvision.{family}", []).append(name)
    for family, names in sorted(families.items()):
        name = smallest(names) if "regnet" not in family else "regnet_y_400mf"
        yield family, name, built(name, of_torchvision=True)


def rows():
    for family, name, model in networks():
        row = {mechanism: sites(model, mechanism) for mechanism in PLACES}
        assert (sites(model, "cbam"), sites(model, "dynamic")) == (row["se"], row["spatial"])
        yield {"family": family, "model": name, **row}


def write():
    with TABLE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["family", "model", *PLACES], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows())


@pytest.mark.slow
def test_every_family():
    with TABLE.open(newline="", encoding="utf-8") as file:
        expected = {row["family"]: row for row in csv.DictReader(file)}
    measured = {row["family"]: row for row in rows()}
    assert {name: row for name, row in measured.items() if name in expected} == {
        name: row
        for name, row in expected.items()
        if name in measured  # another timm may have other families
    }


@pytest.mark.parametrize(
    "name", ["vit_tiny_patch16_224", "swin_s3_tiny_224", "gmixer_12_224", "vit_b_16", "vit_base_mci_224"]
)
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
        ("dpn48b", 2 * 16, "features.conv2_1.c1x1_c1", "features.conv5_3.c1x1_c2"),  # both halves of what is joined
        ("regnetz_b16_evos", 22, "stages.0.0.conv3_1x1.conv", "stages.3.1.conv3_1x1.conv"),
        ("coatnext_nano_rw_224", 16, "stages.0.blocks.0.mlp.fc2", "stages.3.blocks.2.mlp.fc2"),
        ("lowformer_b3", 19, "stages.0.0.main.point_conv.norm", "stages.3.6.local.main.point_conv.norm"),
        ("mobilenet_v2", 17, "features.1.conv.2", "features.17.conv.3"),
        ("mobilenet_v3_small", 11, "features.1.block.2.1", "features.11.block.3.1"),
        ("squeezenet1_0", 2 * 8, "features.3.expand1x1", "features.12.expand3x3"),
        ("ssdlite320_mobilenet_v3_large", 14, "backbone.features.0.1.block.1.1", "backbone.features.1.2.block.3.1"),
        ("hgnetv2_b0", 5, "stages.0.blocks.0.aggregation.1.bn", "stages.3.blocks.0.aggregation.1.bn"),
    ],
)
def test_one_gate_a_block(name, count, first, last):
    names = list(find(built(name), "se"))
    assert (len(names), names[0], names[-1]) == (count, first, last)


@pytest.mark.parametrize("name", ["nasnetalarge", "pnasnet5large"])
def test_cells_without_an_end(name):
    with pytest.raises(UserError, match=r"no layer is the end of a cell; choose layers with at="):
        find(built(name), "se")


@pytest.mark.parametrize("name", ["repvgg_a0", "mobileone_s0", "ghostnetv3_100"])
@pytest.mark.parametrize("mechanism", PLACES)
def test_parallel_branches_are_fused_first(name, mechanism):
    with pytest.raises(UserError, match=r"sum parallel branches.*fuse them first, with timm\.utils\."):
        find(built(name), mechanism)


def test_fused_branches():
    model = timm.utils.reparameterize_model(timm.create_model("repvgg_a0"))
    assert [len(find(model, mechanism)) for mechanism in PLACES] == [21, 21, 15, 19]


@pytest.mark.parametrize("name", ["googlenet", "inception_v3", "nasnetalarge", "mixnet_s", "ghostnet_050"])
@pytest.mark.parametrize("mechanism", ["spatial", "deform"])
def test_no_convolution_of_parallel_branches_is_the_one_that_looks_around(name, mechanism):
    with pytest.raises(UserError, match=r"join parallel branches.*choose layers with at="):
        find(built(name), mechanism)


def test_a_network_without_last_stages():
    with pytest.raises(UserError, match=r"all resolutions side by side.*at="):
        find(built("hrnet_w18_small"), "spatial")


@pytest.mark.parametrize(
    ("name", "mechanism", "count"),
    [
        ("dla34", "spatial", 6),
        ("cs3darknet_m", "deform", 12),
        ("xception41", "spatial", 11),
        ("fastvit_mci3", "spatial", 6),
    ],
)
def test_inside_every_block_of_the_last_stages(name, mechanism, count):
    assert len(find(built(name), mechanism)) == count


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
        ("bat_resnext26ts", 8, "attn"),
        ("googlenet", 18, "conv3.conv"),
        ("inception_v4", 79, "features.3."),
        ("skresnet50d", 32, "conv1.3"),
        ("ssd300_vgg16", 9, "extra"),
        ("darknet17", 5, "conv_down"),
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
    with pytest.warns(UserWarning, match=r"has CBAM already \(layer1\.0\.se and 3 more\)"):
        foveal.insert(timm.create_model("resnet10t", block_args={"attn_layer": "cbam"}), "cbam")
    with pytest.warns(UserWarning, match="has attention over positions already"):
        foveal.insert(timm.create_model("botnet26t_256"), "spatial")


@pytest.mark.parametrize("layer", [nn.LayerNorm(8), nn.Conv1d(3, 8, 3), nn.BatchNorm3d(8), nn.Linear(3, 8)])
def test_layers_without_maps(layer):
    with pytest.raises(UserError, match=r"2-D feature maps \(N, C, H, W\), the only ones that are served"):
        foveal.insert(nn.Sequential(layer), "se", at="0")


@pytest.mark.parametrize("layer", [nn.Conv1d(3, 8, 3), nn.Conv3d(3, 8, 3), nn.TransformerEncoderLayer(8, 2)])
def test_a_network_without_maps_is_not_told_to_choose_a_layer(layer):
    with pytest.raises(UserError, match=r"no layer with 2-D feature maps.*foveal\.attention") as caught:
        foveal.sites(nn.Sequential(layer), "se")
    assert "at=" not in str(caught.value)
