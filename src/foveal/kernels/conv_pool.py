"""First layer of a network for small images: 3×3 convolution and 2×2 max pooling in one kernel.

With three input channels a convolution is bound by the memory traffic of its output. Pooling reads all of it and keeps
a quarter, and its gradient is mostly zeros. Here only the pooled map and the index of each maximum are written.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from foveal.kernels.support import on_its_device

PROGRAMS = 528  # for the weight gradient: four for each multiprocessor of a large GPU


@triton.jit
def _patches(x, m, M, H, W, OH, OW, C_IN: tl.constexpr, CORNER: tl.constexpr, BK: tl.constexpr):
    """Rows of the unfolded image: the inputs of corner ``CORNER`` of the pooling windows ``m``, (BM, BK)."""
    n, rest = m // (OH * OW), m % (OH * OW)
    k = tl.arange(0, BK)
    place = ((n * H + 2 * (rest // OW) + CORNER // 2) * W + 2 * (rest % OW) + CORNER % 2) * C_IN
    offset = (k // (3 * C_IN)) * W * C_IN + k % (3 * C_IN)
    return tl.load(x + place[:, None] + offset[None, :], mask=(m < M)[:, None] & (k < 9 * C_IN)[None, :], other=0.0)


@triton.jit
def _forward(
    x, w, out, corner_of_max, M, H, W, OH, OW,
    C_IN: tl.constexpr, C: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    c = tl.arange(0, C)
    weight = tl.load(w + tl.arange(0, BK)[:, None] * C + c[None, :])
    best = tl.full((BM, C), float("-inf"), tl.float32)
    winner = tl.zeros((BM, C), tl.int8)
    for corner in tl.static_range(4):
        patch = _patches(x, m, M, H, W, OH, OW, C_IN, corner, BK)
        value = tl.dot(patch, weight, input_precision=PRECISION)
        better = value > best
        best = tl.where(better, value, best)
        winner = tl.where(better, tl.full((BM, C), corner, tl.int8), winner)
    place, ok = m[:, None] * C + c[None, :], (m < M)[:, None]
    tl.store(out + place, best.to(out.dtype.element_ty), mask=ok)
    tl.store(corner_of_max + place, winner, mask=ok)


@triton.jit
def _backward(
    x, g, corner_of_max, partial, M, H, W, OH, OW,
    C_IN: tl.constexpr, C: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    c = tl.arange(0, C)
    total = tl.zeros((BK, C), tl.float32)
    for start in range(tl.program_id(0) * BM, M, tl.num_programs(0) * BM):
        m = start + tl.arange(0, BM)
        place, ok = m[:, None] * C + c[None, :], (m < M)[:, None]
        gradient = tl.load(g + place, mask=ok, other=0.0)
        winner = tl.load(corner_of_max + place, mask=ok, other=-1)
        for corner in tl.static_range(4):
            patch = _patches(x, m, M, H, W, OH, OW, C_IN, corner, BK)
            chosen = tl.where(winner == corner, gradient, 0.0).to(gradient.dtype)
            total = tl.dot(tl.trans(patch), chosen, total, input_precision=PRECISION)
    at = (tl.program_id(0) * BK + tl.arange(0, BK))[:, None] * C + c[None, :]
    tl.store(partial + at, total)


def _sizes(x: Tensor) -> tuple[int, int, int, int, int]:
    n, _, h, w = x.shape
    oh, ow = (h - 2) // 2, (w - 2) // 2
    return n * oh * ow, h, w, oh, ow


def _rows(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1).contiguous()


def _options(x: Tensor) -> dict[str, object]:
    return {"BM": 64, "BK": 64 if x.shape[1] > 3 else 32, "PRECISION": "ieee" if x.dtype == torch.float32 else "tf32"}


@torch.library.custom_op("foveal::conv_pool", mutates_args=())
@on_its_device
def conv_pool_op(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Pooled convolution (N, C, H', W') and the corner of each maximum, int8; both channels last."""
    channels, c_in = weight.shape[:2]
    sizes, options = _sizes(x), _options(x)
    packed = F.pad(weight.permute(2, 3, 1, 0).reshape(9 * c_in, channels), (0, 0, 0, options["BK"] - 9 * c_in))  # type: ignore[operator]
    out = torch.empty(len(x), *sizes[3:], channels, dtype=x.dtype, device=x.device)
    corner_of_max = torch.empty_like(out, dtype=torch.int8)
    grid = (triton.cdiv(sizes[0], options["BM"]),)
    _forward[grid](_rows(x), packed.contiguous(), out, corner_of_max, *sizes, C_IN=c_in, C=channels, **options)
    return out.permute(0, 3, 1, 2), corner_of_max.permute(0, 3, 1, 2)


@conv_pool_op.register_fake
def _(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    *_, oh, ow = _sizes(x)
    out = x.new_empty(len(x), oh, ow, len(weight)).permute(0, 3, 1, 2)
    return out, torch.empty_like(out, dtype=torch.int8)


@torch.library.custom_op("foveal::conv_pool_weight_grad", mutates_args=())
@on_its_device
def conv_pool_weight_grad(x: Tensor, g: Tensor, corner_of_max: Tensor) -> Tensor:
    """Gradient of the weight, (C, C_in, 3, 3) in float32."""
    c_in, channels = x.shape[1], g.shape[1]
    sizes, options = _sizes(x), _options(x)
    programs = min(PROGRAMS, triton.cdiv(sizes[0], options["BM"]))
    partial = torch.empty(programs, options["BK"], channels, dtype=torch.float32, device=x.device)  # type: ignore[call-overload]
    _backward[(programs,)](_rows(x), _rows(g), _rows(corner_of_max), partial, *sizes, C_IN=c_in, C=channels, **options)
    return partial.sum(0)[: 9 * c_in].view(3, 3, c_in, channels).permute(3, 2, 0, 1).contiguous()


@conv_pool_weight_grad.register_fake
def _(x: Tensor, g: Tensor, corner_of_max: Tensor) -> Tensor:
    return x.new_empty(g.shape[1], x.shape[1], 3, 3, dtype=torch.float32)


def _save(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs, output[1])
    ctx.mark_non_differentiable(output[1])


def _gradients(ctx, g: Tensor, _: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    x, weight, corner_of_max = ctx.saved_tensors
    dx = dw = None
    if ctx.needs_input_grad[0]:
        corners = torch.stack([torch.where(corner_of_max == i, g, 0) for i in range(4)], -1).unflatten(-1, (2, 2))
        whole = corners.permute(0, 1, 2, 4, 3, 5).flatten(4, 5).flatten(2, 3)
        pad = (0, x.shape[3] - 2 - whole.shape[3], 0, x.shape[2] - 2 - whole.shape[2])
        dx = F.conv_transpose2d(F.pad(whole, pad), weight)
    if ctx.needs_input_grad[1]:
        dw = conv_pool_weight_grad(x, g, corner_of_max).to(weight.dtype)
    return dx, dw


conv_pool_op.register_autograd(_gradients, setup_context=_save)


def conv_pool(x: Tensor, weight: Tensor) -> Tensor:
    """``max_pool2d(conv2d(x, weight), 2)`` for 3×3 kernels without padding, in one kernel.

    Args:
        x: (N, C_in, H, W) with few channels; fastest in channels last.
        weight: (C, C_in, 3, 3); C a power of two of at least 16.

    Returns:
        (N, C, (H − 2) // 2, (W − 2) // 2), channels last.
    """
    return conv_pool_op(x, weight)[0]
