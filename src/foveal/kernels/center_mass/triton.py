"""The log-sums of :mod:`foveal.kernels.center_mass.operator` in Triton: a tile of the matrix lives in registers, and nowhere else.

A pair costs one exponential in each direction. Forward, a row's two sums are both relative to its greatest affinity.
Backward, with L and A a row's log-sums of labelled and of all pairs, and l and a the gradients of these, the affinity
of a pair receives::

    labelled: exp(ω − A) · (a + l · exp(A − L))          other: exp(ω − A) · a

The gradients of q and k are two kernels, one over rows and one over columns: nothing is added up by several programs,
so results repeat exactly. With log-sums of whole graphs instead of rows (WHOLE) all of this stays the same, L, A, l and
a being those of the graph.

Where labelled pairs are so much weaker than others that all this leaves the range of float32, the graph is in *doubt*
and done again (EXACT), with labelled pairs relative to the greatest of their own, or to L. Nothing is read back to
decide that: kernels of both kinds are launched, and those that a graph does not need end at once. Rules other than
``different``, by which rows often have no labelled pair at all, are always summed exactly.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from foveal.kernels.support import on_its_device
from foveal.kernels.tune import fastest

LOG2E = 1.4426950408889634
WIDEST = 256  # entries of q and k; a tile holds all of them
FAR = tl.constexpr(60.0)  # how much weaker than all pairs labelled ones may be before a graph is in doubt
LOW = tl.constexpr(-80.0)  # and how weak all may be, since padding has an affinity of zero


@triton.jit
def _labelled(target, table, of, N, C, m, n, row, column, RULE: tl.constexpr):
    """Whether each pair of rows ``m`` and columns ``n`` is labelled; ``row`` and ``column`` are their labels.

    ``of`` is the target's number. Invalid rows and columns may be called labelled: others see to them.
    """
    if RULE == "pairs":
        at = target + (of * N + m) * N + n
        return (tl.load(at, mask=(m < N) & (n < N), other=0) != 0) & (m != n)
    if RULE == "table":
        known = (row >= 0) & (column >= 0) & (row < C) & (column < C)
        return (tl.load(table + (of * C + row) * C + column, mask=known, other=0) != 0) & (m != n)
    if RULE == "same":
        return (row == column) & (row >= 0) & (m != n)
    return (row ^ column) > 0  # different and both not negative; true for −1 against −2 too, which is invalid


@triton.jit
def _labels(labels, graph, N, at, EVEN: tl.constexpr):
    """Labels of the entities ``at``, −1 for none; −2 for what is invalid or outside the graph."""
    if EVEN:
        return tl.load(labels + graph * N + at)
    return tl.load(labels + graph * N + at, mask=at < N, other=-2)


@triton.jit
def _out(label):
    """Minus infinity for what is invalid, else zero."""
    return tl.where(label == -2, -float("inf"), 0.0)


@triton.jit
def _vectors(x, graph, N, D: tl.constexpr, at, BD: tl.constexpr, EVEN: tl.constexpr):
    """Rows ``at`` of x (B, N, D), filled up with zeros to BD columns."""
    c = tl.arange(0, BD)
    place = x + ((graph * N + at) * D)[:, None] + c[None, :]
    if EVEN and D == BD:
        return tl.load(place)
    return tl.load(place, mask=(at < N)[:, None] & (c < D)[None, :], other=0.0)


@triton.jit
def _forward(
    q, k, labels, target, table, owner, doubt, labelled, everything, N, C, scale,
    D: tl.constexpr, EXACT: tl.constexpr, RULE: tl.constexpr, EVEN: tl.constexpr,
    PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    graph = tl.program_id(0).to(tl.int64)
    if EXACT and tl.load(doubt + graph) == 0:
        return
    of = tl.load(owner + graph)
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    rows = _vectors(q, graph, N, D, m, BD, EVEN)
    row = _labels(labels, graph, N, m, EVEN)
    inside = row != -2
    row = tl.maximum(row, -1)
    top_l, top = tl.full((BM,), -float("inf"), tl.float32), tl.full((BM,), -float("inf"), tl.float32)
    sum_l, sum_all = tl.zeros((BM,), tl.float32), tl.zeros((BM,), tl.float32)
    ahead = _labels(labels, graph, N, tl.arange(0, BN), EVEN)
    for first in range(0, N, BN):
        n = first + tl.arange(0, BN)
        column = ahead  # read a step early: no matrix product waits for labels here, so the compiler does not do it
        after = tl.minimum(first + BN, N - BN) if EVEN else first + BN
        ahead = _labels(labels, graph, N, after + tl.arange(0, BN), EVEN)
        columns = _vectors(k, graph, N, D, n, BD, EVEN)
        x = tl.dot(rows, columns.T, input_precision=PRECISION) * scale + _out(column)[None, :]
        hit = _labelled(target, table, of, N, C, m[:, None], n[None, :], row[:, None], column[None, :], RULE)
        new = tl.maximum(top, tl.max(x, 1))
        # Nothing yet: subtract zero, for minus infinity from minus infinity is no number.
        base = tl.where(new == -float("inf"), 0.0, new)
        e = tl.exp2(x - base[:, None])
        fade = tl.exp2(top - base)
        sum_all = sum_all * fade + tl.sum(e, 1)
        if EXACT:
            x = tl.where(hit, x, -float("inf"))
            new_l = tl.maximum(top_l, tl.max(x, 1))
            base_l = tl.where(new_l == -float("inf"), 0.0, new_l)
            sum_l = sum_l * tl.exp2(top_l - base_l) + tl.sum(tl.exp2(x - base_l[:, None]), 1)
            top_l = new_l
        else:
            sum_l = sum_l * fade + tl.sum(tl.where(hit, e, 0.0), 1)
        top = new
    if not EXACT:
        top_l = top
        bad = inside & (row >= 0) & (sum_l < 1e-20)
        if tl.max(bad.to(tl.int32), 0) > 0:
            tl.store(doubt + graph, 1)
    LN2: tl.constexpr = 0.6931471805599453
    log_l, log_all = (top_l + tl.log2(sum_l)) * LN2, (top + tl.log2(sum_all)) * LN2
    tl.store(labelled + graph * N + m, tl.where(inside, log_l, -float("inf")), mask=m < N)
    tl.store(everything + graph * N + m, tl.where(inside, log_all, -float("inf")), mask=m < N)


@triton.jit
def _log_sum(rows, graph, N, BLOCK: tl.constexpr):
    """Log-sum of the values of a graph's rows."""
    top, total = -float("inf"), 0.0
    for first in range(0, N, BLOCK):
        m = first + tl.arange(0, BLOCK)
        x = tl.load(rows + graph * N + m, mask=m < N, other=-float("inf"))
        new = tl.maximum(top, tl.max(x, 0))
        base = tl.where(new == -float("inf"), 0.0, new)
        total = total * tl.exp(top - base) + tl.sum(tl.exp(x - base), 0)
        top = new
    return top + tl.log(total)


