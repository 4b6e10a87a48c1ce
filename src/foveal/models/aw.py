"""ResNets and MobileNet with AW-convolution, squeeze and excitation, and CBAM.

"An Attention Module for Convolutional Neural Networks" (ICANN 2021, https://arxiv.org/abs/2108.08205). The networks are
timm's with attention inserted at the mechanisms' usual sites; the parameter counts are the published ones, except that
AW-ResNet-101 has 44.86 million parameters where the paper prints 44.95, which no reading of its text explains.

The stride of a downsampling bottleneck sits in its first 1×1 convolution, as in the networks whose FLOPs the paper
quotes; ``stride_first=False`` leaves it in the 3×3 convolution, where the published weights of timm expect it.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import Signature, signature
from typing import Any, Literal, TypeVar

import timm
from timm.models.efficientnet import EfficientNet
from timm.models.resnet import Bottleneck, ResNet
from torch import nn

from foveal.attention import insert
from foveal.models.registry import register

Build = TypeVar("Build", bound=Callable[..., nn.Module])


def options_of(network: type[nn.Module]) -> Callable[[Build], Build]:
    """Let the decorated function say that what it passes on as ``**network`` are the options of timm's ``network``."""

    def decorate(build: Build) -> Build:
        own = [p for p in signature(build).parameters.values() if p.kind is not p.VAR_KEYWORD]
        names = {p.name for p in own}
        more = [p for p in signature(network).parameters.values() if p.default is not p.empty and p.name not in names]
        build.__signature__ = Signature([*own, *(p.replace(kind=p.KEYWORD_ONLY) for p in more)])  # type: ignore[attr-defined]
        return build

    return decorate


@options_of(ResNet)
def attended_resnet(
    depth: Literal[50, 101] = 50,
    *,
    aw: bool = False,
    gate: Literal["se", "cbam"] | None = None,
    reduction: int = 16,
    pools: list[str] | None = None,
    spatial: bool = True,
    start: Literal["identity", "paper"] = "paper",
    stride_first: bool = True,
    num_classes: int = 1000,
    in_chans: int = 3,
    **network: Any,
) -> nn.Module:
    """A ResNet of bottleneck blocks with attention in every one.

    Args:
        depth: 50 or 101.
        aw: AW-convolution in place of every 3×3 convolution of the blocks.
        gate: squeeze and excitation or CBAM after the last norm of every block.
        reduction: of every mechanism.
        pools: which poolings feed CBAM's channel gate; ``avg`` and ``max`` unless told otherwise.
        spatial: whether CBAM has its spatial gate.
        start: ``paper``, or ``identity`` to begin as the plain network.
        stride_first: the stride of a downsampling block in its first convolution.
        num_classes: number of classes.
        in_chans: channels of the image.
        network: other options of timm's network, such as ``drop_rate``.
    """
    network = {"zero_init_last": False} | network  # a branch of zeros would keep its attention from learning at first
    model = timm.create_model(f"resnet{depth}", num_classes=num_classes, in_chans=in_chans, **network)
    if stride_first:
        for block in model.modules():
            if isinstance(block, Bottleneck):
                block.conv1.stride, block.conv2.stride = block.conv2.stride, (1, 1)
    return attend(model, aw, gate, reduction, pools, spatial, start)


@options_of(EfficientNet)
def attended_mobilenet(
    *,
    aw: bool = False,
    gate: Literal["se", "cbam"] | None = None,
    reduction: int = 16,
    pools: list[str] | None = None,
    spatial: bool = True,
    start: Literal["identity", "paper"] = "paper",
    num_classes: int = 1000,
    in_chans: int = 3,
    **network: Any,
) -> nn.Module:
    """MobileNet v1 with attention: AW on the pointwise convolutions, gates after both halves of every block.

    Args:
        aw: as in :func:`attended_resnet`, like everything else.
        gate: which gate.
        reduction: of every mechanism.
        pools: of CBAM.
        spatial: of CBAM.
        start: initialisation.
        num_classes: number of classes.
        in_chans: channels of the image.
        network: other options of timm's network, such as ``drop_rate``.
    """
    model = timm.create_model("mobilenetv1_100", num_classes=num_classes, in_chans=in_chans, **network)
    return attend(model, aw, gate, reduction, pools, spatial, start)


def attend(
    model: nn.Module, aw: bool, gate: str | None, reduction: int, pools: list[str] | None, spatial: bool, start: Any
) -> nn.Module:
    """Insert what the options of :func:`attended_resnet` ask for at its usual sites, and return the model."""
    if aw:
        insert(model, "aw", start=start, reduction=reduction)
    if gate == "se":
        insert(model, "se", start=start, reduction=reduction)
    elif gate == "cbam":
        pools = ["avg", "max"] if pools is None else pools
        insert(model, "cbam", start=start, reduction=reduction, pools=pools, spatial=spatial)
    return model


_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "aw": ("AW-convolution", {"aw": True}),
    "se": ("squeeze and excitation", {"gate": "se"}),
    "cbam": ("CBAM", {"gate": "cbam"}),
    "aw_se": ("AW-convolution and squeeze and excitation", {"aw": True, "gate": "se"}),
    "aw_cbam": ("AW-convolution and CBAM", {"aw": True, "gate": "cbam"}),
}


def register_variants(suffix: str, title: str, build: Callable[..., nn.Module], **fixed: Any) -> None:
    """Register ``aw_SUFFIX``, ``se_SUFFIX`` and so on, built by ``build`` with the options ``fixed``."""
    for prefix, (what, chosen) in _VARIANTS.items():

        def make(chosen: dict[str, Any] = chosen, **options: Any) -> nn.Module:
            return build(**fixed | chosen | options)

        make.__name__, make.__module__ = f"{prefix}_{suffix}", build.__module__
        make.__doc__ = f"{title} with {what}."
        register(build)(make)


register_variants("resnet50", "ResNet-50", attended_resnet, depth=50)
register_variants("resnet101", "ResNet-101", attended_resnet, depth=101)
register_variants("mobilenet", "MobileNet v1", attended_mobilenet)
