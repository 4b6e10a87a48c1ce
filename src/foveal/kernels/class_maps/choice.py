"""The true and the confusing class of every image in one launch, instead of some fifteen small operators."""

from __future__ import annotations

import torch
from torch import Tensor

from foveal.kernels.support import DTYPES, fused_available, observed, on_its_device

MOST_CLASSES = 32768  # a program has all scores of an image in registers


def fused_choice(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor] | None:
    """Classes int64 (N, 2), the true and the best-scoring other one, and bool (N, 1), whether the true one is known.

    None where plain operators must run: away from NVIDIA GPUs, for other dtypes, where a compiler or a mode must see
    them.

    Args:
        logits: (N, C), at least two classes.
        target: class numbers (N,), negative if unknown.
    """
    if torch.compiler.is_compiling() or not fused_available(logits.device) or observed(logits, target):
        return None
    if logits.dtype not in DTYPES or not 0 < logits.numel() < 2**31 or logits.shape[1] > MOST_CLASSES:
        return None
    if logits.stride(1) != 1 or not target.is_contiguous() or target.device != logits.device:
        return None
    return _launch(logits, target)


@on_its_device
def _launch(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    from triton import next_power_of_2

    from foveal.kernels.class_maps.triton_kernels import choice_kernel
    from foveal.kernels.prepared import launch

    n, c = logits.shape
    classes = torch.empty((n, 2), dtype=torch.int64, device=logits.device)
    known = torch.empty((n, 1), dtype=torch.bool, device=logits.device)
    rest = logits.stride(0), c, next_power_of_2(c)
    launch(choice_kernel, (n,), (logits, target, classes, known), rest, num_warps=4)
    return classes, known
