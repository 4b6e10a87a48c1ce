"""The perceptron of a channel gate as an operator without a gradient, for compiled inference on NVIDIA GPUs.

The compiler fuses pooling and multiplication with what is around them. Left to it as well, the perceptron would be
some six kernels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from foveal.kernels.gates import perceptron_kernels as kernels
from foveal.kernels.gates.plan import ceil, power
from foveal.kernels.prepared import launch
from foveal.kernels.tape import empty, taped

SAMPLES, HIDDEN, CHANNELS = 16, 16, 64  # of a program
STEP = 128  # channels that a program reads at a time

torch.library.define(
    "foveal::gate_perceptron",
    "(Tensor? mean, Tensor? top, Tensor w1, Tensor b1, Tensor w2, Tensor b2) -> Tensor",
    tags=torch.Tag.pt2_compliant_tag,
)


@torch.library.impl("foveal::gate_perceptron", ("cuda", "cpu"))  # on a CPU only in Triton's interpreter
def gate_perceptron(mean: Tensor | None, top: Tensor | None, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    """Sigmoid of Σ over poolings of W2 relu(W1 pooled + b1) + b2: (N, C), float32.

    Args:
        mean: means of all channels, (N, C), or None.
        top: their maxima, or None.
        w1: (D, C).
        b1: (D,).
        w2: (C, D).
        b2: (C,).
    """
    poolings = [None if pooled is None else pooled.contiguous() for pooled in (mean, top)]
    n, c = next(pooled.shape for pooled in poolings if pooled is not None)
    parameters = [parameter.contiguous() for parameter in (w1, b1, w2, b2)]
    tensors = *parameters, *poolings
    kinds = [None if tensor is None else tensor.dtype for tensor in tensors]
    key = "gate perceptron", n, c, len(w1), w1.device, *kinds
    (gate,) = taped(key, _gate, tensors, n)
    assert gate is not None
    return gate


def _gate(
    w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, mean: Tensor | None, top: Tensor | None, n: int
) -> Sequence[Tensor]:
    """As :func:`gate_perceptron`, of contiguous tensors."""
    d, c = w1.shape
    hidden, gate = empty((n, d), torch.float32, w1.device), empty((n, c), torch.float32, w1.device)
    flags = mean is not None, top is not None
    grid = ceil(n, SAMPLES), ceil(d, HIDDEN)
    tiles = SAMPLES, HIDDEN, max(16, min(STEP, power(c)))
    launch(kernels.squeeze, grid, (w1, b1, mean, top, hidden), (n, c, d, *flags, *tiles), num_warps=4)
    grid, tiles = (ceil(n, SAMPLES), ceil(c, CHANNELS)), (SAMPLES, CHANNELS, max(16, min(STEP // 2, power(d))))
    launch(kernels.excite, grid, (hidden, w2, b2, gate), (n, c, d, sum(flags), *tiles), num_warps=4)
    return (gate,)


@torch.library.register_fake("foveal::gate_perceptron")
def _(mean, top, w1, b1, w2, b2):
    return w1.new_empty((mean if top is None else top).shape, dtype=torch.float32)
