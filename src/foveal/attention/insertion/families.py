"""Usual sites by family of networks (timm, torchvision), where the general rules do not find the right ones.

The general rules (:mod:`foveal.attention.insertion.layers`) recognise blocks by their layers and suit residual
networks. A family below has blocks that they do not recognise, or no place at all: networks of tokens have no feature
maps between their blocks. ``tests/attention/insertion/families.csv`` has the sites of every family of timm.
"""

from __future__ import annotations

import fnmatch
import re
import warnings
from collections.abc import Iterable

from torch import nn

from foveal.attention.insertion.layers import channels_of, excites, own_modules
from foveal.attention.insertion.registry import Gate, Mechanism
from foveal.errors import UserError

LAST = "*"  # the last layer of a block, whatever its name
INVERTED = ("blocks.*.*", ("bn3", "bn2", "pw_proj.bn", "conv_pwl", "pw_proj.conv"))
INCEPTION = (
    "Mixed_*.branch1x1 Mixed_*.branch_pool Mixed_5?.branch5x5_2 Mixed_[56]?.branch3x3dbl_3 Mixed_6a.branch3x3 "
    "Mixed_6?.branch7x7_3 Mixed_6?.branch7x7dbl_5 Mixed_7a.branch3x3_2 Mixed_7a.branch7x7x3_4 "
    "Mixed_7?.branch3x3*_[23][ab]",
    ("bn",),
)
# Family: globs on the names of blocks, and the layer in a block that a gate is put on, the first that there is. Blocks
# that end in a concatenation of branches have a gate on each branch.
ENDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "byobnet": ("stages.*.*", ("conv3_1x1.bn", "conv2_kxk.bn")),
    "convmixer": ("blocks.*", ("3",)),
    "convnext": ("stages.*.blocks.*", ("mlp.fc2", "conv_dw")),  # the former is a convolution in some only
    "cpubone": ("stages.*.* stages.*.*.total.1 stages.*.*.total.0.1", ("main.point_conv.norm", "main.3")),
    "csatv2": ("stages.*.*", ("dwconv",)),
    "edgenext": ("stages.*.blocks.*", ("conv_dw",)),
    "efficientnet": INVERTED,
    "efficientvit_mit": (
        "stages.*.blocks.*",
        ("main.point_conv.norm", "main.conv2.norm", "local_module.main.point_conv.norm"),
    ),
    "efficientvit_msra": ("stages.*.blocks.*", ("ffn1.m.pw2.bn",)),
    "efficientformer": ("stages.*.blocks.*", ("mlp.norm2",)),
    "fasternet": ("stages.*.blocks.*", ("mlp.3",)),
    "fastvit": ("stages.*.blocks.*", ("mlp.fc2",)),
    "focalnet": ("layers.*.blocks.*", ("mlp.fc2",)),
    "ghostnet": ("blocks.*.*.ghost2.primary_conv blocks.*.*.ghost2.cheap_operation", (LAST,)),
    "hardcorenas": INVERTED,
    "hgnet": ("stages.*.blocks.*", ("aggregation.1.bn", "aggregation.0.bn")),
    "inception_resnet_v2": ("repeat*.* block8", ("conv2d",)),
    "inception_v3": INCEPTION,
    "inception_v4": (
        "features.[6-9].branch? features.1?.branch? features.2?.branch[03] features.*.branch?_?[ab]",
        (LAST,),
    ),
    "inception_next": ("stages.*.blocks.*", ("mlp.fc2",)),
    "lcnetv2": ("stages.*.*.pw_conv", (LAST,)),
    "mambaout": ("stages.*.blocks.*", ("conv",)),
    "metaformer": ("stages.*.blocks.*", ("mlp.fc2", "token_mixer.dwconv")),
    "mobilenetv3": INVERTED,
    "mobilenetv5": INVERTED,
    "nfnet": ("stages.*.*", ("conv3",)),
    "pvt_v2": ("stages.*.blocks.*", ("mlp.dwconv",)),
    "rdnet": ("dense_stages.*.*.dense_block*", ("layers.layers.4",)),
    "repghost": ("blocks.*.*", ("ghost2.cheap_operation.1",)),
    "repvit": ("stages.*.blocks.*", ("channel_mixer.conv2.bn",)),
    "resnet": ("layer[1-4].*", ("bn3", "conv3.bn", "bn2", "conv2.bn")),
    "rexnet": ("features.*", ("conv_pwl.bn",)),
    "selecsls": ("features.*", ("conv6.1",)),
    "senet": ("layer[1-4].*", ("bn3", "bn2")),
    "shvit": ("stages.*.blocks.*", ("ffn.m.pw2.bn",)),
    "visformer": ("stage[1-3].*", ("mlp.conv3",)),
    "vitamin": ("patch_embed.backbone.stages.*.*", ("conv3_1x1",)),
    "vovnet": ("stages.*.blocks.*", ("conv_concat.bn",)),
    "xception": ("block*.rep", (LAST,)),
    "xception_aligned": ("blocks.*.stack", (LAST,)),
    "torchvision.convnext": ("features.[1357].*", ("block.0",)),
    "torchvision.googlenet": ("inception??.branch?", ("1.bn", "bn")),
    "torchvision.inception": INCEPTION,
}
CELLS = ("nasnet", "pnasnet", "ghostnet")  # a cell joins sums of layers (in GhostNet, of v3): no layer is its end
TOKENS = re.compile(
    "beit|cait|coat|convit|crossvit|davit|deepseek_vit|deit|eva|gcvit|gemma4_vit|hiera|hieradet_sam2|levit|mlp_mixer|"
    "mvitv2|naflexvit|nest|pit|qwen3_vit|sequencer|(torchvision.)?swin_transformer(_v2|_v2_cr)?|tiny_vit|tnt|"
    "twins|(torchvision.)?vision_transformer(_relpos|_sam)?|volo|xcit"
)
BETWEEN = re.compile(  # what is no part of a block
    r"(^|\.)(stem\w*|downsample|patch_embed\w*|pos_embe?d|pre_logits|conv_head|[Cc]onv2d_\d\w*|"
    r"transition\d|fuse_layers|downsamp_modules|final_layer|shortcut|"
    r"q|k|v|key|query|value|sr|short_conv|talking_head\d)(\.|$)"  # in attention of the network's own
)
DOWN = {  # what reduces the resolution, where its name does not tell
    "csatv2": "stages.?.0 *.attn.conv",  # and the map of its own spatial attention
    "rdnet": "dense_stages.?.1",
    "starnet": "stages.?.0.conv",
    "vitamin": "patch_embed.backbone.pool.proj",
}
COMPOSED = ("torchvision.detection", "torchvision.segmentation")  # networks with a backbone and heads
BACKBONES = ("backbone.body", "backbone")  # of these: the rest is not what was pretrained


