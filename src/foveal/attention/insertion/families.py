"""Usual sites by family of networks (timm, torchvision), where the general rules do not find the right ones.

Networks of tokens have no feature maps between their blocks, and some blocks have no layer that is their end: they are
refused with the reason. What each family is like is in :mod:`foveal.attention.insertion.family_rules`.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable

from torch import nn

from foveal.attention.insertion.family_rules import (
    BACKBONES,
    BRANCHES,
    CELLS,
    COMPOSED,
    ENDS,
    FUSED_ENDS,
    INVERTED,
    LAST,
    TOKENS,
    UNFUSED,
    between,
    family_of,
    matches,
)
from foveal.attention.insertion.layers import channels_of, excites, own_modules
from foveal.attention.insertion.registry import Gate, Mechanism
from foveal.errors import UserError

_OWN = {  # what a network may have already: how it is called, and its classes in timm and torchvision
    "se": ("squeeze and excitation", excites),
    "cbam": ("CBAM", lambda module: re.search("CbamModule", type(module).__name__) is not None),
    "spatial": (
        "attention over positions",
        lambda module: re.search("(Bottleneck|Halo|Bilinear)Attn|Lambda|NonLocal", type(module).__name__) is not None,
    ),
}


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
        UserError: the network has no sensible place; with the reason.
    """
    if not mechanism.in_backbone:
        return mechanism.usual(model)
    part, prefix = pretrained_part(model)
    if prefix:
        return [prefix + site for site in usual_sites(part, name, mechanism)]
    family = family_of(model)
    at_ends = issubclass(mechanism, Gate) and mechanism.usual.__func__ is Gate.usual.__func__  # type: ignore[attr-defined]
    if reason := _reason_against(model, family, name, at_ends=at_ends, inside=mechanism.stages > 0):
        raise UserError(f"{type(model).__name__} {reason}")
    if at_ends and (ends := _ends(model, *_rule(model, family))):
        return ends
    sites = mechanism.usual(model)
    in_blocks = [site for site in sites if not between(site, family)]
    if sites and not in_blocks:
        raise UserError(
            f"{type(model).__name__} has no default site for {name!r}: only its stem and what reduces the resolution "
            "are such convolutions; choose layers with at="
        )
    return in_blocks


def _reason_against(model: nn.Module, family: str, name: str, *, at_ends: bool, inside: bool) -> str | None:
    """Why a network has no sensible place for a mechanism at the ends of blocks, inside them, or on convolutions."""
    layers = [layer for layer, _ in model.named_modules()]
    hybrid = hasattr(getattr(model, "patch_embed", None), "backbone")
    only_stem = hybrid and not any(re.search(r"(stages|blocks|layer)\w*\.\d", layer) for layer in layers if _cut(layer))
    if TOKENS.fullmatch(family) or only_stem:
        return (
            f"works on tokens, and {name!r} serves 2-D feature maps (N, C, H, W), which it does not have between its "
            "blocks; foveal.cam shows where it looks, foveal.watch any attention it has; at= chooses layers"
        )
    unfused = any(matches(layer, UNFUSED.get(family, "")) for layer in layers)
    if unfused and (inside or family not in FUSED_ENDS):
        return (
            f"has no default site for {name!r}: its blocks sum parallel branches, so that no layer computes what a "
            "block does; fuse them first, with timm.utils.reparameterize_model"
        )
    if family in CELLS and at_ends:
        return (
            f"has no default site for {name!r}: its cells join sums of layers, so that no layer is the end of a cell; "
            "choose layers with at="
        )
    if inside and any(matches(layer, BRANCHES.get(family, "")) for layer in layers):
        return (
            f"has no default site for {name!r}: its blocks join parallel branches, so that none of their convolutions "
            "is the one that looks around; choose layers with at="
        )
    if inside and family == "hrnet":
        return (
            f"has no default site for {name!r}: it keeps all resolutions side by side, so that there are no last "
            "stages; choose layers with at="
        )
    return None


def _cut(layer: str) -> bool:
    return layer.startswith("patch_embed.backbone.")


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
        if matches(block, blocks):
            inside = [name for name in layers if name.startswith(f"{block}.")]
            candidates = ([f"{block}.{layer}" for layer in end.split()] if end != LAST else inside[-1:] for end in ends)
            found += next((sites for sites in candidates if sites and set(sites) <= set(inside)), [])
    return found


def remark_on_its_own(model: nn.Module, name: str) -> None:
    """Warn if a mechanism would be put into a network that has it already."""
    if name not in _OWN:
        return
    title, is_one = _OWN[name]
    own = [site for site, module in own_modules(model) if is_one(module)]
    if own:
        more = f" and {len(own) - 1} more" if len(own) > 1 else ""
        warnings.warn(
            f"{type(model).__name__} has {title} already ({own[0]}{more}); this is a second one", stacklevel=4
        )
