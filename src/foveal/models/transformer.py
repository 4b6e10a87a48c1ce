"""A Transformer for translation whose attention has four switchable terms.

Vaswani et al.: "Attention Is All You Need" (https://arxiv.org/abs/1706.03762), with the generalized attention of Zhu et
al.: "An Empirical Study of Spatial Attention Mechanisms in Deep Networks" (https://arxiv.org/abs/1904.05873): relative
positions in the attention, no absolute ones; dynamic convolution in place of self-attention, or deformable convolution
before it. Source, target and output share one embedding.

Departures: the paper does not give the sizes of its convolutions. Dynamic convolution has those of Wu et al.
(https://arxiv.org/abs/1901.10430), 3, 7, 15 and then 31 taps; deformable convolution is inside the residual branch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foveal.attention.deform1d import DeformConv1d
from foveal.attention.dynamic import DynamicConv1d
from foveal.attention.relative import BASE, RelativeAttention
from foveal.errors import UserError
from foveal.kernels.spatial.tables import sequence_codes
from foveal.models.registry import register

DYNAMIC = "dynamic"
KERNELS = (3, 7, 15, 31)  # taps of dynamic convolution in the first layers; later ones have the last number


class Layer(nn.Module):
    """A layer of the encoder, or with ``cross`` one of the decoder.

    Args:
        channels: width C.
        heads: of every attention, and groups of dynamic convolution.
        hidden: width between the two products.
        terms: of self-attention, or ``dynamic``.
        cross: terms of the attention to the source; None for a layer of the encoder.
        deform: whether a deformable convolution is before self-attention.
        kernel: taps of dynamic convolution.
        position_channels: numbers in the code of an offset.
        dropout: of each residual branch.
        attention_dropout: of the weights of attention.
        pre_norm: whether norms are at the beginning of branches rather than after the sum.
    """

    def __init__(
        self,
        channels: int,
        *,
        heads: int,
        hidden: int,
        terms: str,
        cross: str | None,
        deform: bool,
        kernel: int,
        position_channels: int | None,
        dropout: float,
        attention_dropout: float,
        pre_norm: bool,
    ) -> None:
        super().__init__()
        causal = cross is not None
        shared: dict[str, Any] = {
            "heads": heads,
            "position_channels": position_channels,
            "dropout": attention_dropout,
        }
        self.pre_norm = pre_norm
        self.deform = DeformConv1d(channels, causal=causal) if deform else None
        self.attention: RelativeAttention | DynamicConv1d
        if terms == DYNAMIC:
            self.attention = DynamicConv1d(channels, kernel=kernel, groups=heads, causal=causal, drop=attention_dropout)
        else:
            self.attention = RelativeAttention(channels, terms=terms, causal=causal, **shared)
        self.cross = None
        if cross is not None:
            self.cross = RelativeAttention(channels, terms=cross, cross=True, **shared)
        self.widen, self.narrow = nn.Linear(channels, hidden), nn.Linear(hidden, channels)
        for linear in (self.widen, self.narrow):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)
        self.norms = nn.ModuleList(nn.LayerNorm(channels) for _ in range(2 if cross is None else 3))
        self.drop = nn.Dropout(dropout)

    def branches(self, x: Tensor, *branches: Callable[[Tensor], Tensor]) -> Tensor:
        """Residual branches one after the other, each with its norm."""
        for norm, branch in zip(self.norms, branches, strict=True):
            x = x + self.drop(branch(norm(x))) if self.pre_norm else norm(x + self.drop(branch(x)))
        return x

    def feed_forward(self, x: Tensor) -> Tensor:
        """The two products."""
        return self.narrow(F.relu(self.widen(x)))

    def forward(
        self, x: Tensor, mask: Tensor | None, memory: Tensor | None = None, memory_mask: Tensor | None = None
    ) -> Tensor:
        """(B, T, C) to (B, T, C); an encoder has a mask (B, T), a decoder the source (B, S, C) and its mask."""

        def own(x: Tensor) -> Tensor:
            return self.attention(x if self.deform is None else self.deform(x, mask), mask=mask)

        if self.cross is None:
            return self.branches(x, own, self.feed_forward)
        cross = self.cross
        return self.branches(x, own, lambda x: cross(x, memory, memory_mask), self.feed_forward)

    # One position after the other ------------------------------------------------------

    @property
    def slots(self) -> int:
        """Sequences of earlier positions that a step needs."""
        own = self.attention.slots if isinstance(self.attention, RelativeAttention) else 1
        return own + (self.deform is not None)

    def tables(self, length: int, source: int) -> tuple[Tensor | None, Tensor | None]:
        """Projected codes of the offsets of up to ``length`` positions, of self-attention and of that to the source."""
        assert self.cross is not None
        sides = ((self.attention, length), (self.cross, source))
        own, cross = (
            side.positions(length, keys) if isinstance(side, RelativeAttention) and side.position is not None else None
            for side, keys in sides
        )
        return own, cross

    def step(self, x: Tensor, position: Tensor, cache: Tensor, state: Decoding, number: int) -> Tensor:
        """The next position of K translations of each sentence: (B, K, C) to (B, K, C)."""
        memory, (table, cross_table), cross = state.memories[number], state.tables[number], self.cross
        assert cross is not None

        def own(x: Tensor) -> Tensor:
            flat, rest = x.flatten(0, 1), cache
            if self.deform is not None:
                flat, rest = self.deform.step(flat, position, cache[:1]), cache[1:]
            if isinstance(self.attention, RelativeAttention):
                return self.attention.step(flat, position, rest, table).view_as(x)
            return self.attention.step(flat, position, rest).view_as(x)

        return self.branches(
            x, own, lambda x: cross.step_to(x, position, memory, state.mask, cross_table), self.feed_forward
        )


@dataclass
class Decoding:
    """Where the translation of a batch is: everything lies on the device and changes in place.

    Attributes:
        memories: keys and values of the source for each layer, (B, S, M, d) each; all K translations share them.
        mask: bool (B, S), false for padding.
        cache: what earlier positions left, (slots, B · K, L, C).
        tables: of each layer, see :meth:`Layer.tables`.
        position: number of the next position, int64 (1,).
        codes: absolute positions, (L, C), or None.
    """

    memories: list[tuple[Tensor | None, Tensor]]
    mask: Tensor
    cache: Tensor
    tables: list[tuple[Tensor | None, Tensor | None]]
    position: Tensor
    codes: Tensor | None

    def reorder(self, rows: Tensor) -> None:
        """Let row i of the cache go on from row ``rows[i]``, int64 (B · K,)."""
        self.cache.copy_(self.cache.index_select(1, rows))


class Transformer(nn.Module):
    """A translator ``(source, target) -> logits``.

    Args:
        subwords: number of tokens V; source and target share them.
        channels: width C.
        layers: of the encoder and of the decoder.
        heads: of every attention.
        hidden: width between the two products of a layer.
        encoder: terms of the encoder's self-attention, or ``dynamic`` for dynamic convolution in its place.
        decoder: those of the decoder's.
        cross: terms of the attention of the decoder to the source.
        deform: whether a deformable convolution is before each self-attention.
        positions: ``relative`` ones in the attention alone, or ``absolute`` ones, which are added to the embeddings.
        position_channels: numbers in the code of an offset; C if None.
        kernels: taps of dynamic convolution in each layer; the last number is that of all further ones.
        dropout: of embeddings and residual branches.
        attention_dropout: of the weights of attention.
        pre_norm: whether norms are at the beginning of residual branches rather than after the sum.
        padding: the token that is none.

    >>> model = Transformer(50, channels=16, layers=1, heads=2, hidden=32)
    >>> model(torch.randint(1, 50, (2, 7)), torch.randint(1, 50, (2, 5))).shape
    torch.Size([2, 5, 50])
    """

    def __init__(
        self,
        subwords: int = 32_000,
        *,
        channels: int = 512,
        layers: int = 6,
        heads: int = 8,
        hidden: int = 2048,
        encoder: str = "1111",
        decoder: str = "1111",
        cross: str = "1111",
        deform: bool = False,
        positions: Literal["relative", "absolute"] = "relative",
        position_channels: int | None = None,
        kernels: Sequence[int] = KERNELS,
        dropout: float = 0.1,
        attention_dropout: float = 0.0,
        pre_norm: bool = False,
        padding: int = 0,
    ) -> None:
        super().__init__()
        if positions not in ("relative", "absolute"):
            raise UserError(f"positions={positions!r}: expected relative or absolute")
        if cross == DYNAMIC:
            raise UserError("cross=dynamic: a convolution cannot connect two sentences; use four digits")
        if channels % 2 or layers < 1 or not kernels:
            raise UserError("expected an even number of channels, at least one layer and at least one of kernels")
        self.channels, self.padding, self.absolute = channels, padding, positions == "absolute"
        shared: dict[str, Any] = {
            "heads": heads,
            "hidden": hidden,
            "deform": deform,
            "position_channels": position_channels,
            "dropout": dropout,
            "attention_dropout": attention_dropout,
            "pre_norm": pre_norm,
        }
        taps = [*kernels, *[kernels[-1]] * layers][:layers]
        self.embedding = nn.Embedding(subwords, channels, padding_idx=padding)
        nn.init.normal_(self.embedding.weight, std=channels**-0.5)
        nn.init.zeros_(self.embedding.weight[padding])
        self.encoder = nn.ModuleList(
            Layer(channels, terms=encoder, cross=None, kernel=kernel, **shared) for kernel in taps
        )
        self.decoder = nn.ModuleList(
            Layer(channels, terms=decoder, cross=cross, kernel=kernel, **shared) for kernel in taps
        )
        self.norms = nn.ModuleList(nn.LayerNorm(channels) if pre_norm else nn.Identity() for _ in range(2))
        self.drop = nn.Dropout(dropout)

    def embed(self, tokens: Tensor) -> Tensor:
        """Tokens (B, T) as vectors (B, T, C)."""
        x = self.embedding(tokens) * self.channels**0.5
        return self.drop(x + self.codes(tokens.shape[1]) if self.absolute else x)

    def codes(self, length: int) -> Tensor:
        """Absolute positions, (length, C)."""
        return sequence_codes(0, length - 1, self.channels // 2, BASE, self.embedding.weight)

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Source tokens (B, S) as vectors (B, S, C), and which of them are real, bool (B, S)."""
        mask = source != self.padding
        x = self.embed(source)
        for layer in self.encoder:
            x = layer(x, mask)
        return self.norms[0](x), mask

    def decode(self, target: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        """Vectors (B, T, C) that :meth:`logits` makes the next tokens of; ``target`` (B, T) is padded at its end."""
        x = self.embed(target)
        for layer in self.decoder:
            x = layer(x, None, memory, mask)
        return self.norms[1](x)

    def logits(self, x: Tensor) -> Tensor:
        """(..., C) to (..., V)."""
        return F.linear(x, self.embedding.weight)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits of the token after each one of ``target``.

        Args:
            source: int64 (B, S), padded at its end.
            target: int64 (B, T), likewise; the first token stands for the beginning.

        Returns:
            (B, T, V).
        """
        return self.logits(self.decode(target, *self.encode(source)))

    # One position after the other ------------------------------------------------------

    def begin(self, memory: Tensor, mask: Tensor, beams: int, length: int) -> Decoding:
        """Prepare ``beams`` translations of each sentence, of up to ``length`` tokens."""
        memories = [layer.cross.project(None, memory)[1:] for layer in self._decoder()]  # type: ignore[union-attr]
        like = memories[0][1]
        slots = sum(layer.slots for layer in self._decoder())
        cache = like.new_zeros(slots, len(memory) * beams, length, self.channels)
        tables = [layer.tables(length, memory.shape[1]) for layer in self._decoder()]
        start = torch.zeros(1, dtype=torch.int64, device=memory.device)
        return Decoding(memories, mask, cache, tables, start, self.codes(length) if self.absolute else None)

    def step(self, tokens: Tensor, state: Decoding) -> Tensor:
        """Logits of the tokens after ``tokens``, int64 (B, K), at the position of ``state``: (B, K, V)."""
        x = self.embedding(tokens) * self.channels**0.5
        if state.codes is not None:
            x = x + state.codes.index_select(0, state.position)
        first = 0
        for number, layer in enumerate(self._decoder()):
            x = layer.step(x, state.position, state.cache[first : first + layer.slots], state, number)
            first += layer.slots
        return self.logits(self.norms[1](x))

    def _decoder(self) -> list[Layer]:
        return list(self.decoder)  # type: ignore[arg-type]


@register(Transformer)
def transformer(**options: Any) -> nn.Module:
    """A translator whose attention has four terms to switch, with dynamic or deformable convolution."""
    return Transformer(**options)
