"""Triton kernels of the log-sums in :mod:`.log_sums`: tiles of the matrix exist in registers only.

A pair costs one exponential forward and one backward. Forward, both sums of a row are relative to its greatest
affinity. Backward, with L and A the log-sums of a row's labelled pairs and of all its pairs, and l and a the gradients
of these, the gradient of a pair's affinity is::

    labelled: exp(ω − A) · (a + l · exp(A − L))          other: exp(ω − A) · a

The gradients of q and k are two kernels, one over rows and one over columns: no two programs add to the same value, so
results are deterministic. With log-sums of whole graphs instead of rows (WHOLE) the formulas are the same, with the L,
A, l and a of the graph.

Where labelled pairs are so much weaker than others that this leaves the range of float32, the graph is in *doubt* and
computed again (EXACT), with labelled pairs relative to their own greatest affinity, or to L. The host does not wait for
this decision: kernels of both kinds are launched, and those that a graph does not need return at once. Rules other than
``different``, where rows often have no labelled pair at all, always use the exact sums.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

FAR = tl.constexpr(60.0)  # labelled pairs this much weaker than all pairs put a graph in doubt
LOW = tl.constexpr(-80.0)  # so do pairs this weak, since padding has an affinity of zero
TINY = tl.constexpr(2.0**-126)  # the least normal number of float32; Triton makes float64 of any that is less


@triton.jit
def _labelled(target, table, of, N, C, m, n, row, column, RULE: tl.constexpr):
    """Whether each pair of rows ``m`` and columns ``n`` is labelled; ``row`` and ``column`` are their labels.

    ``of`` is the target's index. Invalid rows and columns may come out as labelled: the caller masks them.
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
    """Labels of the entities ``at``: −1 for none, −2 for invalid ones and outside the graph."""
    if EVEN:
        return tl.load(labels + graph * N + at)
    return tl.load(labels + graph * N + at, mask=at < N, other=-2)


@triton.jit
def _out(label):
    """Minus infinity for invalid entities, else zero."""
    return tl.where(label == -2, -float("inf"), 0.0)


@triton.jit
def _vectors(x, graph, N, D: tl.constexpr, at, BD: tl.constexpr, EVEN: tl.constexpr):
    """Rows ``at`` of x (B, N, D), padded with zeros to BD columns."""
    c = tl.arange(0, BD)
    place = x + ((graph * N + at) * D)[:, None] + c[None, :]
    if EVEN and D == BD:
        return tl.load(place)
    return tl.load(place, mask=(at < N)[:, None] & (c < D)[None, :], other=0.0)


