"""Focused attention: pairwise attention between entities whose affinities can be supervised.

Wang, Samari, Kim, Chaudhuri, Siddiqi: "FAN: Focused Attention Networks" (https://arxiv.org/abs/1905.11498).

Entities are region proposals of an image or words of a sentence. One matrix of affinities feeds two softmaxes: one of
each row, which aggregates the features of all entities, and one of the whole matrix, which
:func:`foveal.supervise.center_mass_loss` supervises.

Departures: the paper has one head and does not say whether the projections have a bias (here they have none). With
several heads, each aggregates its own slice of the channels, and the mean of their affinities is supervised.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foveal.attention.records.dot_product import DotProduct
from foveal.attention.records.record import Attends
from foveal.errors import UserError


class FocusedAttention(Attends):
    """Every entity aggregates the features of the entities it is related to.

    With f the features of entity m or n::

        ω_mn = <W_K f_m, W_Q f_n> / √d;   f'_m = Σ_n softmax_n(ω_mn) f_n

    The features are aggregated as they are: there is neither a value nor an output projection. The entity that
    aggregates goes through W_K, as in the paper, though other attention calls that side the query.

    Args:
        channels: channels C of the features.
        key_channels: size d of the space in which entities are compared, per head.
        heads: number of heads; must divide ``channels``.

    >>> attention = FocusedAttention(100, key_channels=100)
    >>> words, mask = torch.rand(2, 30, 100), torch.ones(2, 30, dtype=torch.bool)
    >>> aggregated, logits = attention(words, mask)
    >>> aggregated.shape, logits.shape
    (torch.Size([2, 30, 100]), torch.Size([2, 30, 30]))
    >>> sum(p.numel() for p in attention.parameters())
    20000
    """

    kind = "pairwise"
    normalised = True

    def __init__(self, channels: int, *, key_channels: int = 64, heads: int = 1) -> None:
        super().__init__()
        if min(channels, key_channels, heads) < 1 or channels % heads:
            raise UserError(
                f"channels={channels}, key_channels={key_channels}, heads={heads}: expected at least 1 of each, and "
                "heads that divide channels"
            )
        self.channels, self.key_channels, self.heads = channels, key_channels, heads
        self.key = nn.Linear(channels, heads * key_channels, bias=False)
        self.query = nn.Linear(channels, heads * key_channels, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot-uniform weights."""
        nn.init.xavier_uniform_(self.key.weight)
        nn.init.xavier_uniform_(self.query.weight)

    @property
    def scale(self) -> float:
        """Scale of the product of the two :meth:`sides`, which makes it the mean of the heads' affinities."""
        return self.key_channels**-0.5 / self.heads

    def sides(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Both sides of the affinities, (..., N, heads · d) each.

        ``center_mass_loss(attention.sides(x), target, mask, scale=attention.scale)`` supervises a graph that is too
        large for a matrix of its pairs.
        """
        return self.key(features), self.query(features)

    def forward(
        self, features: Tensor, mask: Tensor | None = None, *, need_logits: bool = True
    ) -> tuple[Tensor, Tensor | None]:
        """Aggregate.

        Args:
            features: (B, N, C), or (..., N, C) for graphs that are batched in another way.
            mask: bool (B, N), true for real entities and false for padding; all are real if left out.
            need_logits: whether to return the logits; without them no matrix of pairs is built.

        Returns:
            aggregated (B, N, C), zero for padding, and the logits ω (B, N, N), the mean over heads, minus infinity
            where either entity is padding; None if not needed.
        """
        if features.ndim < 2 or features.shape[-1] != self.channels:
            raise UserError(f"features must be (..., N, {self.channels}), got {tuple(features.shape)}")
        if mask is not None and (mask.dtype != torch.bool or mask.shape != features.shape[:-1]):
            raise UserError(f"mask must be bool {tuple(features.shape[:-1])}, got {mask.dtype} {tuple(mask.shape)}")
        rows, columns = (self._split(side) for side in self.sides(features))
        values = self._split(features)
        self._note(rows, columns, mask)
        if not need_logits:
            # A row of nothing but padding attends to all of it, and is set to zero afterwards.
            keys = None if mask is None else (mask | ~mask.any(-1, keepdim=True))[..., None, None, :]
            gathered = F.scaled_dot_product_attention(rows, columns, values.to(rows.dtype), keys)
            return self._joined(gathered, mask), None
        logits = (rows @ columns.mT) * self.key_channels**-0.5  # (..., heads, N, N)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        # Finite, so that a row of nothing but padding has no NaN; next to any other logit its weight is zero.
        lowest = torch.finfo(logits.dtype).min
        masked = logits if mask is None else logits.masked_fill(~mask[..., None, None, :], lowest)
        weights = masked.softmax(-1)
        gathered = weights.to(values.dtype) @ values
        logits = logits.mean(-3)
        if mask is not None:
            logits = logits.masked_fill(~(mask[..., :, None] & mask[..., None, :]), -torch.inf)
        return self._joined(gathered, mask), logits

    def _note(self, rows: Tensor, columns: Tensor, mask: Tensor | None) -> None:
        """Keep both sides, (..., heads, N, d), for :func:`foveal.watch`."""
        if not self.watchers:
            return
        if self.heads == 1:
            rows, columns = rows.squeeze(-3), columns.squeeze(-3)
        scale, several = self.key_channels**-0.5, self.heads > 1
        self.note(self._noted(rows, columns, mask, scale=scale, heads=several, mean_heads=several))

    def _noted(self, rows: Tensor, columns: Tensor, mask: Tensor | None, **options: Any) -> DotProduct:
        return DotProduct(rows, columns, mask, **options)

    def _split(self, side: Tensor) -> Tensor:
        """(..., N, heads · d) to (..., heads, N, d)."""
        return side.unflatten(-1, (self.heads, -1)).transpose(-3, -2)

    def _joined(self, gathered: Tensor, mask: Tensor | None) -> Tensor:
        joined = gathered.transpose(-3, -2).flatten(-2)
        return joined if mask is None else joined.masked_fill(~mask[..., None], 0)

    def extra_repr(self) -> str:
        """Show what the children do not."""
        return f"heads={self.heads}"
