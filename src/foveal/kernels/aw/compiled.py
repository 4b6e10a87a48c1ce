"""Branch and convolution of an AW site as one operator, for ``torch.compile`` on NVIDIA GPUs.

Left to the compiler, the branch is some thirty small kernels: a GPU waits for Python to launch them. The operator runs
what eager mode runs, :mod:`.branch_launch` and :mod:`.launch`. Running statistics of the norms are updated outside of
it, because an operator with a gradient may not change its arguments.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import conv_flop_count, register_flop_formula

from foveal.kernels.aw.branch import (
    Branch,
    Norm,
    Parameters,
    gradient_sizes,
    kept_sizes,
    norm_of,
    parameter_gradients,
    supported,
)
from foveal.kernels.aw.geometry import out_size
from foveal.kernels.parts import divided, starts


@torch.library.custom_op("foveal::aw_site", mutates_args=())
def aw_site(
    x: Tensor, weight: Tensor, bias: Tensor | None, w1: Tensor, gamma1: Tensor, beta1: Tensor, w2: Tensor,
    gamma2: Tensor, beta2: Tensor, amount: Tensor | None, statistics: list[Tensor], training: list[bool],
    eps: list[float], residual: bool, size: list[int], stride: list[int], padding: list[int], dilation: list[int],
    groups: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The convolution of a site, its multiplier, and what the branch keeps for the gradient.

    Input x (N, C1, H, W) and weight (C2, C1/groups, h, w) have the dtype of the result. Then come the branch's
    parameters and options, as in :class:`~foveal.kernels.aw.branch.Parameters` and ``Branch``: running means and
    variances of both norms, which are used in eval mode, and for each norm whether it takes the statistics of the
    batch, and its epsilon. The last are options of the convolution.
    """
    from foveal.kernels.aw import branch_launch, launch

    parameters = Parameters(w1, gamma1, beta1, w2, gamma2, beta2, amount)
    branch = _branch(x, statistics, training, eps, residual, size)
    multiplier, kept = branch_launch.forward(x, parameters, branch)
    return launch.forward(x, weight, multiplier, bias, stride[0], padding, dilation, groups), multiplier, kept


def _branch(
    x: Tensor, statistics: list[Tensor], training: list[bool], eps: list[float], residual: bool, size: list[int]
) -> Branch:
    """The branch; it does not update statistics."""
    mean1, var1, mean2, var2 = statistics
    one = Norm(mean1, var1, None, training[0], 0.0, eps[0])
    return Branch((size[0], size[1]), residual, one, Norm(mean2, var2, None, training[1], 0.0, eps[1]), x.dtype)


