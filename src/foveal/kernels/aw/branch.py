"""The attention branch of an AW-convolution in few launches on NVIDIA GPUs.

    A0 = AvgPool(I) to h×w;  A1 = ReLU(BN(W1 A0));  A = Sigmoid(BN(W2 A1));  multiplier = 1 + A

or A alone without the residual, or 1 + amount·(multiplier − 1) for a start at the identity. In plain PyTorch these are
some twenty operators forward and twice as many backward on tiny tensors: a GPU waits for Python. Here they are two
launches forward, one in eval mode, and three backward, four where the input's gradient is not that of a convolution as
well. The plain form, :func:`plain_multiplier`, is the reference and gives second derivatives.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foveal.compat import apply_directly, only_computes, parameter_of
from foveal.kernels.aw.geometry import channels_last, empty_last
from foveal.kernels.aw.plain import match_layout
from foveal.kernels.aw.pool import average_pool
from foveal.kernels.parts import divided
from foveal.kernels.support import fused_available, observed
from foveal.kernels.tape import taped

Normalise = Callable[[Tensor], Tensor]
MOST_HIDDEN = 128  # channels between the two products; with more, a program's tiles do not fit
MOST_CELLS = 64  # of a pooled map


class Norm(NamedTuple):
    """What a batch norm does beside its weight and bias.

    ``batch``: whether it takes the statistics of the batch. ``tracked``: the number of batches, or None if running
    statistics are not updated.
    """

    mean: Tensor
    var: Tensor
    tracked: Tensor | None
    batch: bool
    momentum: float
    eps: float


class Parameters(NamedTuple):
    """Parameters of a branch, all float32: W1 (hidden, C1, 1, 1), W2 (C2, hidden, 1, 1), and amount () or None."""

    w1: Tensor
    gamma1: Tensor
    beta1: Tensor
    w2: Tensor
    gamma2: Tensor
    beta2: Tensor
    amount: Tensor | None


@dataclass(slots=True)
class Branch:
    """What a branch computes, beside its parameters.

    Attributes:
        size: of the pooled map, (h, w).
        residual: whether the multiplier is 1 + A or A.
        norm1, norm2: the norms.
        dtype: of the multiplier.
    """

    size: tuple[int, int]
    residual: bool
    norm1: Norm
    norm2: Norm
    dtype: torch.dtype


def kept_sizes(m: int, c1: int, hidden: int, c2: int) -> tuple[int, ...]:
    """What a branch keeps for its gradient: A0 (M, C1), z1 (M, hidden or more), means and inverse deviations."""
    return m * c1, m * hidden_side(hidden), 2 * hidden, 2 * c2


def hidden_side(hidden: int) -> int:
    """Length of a row of hidden channels: a power of two, and at least 16, as products on tensor cores need it.

    >>> hidden_side(6), hidden_side(32), hidden_side(33)
    (16, 32, 64)
    """
    return max(16, 1 << (int(hidden) - 1).bit_length())


def gradient_sizes(c1: int, hidden: int, c2: int) -> tuple[int, ...]:
    """Number of values of :class:`Parameters`, with an amount."""
    return hidden * c1, hidden, hidden, c2 * hidden, c2, c2, 1


def parameter_gradients(buffer: Tensor, parameters: Parameters) -> list[Tensor | None]:
    """Gradients of the parameters, from the buffer that holds all of them."""
    (hidden, c1, _, _), c2 = parameters.w1.shape, parameters.w2.shape[0]
    parts = divided(buffer, gradient_sizes(c1, hidden, c2))
    w1, gamma1, beta1, w2, gamma2, beta2, amount = parts
    amounts = None if parameters.amount is None else amount.view(())
    return [w1.view(parameters.w1.shape), gamma1, beta1, w2.view(parameters.w2.shape), gamma2, beta2, amounts]


def norm_of(module: nn.BatchNorm2d) -> Norm | None:
    """What ``module`` does; None if it does not keep statistics, has no affine part or averages over all batches."""
    buffers, momentum = module._buffers, module.momentum  # attributes of a module are looked up in Python: slow
    mean, var, tracked = buffers["running_mean"], buffers["running_var"], buffers["num_batches_tracked"]
    if mean is None or var is None or tracked is None or momentum is None or parameter_of(module, "weight") is None:
        return None
    return Norm(mean, var, tracked, module.training, momentum, module.eps)


def supported(w1: Tensor, size: tuple[int, int]) -> bool:
    """Whether a program's tiles have room for a branch with these first weights and a pooled map of this size."""
    return w1.shape[0] <= MOST_HIDDEN and size[0] * size[1] <= MOST_CELLS


