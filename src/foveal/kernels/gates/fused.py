"""Gates on a feature map as one function of few launches on NVIDIA GPUs, in value and gradient as the plain form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foveal.compat import (
    apply_directly,
    exporting,
    forward_mode_active,
    only_computes,
    parameter_of,
    saved_tensor_hooks_active,
)
from foveal.kernels.gates import plain
from foveal.kernels.support import DTYPES, fused_available, in_layout_of, observed, ordinary, other_derivatives

if TYPE_CHECKING:
    from foveal.kernels.gates.launch import Key, Pools

MOST_CHANNELS = 8192  # a program holds a row of the perceptron's weights
WHOLE = 2**24  # indices are stored as float32
MOST_KEYS = 4096
_fits: dict[tuple[Key, bool], bool] = {}  # whether the kernels support what a key is of, under autocast or not


def fused_gates(
    x: Tensor,
    pools: Sequence[str],
    squeeze: Any,
    excite: Any,
    amount: Tensor | None,
    conv: Any = None,
    norm: Any = None,
) -> Tensor | None:
    """The output of a channel gate and, with ``conv`` and ``norm``, a spatial gate; None where the plain form must run.

    That is the case away from NVIDIA GPUs, for other dtypes, where a tracer, transform or hook must see operators or
    modules, and for layers that are not those the mechanisms were built with. Inside ``torch.compile``, operators
    compute the gates, and the compiler multiplies.

    Args:
        x: (N, C, H, W).
        pools: ``avg``, ``max`` or both, as :func:`foveal.kernels.gates.plain.channel_gate`.
        squeeze: linear layer of the perceptron, C to D.
        excite: linear layer of the perceptron, D to C.
        amount: of the blend, (), or None.
        conv: convolution of the spatial gate, 2 channels to 1.
        norm: its batch norm.
    """
    compiling = torch.compiler.is_compiling()
    if compiling and (exporting() or other_derivatives()):
        return None
    if not fused_available(x.device):
        return None
    if not (only_computes(squeeze, nn.Linear) and only_computes(excite, nn.Linear)):
        return None
    perceptron = [parameter_of(layer, name) for layer in (squeeze, excite) for name in ("weight", "bias")]
    parameters = [*perceptron, amount, None, None, None]
    state = None
    if conv is not None and norm is not None:
        if not (_usual_conv(conv) and _usual_norm(norm)) or (norm.training and x.numel() <= x.shape[1]):
            return None  # of one value the plain form says that it cannot be normalised
        parameters[5:] = conv.weight, norm.weight, norm.bias
        state = norm.running_mean, norm.running_var, norm.num_batches_tracked, norm.momentum, norm.eps, norm.training
    if len(set(pools)) < len(pools) or x.ndim != 4:
        return None
    if compiling:
        return _compiled(x, pools, parameters, state) if _fusable(x, parameters) else None
    if _somebody_looks(x, parameters):
        return None
    from foveal.kernels.gates import launch

    kinds = launch.Pools("avg" in pools, "max" in pools)
    if not (x.is_contiguous() or x.is_contiguous(memory_format=torch.channels_last)):
        x = x.contiguous()
    key = launch.key_of(x, parameters, kinds)
    autocast = torch.is_autocast_enabled(x.device.type)
    fits = _fits.get((key, autocast))
    if fits is None:
        if len(_fits) >= MOST_KEYS:
            _fits.clear()
        fits = _fits[key, autocast] = _fusable(x, parameters)
    if not fits:
        return None
    gate = None if state is None else launch.Norm(*state)
    out: Tensor = apply_directly(_Gates, x, *parameters, kinds, gate, key)
    return out


def _compiled(x: Tensor, pools: Sequence[str], parameters: list[Any], state: Any) -> Tensor:
    """The same by operators of a compiled graph."""
    from foveal.kernels.gates.compiled import compiled_gates
    from foveal.kernels.gates.launch import Norm, Pools

    return compiled_gates(x, parameters, Pools("avg" in pools, "max" in pools), None if state is None else Norm(*state))


def _usual_conv(conv: Any) -> bool:
    """Whether ``conv`` takes two maps to one of the same size, as that of a spatial gate does."""
    kernel = conv.kernel_size[0]
    return (
        only_computes(conv, nn.Conv2d)
        and conv.weight.shape == (1, 2, kernel, kernel)
        and kernel % 2 == 1
        and conv.padding == (kernel // 2, kernel // 2)
        and conv.stride == conv.dilation == (1, 1)
        and conv.bias is None
        and conv.padding_mode == "zeros"
    )


def _usual_norm(norm: Any) -> bool:
    """Whether a batch norm has weights, running statistics and a momentum, as by default."""
    return (
        only_computes(norm, nn.BatchNorm2d)
        and norm.affine
        and norm.running_mean is not None
        and norm.momentum is not None
        and norm.running_mean.dtype == norm.running_var.dtype == norm.weight.dtype
    )


def _somebody_looks(x: Tensor, parameters: list[Any]) -> bool:
    """Whether plain operators must be seen: by a tracer, transform, mode or hook."""
    tensors = [parameter for parameter in parameters if parameter is not None]
    return observed(x, *tensors) or forward_mode_active() or saved_tensor_hooks_active()


def _fusable(x: Tensor, parameters: list[Any]) -> bool:
    """Whether the kernels support this map and these parameters."""
    tensors, c = [parameter for parameter in parameters if parameter is not None], x.shape[1]
    hidden = len(parameters[0])
    return (
        x.dtype in DTYPES
        and 0 < x.numel() < 2**31
        and c <= MOST_CHANNELS
        and x.shape[2] * x.shape[3] < WHOLE
        and (parameters[0].shape, parameters[2].shape) == ((hidden, c), (c, hidden))
        and parameters[1] is not None
        and parameters[3] is not None
        and (x.dtype == tensors[0].dtype or torch.is_autocast_enabled(x.device.type))
        and ordinary(*tensors)
        and all(t.dtype in DTYPES and t.device == x.device and _dense(t) for t in tensors)
    )


def _dense(t: Tensor) -> bool:
    """Whether the kernels can read a parameter: contiguous, or the convolution's weight of a channels-last model."""
    return t.is_contiguous() or (t.ndim == 4 and t.is_contiguous(memory_format=torch.channels_last))


