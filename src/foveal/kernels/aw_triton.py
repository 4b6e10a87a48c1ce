"""AW-convolution fused: a convolution whose kernel is scaled per sample, output channel and kernel position.

With the multiplier constant along input channels, O = Σ_t s_t ⊙ (K_t · I_t) over kernel positions t. Each kernel here
is one implicit matrix product. In the forward pass s scales a tile of the common kernel on its way into the product, in
registers; for the gradient of the input it scales the incoming gradient. Each sample's own weight gradient G is summed
as s ⊙ G into that of the kernel, and ∂s = Σ_c K ⊙ G. No kernel is ever built for a sample in memory.

All maps are channels last: images (N, H, W, C), weights (C2, T, C1), multipliers (N, T, C2) with T kernel positions.
Tiles are boxes of TH × TW positions of one sample, read through tensor descriptors, which fill with zeros outside the
image. For the gradient of the input a tile may also be one position of NB samples, which wastes nothing on small maps.

A stride S splits an image into S×S interleaved ones, so a descriptor sees it as (N, H/S, S, W/S, S·C).
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from foveal.kernels.tune import fastest


@triton.jit
def _box(h, w, NB: tl.constexpr, TH: tl.constexpr, TW: tl.constexpr):
    """First sample, row and column of this program's tile of an h×w map."""
    across, tiles, i = tl.cdiv(w, TW), tl.cdiv(h, TH) * tl.cdiv(w, TW), tl.program_id(0)
    return (i // tiles) * NB, (i % tiles) // across * TH, (i % tiles) % across * TW


@triton.jit
def _rows(n0, y0, x0, NB: tl.constexpr, TH: tl.constexpr, TW: tl.constexpr):
    """Sample, row and column of every row of the tile."""
    m = tl.arange(0, NB * TH * TW)
    return n0 + m // (TH * TW), y0 + m // TW % TH, x0 + m % TW


@triton.jit
def _finish(HOPPER: tl.constexpr):
    """Wait for the matrix units.

    They read the scaled operand from registers while the program goes on, and Triton lets it go on too far: into
    the next step, which overwrites those registers. Seen with Triton 3.6 as wrong numbers in wide tiles.
    """
    if HOPPER:
        wait: tl.constexpr = "wgmma.wait_group.sync.aligned 0; mov.b32 $0, $1;"
        tl.inline_asm_elementwise(wait, "=r,r", [tl.arange(0, 32)], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def _forward(
    x, w, s, b, o, OH, OW, C1: tl.constexpr, C2: tl.constexpr,
    S: tl.constexpr, PY: tl.constexpr, PX: tl.constexpr, DY: tl.constexpr, DX: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr, HOPPER: tl.constexpr,
    TH: tl.constexpr, TW: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    BM: tl.constexpr = TH * TW
    STEPS: tl.constexpr = (C1 + BK - 1) // BK
    n, y0, x0 = _box(OH, OW, 1, TH, TW)
    first = tl.program_id(1) * BN
    total = tl.zeros((BN, BM), tl.float32)
    for i in range(KH * KW * STEPS):
        t, c = i // STEPS, (i % STEPS) * BK
        dy, dx = t // KW * DY - PY + S * PY, t % KW * DX - PX + S * PX  # not negative
        rows = x.load([n, y0 + dy // S - PY, dy % S, x0 + dx // S - PX, dx % S * C1 + c]).reshape(BM, BK)
        weight = w.load([first, t, c]).reshape(BN, BK)
        scale = s.load([n, t, first]).reshape(BN, 1)
        total = tl.dot((weight * scale).to(rows.dtype), rows.T, total, input_precision=PRECISION)
        _finish(HOPPER)
    c2 = first + tl.arange(0, BN)
    if BIAS:
        total += tl.load(b + c2, mask=c2 < C2, other=0.0).to(tl.float32)[:, None]
    n, y, z = _rows(n, y0, x0, 1, TH, TW)
    to = o + (((n * OH + y) * OW + z) * C2)[:, None] + c2[None, :]
    tl.store(to, total.to(o.dtype.element_ty).T, mask=((y < OH) & (z < OW))[:, None] & (c2 < C2)[None, :])


@triton.jit
def _input_grad(
    g, w, s, dx, N, H, W, OH, OW, C1: tl.constexpr, C2: tl.constexpr,
    S: tl.constexpr, PY: tl.constexpr, PX: tl.constexpr, DY: tl.constexpr, DX: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, PRECISION: tl.constexpr, HOPPER: tl.constexpr,
    NB: tl.constexpr, TH: tl.constexpr, TW: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    # Each of the S×S interleaved images is reached by every S-th kernel position only.
    BM: tl.constexpr = NB * TH * TW
    STEPS: tl.constexpr = (C2 + BK - 1) // BK
    a, e = tl.program_id(2) // S, tl.program_id(2) % S
    n0, y0, x0 = _box(tl.cdiv(H, S), tl.cdiv(W, S), NB, TH, TW)
    n, y, z = _rows(n0, y0, x0, NB, TH, TW)
    first = tl.program_id(1) * BN
    c1 = first + tl.arange(0, BN)
    low_y, low_x = (a + PY) % S, (e + PX) % S
    many_y, many_x = (KH - low_y + S - 1) // S, (KW - low_x + S - 1) // S
    if S == 1:  # leave out those that fall outside altogether
        low_y, low_x = tl.cdiv(tl.maximum(y0 + PY - OH + 1, 0), DY), tl.cdiv(tl.maximum(x0 + PX - OW + 1, 0), DX)
        many_y = tl.maximum(tl.minimum(KH, (y0 + TH - 1 + PY) // DY + 1) - low_y, 0)
        many_x = tl.maximum(tl.minimum(KW, (x0 + TW - 1 + PX) // DX + 1) - low_x, 0)
    total = tl.zeros((BM, BN), tl.float32)
    for i in range(many_y * many_x * STEPS):
        j, c = i // STEPS, (i % STEPS) * BK
        ky, kx = low_y + j // many_x * S, low_x + j % many_x * S
        # a + PY − ky·DY is a multiple of S; made positive to be divided.
        oy, ox = y0 + (a + PY + (KH * S - ky) * DY) // S - KH * DY, x0 + (e + PX + (KW * S - kx) * DX) // S - KW * DX
        rows = g.load([n0, oy, ox, c]).reshape(BM, BK)
        scale = s.load([n0, ky * KW + kx, c]).reshape(NB, BK)  # one for all rows, or one for each
        weight = w.load([c, ky * KW + kx, first]).reshape(BK, BN)
        total = tl.dot((rows * scale).to(weight.dtype), weight, total, input_precision=PRECISION)
        _finish(HOPPER)
    y, z = y * S + a, z * S + e
    there = (n < N) & (y < H) & (z < W)
    to = dx + (((n * H + y) * W + z) * C1)[:, None] + c1[None, :]
    tl.store(to, total.to(dx.dtype.element_ty), mask=there[:, None] & (c1 < C1)[None, :])


@triton.jit
def _weight_grad(
    g, x, w, s, dw, ds, N, OH, OW, C1: tl.constexpr, C2: tl.constexpr, SPLITS,
    S: tl.constexpr, PY: tl.constexpr, PX: tl.constexpr, DY: tl.constexpr, DX: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, STEPS: tl.constexpr, PRECISION: tl.constexpr,
    TH: tl.constexpr, TW: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    T: tl.constexpr = KH * KW
    BK: tl.constexpr = TH * TW
    t, split = tl.program_id(2) % T, tl.program_id(2) // T
    first2, first1 = tl.program_id(0) * BP, tl.program_id(1) * BC
    c2, c1 = first2 + tl.arange(0, BP), first1 + tl.arange(0, BC)
    row = c2 < C2
    both = row[:, None] & (c1 < C1)[None, :]
    weight = tl.load(w + (c2 * (T * C1) + t * C1)[:, None] + c1[None, :], mask=both, other=0.0)
    dy, dx = t // KW * DY - PY + S * PY, t % KW * DX - PX + S * PX  # not negative
    across = tl.cdiv(OW, TW)
    begin, end = split * N // SPLITS, (split + 1) * N // SPLITS
    total = tl.zeros((BP, BC), tl.float32)
    part = tl.zeros((BP, BC), tl.float32)
    for i in range(begin * STEPS, end * STEPS):
        n, j = i // STEPS, i % STEPS  # boxes of one sample follow each other
        y, z = j // across * TH, j % across * TW
        gradient = g.load([n, y, z, first2]).reshape(BK, BP)
        image = x.load([n, y + dy // S - PY, dy % S, z + dx // S - PX, dx % S * C1 + first1]).reshape(BK, BC)
        part = tl.dot(gradient.T, image, part, input_precision=PRECISION)
        if STEPS == 1 or j == STEPS - 1:  # this sample's own weight gradient is complete
            scale = tl.load(s + (n * T + t) * C2 + c2, mask=row, other=0.0).to(tl.float32)
            to = ds + ((tl.program_id(1) * N + n) * T + t) * C2 + c2
            tl.store(to, tl.sum(part * weight.to(tl.float32), 1), mask=row)
            total += part * scale[:, None]
            part = tl.zeros((BP, BC), tl.float32)
    tl.store(dw + ((split * C2 + c2) * T + t)[:, None] * C1 + c1[None, :], total, mask=both)


@dataclass(frozen=True)
class Launch:
    """Shape of a tile: ``box`` samples, rows and columns by ``columns`` channels, ``depth`` summed at a time."""

    box: tuple[int, int, int]
    columns: int
    depth: int
    warps: int
    stages: int

    @property
    def how(self) -> dict[str, int]:
        """Arguments for Triton itself."""
        return {"num_warps": self.warps, "num_stages": self.stages}

    def tiles(self, n: int, h: int, w: int) -> int:
        """How many tiles cover n maps of h×w."""
        return triton.cdiv(n, self.box[0]) * triton.cdiv(h, self.box[1]) * triton.cdiv(w, self.box[2])


def box_within_sample(rows: int, h: int, w: int) -> tuple[int, int, int]:
    """The box of ``rows`` positions of one sample that covers an h×w map with least waste, the squarest of those."""
    sides = [(1, 1 << i, rows >> i) for i in range(rows.bit_length())]
    return min(sides, key=lambda box: (triton.cdiv(h, box[1]) * triton.cdiv(w, box[2]), abs(box[1] - box[2])))


TILES = ((128, 64, 64, 4, 3), (256, 64, 64, 8, 3), (128, 128, 64, 4, 3), (128, 128, 64, 8, 3), (256, 128, 64, 8, 3),
         (64, 128, 64, 4, 3), (64, 256, 64, 4, 3), (128, 256, 64, 8, 3))  # fmt: skip


def launches(n: int, h: int, w: int, columns: int, depth: int, *, across: bool) -> list[Launch]:
    """Candidates for maps of n×h×w with ``columns`` output channels and ``depth`` input channels.

    If tiles may go ``across`` samples, small maps are also tried one position of many samples at a time.
    """
    found = []
    for rows, wide, deep, warps, stages in TILES:
        if wide > max(64, columns):
            continue
        boxes = [box_within_sample(rows, h, w)]
        if across and n >= rows // 2 and h * w <= 1024:
            boxes.append((rows, 1, 1))
        found += [Launch(box, narrow(wide, columns), narrow(deep, depth), warps, stages) for box in boxes]
    return found


def narrow(side: int, channels: int) -> int:
    """A side of a tile that is not much wider than there are channels.

    >>> narrow(64, 24), narrow(64, 8), narrow(64, 512)
    (32, 16, 64)
    """
    return min(side, max(16, triton.next_power_of_2(channels)))


def _whole(x: Tensor, stride: int) -> Tensor:
    """Contiguous (N, H, W, C) with H and W multiples of ``stride``, filled up with zeros."""
    down, right = -x.shape[1] % stride, -x.shape[2] % stride
    return torch.nn.functional.pad(x, (0, 0, 0, right, 0, down)) if down or right else x


def channels_last(x: Tensor) -> Tensor:
    """(N, C, H, W) as contiguous (N, H, W, C); free for a channels-last tensor."""
    return x.permute(0, 2, 3, 1).contiguous()


def _interleaved(x: Tensor, stride: int, block: list[int]) -> TensorDescriptor:
    """Contiguous (N, H, W, C) as (N, H/S, S, W/S, S·C); H and W multiples of S."""
    n, h, w, c = x.shape
    shape = [n, h // stride, stride, w // stride, stride * c]
    return TensorDescriptor(x, shape, [h * w * c, stride * w * c, w * c, stride * c, 1], block)


def _precision(x: Tensor) -> str:
    exact = x.dtype == torch.float32 and not torch.backends.cuda.matmul.allow_tf32
    return "ieee" if exact else "tf32"


def _hopper(x: Tensor) -> bool:
    return x.is_cuda and torch.cuda.get_device_capability(x.device)[0] == 9


def forward(
    x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, stride: int, padding: list[int], dilation: list[int]
) -> Tensor:
    """O = Σ_t s_t ⊙ (K_t · I_t): x (N, C1, H, W), weight (C2, C1, h, w), scale (N, C2, h, w) to (N, C2, H', W')."""
    (n, c1, h, w), (c2, _, kh, kw) = x.shape, weight.shape
    oh = (h + 2 * padding[0] - dilation[0] * (kh - 1) - 1) // stride + 1
    ow = (w + 2 * padding[1] - dilation[1] * (kw - 1) - 1) // stride + 1
    images = _whole(channels_last(x), stride)
    kernel, s = channels_last(weight).view(c2, kh * kw, c1), channels_last(scale).view(n, kh * kw, c2)
    out = torch.empty(n, oh, ow, c2, dtype=x.dtype, device=x.device)

    def launch(tile: Launch) -> None:
        _, th, tw = tile.box
        _forward[tile.tiles(n, oh, ow), triton.cdiv(c2, tile.columns)](
            _interleaved(images, stride, [1, th, 1, tw, tile.depth]),
            TensorDescriptor.from_tensor(kernel, [tile.columns, 1, tile.depth]),
            TensorDescriptor.from_tensor(s, [1, 1, tile.columns]),
            bias, out, oh, ow, c1, c2, stride, *padding, *dilation, kh, kw, bias is not None, _precision(x),
            _hopper(x), th, tw, tile.columns, tile.depth, **tile.how,
        )  # fmt: skip

    key = ("aw forward", x.dtype, n, oh, ow, c1, c2, stride, kh)
    launch(fastest(key, launches(n, oh, ow, c2, c1, across=False), launch, x.device))
    return out.permute(0, 3, 1, 2)


def input_grad(
    g: Tensor, weight: Tensor, scale: Tensor, size: list[int], stride: int, padding: list[int], dilation: list[int]
) -> Tensor:
    """∂I (N, C1, H, W) from ∂O; ``size`` is (H, W)."""
    (n, c2, oh, ow), (_, c1, kh, kw), (h, w) = g.shape, weight.shape, size
    gradient, kernel = channels_last(g), channels_last(weight).view(c2, kh * kw, c1)
    s = channels_last(scale).view(n, kh * kw, c2)
    dx = torch.empty(n, h, w, c1, dtype=g.dtype, device=g.device)
    ph, pw = triton.cdiv(h, stride), triton.cdiv(w, stride)

    def launch(tile: Launch) -> None:
        nb, th, tw = tile.box
        _input_grad[tile.tiles(n, ph, pw), triton.cdiv(c1, tile.columns), stride * stride](
            TensorDescriptor.from_tensor(gradient, [nb, th, tw, tile.depth]),
            TensorDescriptor.from_tensor(kernel, [tile.depth, 1, tile.columns]),
            TensorDescriptor.from_tensor(s, [nb, 1, tile.depth]), dx, n, h, w, oh, ow, c1, c2,
            stride, *padding, *dilation, kh, kw, _precision(g), _hopper(g),
            nb, th, tw, tile.columns, tile.depth, **tile.how,
        )  # fmt: skip

    key = ("aw input grad", g.dtype, n, h, w, c1, c2, stride, kh)
    launch(fastest(key, launches(n, ph, pw, c1, c2, across=True), launch, g.device))
    return dx.permute(0, 3, 1, 2)


WEIGHT_TILES = ((64, 64, 64, 4, 3), (64, 128, 64, 4, 4), (64, 64, 128, 4, 3), (128, 128, 64, 8, 4))


def weight_grad(
    g: Tensor, x: Tensor, weight: Tensor, scale: Tensor, stride: int, padding: list[int], dilation: list[int]
) -> tuple[Tensor, Tensor]:
    """∂K (C2, C1, h, w) and ∂s (N, C2, h, w) in float32."""
    (n, c1), (c2, _, kh, kw), (oh, ow) = x.shape[:2], weight.shape, g.shape[2:]
    gradient, images, kernel, s = (channels_last(t) for t in (g, x, weight, scale))
    images = _whole(images, stride)
    taps = kh * kw
    splits = max(1, min(n, 528 // (taps * triton.cdiv(c2, 64) * triton.cdiv(c1, 64))))
    dw = torch.empty(splits, c2, taps, c1, dtype=torch.float32, device=x.device)
    tiles = [
        (narrow(bp, c2), narrow(bc, c1), *rest)
        for bp, bc, *rest in WEIGHT_TILES
        if bp <= max(64, c2) and bc <= max(64, c1)
    ]
    ds = torch.empty(triton.cdiv(c1, min(tile[1] for tile in tiles)), n, taps, c2, dtype=torch.float32, device=x.device)

    def launch(tile: tuple[int, ...]) -> None:
        bp, bc, bk, warps, stages = tile
        _, th, tw = box_within_sample(bk, oh, ow)
        _weight_grad[triton.cdiv(c2, bp), triton.cdiv(c1, bc), taps * splits](
            TensorDescriptor.from_tensor(gradient, [1, th, tw, bp]),
            _interleaved(images, stride, [1, th, 1, tw, bc]),
            kernel, s, dw, ds, n, oh, ow, c1, c2, splits, stride, *padding, *dilation, kh, kw,
            triton.cdiv(oh, th) * triton.cdiv(ow, tw), _precision(x), th, tw, bp, bc,
            num_warps=warps, num_stages=stages,
        )  # fmt: skip

    best = fastest(("aw weight grad", x.dtype, n, oh, ow, c1, c2, stride, kh), tiles, launch, x.device)
    launch(best)
    dw = dw[0] if splits == 1 else dw.sum(0)
    parts = triton.cdiv(c1, best[1])
    ds = ds[0] if parts == 1 else ds[:parts].sum(0)
    return dw.view(c2, kh, kw, c1).permute(0, 3, 1, 2), ds.view(n, kh, kw, c2).permute(0, 3, 1, 2)
