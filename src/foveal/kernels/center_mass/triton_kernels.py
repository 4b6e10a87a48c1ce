"""Triton kernels of the log-sums in :mod:`.log_sums`: tiles of the matrix exist in registers only.

A pair costs one exponential forward and one backward. Forward, both sums of a row are relative to its greatest
affinity. Backward, with L and A the log-sums of a row's labelled pairs and of all its pairs, and l and a the gradients
of these, the gradient of a pair's affinity is::

    labelled: exp(ω − A) · (a + l · exp(A − L))          other: exp(ω − A) · a

Programs make the gradient of some rows of q, or of k with the matrix turned: no two programs add to the same value, so
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
ZERO = tl.constexpr(1 << 23)  # code of label 0, see `encode`
NONE = tl.constexpr(0x7FC00000)
INVALID = tl.constexpr(0x7FFFFFFF)
LARGEST = tl.constexpr(0x7F7FFFFF)


@triton.jit
def encode(target, owner, valid, labels, N, RULE: tl.constexpr, BLOCK: tl.constexpr):
    """Validity and label of every entity as one int32, (B, N).

    As a float, the code of a label is a finite number of its own and that of an entity without a label is NaN, which is
    neither less nor greater than any other: one comparison tells whether two labels are different and both there.
    Labels above two thousand million count as one.
    """
    blocks = tl.cdiv(N, BLOCK)
    graph = (tl.program_id(0) // blocks).to(tl.int64)
    n = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    if RULE == "pairs":
        code = tl.full((BLOCK,), NONE, tl.int32)
    else:
        label = tl.load(target + tl.load(owner + graph) * N + n, mask=n < N, other=-1).to(tl.int64)
        code = tl.where(label < 0, NONE, tl.minimum(label + ZERO, LARGEST)).to(tl.int32)
    if valid is not None:
        code = tl.where(tl.load(valid + graph * N + n, mask=n < N, other=0) != 0, code, INVALID)
    tl.store(labels + graph * N + n, code, mask=n < N)


@triton.jit
def _labelled(target, table, of, N, C, step, stride, m, n, row, column, RULE: tl.constexpr):
    """Whether each pair of entities ``m`` and ``n`` is labelled; ``row`` and ``column`` are their codes.

    ``of`` is the target's index; ``step`` and ``stride`` lead to the next ``m`` and ``n`` in the target, or to the next
    of their labels in the table. Pairs with invalid entities may come out as labelled: the caller masks them.
    """
    if RULE == "pairs":
        at = target + of * N * N + m.to(tl.int64) * step + n.to(tl.int64) * stride
        return (tl.load(at, mask=(m < N) & (n < N), other=0) != 0) & (m != n)
    if RULE == "table":
        row, column = row - ZERO, column - ZERO  # none and invalid ones are larger than any table
        at = table + of * C * C + row * step + column * stride
        return (tl.load(at, mask=(row < C) & (column < C), other=0) != 0) & (m != n)
    row, column = row.to(tl.float32, bitcast=True), column.to(tl.float32, bitcast=True)
    if RULE == "same":
        return (row == column) & (m != n)
    return (row < column) | (row > column)


@triton.jit
def _labels(labels, graph, N, at, EVEN: tl.constexpr):
    """Codes of the entities ``at``; invalid outside the graph."""
    if EVEN:
        return tl.load(labels + graph * N + at)
    return tl.load(labels + graph * N + at, mask=at < N, other=INVALID)


@triton.jit
def _out(label):
    """Minus infinity for invalid entities, else zero."""
    return tl.where(label == INVALID, -float("inf"), 0.0)


@triton.jit
def _vectors(x, graph, N, D: tl.constexpr, at, BD: tl.constexpr, EVEN: tl.constexpr):
    """Rows ``at`` of x (B, N, D), padded with zeros to BD columns."""
    c = tl.arange(0, BD)
    place = x + ((graph * N + at) * D)[:, None] + c[None, :]
    if EVEN and D == BD:
        return tl.load(place)
    return tl.load(place, mask=(at < N)[:, None] & (c < D)[None, :], other=0.0)


@triton.jit
def _place(N, BM: tl.constexpr):
    """Graph and rows of a program; those of one graph follow each other, so that what they read stays in the cache."""
    blocks = tl.cdiv(N, BM)
    return (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks * BM + tl.arange(0, BM)


@triton.jit
def forward_rows(
    q, k, labels, target, table, owner, doubt, labelled, everything, N, C, scale,
    D: tl.constexpr, MASKED: tl.constexpr, EXACT: tl.constexpr, RULE: tl.constexpr, EVEN: tl.constexpr,
    PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Log-sums of BM rows of a graph; without EXACT, marks the graph in ``doubt`` if they are too small.

    Without MASKED all entities are valid, the graph is EVEN and the scale positive.
    """
    graph, m = _place(N, BM)
    if EXACT and tl.load(doubt + graph) == 0:
        return
    of = tl.load(owner + graph)
    rows = _vectors(q, graph, N, D, m, BD, EVEN)
    row = _labels(labels, graph, N, m, EVEN)
    inside = row != INVALID
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
        product = tl.dot(rows, columns.T, input_precision=PRECISION)
        step = C if RULE == "table" else N
        hit = _labelled(
            target, table, of, N, C, step, 1, m[:, None], n[None, :], row[:, None], column[None, :], RULE
        )  # fmt: skip
        if MASKED:
            x = product * scale + _out(column)[None, :]
            new = tl.maximum(top, tl.max(x, 1))
            # No pair yet: subtract zero, because −inf − (−inf) is NaN.
            base = tl.where(new == -float("inf"), 0.0, new)
        else:  # one operation a pair less: the next lines become one
            new = tl.maximum(top, tl.max(product, 1) * scale)
            x, base = product * scale, new
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
        bad = inside & (row != NONE) & (sum_l < 1e-20)
        if tl.max(bad.to(tl.int32), 0) > 0:
            tl.store(doubt + graph, 1)
    LN2: tl.constexpr = 0.6931471805599453
    log_l, log_all = (top_l + tl.log2(sum_l)) * LN2, (top + tl.log2(sum_all)) * LN2
    tl.store(labelled + graph * N + m, tl.where(inside, log_l, -float("inf")), mask=m < N)
    tl.store(everything + graph * N + m, tl.where(inside, log_all, -float("inf")), mask=m < N)


