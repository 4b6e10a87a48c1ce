"""ResNets and MobileNet with AW-convolution, squeeze and excitation, and CBAM.

"An Attention Module for Convolutional Neural Networks" (ICANN 2021, https://arxiv.org/abs/2108.08205). The networks are
timm's with attention inserted at the mechanisms' default sites. Parameter counts are the published ones, except that
AW-ResNet-101 has 44.86 million parameters and the paper says 44.95, which its text does not explain.

The stride of a downsampling bottleneck is in its first 1×1 convolution, as in the networks whose FLOPs the paper
quotes; with ``stride_first=False`` it is in the 3×3 convolution, as timm's published weights expect.
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
    """Add the options of timm's ``network`` to the signature of the decorated function, in place of ``**network``."""

    def decorate(build: Build) -> Build:
        own = {name: p for name, p in signature(build).parameters.items() if p.kind is not p.VAR_KEYWORD}
        added = [p for name, p in signature(network).parameters.items() if p.default is not p.empty and name not in own]
        parameters = [*own.values(), *(p.replace(kind=p.KEYWORD_ONLY) for p in added)]
        build.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
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
        pools: poolings of CBAM's channel gate; ``avg`` and ``max`` by default.
        spatial: whether CBAM has its spatial gate.
        start: ``paper``, or ``identity`` to start as the plain network.
        stride_first: put the stride of a downsampling block in its first convolution.
        num_classes: number of classes.
        in_chans: channels of the image.
        network: other options of timm's network, such as ``drop_rate``.
    """
    network = {"zero_init_last": False} | network  # attention in a branch of zeros has no gradient at first
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
        aw: AW-convolution in place of every pointwise convolution.
        gate: squeeze and excitation or CBAM.
        reduction: of every mechanism.
        pools: poolings of CBAM's channel gate; ``avg`` and ``max`` by default.
        spatial: whether CBAM has its spatial gate.
        start: ``paper``, or ``identity`` to start as the plain network.
        num_classes: number of classes.
        in_chans: channels of the image.
        network: other options of timm's network, such as ``drop_rate``.
    """
    model = timm.create_model("mobilenetv1_100", num_classes=num_classes, in_chans=in_chans, **network)
    return attend(model, aw, gate, reduction, pools, spatial, start)


def attend(
    model: nn.Module, aw: bool, gate: str | None, reduction: int, pools: list[str] | None, spatial: bool, start: Any
) -> nn.Module:
    """Insert mechanisms at their default sites and return the model; options as in :func:`attended_resnet`."""
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
    for prefix, (attention, defaults) in _VARIANTS.items():

        def variant(defaults: dict[str, Any] = defaults, **options: Any) -> nn.Module:
            return build(**fixed | defaults | options)

        variant.__name__, variant.__module__ = f"{prefix}_{suffix}", build.__module__
        variant.__doc__ = f"{title} with {attention}."
        register(build)(variant)


register_variants("resnet50", "ResNet-50", attended_resnet, depth=50)
register_variants("resnet101", "ResNet-101", attended_resnet, depth=101)
register_variants("mobilenet", "MobileNet v1", attended_mobilenet)