@aw_site.register_fake
def _(
    x, weight, bias, w1, gamma1, beta1, w2, gamma2, beta2, amount, statistics, training, eps, residual, size, stride,
    padding, dilation, groups,
):  # fmt: skip
    n, c1, c2 = x.shape[0], x.shape[1], weight.shape[0]
    sides = [out_size(x.shape[2 + i], weight.shape[2 + i], stride[i], padding[i], dilation[i]) for i in (0, 1)]
    out, multiplier = (x.new_empty(n, *pair, c2).permute(0, 3, 1, 2) for pair in (sides, size))
    sizes = kept_sizes(n * size[0] * size[1], c1, w1.shape[0], c2)
    return out, multiplier, x.new_empty(sum(-(-part // 4) * 4 for part in sizes), dtype=torch.float32)


@torch.library.custom_op("foveal::aw_site_backward", mutates_args=())
def aw_site_backward(
    g: Tensor, x: Tensor, weight: Tensor, multiplier: Tensor, kept: Tensor, w1: Tensor, gamma1: Tensor, beta1: Tensor,
    w2: Tensor, gamma2: Tensor, beta2: Tensor, amount: Tensor | None, training: list[bool], eps: list[float],
    residual: bool, size: list[int], stride: list[int], padding: list[int], dilation: list[int], groups: int,
    needed: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of the input (empty unless ``needed``), of the kernel, and of all parameters of the branch."""
    from foveal.kernels.aw import branch_launch, launch

    parameters = Parameters(w1, gamma1, beta1, w2, gamma2, beta2, amount)
    branch = _branch(x, [kept] * 4, training, eps, residual, size)  # the statistics are in what was kept
    options = stride[0], padding, dilation, groups
    dx, dw, ds = launch.backward(g, x, weight, multiplier, *options, [needed, True], (weight.dtype, None))
    assert dw is not None
    assert ds is not None
    gradients = branch_launch.backward(ds, dx, True, parameters, kept, branch)
    return g.new_empty(0) if dx is None else dx, dw, gradients


@aw_site_backward.register_fake
def _(g, x, weight, multiplier, kept, w1, *rest):
    def like(t: Tensor) -> Tensor:
        n, c, h, w = t.shape
        return t.new_empty(n, h, w, c).permute(0, 3, 1, 2)

    hidden, c1 = w1.shape[:2]
    length = starts(gradient_sizes(int(c1), int(hidden), int(weight.shape[0])))[1]
    return like(x) if rest[-1] else g.new_empty(0), like(weight), x.new_empty(length, dtype=torch.float32)


def _save(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    x, weight, _, *parameters = inputs[:10]
    ctx.save_for_backward(x, weight, *output[1:], *parameters)
    ctx.options = inputs[11:]


def _gradients(ctx, g: Tensor, *unused):  # type: ignore[no-untyped-def]
    x, weight, multiplier, kept, *rest = ctx.saved_tensors
    parameters, need = Parameters(*rest), ctx.needs_input_grad
    dx, dw, gradients = aw_site_backward(g, x, weight, multiplier, kept, *parameters, *ctx.options, need[0])
    db = g.sum((0, 2, 3)) if need[2] else None
    of_parameters = parameter_gradients(gradients, parameters)
    return dx if need[0] else None, dw, db, *of_parameters, [None] * 4, *[None] * len(ctx.options)


aw_site.register_autograd(_gradients, setup_context=_save)


def compiled_site(
    x: Tensor, weight: Tensor, bias: Tensor | None, modules: tuple[nn.Module, ...], amount: Tensor | None,
    size: tuple[int, int], residual: bool, stride: tuple[int, ...], padding: tuple[int, ...], dilation: tuple[int, ...],
    groups: int,
) -> Tensor | None:  # fmt: skip
    """What the site computes; None if only calling the modules computes it.

    Input x (N, C1, H, W), weight and bias have the dtype of the result. ``modules`` are squeeze, norm1, excite and
    norm2 of :class:`~foveal.attention.aw.KernelAttention`, then come its options, and those of the convolution.
    """
    squeeze, norm1, excite, norm2 = modules
    if type(norm1) is not nn.BatchNorm2d or type(norm2) is not nn.BatchNorm2d:
        return None
    if type(squeeze) is not nn.Conv2d or type(excite) is not nn.Conv2d:
        return None
    one, two = norm_of(norm1), norm_of(norm2)
    if one is None or two is None or not supported(squeeze.weight, size):
        return None
    parameters = squeeze.weight, norm1.weight, norm1.bias, excite.weight, norm2.weight, norm2.bias
    if any(parameter.dtype != torch.float32 for parameter in parameters):
        return None
    out, _, kept = aw_site(
        x, weight, bias, *parameters, amount, [one.mean, one.var, two.mean, two.var], [one.batch, two.batch],
        [one.eps, two.eps], residual, list(size), list(stride), list(padding), list(dilation), groups,
    )  # fmt: skip
    m, hidden, c2 = x.shape[0] * size[0] * size[1], squeeze.weight.shape[0], excite.weight.shape[0]
    _, _, stats1, stats2 = divided(kept.detach(), kept_sizes(m, x.shape[1], hidden, c2))
    for norm, stats in ((one, stats1), (two, stats2)):
        if norm.batch:
            _track(norm, stats, m)
    return out


def _track(norm: Norm, stats: Tensor, m: int) -> None:
    """Update the running statistics as ``nn.BatchNorm2d`` does; ``stats``: mean and inverse deviation of m values."""
    mean, inverse = stats.view(2, -1).unbind()
    variance = (inverse.pow(-2) - norm.eps) * (m / (m - 1))
    norm.mean.lerp_(mean, norm.momentum)
    norm.var.lerp_(variance, norm.momentum)
    if norm.tracked is not None:
        norm.tracked.add_(1)


@register_flop_formula(torch.ops.foveal.aw_site)
def _flops(x_shape, weight_shape, *args, out_shape, **kwargs) -> int:  # type: ignore[no-untyped-def]
    return conv_flop_count(x_shape, weight_shape, out_shape[0])


@register_flop_formula(torch.ops.foveal.aw_site_backward)
def _backward_flops(g_shape, x_shape, weight_shape, *args: Any, out_shape, **kwargs) -> int:  # type: ignore[no-untyped-def]
    return 2 * conv_flop_count(x_shape, weight_shape, g_shape)
