"""Triton kernels from the log-sums of rows to the loss of graphs; those of rows are in :mod:`.triton_kernels`."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

TINY = tl.constexpr(2.0**-126)  # the least normal number of float32; Triton makes float64 of any that is less


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
def mean_loss(labelled, everything, loss, rates, GRAPHS, STEP, R, SHAPE: tl.constexpr, BLOCK: tl.constexpr):
    """Mean loss of the graphs that have a labelled pair, and its derivatives by their two log-sums, STEP apart."""
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
        tl.store(rates + STEP + b, -slope, mask=b < GRAPHS)