@triton.jit
def _sum_rows(labelled, everything, all_labelled, all_everything, N, BLOCK: tl.constexpr):
    graph = tl.program_id(0).to(tl.int64)
    tl.store(all_labelled + graph, _log_sum(labelled, graph, N, BLOCK))
    tl.store(all_everything + graph, _log_sum(everything, graph, N, BLOCK))


@triton.jit
def _rates(into_labelled, into_all, labelled, everything, at, inside, EXACT: tl.constexpr):
    """From the sums at ``at``: what pairs are relative to, labelled ones more so if EXACT, and both factors."""
    LOG2E: tl.constexpr = 1.4426950408889634
    log_l = tl.load(labelled + at, mask=inside, other=-float("inf"))
    log_all = tl.load(everything + at, mask=inside, other=-float("inf"))
    into_l, into_a = tl.load(into_labelled + at, mask=inside, other=0.0), tl.load(into_all + at, mask=inside, other=0.0)
    # What has no pairs has no gradient: relative to infinity its exponentials are zero.
    none_l, none = log_l == -float("inf"), log_all == -float("inf")
    base, into_a = tl.where(none, float("inf"), log_all * LOG2E), tl.where(none, 0.0, into_a)
    behind = tl.where(none_l, 0.0, log_all - log_l)
    into_l = tl.where(none_l, 0.0, into_l)
    factor_l = into_l + into_a * tl.exp(-behind) if EXACT else into_a + into_l * tl.exp(behind)
    return base, behind * LOG2E, factor_l, into_a


