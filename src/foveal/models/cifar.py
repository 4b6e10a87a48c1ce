"""Small ResNets for small images, plain and with AW-convolution, squeeze and excitation, and CBAM.

He, Zhang, Ren, Sun: "Deep Residual Learning for Image Recognition" (https://arxiv.org/abs/1512.03385), section 4.2: a
3×3 convolution, three stages of n blocks with 16, 32 and 64 channels, the mean over positions, one linear layer; 6n + 2
layers in all. Shortcuts have no parameters (option A), or with ``shortcut="projection"`` a 1×1 convolution (option B).

Departure: the reduction of the mechanisms is 4, not 16. With 16, a layer of 16 channels has a bottleneck of one unit,
and if its ReLU is inactive the whole mechanism is; with 4 the narrowest bottleneck has four units.
"""

from __future__ import annotations

from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from foveal.errors import UserError
from foveal.models.aw import attend, register_variants
from foveal.models.registry import register

Shortcut = Literal["pad", "projection"]


class Block(nn.Module):
    """Two 3×3 convolutions and a shortcut around them.

    Args:
        channels: channels of the input.
        out: channels of the output.
        stride: of the first convolution.
        shortcut: used if the shape changes: ``pad`` takes every ``stride``-th position and pads the new channels with
            zeros, ``projection`` is a 1×1 convolution and a batch norm.
    """

    def __init__(self, channels: int, out: int, *, stride: int = 1, shortcut: Shortcut = "pad") -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.stride, self.new = stride, out - channels
        self.downsample: nn.Module | None = None
        if shortcut == "projection" and (stride > 1 or self.new):
            self.downsample = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        """(N, channels, H, W) to (N, out, ⌈H/stride⌉, ⌈W/stride⌉)."""
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        if self.downsample is not None:
            x = self.downsample(x)
        elif self.stride > 1 or self.new:
            before = self.new // 2
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, before, self.new - before))
        return F.relu(x + y)


class CifarResNet(nn.Module):
    """The network of :func:`cifar_resnet` before attention is inserted."""

    def __init__(self, depth: int, *, width: int, shortcut: Shortcut, num_classes: int, in_chans: int) -> None:
        super().__init__()
        if depth < 8 or (depth - 2) % 6:
            raise UserError(f"depth={depth}: expected 6n + 2 layers, for example 20, 56 or 110")
        self.conv1 = nn.Conv2d(in_chans, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        channels, stages = width, []
        for out in (width, 2 * width, 4 * width):
            blocks = []
            for i in range((depth - 2) // 6):
                blocks.append(Block(channels, out, stride=2 if i == 0 and out > width else 1, shortcut=shortcut))
                channels = out
            stages.append(nn.Sequential(*blocks))
        self.layer1, self.layer2, self.layer3 = stages
        self.fc = nn.Linear(channels, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Logits (N, classes) of images (N, C, H, W)."""
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(x.mean((2, 3)))


def cifar_resnet(
    depth: int = 20,
    *,
    aw: bool = False,
    gate: Literal["se", "cbam"] | None = None,
    reduction: int = 4,
    pools: list[str] | None = None,
    spatial: bool = True,
    start: Literal["identity", "paper"] = "paper",
    width: int = 16,
    shortcut: Shortcut = "pad",
    num_classes: int = 10,
    in_chans: int = 3,
) -> nn.Module:
    """A ResNet of 6n + 2 layers for images of about 32×32 pixels, with attention in every block.

    Args:
        depth: number of layers.
        aw: AW-convolution in place of both convolutions of every block.
        gate: squeeze and excitation or CBAM after the last norm of every block.
        reduction: of every mechanism.
        pools: poolings of CBAM's channel gate; ``avg`` and ``max`` by default.
        spatial: whether CBAM has its spatial gate.
        start: ``paper``, or ``identity`` to start as the plain network.
        width: channels of the first stage; the others have two and four times as many.
        shortcut: ``pad`` (option A) or ``projection`` (option B), see :class:`Block`.
        num_classes: number of classes.
        in_chans: channels of the image.
    """
    model = CifarResNet(depth, width=width, shortcut=shortcut, num_classes=num_classes, in_chans=in_chans)
    return attend(model, aw, gate, reduction, pools, spatial, start)


@register(cifar_resnet)
def cifar_resnet20(**options: Any) -> nn.Module:
    """ResNet-20 for small images."""
    return cifar_resnet(**{"depth": 20} | options)


@register(cifar_resnet)
def cifar_resnet56(**options: Any) -> nn.Module:
    """ResNet-56 for small images."""
    return cifar_resnet(**{"depth": 56} | options)


@register(cifar_resnet)
def cifar_resnet110(**options: Any) -> nn.Module:
    """ResNet-110 for small images."""
    return cifar_resnet(**{"depth": 110} | options)


for _depth in (20, 56, 110):
    register_variants(f"cifar_resnet{_depth}", f"ResNet-{_depth} for small images", cifar_resnet, depth=_depth)