@triton.jit
def forward_rows(
    q, k, labels, target, table, owner, doubt, labelled, everything, N, C, scale,
    D: tl.constexpr, EXACT: tl.constexpr, RULE: tl.constexpr, EVEN: tl.constexpr,
    PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Log-sums of BM rows of a graph; without EXACT, marks the graph in ``doubt`` if they are too small."""
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
        # Loaded one step early: the compiler does not pipeline this load, since no matrix product needs it.
        column = ahead
        after = tl.minimum(first + BN, N - BN) if EVEN else first + BN
        ahead = _labels(labels, graph, N, after + tl.arange(0, BN), EVEN)
        columns = _vectors(k, graph, N, D, n, BD, EVEN)
        x = tl.dot(rows, columns.T, input_precision=PRECISION) * scale + _out(column)[None, :]
        hit = _labelled(target, table, of, N, C, m[:, None], n[None, :], row[:, None], column[None, :], RULE)
        new = tl.maximum(top, tl.max(x, 1))
        # No pair yet: subtract zero, because −inf − (−inf) is NaN.
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
def sum_rows(labelled, everything, all_labelled, all_everything, N, BLOCK: tl.constexpr):
    """Log-sums of a graph from those of its rows."""
    graph = tl.program_id(0).to(tl.int64)
    tl.store(all_labelled + graph, _log_sum(labelled, graph, N, BLOCK))
    tl.store(all_everything + graph, _log_sum(everything, graph, N, BLOCK))


@triton.jit
def _loss_of_mass(log_mass, R, SHAPE: tl.constexpr):
    """Loss of a graph from log M, and its derivative; see :func:`foveal.supervise.center_mass_loss`."""
    mass = tl.exp(log_mass)
    x = log_mass
    series = -x * (1 + x / 2 * (1 + x / 3 * (1 + x / 4)))  # of 1 − exp x, which cancels near zero
    rest = tl.where(x > -0.03, series, 1 - mass)
    if SHAPE == "focal":
        base = tl.maximum(rest, TINY)
        power = tl.exp(R * tl.log(base))
        inner = tl.where(rest < base, 0.0, R * power / base * mass * x)
        return -power * x, inner - power
    if SHAPE == "l2":
        return rest * rest, -2 * rest * mass
    small = rest < 0.5
    return tl.where(small, rest * rest, rest - 0.25), tl.where(small, -2 * rest * mass, -mass)


@triton.jit
def mean_loss(labelled, everything, loss, rates, GRAPHS, R, SHAPE: tl.constexpr, BLOCK: tl.constexpr):
    """Mean loss of the graphs that have a labelled pair, and its derivatives by their two log-sums, (2, B)."""
    total, count = 0.0, 0.0
    for first in range(0, GRAPHS, BLOCK):
        b = first + tl.arange(0, BLOCK)
        log_l = tl.load(labelled + b, mask=b < GRAPHS, other=-float("inf"))
        log_all = tl.load(everything + b, mask=b < GRAPHS, other=0.0)
        has = log_l > -float("inf")
        value, _ = _loss_of_mass(tl.where(has, tl.minimum(log_l - log_all, 0.0), 0.0), R, SHAPE)
        total += tl.sum(tl.where(has, value, 0.0), 0)
        count += tl.sum(has.to(tl.float32), 0)
    count = tl.maximum(count, 1.0)
    tl.store(loss, total / count)
    for first in range(0, GRAPHS, BLOCK):
        b = first + tl.arange(0, BLOCK)
        log_l = tl.load(labelled + b, mask=b < GRAPHS, other=-float("inf"))
        log_all = tl.load(everything + b, mask=b < GRAPHS, other=0.0)
        has = log_l > -float("inf")
        log_mass = tl.where(has, log_l - log_all, 0.0)
        _, slope = _loss_of_mass(tl.minimum(log_mass, 0.0), R, SHAPE)
        slope = tl.where(has & (log_mass < 0), slope / count, 0.0)  # rounding may leave a little more than 0
        tl.store(rates + b, slope, mask=b < GRAPHS)
        tl.store(rates + GRAPHS + b, -slope, mask=b < GRAPHS)


@triton.jit
def _rates(grad_labelled, grad_all, labelled, everything, at, inside, EXACT: tl.constexpr):
    """From the sums at ``at``: the base of all pairs, the extra shift of labelled ones (EXACT), and both factors."""
    LOG2E: tl.constexpr = 1.4426950408889634
    log_l = tl.load(labelled + at, mask=inside, other=-float("inf"))
    log_all = tl.load(everything + at, mask=inside, other=-float("inf"))
    grad_l, grad_a = tl.load(grad_labelled + at, mask=inside, other=0.0), tl.load(grad_all + at, mask=inside, other=0.0)
    # A row or graph without pairs has no gradient: relative to infinity its exponentials are zero.
    none_l, none = log_l == -float("inf"), log_all == -float("inf")
    base, grad_a = tl.where(none, float("inf"), log_all * LOG2E), tl.where(none, 0.0, grad_a)
    behind = tl.where(none_l, 0.0, log_all - log_l)
    grad_l = tl.where(none_l, 0.0, grad_l)
    factor_l = grad_l + grad_a * tl.exp(-behind) if EXACT else grad_a + grad_l * tl.exp(behind)
    return base, behind * LOG2E, factor_l, grad_a


@triton.jit
def _in_doubt(doubt, labelled, everything, graph, WHOLE: tl.constexpr):
    """Whether a graph needs the exact sums; see :func:`foveal.kernels.center_mass.launch._far`."""
    if WHOLE:
        log_l, log_all = tl.load(labelled + graph), tl.load(everything + graph)
        low = (log_all < LOW) & (log_all > -float("inf"))
        return low | ((log_all - log_l > FAR) & (log_l > -float("inf")))
    return tl.load(doubt + graph) != 0


@triton.jit
def _affinity_grad(
    rows, columns, m, n, row, column, shift, behind, factor_l, factor, target, table, of, N, C, scale,
    RULE: tl.constexpr, PRECISION: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Gradient of the affinities of a tile of rows ``m`` and columns ``n``, without the scale.

    ``shift``, ``behind`` and the factors have the shape of the tile or of one of its sides.
    """
    x = tl.dot(rows, columns.T, input_precision=PRECISION) * scale + shift
    hit = _labelled(target, table, of, N, C, m[:, None], n[None, :], row[:, None], column[None, :], RULE)
    if EXACT:
        x += tl.where(hit, behind, 0.0)
    return tl.exp2(x) * tl.where(hit, factor_l, factor)


@triton.jit
def grad_q(
    q, k, labels, target, table, owner, doubt, labelled, everything, grad_labelled, grad_all, out, N, C, scale,
    D: tl.constexpr, WHOLE: tl.constexpr, EXACT: tl.constexpr, RULE: tl.constexpr, EVEN: tl.constexpr,
    PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Gradient of BM rows of q."""
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
        base, behind, factor_l, factor = _rates(grad_labelled, grad_all, labelled, everything, graph, graph >= 0, EXACT)
    else:
        base, behind, factor_l, factor = _rates(
            grad_labelled, grad_all, labelled, everything, graph * N + m, inside, EXACT
        )
        base, behind, factor_l, factor = base[:, None], behind[:, None], factor_l[:, None], factor[:, None]
    total = tl.zeros((BM, BD), tl.float32)
    for first in range(0, N, BN):
        n = first + tl.arange(0, BN)
        column = _labels(labels, graph, N, n, EVEN)
        columns = _vectors(k, graph, N, D, n, BD, EVEN)
        shift = _out(column)[None, :] - base if EXACT else -base  # otherwise invalid entities are zero in k
        grad = _affinity_grad(
            rows, columns, m, n, row, column, shift, behind, factor_l, factor,
            target, table, of, N, C, scale, RULE, PRECISION, EXACT,
        )  # fmt: skip
        if columns.dtype == tl.float16:  # float16 underflows here
            total = tl.dot(grad, columns.to(tl.float32), total)
        else:
            total = tl.dot(grad.to(columns.dtype), columns, total, input_precision=PRECISION)
    total = tl.where(inside[:, None], total, 0.0)  # padding has affinity zero, which may be far above all others
    c = tl.arange(0, BD)
    to = out + ((graph * N + m) * D)[:, None] + c[None, :]
    tl.store(to, (total * (scale * LN2)).to(out.dtype.element_ty), mask=(m < N)[:, None] & (c < D)[None, :])


@triton.jit
def grad_k(
    q, k, labels, target, table, owner, doubt, labelled, everything, grad_labelled, grad_all, out, N, C, scale,
    D: tl.constexpr, WHOLE: tl.constexpr, EXACT: tl.constexpr, RULE: tl.constexpr, EVEN: tl.constexpr,
    PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Gradient of BM rows of k, the columns of the matrix."""
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
        base, behind, factor_l, factor = _rates(grad_labelled, grad_all, labelled, everything, graph, graph >= 0, EXACT)
    for first in range(0, N, BN):
        m = first + tl.arange(0, BN)
        row = _labels(labels, graph, N, m, EVEN)
        rows = _vectors(q, graph, N, D, m, BD, EVEN)
        inside = row != -2
        if not WHOLE:
            base, behind, factor_l, factor = _rates(
                grad_labelled, grad_all, labelled, everything, graph * N + m, inside, EXACT
            )
            base, behind, factor_l, factor = base[:, None], behind[:, None], factor_l[:, None], factor[:, None]
        shift = _out(row)[:, None] - base if EXACT else -base
        grad = _affinity_grad(
            rows, columns, m, n, tl.maximum(row, -1), column, shift, behind, factor_l, factor,
            target, table, of, N, C, scale, RULE, PRECISION, EXACT,
        )  # fmt: skip
        # Transposed only here: a thread then has few rows, and fewer registers for their values.
        if rows.dtype == tl.float16:
            total = tl.dot(grad.T, rows.to(tl.float32), total)
        else:
            total = tl.dot(grad.to(rows.dtype).T, rows, total, input_precision=PRECISION)
    total = tl.where((column != -2)[:, None], total, 0.0)
    c = tl.arange(0, BD)
    to = out + ((graph * N + n) * D)[:, None] + c[None, :]
    tl.store(to, (total * (scale * LN2)).to(out.dtype.element_ty), mask=(n < N)[:, None] & (c < D)[None, :])