@triton.jit
def _in_doubt(doubt, labelled, everything, graph, WHOLE: tl.constexpr):
    """Whether a graph must be done exactly; see :func:`_far`."""
    if WHOLE:
        log_l, log_all = tl.load(labelled + graph), tl.load(everything + graph)
        low = (log_all < LOW) & (log_all > -float("inf"))
        return low | ((log_all - log_l > FAR) & (log_l > -float("inf")))
    return tl.load(doubt + graph) != 0


@triton.jit
def _into(
    rows, columns, m, n, row, column, shift, behind, factor_l, factor, target, table, of, N, C, scale,
    RULE: tl.constexpr, PRECISION: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Gradient of the affinities of a tile of rows ``m`` and columns ``n``, but for the scale.

    All but rows, columns and what belongs to the rule have the shape of the tile or of one of its sides.
    """
    x = tl.dot(rows, columns.T, input_precision=PRECISION) * scale + shift
    hit = _labelled(target, table, of, N, C, m[:, None], n[None, :], row[:, None], column[None, :], RULE)
    if EXACT:
        x += tl.where(hit, behind, 0.0)
    return tl.exp2(x) * tl.where(hit, factor_l, factor)


@triton.jit
def _into_q(
    q, k, labels, target, table, owner, doubt, labelled, everything, into_labelled, into_all, out, N, C, scale,
    D: tl.constexpr, WHOLE: tl.constexpr, EXACT: tl.constexpr, RULE: tl.constexpr, EVEN: tl.constexpr,
    PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    LN2: tl.constexpr = 0.6931471805599453
    graph = tl.program_id(0).to(tl.int64)
    if _in_doubt(doubt, labelled, everything, graph, WHOLE) != EXACT:
        return
    of = tl.load(owner + graph)
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    rows = _vectors(q, graph, N, D, m, BD, EVEN)
    row = _labels(labels, graph, N, m, EVEN)
    inside = row != -2
    row = tl.maximum(row, -1)
    if WHOLE:
        base, behind, factor_l, factor = _rates(into_labelled, into_all, labelled, everything, graph, graph >= 0, EXACT)
    else:
        base, behind, factor_l, factor = _rates(
            into_labelled, into_all, labelled, everything, graph * N + m, inside, EXACT
        )
        base, behind, factor_l, factor = base[:, None], behind[:, None], factor_l[:, None], factor[:, None]
    total = tl.zeros((BM, BD), tl.float32)
    for first in range(0, N, BN):
        n = first + tl.arange(0, BN)
        column = _labels(labels, graph, N, n, EVEN)
        columns = _vectors(k, graph, N, D, n, BD, EVEN)
        shift = _out(column)[None, :] - base if EXACT else -base  # else what is invalid is zero in k
        into = _into(
            rows, columns, m, n, row, column, shift, behind, factor_l, factor,
            target, table, of, N, C, scale, RULE, PRECISION, EXACT,
        )  # fmt: skip
        if columns.dtype == tl.float16:  # has no room for numbers this small
            total = tl.dot(into, columns.to(tl.float32), total)
        else:
            total = tl.dot(into.to(columns.dtype), columns, total, input_precision=PRECISION)
    total = tl.where(inside[:, None], total, 0.0)  # padding is zero, and zero may be far above all affinities
    c = tl.arange(0, BD)
    to = out + ((graph * N + m) * D)[:, None] + c[None, :]
    tl.store(to, (total * (scale * LN2)).to(out.dtype.element_ty), mask=(m < N)[:, None] & (c < D)[None, :])


@triton.jit
def _into_k(
    q, k, labels, target, table, owner, doubt, labelled, everything, into_labelled, into_all, out, N, C, scale,
    D: tl.constexpr, WHOLE: tl.constexpr, EXACT: tl.constexpr, RULE: tl.constexpr, EVEN: tl.constexpr,
    PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    LN2: tl.constexpr = 0.6931471805599453
    graph = tl.program_id(0).to(tl.int64)
    if _in_doubt(doubt, labelled, everything, graph, WHOLE) != EXACT:
        return
    of = tl.load(owner + graph)
    n = tl.program_id(1) * BM + tl.arange(0, BM)
    column = _labels(labels, graph, N, n, EVEN)
    columns = _vectors(k, graph, N, D, n, BD, EVEN)
    total = tl.zeros((BM, BD), tl.float32)
    if WHOLE:
        base, behind, factor_l, factor = _rates(into_labelled, into_all, labelled, everything, graph, graph >= 0, EXACT)
    for first in range(0, N, BN):
        m = first + tl.arange(0, BN)
        row = _labels(labels, graph, N, m, EVEN)
        rows = _vectors(q, graph, N, D, m, BD, EVEN)
        inside = row != -2
        if not WHOLE:
            base, behind, factor_l, factor = _rates(
                into_labelled, into_all, labelled, everything, graph * N + m, inside, EXACT
            )
            base, behind, factor_l, factor = base[:, None], behind[:, None], factor_l[:, None], factor[:, None]
        shift = _out(row)[:, None] - base if EXACT else -base
        into = _into(
            rows, columns, m, n, tl.maximum(row, -1), column, shift, behind, factor_l, factor,
            target, table, of, N, C, scale, RULE, PRECISION, EXACT,
        )  # fmt: skip
        # Turned around only now: a thread then has few rows, and keeps little of what belongs to them.
        if rows.dtype == tl.float16:
            total = tl.dot(into.T, rows.to(tl.float32), total)
        else:
            total = tl.dot(into.to(rows.dtype).T, rows, total, input_precision=PRECISION)
    total = tl.where((column != -2)[:, None], total, 0.0)
    c = tl.arange(0, BD)
    to = out + ((graph * N + n) * D)[:, None] + c[None, :]
    tl.store(to, (total * (scale * LN2)).to(out.dtype.element_ty), mask=(n < N)[:, None] & (c < D)[None, :])


TILES = ((128, 128, 8, 3), (128, 64, 4, 3), (128, 64, 8, 3), (64, 64, 4, 3), (64, 128, 4, 3), (128, 128, 4, 2),
         (128, 32, 4, 4), (64, 32, 4, 2), (32, 32, 4, 1))  # fmt: skip
"""Rows and columns of a tile, warps, stages; what does not fit a device is passed over."""


def serves(q: Tensor, k: Tensor) -> bool:
    """Whether these kernels take q and k of this shape and type."""
    return (
        q.dtype == k.dtype
        and q.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and q.shape[-1] <= WIDEST
        and q.numel() > 0
    )


def tiles(q: Tensor) -> list[tuple[int, ...]]:
    """Tiles to be tried for q: small ones where its vectors take much room."""
    large = q.dtype != torch.bfloat16 or q.shape[-1] > 128
    return [tile for tile in TILES if tile[0] <= 64 or not large]


def _run(kernel, given, outputs, rule: str, scale: float, *more: bool) -> None:
    """Launch ``kernel`` over B graphs of N entities; ``more`` are constants of its own, the last one EXACT.

    With its fastest tile, or where it is there only in case of doubt, with one that always fits.
    """
    q, k, labels, target, table, owner, doubt, *rest = given
    graphs, count, width = q.shape
    deep = max(16, triton.next_power_of_2(width))
    exact = q.dtype == torch.float32 and not torch.backends.cuda.matmul.allow_tf32

    def launch(tile: tuple[int, ...]) -> None:
        rows, columns, warps, stages = tile
        kernel[graphs, triton.cdiv(count, rows)](
            q, k, labels, target, target if table is None else table, owner, doubt, *rest, *outputs, count,
            0 if table is None else table.shape[-1], scale * LOG2E, width, *more, rule,
            count % max(rows, columns) == 0, "ieee" if exact else "tf32",
            rows, columns, deep, num_warps=warps, num_stages=stages,
        )  # fmt: skip

    if more[-1] and not _always_exact(kernel, rule):
        return launch(TILES[-1])
    key = (kernel.__name__, q.dtype, exact, q.device, rule, more, graphs, count, deep)
    launch(fastest(key, lambda: tiles(q), launch, q.device))


def _always_exact(kernel: Any, rule: str) -> bool:
    """Where rows often have no labelled pair, whether there is one is found out at once."""
    return kernel is _forward and rule != "different"


def _given(
    q: Tensor, k: Tensor, valid: Tensor, target: Tensor, table: Tensor | None, owner: Tensor, rule: str
) -> list[Tensor | None]:
    """What all kernels take; validity and labels as one number for each entity (see :func:`_labels`).

    Padding may hold anything and becomes zero here: a mask that is itself loaded would hold up the loads of q and k.
    """
    q, k = (side.masked_fill(~valid[:, :, None], 0) for side in (q, k))
    labels = -1 if rule == "pairs" else target[owner].clamp_min(-1)
    labels = torch.where(valid, labels, -2).int()
    return [x if x is None else x.contiguous() for x in (q, k, labels, target, table, owner)]


@on_its_device
def forward(
    q: Tensor, k: Tensor, valid: Tensor, target: Tensor, owner: Tensor, table: Tensor | None, rule: str, scale: float
) -> tuple[Tensor, Tensor]:
    """Log-sums of every row, as :func:`foveal.kernels.center_mass.operator.pair_mass`."""
    labelled = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
    everything = torch.empty_like(labelled)
    always = _always_exact(_forward, rule)
    doubt = torch.full((len(q),), int(always), dtype=torch.int32, device=q.device)
    given = [*_given(q, k, valid, target, table, owner, rule), doubt]
    for exact in (True,) if always else (False, True):
        _run(_forward, given, (labelled, everything), rule, scale, exact)
    return labelled, everything


@on_its_device
def forward_whole(q: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    """Log-sums of every graph (B,); arguments as in :func:`forward`."""
    rows = forward(q, *rest)
    labelled, everything = (torch.empty(len(q), dtype=torch.float32, device=q.device) for _ in range(2))
    _sum_rows[(len(q),)](*rows, labelled, everything, q.shape[1], 1024)
    return labelled, everything


@on_its_device
def backward(
    into_labelled: Tensor,
    into_all: Tensor,
    labelled: Tensor,
    everything: Tensor,
    q: Tensor,
    k: Tensor,
    valid: Tensor,
    target: Tensor,
    owner: Tensor,
    table: Tensor | None,
    rule: str,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Gradients of q and k from those of both log-sums, of rows (B, N) or of graphs (B,)."""
    sums, whole = [x.contiguous() for x in (labelled, everything, into_labelled, into_all)], labelled.ndim == 1
    doubt = owner if whole else _far(labelled, everything).any(1).int()  # a whole graph's is seen from its two sums
    given = [*_given(q, k, valid, target, table, owner, rule), doubt, *sums]
    into_q, into_k = torch.empty_like(given[0]), torch.empty_like(given[1])  # type: ignore[arg-type]
    for exact in (False, True):
        _run(_into_q, given, (into_q,), rule, scale, whole, exact)
        _run(_into_k, given, (into_k,), rule, scale, whole, exact)
    return into_q, into_k


def _far(labelled: Tensor, everything: Tensor) -> Tensor:
    """Where labelled pairs are too weak beside all, or all are too weak beside padding."""
    far = (everything - labelled > FAR.value) & (labelled > -torch.inf)
    return far | ((everything < LOW.value) & (everything > -torch.inf))
