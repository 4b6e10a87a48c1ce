"""Scaled dot-product attention as its queries and keys, so that an N×N matrix is built only when it is needed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class DotProduct:
    """Lazy pairwise attention: softmax over keys of scale · q kᵀ, plus a bias.

    A module gives it to :meth:`foveal.attention.Attends.note`. It holds tensors of the forward pass only, so that it
    can be created inside a compiled model.

    Args:
        q: (..., N_q, d), or (..., heads, N_q, d).
        k: (..., N_k, d), or (..., heads, N_k, d). With fewer heads than q, each is shared by as many queries' heads
            that follow each other (grouped queries).
        valid: bool (..., N), without heads, true for real entities and false for padding: padding receives no
            attention, and its own rows are zero. For attention of entities to themselves, N_q = N_k. None if all are
            real.
        scale: of q kᵀ; 1/√d if left out.
        heads: whether q and k have a dimension of heads.
        mean_heads: losses on the affinities take the mean of the heads' affinities as one matrix, not each head alone.
        masks: each broadcasts to the weights: bool, true where a query may attend to a key, or floating point, added to
            scale · q kᵀ. A row in which no key is left is zero.
        causal: query i attends to keys up to i + causal only; None for all keys.

    >>> import torch
    >>> attention = DotProduct(torch.rand(2, 5, 3), torch.rand(2, 5, 3))
    >>> attention.shape, attention.rows(torch.tensor([0, 4]), None).shape
    (torch.Size([2, 5, 5]), torch.Size([2, 2, 5]))
    """

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        valid: Tensor | None = None,
        *,
        scale: float | None = None,
        heads: bool = False,
        mean_heads: bool = False,
        masks: Sequence[Tensor] = (),
        causal: int | None = None,
    ) -> None:
        self.q = q
        self.k = k
        self.valid = valid
        self.scale = q.shape[-1] ** -0.5 if scale is None else scale
        self.heads = heads
        self.mean_heads = mean_heads
        self.masks = tuple(masks)
        self.causal = causal
        self._whole: Tensor | None = None

    @property
    def shape(self) -> torch.Size:
        """(..., [heads,] N_q, N_k)."""
        return torch.Size((*self.q.shape[:-1], self.k.shape[-2]))

    @property
    def has_bias(self) -> bool:
        """Whether the logits are more than scale · q kᵀ: masked, biased or causal."""
        return bool(self.masks) or self.causal is not None

    def whole(self) -> Tensor:
        """All weights, (..., [heads,] N_q, N_k), float32 or wider; computed at the first call, and kept."""
        if self._whole is None:
            self._whole = self._weights(self.logits(), self.valid)
        return self._whole

    def rows(self, queries: Tensor, heads: Tensor | None) -> Tensor:
        """Weights of some rows, int64 (Q,), of all heads or of int64 (H,): (..., [H,] Q, N_k)."""
        rows_valid = None if self.valid is None else self.valid.index_select(-1, queries.to(self.valid.device))
        return self._weights(self.logits(queries, heads), rows_valid)

    def logits(self, queries: Tensor | None = None, heads: Tensor | None = None) -> Tensor:
        """What the softmax is of, float32 or wider, minus infinity where a query may not attend to a key.

        Args:
            queries: some rows, int64 (Q,); None for all.
            heads: some heads, int64 (H,); None for all.

        Returns:
            (..., [H,] Q, N_k). Padding (``valid``) is not in it.
        """
        q, k, masks = self.q, self._keys(), list(self.masks)
        if heads is not None:
            q, k, *masks = (_select(tensor, -3, heads) for tensor in (q, k, *masks))
        if queries is not None:
            q, *masks = (_select(tensor, -2, queries) for tensor in (q, *masks))
        logits = (q @ k.mT) * self.scale
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        for mask in masks:
            logits = logits.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else logits + mask
        if self.causal is not None:
            row = torch.arange(self.q.shape[-2], device=q.device) if queries is None else queries.to(q.device)
            later = torch.arange(k.shape[-2], device=q.device) > row[:, None] + self.causal
            logits = logits.masked_fill(later, -torch.inf)
        return logits

    def affinities(self) -> tuple[Tensor, Tensor, float]:
        """The sides (q, k) and the scale of the affinities that a loss supervises; of the heads' mean if it says so."""
        if not (self.heads and self.mean_heads):
            return self.q, self._keys(), self.scale
        q, k = (side.transpose(-3, -2).flatten(-2) for side in (self.q, self._keys()))
        return q, k, self.scale / self.q.shape[-3]

    def _keys(self) -> Tensor:
        """``k`` with as many heads as ``q``."""
        if not self.heads or self.k.shape[-3] == self.q.shape[-3]:
            return self.k
        return self.k.repeat_interleave(self.q.shape[-3] // self.k.shape[-3], -3)

    def _weights(self, logits: Tensor, rows_valid: Tensor | None) -> Tensor:
        """Softmax of rows of logits; ``rows_valid`` is ``valid`` of these rows."""
        if self.valid is None or rows_valid is None:
            return safe_softmax(logits) if self.has_bias else logits.softmax(-1)
        valid, rows_valid = (t.unsqueeze(-2) if self.heads else t for t in (self.valid, rows_valid))
        return safe_softmax(logits.masked_fill(~valid[..., None, :], -torch.inf)) * rows_valid[..., None]


class LogitMatrix:
    """Lazy pairwise attention of a model that computes its logits, all N_q × N_k of them, and their softmax itself.

    Args:
        matrix: logits (..., N_q, N_k), whose softmax is over the keys.
    """

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix

    @property
    def shape(self) -> torch.Size:
        """(..., N_q, N_k)."""
        return self.matrix.shape

    def whole(self) -> Tensor:
        """All weights, (..., N_q, N_k), float32 or wider."""
        return safe_softmax(self.logits())

    def rows(self, queries: Tensor, heads: Tensor | None) -> Tensor:
        """Weights of some rows, int64 (Q,), of all heads or of int64 (H,): (..., [H,] Q, N_k)."""
        return safe_softmax(self.logits(queries, heads))

    def logits(self, queries: Tensor | None = None, heads: Tensor | None = None) -> Tensor:
        """The logits of all or some rows and heads, float32 or wider."""
        logits = self.matrix if heads is None else _select(self.matrix, -3, heads)
        logits = logits if queries is None else _select(logits, -2, queries)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))


def safe_softmax(logits: Tensor) -> Tensor:
    """Softmax over the last dimension; a row of minus infinities becomes zero, in value and gradient, not NaN.

    >>> safe_softmax(torch.tensor([[0.0, -torch.inf], [-torch.inf, -torch.inf]]))
    tensor([[1., 0.],
            [0., 0.]])
    """
    blocked = logits.isneginf()
    # Finite, so that a row of nothing else has no NaN; next to any other logit its weight is zero.
    return logits.masked_fill(blocked, torch.finfo(logits.dtype).min).softmax(-1).masked_fill(blocked, 0)


def _select(tensor: Tensor, dim: int, indices: Tensor) -> Tensor:
    """Choose along a dimension, unless the tensor broadcasts over it."""
    if tensor.ndim < -dim or tensor.shape[dim] == 1:
        return tensor
    return tensor.index_select(dim, indices.to(tensor.device))
