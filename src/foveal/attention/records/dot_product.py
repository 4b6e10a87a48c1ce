"""Scaled dot-product attention as its queries and keys, so that an N×N matrix is built only when it is needed."""

from __future__ import annotations

import torch
from torch import Tensor


class DotProduct:
    """Lazy pairwise attention between N entities: softmax over keys of scale · q kᵀ.

    A module gives it to :meth:`foveal.attention.Attends.note`. It holds tensors of the forward pass only, so that it
    can be created inside a compiled model.

    Args:
        q: (..., N_q, d), or (..., heads, N_q, d).
        k: (..., N_k, d), or (..., heads, N_k, d).
        valid: bool (..., N), without heads, true for real entities and false for padding: padding receives no
            attention, and its own rows are zero. For attention of entities to themselves, N_q = N_k. None if all are
            real.
        scale: of q kᵀ; 1/√d if left out.
        heads: whether q and k have a dimension of heads.
        mean_heads: losses on the affinities take the mean of the heads' affinities as one matrix, not each head alone.

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
    ) -> None:
        self.q = q
        self.k = k
        self.valid = valid
        self.scale = q.shape[-1] ** -0.5 if scale is None else scale
        self.heads = heads
        self.mean_heads = mean_heads
        self._whole: Tensor | None = None

    @property
    def shape(self) -> torch.Size:
        """(..., [heads,] N_q, N_k)."""
        return torch.Size((*self.q.shape[:-1], self.k.shape[-2]))

    def whole(self) -> Tensor:
        """All weights, (..., [heads,] N_q, N_k), float32 or wider; computed at the first call, and kept."""
        if self._whole is None:
            self._whole = self._weights(self.q, self.k, self.valid)
        return self._whole

    def rows(self, queries: Tensor, heads: Tensor | None) -> Tensor:
        """Weights of some rows, int64 (Q,), of all heads or of int64 (H,): (..., [H,] Q, N_k)."""
        q, k, queries = self.q, self.k, queries.to(self.q.device)
        if heads is not None:
            q, k = (side.index_select(-3, heads.to(side.device)) for side in (q, k))
        rows_valid = None if self.valid is None else self.valid.index_select(-1, queries.to(self.valid.device))
        return self._weights(q.index_select(-2, queries), k, rows_valid)

    def _weights(self, q: Tensor, k: Tensor, rows_valid: Tensor | None) -> Tensor:
        """Softmax of the rows of ``q``; ``rows_valid`` is ``valid`` of these rows."""
        logits = (q @ k.mT) * self.scale
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if self.valid is None or rows_valid is None:
            return logits.softmax(-1)
        valid, rows_valid = (t.unsqueeze(-2) if self.heads else t for t in (self.valid, rows_valid))
        # Finite, so that a row of nothing but padding has no NaN; next to any other logit its weight is zero.
        lowest = torch.finfo(logits.dtype).min
        weights = logits.masked_fill(~valid[..., None, :], lowest).softmax(-1)
        return weights * rows_valid[..., None]

    def affinities(self) -> tuple[Tensor, Tensor, float]:
        """The sides (q, k) and the scale of the affinities that a loss supervises; of the heads' mean if it says so."""
        if not (self.heads and self.mean_heads):
            return self.q, self.k, self.scale
        q, k = (side.transpose(-3, -2).flatten(-2) for side in (self.q, self.k))
        return q, k, self.scale / self.q.shape[-3]
