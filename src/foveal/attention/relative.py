"""Attention between the words of sentences with four switchable terms: the one-dimensional form of spatial attention.

Zhu, Cheng, Zhang, Lin, Dai: "An Empirical Study of Spatial Attention Mechanisms in Deep Networks"
(https://arxiv.org/abs/1904.05873), section on translation; the relative form of position is that of Dai et al.:
"Transformer-XL" (https://arxiv.org/abs/1901.02860).

The terms are those of :class:`~foveal.attention.SpatialAttention` and are computed by the same code: a sentence is a
map of one row. Departures: energies are divided by √d, as in the Transformer; codes of positions have wavelengths to
the base of 10000 and one projection; between encoder and decoder the offset is the difference of the two positions.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foveal.attention.checks import check_sequences, check_whole
from foveal.attention.records.record import Attends
from foveal.attention.records.spatial_terms import SpatialTerms
from foveal.attention.spatial import check_terms
from foveal.errors import UserError
from foveal.kernels.spatial.fused import attend
from foveal.kernels.spatial.plain import Factors
from foveal.kernels.spatial.tables import sequence_codes, sequence_table
from foveal.kernels.spatial.waves import Waves

BASE = 10_000.0  # of the wavelengths


class RelativeAttention(Attends):
    """Attention over a sequence with four switchable terms.

    With z_q and x_k the contents of query and key, and R the sinusoidal code of their offset, for each head::

        A ∝ exp((E1 + E2 + E3 + E4) / √d);   y_q = W Σ_k A V x_k
        E1 = z_qᵀ Uᵀ V^C x_k      E2 = z_qᵀ Uᵀ V^R R_{q−k}      E3 = uᵀ V^C x_k      E4 = vᵀ V^R R_{q−k}

    Args:
        channels: channels C of the sequence.
        heads: number of heads M; must divide C.
        terms: which of the four terms are on, as a text of four digits.
        position_channels: numbers D_R in the code of an offset, even; C if None.
        cross: whether keys come from another sequence, as between encoder and decoder.
        causal: whether a position sees itself and earlier ones only.
        dropout: probability that a weight is dropped in training.

    >>> RelativeAttention(64, terms="0110")(torch.rand(2, 11, 64)).shape
    torch.Size([2, 11, 64])
    """

    kind = "pairwise"
    normalised = True

    def __init__(
        self,
        channels: int,
        *,
        heads: int = 8,
        terms: str | int = "1111",
        position_channels: int | None = None,
        cross: bool = False,
        causal: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_whole(channels=channels, heads=heads)
        if channels % heads:
            raise UserError(f"heads={heads} does not divide {channels} channels")
        wide = channels if position_channels is None else position_channels
        check_whole(2, position_channels=wide)
        if wide % 2:
            raise UserError(f"position_channels={wide}: expected an even number, for sines and cosines")
        if cross and causal:
            raise UserError("attention to another sequence cannot be causal")
        self.channels, self.heads, self.terms = channels, heads, check_terms(terms)
        self.cross, self.causal, self.dropout = cross, causal, dropout
        self.head_channels, self.frequencies = channels // heads, wide // 2
        self.scale = self.head_channels**-0.5
        e1, e2, e3, e4 = (digit == "1" for digit in self.terms)
        self.has_query, self.has_key = e1 or e2, e1 or e3
        # What is computed from one sequence is one product: U, V^C and V, those that there are.
        own = self.has_key + 1 + (self.has_query and not cross)
        self.inputs = nn.Linear(channels, own * channels, bias=False)
        self.query = nn.Linear(channels, channels, bias=False) if self.has_query and cross else None
        self.position = nn.Linear(wide, channels, bias=False) if e2 or e4 else None
        self.key_bias = nn.Parameter(torch.empty(heads, self.head_channels)) if e3 else None
        self.position_bias = nn.Parameter(torch.empty(heads, self.head_channels)) if e4 else None
        self.proj = nn.Linear(channels, channels)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier-uniform projections, u and v uniform in ±1/√(2d).

        Those of query, key and value are √2 smaller, as in PyTorch and fairseq. So V^R R, whose code has half the
        square norm of a normalised x, starts as large as V^C x.
        """
        contents = self.inputs.weight.split(self.channels)
        for part in contents if self.query is None else (*contents, self.query.weight):
            nn.init.xavier_uniform_(part, gain=0.5**0.5)
        for linear in (self.position, self.proj):
            if linear is not None:
                nn.init.xavier_uniform_(linear.weight)
        nn.init.zeros_(self.proj.bias)
        bound = (2 * self.head_channels) ** -0.5
        for bias in (self.key_bias, self.position_bias):
            if bias is not None:
                nn.init.uniform_(bias, -bound, bound)

    def forward(self, x: Tensor, context: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Attend.

        Args:
            x: queries, (B, T, C).
            context: what keys and values come from, (B, S, C); ``x`` itself if left out.
            mask: bool (B, S), false for keys that are padding; at least one of each sample is real. All are if left
                out.

        Returns:
            (B, T, C).
        """
        check_sequences(x, self.channels)
        if self.cross != (context is not None):
            raise UserError(f"cross={self.cross}: give a context to attention between two sequences, and to no other")
        source = x if context is None else context
        if mask is not None and (mask.dtype != torch.bool or mask.shape != source.shape[:2]):
            raise UserError(f"mask must be bool {tuple(source.shape[:2])}, got {mask.dtype} {tuple(mask.shape)}")
        query, key, value = self.project(x, context)
        factors = self.factors(query, key, value, mask, x.shape[1])
        if self.watchers:
            self.note(SpatialTerms(factors))
        gathered = attend(factors, value[:, None], dropout=self.dropout if self.training else 0.0)
        return self.proj(gathered[:, 0].flatten(2))

    def project(self, x: Tensor | None, context: Tensor | None) -> tuple[Tensor | None, Tensor | None, Tensor]:
        """U z (B, T, M, d), V^C x and V x (B, S, M, d): those that the terms need.

        Without ``x`` there is no query; without ``context`` keys are of ``x``.
        """
        source = x if context is None else context
        assert source is not None
        parts = list(self._split(self.inputs(source)).unbind(2))
        value = parts.pop()
        key = parts.pop() if self.has_key else None
        query = parts.pop() if parts else None
        if self.query is not None and x is not None:
            query = self.query(x).unflatten(-1, (self.heads, -1))
        return query, key, value

    def _split(self, projected: Tensor) -> Tensor:
        """(..., parts · C) to (..., parts, M, d)."""
        return projected.unflatten(-1, (-1, self.heads, self.head_channels))

    def factors(
        self, query: Tensor | None, key: Tensor | None, value: Tensor, mask: Tensor | None, queries: int
    ) -> Factors:
        """What the terms of so many queries are made of; arguments as :meth:`project` returns them."""
        e1, _, e3, _ = (digit == "1" for digit in self.terms)
        batch, keys = value.shape[:2]
        salience = None
        if e3 and not e1:
            assert key is not None
            assert self.key_bias is not None
            salience = torch.einsum("bkmd,md->bkm", key, self.key_bias.to(key.dtype))[:, None]
        waves = keys - 1 > 2 * self.frequencies
        return Factors(
            terms=self.terms,
            query=None if query is None else query[:, None],
            key=key[:, None] if key is not None and e1 else None,
            salience=salience,
            key_bias=self.key_bias,
            position_bias=self.position_bias,
            across=self._table(queries, keys) if self.position is not None and not waves else None,
            down=None,
            near_x=None,
            near_y=None,
            batch=batch,
            heads=self.heads,
            size=(1, queries, 1, keys),
            scale=self.scale,
            waves=self._waves(queries, keys) if self.position is not None and waves else None,
            valid=mask,
            causal=self.causal,
        )

    def _table(self, queries: int, keys: int) -> Tensor:
        return sequence_table(self.positions(queries, keys), keys)

    def _waves(self, queries: int, keys: int) -> Waves:
        assert self.position is not None
        weight = self.position.weight
        of_queries, of_keys = (
            sequence_codes(0, count - 1, self.frequencies, BASE, weight) for count in (queries, keys)
        )
        return Waves(weight.unflatten(0, (self.heads, -1)), of_queries, of_keys)

    def positions(self, queries: int, keys: int) -> Tensor:
        """V^R R of the offsets from −(keys − 1) to queries − 1, (queries + keys − 1, M, d), in float32 or wider."""
        assert self.position is not None
        weight = self.position.weight
        codes = sequence_codes(1 - keys, queries - 1, self.frequencies, BASE, weight)
        device = weight.device.type
        known = torch.amp.is_autocast_available(device)  # not of meta tensors
        with torch.autocast(device, enabled=False) if known else nullcontext():
            return F.linear(codes, weight.to(codes.dtype)).unflatten(-1, (self.heads, -1))

    # One position after the other ------------------------------------------------------

    @property
    def slots(self) -> int:
        """Sequences (B, L, C) of earlier positions that a step of self-attention needs: values, and perhaps keys."""
        return 1 + self.has_key

    def step(self, x: Tensor, position: Tensor, cache: Tensor, table: Tensor | None) -> Tensor:
        """Self-attention of the next position of each sequence to itself and all before it.

        Args:
            x: (N, C).
            position: its number, int64 (1,), on the device: nothing waits for it.
            cache: keys and values of earlier positions, (slots, N, L, C); those of this one are written into it.
            table: :meth:`positions` of (L, L); None without position terms.

        Returns:
            (N, C).
        """
        query, key, value = self.project(x[:, None], None)
        own = [part.flatten(2).to(cache.dtype) for part in (value, key) if part is not None]
        cache.index_copy_(2, position, torch.stack(own))
        past = cache.unflatten(-1, (self.heads, -1))
        seen = torch.arange(cache.shape[2], device=x.device) <= position
        out = self._gather(query, past[1] if self.has_key else None, past[0], position, seen, table)
        return out[:, 0]

    def step_to(
        self, x: Tensor, position: Tensor, memory: tuple[Tensor | None, Tensor], mask: Tensor, table: Tensor | None
    ) -> Tensor:
        """Attention of the next position of K translations of each sentence to that sentence.

        Args:
            x: (B, K, C).
            position: as for :meth:`step`.
            memory: keys and values of the sentence, (B, S, M, d) each, as :meth:`project` returns them.
            mask: bool (B, S), false for padding.
            table: :meth:`positions` of (L, S), for L positions at most; None without position terms.

        Returns:
            (B, K, C).
        """
        query = None if self.query is None else self.query(x).unflatten(-1, (self.heads, -1))
        out = self._gather(query, *memory, position, mask[:, None, None], table)
        return out.expand(-1, x.shape[1], -1)

    def _gather(
        self,
        query: Tensor | None,
        key: Tensor | None,
        value: Tensor,
        position: Tensor,
        seen: Tensor,
        table: Tensor | None,
    ) -> Tensor:
        """Q queries at one position: (N, Q, C), or (N, 1, C) where all are the same.

        Args:
            query: (N, Q, M, d), or None.
            key: (N, L, M, d), or None.
            value: (N, L, M, d).
            position: int64 (1,).
            seen: bool, broadcastable to (N, M, Q, L).
            table: of offsets, (…, M, d).
        """
        e1, e2, _, _ = (digit == "1" for digit in self.terms)
        length, dtype = value.shape[1], value.dtype
        bias = torch.zeros_like(seen, dtype=dtype).masked_fill(~seen, -torch.inf)
        if table is not None:
            offsets = position + (length - 1) - torch.arange(length, device=position.device)
            sought: Tensor | None = self.position_bias
            if e2:
                assert query is not None
                sought = query if sought is None else query + sought
            assert sought is not None
            energy = torch.einsum("...md,lmd->...ml", sought.to(dtype), table.to(dtype).index_select(0, offsets))
            bias = bias + self.scale * (energy.transpose(1, 2) if e2 else energy[:, None])
        if e1:
            assert query is not None
            content = query if self.key_bias is None else query + self.key_bias.to(dtype)
        else:
            content = value.new_zeros(1, 1, self.heads, self.head_channels)
            content = content if self.key_bias is None else content + self.key_bias.to(dtype)
        queries = query.shape[1] if query is not None else 1
        content = content.expand(len(value), queries, -1, -1)
        q, k, v = (side.transpose(1, 2) for side in (content, value if key is None else key, value))
        bias = bias.expand(len(value), self.heads, queries, length)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=self.scale)
        return self.proj(out.transpose(1, 2).flatten(2))

    def extra_repr(self) -> str:
        """Show what the children do not."""
        return f"terms={self.terms!r}, heads={self.heads}, cross={self.cross}, causal={self.causal}"