def branch_of(
    x: Tensor,
    squeeze: nn.Conv2d,
    norm1: nn.BatchNorm2d,
    excite: nn.Conv2d,
    norm2: nn.BatchNorm2d,
    amount: Tensor | None,
    size: tuple[int, int],
    residual: bool,
    dtype: torch.dtype,
) -> tuple[Parameters, Branch] | None:
    """The branch made of these modules for input ``x``, or None if only calling the modules computes it."""
    if not fused_available(x.device) or x.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return None
    if x.numel() >= 2**31:  # the kernels count in 32 bits
        return None
    if x.shape[0] * size[0] * size[1] < 2:  # nothing to take statistics of; a norm in training mode says so
        return None
    if not (
        only_computes(norm1, nn.BatchNorm2d)
        and only_computes(norm2, nn.BatchNorm2d)
        and only_computes(squeeze, nn.Conv2d)
        and only_computes(excite, nn.Conv2d)
    ):
        return None
    w1, w2 = parameter_of(squeeze, "weight"), parameter_of(excite, "weight")
    first, second = norm_of(norm1), norm_of(norm2)
    if first is None or second is None or not supported(w1, size):
        return None
    gamma1, beta1 = parameter_of(norm1, "weight"), parameter_of(norm1, "bias")
    gamma2, beta2 = parameter_of(norm2, "weight"), parameter_of(norm2, "bias")
    parameters = Parameters(w1, gamma1, beta1, w2, gamma2, beta2, amount)
    tensors = [tensor for tensor in parameters if tensor is not None]
    if observed(x, *tensors):
        return None
    for tensor in tensors:
        if tensor.dtype != torch.float32 or not tensor.is_contiguous():
            return None
    return parameters, Branch(size, residual, first, second, dtype)


def attention_of_cells(pooled: Tensor, w1: Tensor, normalise1: Normalise, w2: Tensor, normalise2: Normalise) -> Tensor:
    """A = Sigmoid(BN(W2 ReLU(BN(W1 A0)))) with one row a pooled cell: two matrix products, in plain PyTorch.

    Args:
        pooled: A0 (N, C1, h, w), in the dtype of the kernels.
        w1: (hidden, C1, 1, 1).
        normalise1: the batch norm of (N·h·w, hidden).
        w2: (C2, hidden, 1, 1).
        normalise2: that of (N·h·w, C2).

    Returns:
        (N, C2, h, w), channels last, as the fused convolution takes it.
    """
    cells = pooled.permute(0, 2, 3, 1)
    hidden = torch.relu(normalise1(F.linear(cells.flatten(0, 2), w1.flatten(1))))
    attention = torch.sigmoid(normalise2(F.linear(hidden, w2.flatten(1))))
    return attention.view(*cells.shape[:3], len(w2)).permute(0, 3, 1, 2)


def plain_multiplier(x: Tensor, parameters: Parameters, branch: Branch) -> Tensor:
    """The multiplier (N, C2, h, w) of input x (N, C1, H, W), in plain PyTorch; running statistics are left alone."""
    w1, gamma1, beta1, w2, gamma2, beta2, amount = parameters

    def normalise(norm: Norm, weight: Tensor, bias: Tensor) -> Normalise:
        mean, var = (None, None) if norm.batch else (norm.mean, norm.var)
        return lambda z: F.batch_norm(z, mean, var, weight, bias, norm.batch, 0.0, norm.eps)

    pooled = average_pool(x, branch.size).to(w1.dtype)
    norms = normalise(branch.norm1, gamma1, beta1), normalise(branch.norm2, gamma2, beta2)
    attention = attention_of_cells(pooled, w1, norms[0], w2, norms[1])
    return multiplier_of(attention, branch.residual, amount).to(branch.dtype)


def multiplier_of(attention: Tensor, residual: bool, amount: Tensor | None) -> Tensor:
    """1 + A or A, and of that 1 + amount·(… − 1): exactly 1 at first, but with a gradient."""
    if amount is not None:
        return 1 + amount * (attention if residual else attention - 1)
    return attention + 1 if residual else attention