class _Gates(torch.autograd.Function):
    """x, five tensors of the perceptron, three of the spatial gate, three options; keeps nothing map-sized but x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *inputs: Any) -> Tensor:
        from foveal.kernels.gates import launch

        *parameters, ctx.pools, norm, ctx.key = inputs
        out, kept = launch.forward(x, parameters, ctx.pools, norm, ctx.key)
        ctx.save_for_backward(x, *parameters, *kept)
        ctx.training, ctx.eps = (None, 0.0) if norm is None else (norm.training, norm.eps)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        from foveal.kernels.gates import launch

        x, *parameters, state, maps, moments = ctx.saved_tensors
        if torch.is_grad_enabled() or observed(g):
            return *_differentiable(ctx, g, [x, *parameters], moments), None, None, None
        g = in_layout_of(x, g)
        kept = launch.Kept(state, maps, moments)
        needed = ctx.needs_input_grad
        of_parameters = any(needed[1:9])
        gradients = launch.backward(g, x, parameters, ctx.pools, kept, bool(ctx.training), of_parameters, ctx.key)
        if not all(needed[:9]):
            gradients = [grad if need else None for grad, need in zip(gradients, needed[:9], strict=True)]
        return *gradients, None, None, None


def _differentiable(ctx: Any, g: Tensor, inputs: list[Any], moments: Tensor) -> list[Tensor | None]:
    """Gradients that have a graph of their own, through the plain form."""
    needed = ctx.needs_input_grad[: len(inputs)]
    wanted = [tensor for tensor, need in zip(inputs, needed, strict=True) if need]
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        out = _plain(inputs, ctx.pools, ctx.training, ctx.eps, moments)
    gradients = iter(torch.autograd.grad(out, wanted, g, create_graph=again))
    return [next(gradients) if need else None for need in needed]


def _plain(inputs: list[Any], pools: Pools, training: bool | None, eps: float, moments: Tensor) -> Tensor:
    """The plain form, in float32, as a function of the inputs of :class:`_Gates`; no spatial gate: training is None."""
    low, inputs = inputs[0].dtype, [None if t is None else t.float() for t in inputs]
    x, w1, b1, w2, b2, amount, weight, gamma, beta = inputs
    names = ["avg"] * pools.avg + ["max"] * pools.max
    with torch.autocast(x.device.type, enabled=False):
        gate = plain.channel_gate(x, names, lambda p: F.linear(p, w1, b1), lambda p: F.linear(p, w2, b2))
        if training is None:
            return plain.multiply(x, gate, amount).to(low)

        def norm(v: Tensor) -> Tensor:
            if training:
                return F.batch_norm(v, None, None, gamma, beta, True, eps=eps)
            return (v - moments[0]) * moments[1] * gamma + beta

        attended = x * gate[:, :, None, None]
        spatial = plain.spatial_gate(attended, lambda p: F.conv2d(p, weight, padding=weight.shape[-1] // 2), norm)
        return plain.blend(x, attended, gate, spatial, amount).to(low)