def family_of(model: nn.Module) -> str:
    """The file of timm or torchvision that defines the network; empty for others.

    >>> import timm
    >>> family_of(timm.create_model("resnet10t"))
    'resnet'
    """
    for cls in type(model).__mro__:
        if match := re.match(r"(timm|torchvision)\.models\.([\w.]+)", cls.__module__):
            return match[2] if match[1] == "timm" else f"torchvision.{match[2]}"
    return ""


def pretrained_part(model: nn.Module) -> tuple[nn.Module, str]:
    """The part of a detector or segmenter that is a classifier without its head, and the prefix of its layers' names.

    Attention usually goes there; the model itself, and no prefix, for other networks.

    >>> import torchvision
    >>> detector = torchvision.models.get_model("fasterrcnn_resnet50_fpn", weights_backbone=None)
    >>> pretrained_part(detector)[1]
    'backbone.body.'
    """
    if family_of(model).startswith(COMPOSED):
        modules = dict(model.named_modules())
        for name in BACKBONES:
            if name in modules:
                return modules[name], f"{name}."
    return model, ""


def usual_sites(model: nn.Module, name: str, mechanism: type[Mechanism]) -> list[str]:
    """Names of the layers that the mechanism ``name`` is usually put on.

    Raises:
        UserError: a network of tokens, which has no sensible place.
    """
    if not mechanism.in_backbone:
        return mechanism.usual(model)
    part, prefix = pretrained_part(model)
    if prefix:
        return [prefix + site for site in usual_sites(part, name, mechanism)]
    family = family_of(
        getattr(getattr(model, "patch_embed", None), "backbone", model)
    )  # hybrids: of their convolutions
    if TOKENS.fullmatch(family):
        raise UserError(
            f"{type(model).__name__} works on tokens, and {name!r} serves 2-D feature maps (N, C, H, W), which it does "
            "not have between its blocks; foveal.cam shows where it looks, at= chooses layers all the same"
        )
    at_ends = issubclass(mechanism, Gate) and mechanism.usual.__func__ is Gate.usual.__func__  # type: ignore[attr-defined]
    if at_ends and (ends := _ends(model, *_rule(model, family))):
        return ends
    if family in CELLS and at_ends:
        raise UserError(
            f"{type(model).__name__} has no usual place for {name!r}: its cells join sums of layers, so that "
            "no layer is the end of a cell; choose layers with at="
        )
    sites = mechanism.usual(model)
    in_blocks = [site for site in sites if not _between(site, family)]
    if family and sites and not in_blocks:
        raise UserError(
            f"{type(model).__name__} has no usual place for {name!r}: only its stem and what reduces the resolution "
            "are such convolutions; choose layers with at="
        )
    return in_blocks if family else sites


def _between(site: str, family: str) -> bool:
    """Whether a layer is no part of a block."""
    down = DOWN.get(family, "").split()
    named = BETWEEN.search(site.removeprefix("patch_embed.backbone.")) is not None
    return named or any(fnmatch.fnmatchcase(site, glob) for glob in down)


def _rule(model: nn.Module, family: str) -> tuple[str, tuple[str, ...]]:
    """Globs on the blocks of a network and the layers that are their ends; empty for the general rule."""
    rule = ENDS.get(family, ("", ()))
    if rule is INVERTED and not any(name.endswith((".bn3", ".pw_proj")) for name, _ in model.named_modules()):
        return "", ()  # MobileNet v1: a gate after each of the two convolutions of a block, as published
    return rule


def _ends(model: nn.Module, blocks: str, ends: Iterable[str]) -> list[str]:
    """The end of every block, in the order of the network."""
    layers = [name for name, module in model.named_modules() if channels_of(module) is not None]
    found: list[str] = []
    for block, _ in model.named_modules():
        if any(block.count(".") == glob.count(".") and fnmatch.fnmatchcase(block, glob) for glob in blocks.split()):
            inside = [name for name in layers if name.startswith(f"{block}.")]
            candidates = ([f"{block}.{end}"] if end != LAST else inside[-1:] for end in ends)
            found += next(([site] for names in candidates for site in names if site in inside), [])
    return found


def remark_on_its_own(model: nn.Module, name: str) -> None:
    """Warn if squeeze and excitation would be put into a network that has it already."""
    if name != "se":
        return
    own = [site for site, module in own_modules(model) if excites(module)]
    if own:
        warnings.warn(
            f"{type(model).__name__} has squeeze and excitation already ({own[0]} and {len(own) - 1} more); this is a "
            "second one",
            stacklevel=4,
        )
