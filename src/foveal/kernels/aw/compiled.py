"""Branch and convolution of an AW site as operators, for ``torch.compile`` on NVIDIA GPUs.

Left to the compiler, the branch is some thirty small kernels: a GPU waits for Python to launch them. The operators run
what eager mode runs, :mod:`.site`. ``aw_site`` is differentiable; PyTorch sees through it, to two operators that are
not: they are all that a compiled graph holds. ``aw_branch`` is the branch alone, after the pooling, for convolutions
that the compiler does, as those of 1×1 kernels; it fuses their scaling with what is around.

They are not defined with ``torch.library.custom_op``, whose checks at every call take longer than a launch; for the
same reason their options are one string.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.flop_counter import conv_flop_count, register_flop_formula

from foveal.compat import only_computes
from foveal.kernels.aw import branch, site
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
from foveal.kernels.aw.geometry import channels_last, groups_together, out_size
from foveal.kernels.aw.site import Convolution
from foveal.kernels.copies import packed_shape
from foveal.kernels.parts import starts
from foveal.kernels.support import described
from foveal.kernels.tape import repeated

INPUTS = (
    "Tensor x, Tensor weight, Tensor? bias, Tensor[] parameters, Tensor? amount, Tensor[] running,"
    " Tensor(a!)[] updated, float[] numbers, str options"
)
BRANCH_INPUTS = INPUTS.replace("Tensor x, Tensor weight, Tensor? bias", "Tensor x")
OPERATORS = {
    "aw_branch": f"({BRANCH_INPUTS}) -> Tensor",
    "aw_branch_forward": f"({BRANCH_INPUTS}) -> (Tensor, Tensor)",
    "aw_branch_backward": "(Tensor g, Tensor x, Tensor kept, Tensor[] parameters, Tensor? amount, float[] numbers,"
    " str options, bool of_input) -> (Tensor, Tensor)",
    "aw_site": f"({INPUTS}) -> Tensor",
    "aw_site_forward": f"({INPUTS}) -> (Tensor, Tensor, Tensor, Tensor)",
    "aw_site_backward": "(Tensor g, Tensor x, Tensor weight, Tensor[] kept, Tensor[] parameters, Tensor? amount,"
    " float[] numbers, str options, bool of_input) -> (Tensor, Tensor, Tensor)",
}
for name, schema in OPERATORS.items():
    torch.library.define(f"foveal::{name}", schema, tags=torch.Tag.pt2_compliant_tag)
DEVICES = ("cuda", "cpu")  # on a CPU only in Triton's interpreter


class Options:
    """What an AW site computes, beside its tensors, as the first part of the text that the operators take.

    Attributes:
        training: whether the norms take the statistics of the batch, and update the running ones.
        residual: whether the multiplier is 1 + A or A.
        size: of the pooled map.
        conv: options of the convolution, or None of a branch alone.
    """

    def __init__(self, text: str) -> None:
        self.training, self.residual, self.size, conv = ast.literal_eval(text.partition(";")[0])
        self.conv = None if conv is None else Convolution(*conv)

    def branch(self, x: Tensor, numbers: list[float], statistics: Sequence[Tensor | None] = (None,) * 6) -> Branch:
        """The branch.

        Of each norm, ``numbers`` are momentum and epsilon, and ``statistics`` mean, variance and number of batches.
        """
        one = Norm(*statistics[:3], self.training, *numbers[:2])  # type: ignore
        two = Norm(*statistics[3:], self.training, *numbers[2:])  # type: ignore
        return Branch(self.size, self.residual, one, two, x.dtype)


options_of = lru_cache(maxsize=4096)(Options)


def _statistics(running: Sequence[Tensor], updated: Sequence[Tensor]) -> Sequence[Tensor | None]:
    """Mean, variance and number of batches of both norms; without the last in eval mode."""
    return updated or (*running[:2], None, *running[2:], None)


def _like(t: Tensor) -> Tensor:
    n, c, h, w = t.shape
    return t.new_empty(n, h, w, c).permute(0, 3, 1, 2)


def _fake_branch(x: Tensor, size: tuple[int, int], parameters: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The multiplier and what is kept, without values."""
    n, c1, (hidden, c2) = x.shape[0], x.shape[1], (parameters[0].shape[0], parameters[3].shape[0])
    sizes = kept_sizes(n * size[0] * size[1], c1, hidden, c2)
    kept = x.new_empty(sum(-(-part // 4) * 4 for part in sizes), dtype=torch.float32)
    return x.new_empty(n, *size, c2).permute(0, 3, 1, 2), kept


def _fake_gradients(x: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """Memory for gradients of all parameters of a branch."""
    (hidden, c1), c2 = parameters[0].shape[:2], parameters[3].shape[0]
    return x.new_empty(starts(gradient_sizes(int(c1), int(hidden), int(c2)))[1], dtype=torch.float32)


def _all(parameters: Sequence[Tensor], amount: Tensor | None) -> Parameters:
    w1, gamma1, beta1, w2, gamma2, beta2 = parameters
    return Parameters(w1, gamma1, beta1, w2, gamma2, beta2, amount)


def _key(name: str, x: Tensor, numbers: list[float], text: str, *more: Any) -> tuple[Any, ...]:
    """Of a tape; ``text`` says what there is to know of the parameters."""
    exact = x.dtype == torch.float32 and not torch.backends.cuda.matmul.allow_tf32
    return name, text, *numbers, x.shape, x.dtype, x.get_device(), exact, *more


@torch.library.impl("foveal::aw_site_forward", DEVICES)
def aw_site_forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, parameters: list[Tensor], amount: Tensor | None,
    running: list[Tensor], updated: list[Tensor], numbers: list[float], text: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The convolution of a site, and what its gradient needs; without the packed kernel, an empty tensor.

    Args:
        x: (N, C1, H, W), in the dtype of the result.
        weight: (C2, C1/groups, h, w).
        bias: (C2,) or None.
        parameters: of the branch, as in :class:`~foveal.kernels.aw.branch.Parameters`.
        amount: the last of them.
        running: in eval mode, running means and variances of both norms.
        updated: in training, the same and the numbers of batches, which are updated.
        numbers: momentum and epsilon of both norms; the compiler may replace numbers by symbols.
        text: see :class:`Options`.
    """
    bias = None if bias is None else bias.contiguous()
    x, key, statistics = channels_last(x), _key("aw site", x, numbers, text), _statistics(running, updated)
    results = repeated(key, (x, weight, bias, *parameters, amount, *statistics))
    if results is None:
        options = options_of(text)
        made, conv = options.branch(x, numbers, statistics), cast(Convolution, options.conv)
        results = site.forward(x, weight, bias, _all(parameters, amount), made, conv, key)
    out, multiplier, kept, kernel = results
    return out, multiplier, kept, x.new_empty(0) if kernel is None else kernel  # type: ignore[return-value]


@torch.library.register_fake("foveal::aw_site_forward")
def _(x, weight, bias, parameters, amount, running, updated, numbers, text):
    options, n, c1, (c2, into, h, w) = options_of(text), x.shape[0], x.shape[1], weight.shape
    size, (stride, padding, dilation, groups) = options.size, cast(Convolution, options.conv)
    sides = [out_size(x.shape[2 + i], weight.shape[2 + i], stride[i], padding[i], dilation[i]) for i in (0, 1)]
    out = x.new_empty(n, *sides, c2).permute(0, 3, 1, 2)
    multiplier, kept = _fake_branch(x, size, parameters)
    if groups == c1 == c2:
        return out, multiplier, kept, x.new_empty(0)
    together = groups_together(int(c1), int(c2), groups, 16 // x.element_size())
    return out, multiplier, kept, x.new_empty(packed_shape(c2, into, h * w, groups, together))


@torch.library.impl("foveal::aw_site_backward", DEVICES)
def aw_site_backward(
    g: Tensor, x: Tensor, weight: Tensor, kept: list[Tensor], parameters: list[Tensor], amount: Tensor | None,
    numbers: list[float], text: str, of_input: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of the input (empty unless ``of_input``), of the kernel, and of all parameters of the branch."""
    g, x, (multiplier, of_branch, kernel) = channels_last(g), channels_last(x), kept
    saved = multiplier, of_branch, kernel if kernel.numel() else None
    key = _key("aw site backward", x, numbers, text, of_input)
    results = repeated(key, (g, x, weight, *saved, *parameters, amount))
    if results is None:
        options = options_of(text)
        made, conv = options.branch(x, numbers), cast(Convolution, options.conv)
        results = site.backward(g, x, weight, saved, _all(parameters, amount), made, conv, of_input, True, key)
    dx, dw, gradients = results
    return g.new_empty(0) if dx is None else dx, dw, gradients  # type: ignore[return-value]


@torch.library.register_fake("foveal::aw_site_backward")
def _(g, x, weight, kept, parameters, amount, numbers, text, of_input):
    return _like(x) if of_input else g.new_empty(0), _like(weight), _fake_gradients(x, parameters)


class _Site(torch.autograd.Function):
    """x, weight, bias and parameters to the convolution, by the operators above."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:
        *parameters, amount, running, updated, ctx.numbers, ctx.text = rest
        forward = torch.ops.foveal.aw_site_forward.default
        out, *kept = forward(x, weight, bias, parameters, amount, running, updated, ctx.numbers, ctx.text)
        ctx.save_for_backward(x, weight, *kept, *parameters, amount)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, *rest, amount = ctx.saved_tensors
        kept, parameters, need = rest[:3], rest[3:], ctx.needs_input_grad
        dx, dw, gradients = torch.ops.foveal.aw_site_backward.default(
            g, x, weight, kept, parameters, amount, ctx.numbers, ctx.text, need[0]
        )
        db = g.sum((0, 2, 3), dtype=weight.dtype) if need[2] else None
        of_parameters = parameter_gradients(gradients, _all(parameters, amount))
        return dx if need[0] else None, dw, db, *of_parameters, None, None, None, None


@torch.library.impl("foveal::aw_site", "CompositeImplicitAutograd")
def aw_site(
    x: Tensor, weight: Tensor, bias: Tensor | None, parameters: list[Tensor], amount: Tensor | None,
    running: list[Tensor], updated: list[Tensor], numbers: list[float], text: str,
) -> Tensor:  # fmt: skip
    """The convolution of a site; arguments as in :func:`aw_site_forward`."""
    return _Site.apply(x, weight, bias, *parameters, amount, running, updated, numbers, text)


# The branch alone --------------------------------------------------------------------------------------------------


@torch.library.impl("foveal::aw_branch_forward", DEVICES)
def aw_branch_forward(
    x: Tensor, parameters: list[Tensor], amount: Tensor | None, running: list[Tensor], updated: list[Tensor],
    numbers: list[float], text: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The multiplier (N, C2, h, w) of x (N, C1, H, W), in its dtype, and what the gradient needs.

    The other arguments are those of :func:`aw_site_forward`.
    """
    x, key, statistics = channels_last(x), _key("aw branch", x, numbers, text), _statistics(running, updated)
    results = repeated(key, (x, *parameters, amount, *statistics))
    if results is None:
        made = options_of(text).branch(x, numbers, statistics)
        results = branch.forward(x, _all(parameters, amount), made, key)
    return results  # type: ignore[return-value]


@torch.library.register_fake("foveal::aw_branch_forward")
def _(x, parameters, amount, running, updated, numbers, text):
    return _fake_branch(x, options_of(text).size, parameters)


@torch.library.impl("foveal::aw_branch_backward", DEVICES)
def aw_branch_backward(
    g: Tensor, x: Tensor, kept: Tensor, parameters: list[Tensor], amount: Tensor | None, numbers: list[float],
    text: str, of_input: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gradients of the input (empty unless ``of_input``), and of all parameters."""
    g, key = channels_last(g), _key("aw branch backward", x, numbers, text, g.dtype, of_input)
    results = repeated(key, (g, kept, *parameters, amount))
    if results is None:
        made = options_of(text).branch(x, numbers)
        results = branch.backward(g, x, kept, _all(parameters, amount), made, of_input, key)
    dx, gradients = results
    return g.new_empty(0) if dx is None else dx, gradients  # type: ignore[return-value]


@torch.library.register_fake("foveal::aw_branch_backward")
def _(g, x, kept, parameters, amount, numbers, text, of_input):
    dx = _like(x) if of_input else g.new_empty(0)
    return dx, _fake_gradients(x, parameters)


class _Branch(torch.autograd.Function):
    """x and parameters to the multiplier, by the operators above."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *rest: Any) -> Tensor:
        *parameters, amount, running, updated, ctx.numbers, ctx.text = rest
        forward = torch.ops.foveal.aw_branch_forward.default
        multiplier, kept = forward(x, parameters, amount, running, updated, ctx.numbers, ctx.text)
        ctx.save_for_backward(x, kept, *parameters, amount)
        return multiplier

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, kept, *parameters, amount = ctx.saved_tensors
        need = ctx.needs_input_grad[0]
        backward = torch.ops.foveal.aw_branch_backward.default
        dx, gradients = backward(g, x, kept, parameters, amount, ctx.numbers, ctx.text, need)
        of_parameters = parameter_gradients(gradients, _all(parameters, amount))
        return dx if need else None, *of_parameters, None, None, None, None


@torch.library.impl("foveal::aw_branch", "CompositeImplicitAutograd")
def aw_branch(
    x: Tensor, parameters: list[Tensor], amount: Tensor | None, running: list[Tensor], updated: list[Tensor],
    numbers: list[float], text: str,
) -> Tensor:  # fmt: skip
    """The multiplier; arguments as in :func:`aw_branch_forward`."""
    return _Branch.apply(x, *parameters, amount, running, updated, numbers, text)


# What a layer calls ------------------------------------------------------------------------------------------------


def compiled_multiplier(
    x: Tensor, modules: tuple[nn.Module, ...], amount: Tensor | None, residual: bool
) -> Tensor | None:
    """The multiplier (N, C2, h, w) of pooled x (N, C1, h, w), float32; None if only calling the modules computes it.

    Other arguments as in :func:`compiled_site`.
    """
    size = (int(x.shape[2]), int(x.shape[3]))
    known = _tensors(modules, size)
    if known is None:
        return None
    text = f"({known.training}, {residual}, {size}, None)" + described([*known.parameters, amount])
    return torch.ops.foveal.aw_branch.default(
        x, known.parameters, amount, known.running, known.updated, known.numbers, text
    )


class _Tensors(NamedTuple):
    """What the operators take of the modules of a branch."""

    parameters: list[Tensor]
    running: list[Tensor]
    updated: list[Tensor]
    numbers: list[float]
    training: bool


def _tensors(modules: tuple[nn.Module, ...], size: tuple[int, int]) -> _Tensors | None:
    """Of squeeze, norm1, excite and norm2; None if only calling the modules computes the branch."""
    if not all(map(only_computes, modules, (nn.Conv2d, nn.BatchNorm2d) * 2)):
        return None
    squeeze, norm1, excite, norm2 = cast(tuple[Any, ...], modules)
    one, two = norm_of(norm1), norm_of(norm2)
    if one is None or two is None or one.batch != two.batch or not supported(squeeze.weight, size):
        return None
    parameters = [squeeze.weight, norm1.weight, norm1.bias, excite.weight, norm2.weight, norm2.bias]
    if not all(parameter.dtype == torch.float32 and parameter.is_contiguous() for parameter in parameters):
        return None
    running = [] if one.batch else [one.mean, one.var, two.mean, two.var]
    updated = [one.mean, one.var, one.tracked, two.mean, two.var, two.tracked] if one.batch else []
    return _Tensors(parameters, running, updated, [one.momentum, one.eps, two.momentum, two.eps], one.batch)  # type: ignore


def compiled_site(
    x: Tensor, weight: Tensor, bias: Tensor | None, modules: tuple[nn.Module, ...], amount: Tensor | None,
    size: tuple[int, int], residual: bool, stride: tuple[int, ...], padding: tuple[int, ...], dilation: tuple[int, ...],
    groups: int,
) -> Tensor | None:  # fmt: skip
    """What the site computes; None if only calling the modules computes it.

    Input x (N, C1, H, W) has the dtype of the result. ``modules`` are squeeze, norm1, excite and norm2 of
    :class:`~foveal.attention.aw.KernelAttention`, then come its options, and those of the convolution.
    """
    known = _tensors(modules, size)
    if known is None:
        return None
    conv = f"({tuple(stride)}, {tuple(padding)}, {tuple(dilation)}, {groups})"
    text = f"({known.training}, {residual}, {tuple(size)}, {conv})"
    text += described([weight, bias, *known.parameters, amount])
    return torch.ops.foveal.aw_site.default(
        x, weight, bias, known.parameters, amount, known.running, known.updated, known.numbers, text
    )


@register_flop_formula(torch.ops.foveal.aw_site_forward)
def _flops(x_shape, weight_shape, *args, out_shape, **kwargs) -> int:  # type: ignore[no-untyped-def]
    return conv_flop_count(x_shape, weight_shape, out_shape[0])


@register_flop_formula(torch.ops.foveal.aw_site_backward)
def _backward_flops(g_shape, x_shape, weight_shape, *args: Any, out_shape, **kwargs) -> int:  # type: ignore[no-untyped-def]
    return 2 * conv_flop_count(x_shape, weight_shape, g_shape)