def branch_multiplier(x: Tensor, parameters: Parameters, branch: Branch) -> Tensor:
    """The multiplier (N, C2, h, w), channels last, in ``branch.dtype``; running statistics are updated."""
    return apply_directly(_Multiplier, x, *parameters, branch)


class _Multiplier(torch.autograd.Function):
    """x and the parameters to the multiplier."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *inputs: Any) -> Tensor:
        parameters, branch = Parameters(*inputs[:-1]), inputs[-1]
        multiplier, kept = forward(channels_last(x), parameters, branch)
        ctx.branch = branch
        ctx.save_for_backward(x, kept, *parameters)
        return multiplier

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, kept, *rest = ctx.saved_tensors
        parameters, need = Parameters(*rest), ctx.needs_input_grad
        if torch.is_grad_enabled() or observed(g):
            return *differentiate(_plain_branch, [x, *parameters], need, g, ctx.branch), None
        dx, gradients = backward(channels_last(g), x, kept, parameters, ctx.branch, need[0])
        of_parameters = parameter_gradients(gradients, parameters)
        if dx is not None and len(x) == 1:
            dx = match_layout(dx, x)
        return dx, *(part if wanted else None for part, wanted in zip(of_parameters, need[1:8], strict=True)), None


def branch_key(name: str, x: Tensor, parameters: Parameters, branch: Branch) -> tuple[Any, ...]:
    """What launches of a branch depend on: for :func:`~foveal.kernels.tape.taped`."""
    one, two = branch.norm1, branch.norm2
    return (
        name, x.shape, x.dtype, x.get_device(), parameters.w1.shape[0], parameters.w2.shape[0],
        parameters.amount is None, one[3:], two[3:], one.tracked is None, two.tracked is None, branch.size,
        branch.residual, branch.dtype,
    )  # fmt: skip


def forward(x: Tensor, parameters: Parameters, branch: Branch, key: Hashable = None) -> tuple[Tensor, Tensor]:
    """The multiplier of x, in channels last, and what is kept for its gradient; with a key of one's own for both."""
    tensors = (x, *parameters, *branch.norm1[:3], *branch.norm2[:3])
    key = key or branch_key("aw branch", x, parameters, branch)
    return taped(key, _forward, tensors, branch)  # type: ignore[return-value]


def backward(
    g: Tensor, x: Tensor, kept: Tensor, parameters: Parameters, branch: Branch, of_input: bool, key: Hashable = None
) -> tuple[Tensor | None, Tensor]:
    """Gradient of x, and the buffer with those of the parameters; from that of the multiplier, in channels last."""
    key = key or (*branch_key("aw branch backward", x, parameters, branch), g.dtype, of_input)
    tensors = (g, kept, *parameters)
    return taped(key, _backward, tensors, branch, x.shape, x.dtype, of_input)  # type: ignore[return-value]


def _forward(x: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    from foveal.kernels.aw import branch_launch

    return branch_launch.forward(x, Parameters(*rest[:7]), rest[-1])


def _backward(g: Tensor, kept: Tensor, *rest: Any) -> tuple[Tensor | None, Tensor]:
    from foveal.kernels.aw import branch_launch

    parameters, (branch, shape, dtype, of_input) = Parameters(*rest[:7]), rest[7:]
    gradients, cells = branch_launch.backward(g, parameters, kept, branch, shape if of_input else None)
    if cells is None:
        return None, gradients
    dx = empty_last(shape, g, dtype)
    branch_launch.pool_grad(cells, dx, branch.size)
    return dx, gradients


def _plain_branch(x: Tensor, *rest: Any) -> Tensor:
    """What :class:`_Multiplier` computes."""
    return plain_multiplier(x, Parameters(*rest[:-1]), rest[-1])


def differentiate(
    plain: Callable[..., Tensor], inputs: list[Any], need: Sequence[bool], g: Tensor, *options: Any
) -> list[Tensor | None]:
    """Gradients of ``plain(*inputs, *options)``, with a graph of their own if one is wanted; None where not needed."""
    need = need[: len(inputs)]
    wanted = [tensor for tensor, needed in zip(inputs, need, strict=True) if needed]
    if not wanted:
        return [None] * len(inputs)
    twice = torch.is_grad_enabled()
    with torch.enable_grad(), torch.autocast(g.device.type, enabled=False):
        gradients = iter(torch.autograd.grad(plain(*inputs, *options), wanted, g, create_graph=twice))
    return [next(gradients) if needed else None for needed in need]