@triton.jit
def _rates(grad_labelled, grad_all, upstream, labelled, everything, at, inside, EXACT: tl.constexpr):
    """From the sums at ``at``: the base of all pairs, the extra shift of labelled ones (EXACT), and both factors.

    The gradients of the sums are multiplied by ``upstream``, a number, if it is not None.
    """
    LOG2E: tl.constexpr = 1.4426950408889634
    log_l = tl.load(labelled + at, mask=inside, other=-float("inf"))
    log_all = tl.load(everything + at, mask=inside, other=-float("inf"))
    grad_l, grad_a = tl.load(grad_labelled + at, mask=inside, other=0.0), tl.load(grad_all + at, mask=inside, other=0.0)
    if upstream is not None:
        grad_l, grad_a = grad_l * tl.load(upstream), grad_a * tl.load(upstream)
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
    rows, columns, m, n, row, column, step, stride, shift, behind, factor_l, factor, target, table, of, N, C, scale,
    RULE: tl.constexpr, PRECISION: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Gradient of the affinities of a tile of entities ``m`` and ``n``, without the scale.

    ``shift``, ``behind`` and the factors have the shape of one of its sides, or none.
    """
    x = tl.dot(rows, columns.T, input_precision=PRECISION) * scale + shift
    hit = _labelled(
        target, table, of, N, C, step, stride, m[:, None], n[None, :], row[:, None], column[None, :], RULE
    )  # fmt: skip
    if EXACT:
        x += tl.where(hit, behind, 0.0)
    grad = tl.exp2(x) * tl.where(hit, factor_l, factor)
    if rows.dtype != tl.float16:  # which would underflow
        grad = grad.to(rows.dtype)
    return grad


@triton.jit
def gradients(
    q, k, labels, target, table, owner, doubt, labelled, everything, grad_labelled, grad_all, upstream, grad_q, grad_k,
    N, C, scale, D: tl.constexpr, WHOLE: tl.constexpr, SIDE: tl.constexpr, EXACT: tl.constexpr, RULE: tl.constexpr,
    EVEN: tl.constexpr, PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Gradient of BM vectors of q, or of k in programs whose second index is 1 or with SIDE 1.

    For k the matrix is turned: what was a row is a column, and programs of both sides do the same.
    """
    LN2: tl.constexpr = 0.6931471805599453
    ACROSS: tl.constexpr = SIDE == 1 and not WHOLE
    graph, m = _place(N, BM)
    if _in_doubt(doubt, labelled, everything, graph, WHOLE) != EXACT:
        return
    turned = tl.program_id(1) + SIDE == 1
    own, others, out = tl.where(turned, k, q), tl.where(turned, q, k), tl.where(turned, grad_k, grad_q)
    line = C if RULE == "table" else N
    step, stride = tl.where(turned, 1, line), tl.where(turned, line, 1)
    of = tl.load(owner + graph)
    rows = _vectors(own, graph, N, D, m, BD, EVEN)
    row = _labels(labels, graph, N, m, EVEN)
    inside = row != INVALID
    sums = grad_labelled, grad_all, upstream, labelled, everything
    if WHOLE:
        base, behind, factor_l, factor = _rates(*sums, graph, graph >= 0, EXACT)
    elif not ACROSS:
        base, behind, factor_l, factor = _rates(*sums, graph * N + m, inside, EXACT)
        base, behind, factor_l, factor = base[:, None], behind[:, None], factor_l[:, None], factor[:, None]
    total = tl.zeros((BM, BD), tl.float32)
    for first in range(0, N, BN):
        n = first + tl.arange(0, BN)
        column = _labels(labels, graph, N, n, EVEN)
        columns = _vectors(others, graph, N, D, n, BD, EVEN)
        if ACROSS:  # turned back: a thread then has few rows of the matrix, and fewer registers for their values
            base, behind, factor_l, factor = _rates(*sums, graph * N + n, column != INVALID, EXACT)
            shift = _out(column) - base if EXACT else -base
            grad = _affinity_grad(
                columns, rows, n, m, column, row, stride, step, shift[:, None], behind[:, None], factor_l[:, None],
                factor[:, None], target, table, of, N, C, scale, RULE, PRECISION, EXACT,
            ).T  # fmt: skip
        else:
            shift = _out(column)[None, :] - base if EXACT else -base  # otherwise invalid entities are zero in `columns`
            grad = _affinity_grad(
                rows, columns, m, n, row, column, step, stride, shift, behind, factor_l, factor,
                target, table, of, N, C, scale, RULE, PRECISION, EXACT,
            )  # fmt: skip
        if columns.dtype == tl.float16:
            total = tl.dot(grad, columns.to(tl.float32), total)
        else:
            total = tl.dot(grad, columns, total, input_precision=PRECISION)
    total = tl.where(inside[:, None], total, 0.0)  # padding has affinity zero, which may be far above all others
    c = tl.arange(0, BD)
    to = out + ((graph * N + m) * D)[:, None] + c[None, :]
    tl.store(to, (total * (scale * LN2)).to(out.dtype.element_ty), mask=(m < N)[:, None] & (c < D)[None, :])
