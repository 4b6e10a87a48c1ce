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

from foveal.attention.insertion.layers import channels_of, own_modules
from foveal.attention.insertion.registry import Gate, Mechanism
from foveal.errors import UserError

# Family: glob on the names of blocks, and the layer in a block that a gate is put on, the first that there is.
ENDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "byobnet": ("stages.*.*", ("conv3_1x1.bn", "conv2_kxk.bn")),
    "convmixer": ("blocks.*", ("3",)),
    "convnext": ("stages.*.blocks.*", ("mlp.fc2", "conv_dw")),  # the former is a convolution in some only
    "edgenext": ("stages.*.blocks.*", ("conv_dw",)),
    "efficientformer": ("stages.*.blocks.*", ("mlp.norm2",)),
    "fastvit": ("stages.*.blocks.*", ("mlp.fc2",)),
    "focalnet": ("layers.*.blocks.*", ("mlp.fc2",)),
    "inception_next": ("stages.*.blocks.*", ("mlp.fc2",)),
    "mambaout": ("stages.*.blocks.*", ("conv",)),
    "metaformer": ("stages.*.blocks.*", ("mlp.fc2", "token_mixer.dwconv")),
    "nfnet": ("stages.*.*", ("conv3",)),
    "pvt_v2": ("stages.*.blocks.*", ("mlp.dwconv",)),
    "repvit": ("stages.*.blocks.*", ("channel_mixer.conv2.bn",)),
    "resnet": ("layer[1-4].*", ("bn3", "conv3.bn", "bn2", "conv2.bn")),
    "selecsls": ("features.*", ("conv6.1",)),
    "senet": ("layer[1-4].*", ("bn3", "bn2")),
    "shvit": ("stages.*.blocks.*", ("ffn.m.pw2.bn",)),
    "visformer": ("stage[1-3].*", ("mlp.conv3",)),
    "vovnet": ("stages.*.blocks.*", ("conv_concat.bn",)),
    "torchvision.convnext": ("features.[1357].*", ("block.0",)),
    "torchvision.googlenet": ("inception??.branch?", ("1.bn", "bn")),
}
TOKENS = re.compile(
    "beit|cait|coat|convit|crossvit|davit|deepseek_vit|deit|eva|gcvit|gemma4_vit|hiera|hieradet_sam2|levit|mlp_mixer|"
    "mvitv2|naflexvit|nest|pit|qwen3_vit|sequencer|(torchvision.)?swin_transformer(_v2|_v2_cr)?|tiny_vit|tnt|"
    "twins|(torchvision.)?vision_transformer(_relpos|_sam)?|volo|xcit"
)
BETWEEN = re.compile(r"(^|\.)(stem\w*|downsample|patch_embed\w*|pos_embe?d|pre_logits|conv_head)(\.|$)")  # no blocks
COMPOSED = ("torchvision.detection", "torchvision.segmentation")  # networks with a backbone and heads
BACKBONES = ("backbone.body", "backbone")  # of these: the rest is not what was pretrained
INSIDE = re.compile("Squeeze|Excit|SE(?![a-z])")  # modules that are squeeze and excitation already


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
    family = family_of(model)
    if TOKENS.fullmatch(family) and not hasattr(getattr(model, "patch_embed", None), "backbone"):
        raise UserError(
            f"{type(model).__name__} works on tokens, and {name!r} serves 2-D feature maps (N, C, H, W), which it does "
            "not have between its blocks; foveal.watch shows its own attention, at= chooses layers all the same"
        )
    at_ends = issubclass(mechanism, Gate) and mechanism.usual.__func__ is Gate.usual.__func__  # type: ignore[attr-defined]
    if family in ENDS and at_ends and (ends := _ends(model, *ENDS[family])):
        return ends
    sites = mechanism.usual(model)
    in_blocks = [site for site in sites if not BETWEEN.search(site.removeprefix("patch_embed.backbone."))]
    if family and sites and not in_blocks:
        raise UserError(
            f"{type(model).__name__} has no usual place for {name!r}: only its stem and what reduces the resolution "
            "are such convolutions; choose layers with at="
        )
    return in_blocks if family else sites


def _ends(model: nn.Module, blocks: str, ends: Iterable[str]) -> list[str]:
    layers = dict(model.named_modules())
    depth = blocks.count(".")
    names = [name for name in layers if name.count(".") == depth and fnmatch.fnmatchcase(name, blocks)]
    candidates = ([f"{name}.{end}" for end in ends] for name in names)
    return [
        site
        for sites in candidates
        if (site := next((s for s in sites if s in layers and channels_of(layers[s]) is not None), None))
    ]


def remark_on_its_own(model: nn.Module, name: str) -> None:
    """Warn if squeeze and excitation would be put into a network that has it already."""
    if name != "se":
        return
    own = [site for site, module in own_modules(model) if INSIDE.search(type(module).__name__)]
    if own:
        warnings.warn(
            f"{type(model).__name__} has squeeze and excitation already ({own[0]} and {len(own) - 1} more); this is a "
            "second one",
            stacklevel=4,
        )
