"""Focused attention: pairwise attention between entities whose affinities can be supervised.

Wang, Samari, Kim, Chaudhuri, Siddiqi: "FAN: Focused Attention Networks" (https://arxiv.org/abs/1905.11498).

Entities are region proposals of a picture or words of a sentence. One matrix of affinities feeds two softmaxes: that of
each row, which aggregates the features of all entities, and that of the whole matrix, on which
:func:`foveal.supervise.center_mass_loss` works.

Departures: the paper has one head and does not say whether the projections have a bias (here they have none). With
several heads each aggregates its own slice of the channels, and the affinities that are supervised are their mean.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foveal.attention.records.record import Attends
from foveal.errors import UserError


class FocusedAttention(Attends):
    """Let every entity gather the features of the entities it is related to.

    With f the features of entity m or n::

        ω_mn = <W_K f_m, W_Q f_n> / √d;   f'_m = Σ_n softmax_n(ω_mn) f_n

    The features are aggregated as they are: there is neither a value nor an output projection. The entity that gathers
    goes through W_K, as the paper writes it, though other attention calls that side the query.

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
        """Of the product of the two :meth:`sides`, so that it is the mean of the heads' affinities."""
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
            need_logits: without them, and while nobody watches, no matrix of pairs is stored.

        Returns:
            aggregated (B, N, C), zero for padding, and the logits ω (B, N, N), the mean over heads, minus infinity
            where either entity is padding; None if not needed.
        """
        if features.ndim < 2 or features.shape[-1] != self.channels:
            raise UserError(f"features must be (..., N, {self.channels}), got {tuple(features.shape)}")
        if mask is not None and (mask.dtype != torch.bool or mask.shape != features.shape[:-1]):
            raise UserError(f"mask must be bool {tuple(features.shape[:-1])}, got {mask.dtype} {tuple(mask.shape)}")
        mine, others = (self._split(side) for side in self.sides(features))
        values = self._split(features)
        if not need_logits and not self.watchers:
            # A row of nothing but padding attends to all of it, and is zeroed after.
            kept = None if mask is None else (mask | ~mask.any(-1, keepdim=True))[..., None, None, :]
            gathered = F.scaled_dot_product_attention(mine, others, values.to(mine.dtype), kept)
            return self._joined(gathered, mask), None
        logits = (mine @ others.mT) * self.key_channels**-0.5  # (..., heads, N, N)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        # Finite, so that a row of nothing but padding has no NaN; beside any other logit its weight is zero.
        least = torch.finfo(logits.dtype).min
        columns = logits if mask is None else logits.masked_fill(~mask[..., None, None, :], least)
        weights = columns.softmax(-1)
        if mask is not None:
            weights = weights * mask[..., None, :, None]
        self.note(weights.squeeze(-3))
        gathered = weights.to(values.dtype) @ values
        logits = logits.mean(-3)
        if mask is not None:
            logits = logits.masked_fill(~(mask[..., :, None] & mask[..., None, :]), -torch.inf)
        return self._joined(gathered, mask), logits

    def _split(self, side: Tensor) -> Tensor:
        """(..., N, heads · d) to (..., heads, N, d)."""
        return side.unflatten(-1, (self.heads, -1)).transpose(-3, -2)

    def _joined(self, gathered: Tensor, mask: Tensor | None) -> Tensor:
        joined = gathered.transpose(-3, -2).flatten(-2)
        return joined if mask is None else joined.masked_fill(~mask[..., None], 0)

    def extra_repr(self) -> str:
        """Show what the children do not."""
        return f"heads={self.heads}"
