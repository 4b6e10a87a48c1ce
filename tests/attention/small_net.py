"""A small network of someone's own, and what tests of insertion do to any network."""

from __future__ import annotations

import torch
from torch import Tensor, nn

MECHANISMS = ("aw", "se", "cbam", "deform", "dynamic", "spatial")


class SmallNet(nn.Module):
    """Biases, a stride, a dilation, depthwise, pointwise and grouped convolutions, batch and group norms; no blocks."""

    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm1 = nn.GroupNorm(2, 8)
        self.depthwise = nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=8, bias=False)
        self.norm2 = nn.BatchNorm2d(8)
        self.pointwise = nn.Conv2d(8, 16, 1)
        self.norm3 = nn.BatchNorm2d(16)
        self.grouped = nn.Conv2d(16, 16, 3, padding=2, dilation=2, groups=2)
        self.norm4 = nn.GroupNorm(4, 16)
        self.last = nn.Conv2d(16, 12, (1, 3), padding="same")
        self.act = nn.ReLU()
        self.head = nn.Linear(12, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.norm1(self.stem(x)))
        x = self.act(self.norm2(self.depthwise(x)))
        x = self.act(self.norm3(self.pointwise(x)))
        x = self.act(self.norm4(self.grouped(x)))
        return self.head(self.last(x).mean((2, 3)))


@torch.no_grad()
def randomise(model: nn.Module, seed: int = 0) -> nn.Module:
    """Give every norm weights and statistics that matter, so that no zero hides a branch."""
    draw = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d | nn.GroupNorm | nn.LayerNorm) and module.weight is not None:
            module.weight.copy_(0.6 + 0.8 * torch.rand(module.weight.shape, generator=draw))
            module.bias.copy_(0.2 * torch.randn(module.bias.shape, generator=draw))
        if isinstance(module, nn.BatchNorm2d) and module.running_mean is not None:
            module.running_mean.copy_(0.2 * torch.randn(module.running_mean.shape, generator=draw))
            module.running_var.copy_(0.6 + 0.8 * torch.rand(module.running_var.shape, generator=draw))
    return model


def images(n: int = 4, size: tuple[int, int] = (13, 10), dtype: torch.dtype = torch.float32, seed: int = 1) -> Tensor:
    return torch.randn(n, 3, *size, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def tree(model: nn.Module) -> list[tuple[str, type]]:
    """Every module by name and class, in order."""
    return [(name, type(module)) for name, module in model.named_modules()]
