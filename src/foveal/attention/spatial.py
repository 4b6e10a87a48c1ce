"""Spatial attention with four switchable terms.

Zhu, Cheng, Zhang, Lin, Dai: "An Empirical Study of Spatial Attention Mechanisms in Deep Networks"
(https://arxiv.org/abs/1904.05873).

Every position of a map (the query) takes a weighted sum of the values of other positions (the keys). The weight is a
softmax of up to four terms, from the content of the query, the content of the key and their relative position.

Departures: the terms are one scaled dot product with a few more columns, so that nothing of the size queries × keys is
built; a range that leaves a query without a key is refused.
Where ``heads`` does not divide the channels, heads are narrower together than the map, as in the authors' code.
"""

from __future__ import annotations

import math
import re
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foveal.attention.checks import check_maps, check_whole
from foveal.attention.insertion.registry import Start, check_start, register_mechanism
from foveal.attention.insertion.stages import InsideBlocks
from foveal.attention.records.spatial_terms import SpatialTerms
from foveal.errors import UserError
from foveal.kernels.spatial.fused import attend, pool_by_salience
from foveal.kernels.spatial.plain import Factors
from foveal.kernels.spatial.tables import near, relative_codes


@register_mechanism("spatial")
class SpatialAttention(InsideBlocks):
    """Attention over positions with four switchable terms; ``terms="0010"`` is saliency alone.

    With z_q and x_k the contents of query and key, and R the sinusoidal code of their offset, for each head::

        A ∝ exp(E1 + E2 + E3 + E4);   y_q = x_q + γ · W Σ_k A V x_k
        E1 = z_qᵀ Uᵀ V^C x_k      E2 = z_qᵀ Uᵀ V^R R_{k−q}      E3 = uᵀ V^C x_k      E4 = vᵀ V^R R_{k−q}

    γ is zero at first, so the module starts as the identity, whatever ``start`` says. It is a number without
    dimensions, which foveal's optimisers do not decay.

    Args:
        channels: channels C of the map.
        heads: number of heads M. Each has C/M channels, rounded down.
        terms: which of the four terms are on, as a text of four digits. In a recipe it needs quotes: YAML reads
            ``0010`` as the number eight, which is refused.
        kv_stride: keys and values are every so-many-th position along each axis.
        q_stride: queries likewise; the result is resized bilinearly. Without effect on ``terms="0010"``.
        spatial_range: keys at most so many pixels away along each axis are seen; −1 for all. Its memory is linear in
            the size of the map, but out-of-range pairs cost as much time as others.
        position_magnitude: what offsets are multiplied by.
        scale: whether energies are divided by √(C/M).
        start: both are the same.

    >>> SpatialAttention(64, terms="0110")(torch.rand(2, 64, 7, 5)).shape
    torch.Size([2, 64, 7, 5])
    """

    kind = "pairwise"
    normalised = True

    def __init__(
        self,
        channels: int,
        *,
        heads: int = 8,
        terms: str | int = "1111",
        kv_stride: int = 2,
        q_stride: int = 1,
        spatial_range: int = -1,
        position_magnitude: float = 1.0,
        scale: bool = False,
        start: Start = "identity",
    ) -> None:
        super().__init__()
        check_start(start)
        digits = check_terms(terms)
        check_whole(channels=channels, heads=heads, kv_stride=kv_stride, q_stride=q_stride)
        if heads > channels:
            raise UserError(f"heads={heads}: expected from 1 to the {channels} channels")
        if spatial_range != -1:
            check_whole(0, "or -1 for the whole map", spatial_range=spatial_range)
        if not (isinstance(position_magnitude, int | float) and math.isfinite(position_magnitude)):
            raise UserError(f"position_magnitude={position_magnitude!r}: expected a finite number")
        if 0 <= spatial_range < kv_stride - 1 and q_stride % kv_stride:
            raise UserError(
                f"spatial_range={spatial_range} leaves some positions without any key at kv_stride={kv_stride}; "
                f"expected at least {kv_stride - 1}, or a smaller kv_stride"
            )
        self.channels, self.heads, self.terms = channels, heads, digits
        self.kv_stride, self.q_stride, self.spatial_range = kv_stride, q_stride, spatial_range
        self.position_magnitude = position_magnitude
        self.head_channels = channels // heads
        self.scale = self.head_channels**-0.5 if scale else 1.0
        width = heads * self.head_channels
        e1, e2, e3, e4 = (digit == "1" for digit in digits)
        self.query = nn.Linear(channels, width, bias=False) if e1 or e2 else None
        self.key = nn.Linear(channels, width, bias=False) if e1 or e3 else None
        self.value = nn.Linear(channels, width, bias=False)
        self.frequencies = max(1, channels // 4)
        self.position_x = nn.Linear(2 * self.frequencies, width, bias=False) if e2 or e4 else None
        self.position_y = nn.Linear(2 * self.frequencies, width, bias=False) if e2 or e4 else None
        self.key_bias = nn.Parameter(torch.empty(width)) if e3 else None
        self.position_bias = nn.Parameter(torch.empty(width)) if e4 else None
        self.proj = nn.Linear(width, channels)
        self.gamma = nn.Parameter(torch.zeros(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Kaiming-uniform projections, u and v uniform in ±1/√(2d), γ = 0."""
        for module in self.children():
            if isinstance(module, nn.Linear):
                nn.init.kaiming_uniform_(module.weight, a=1)
        nn.init.zeros_(self.proj.bias)
        bound = (2 * self.head_channels) ** -0.5
        for bias in (self.key_bias, self.position_bias):
            if bias is not None:
                nn.init.uniform_(bias, -bound, bound)
        nn.init.zeros_(self.gamma)

    def forward(self, x: Tensor) -> Tensor:
        """Attend: (N, C, H, W) to (N, C, H, W)."""
        check_maps(x, self.channels)
        maps = x.permute(0, 2, 3, 1)
        # A pooling of single pixels, because the gradient of a slice would be filled with zeros once for each axis.
        kept = x if self.kv_stride == 1 else F.avg_pool2d(x, 1, self.kv_stride)
        keys = kept.permute(0, 2, 3, 1).contiguous()
        if self.terms == "0010" and self.spatial_range < 0:
            out = self.proj(self._pooled(maps, keys))[:, :, None, None]
        else:
            queries = maps if self.q_stride == 1 else maps[:, :: self.q_stride, :: self.q_stride]
            factors, values = self.project(queries, keys)
            if self.watchers:
                self.note(SpatialTerms(factors))
            out = self.proj(attend(factors, values).flatten(3)).permute(0, 3, 1, 2)
            if self.q_stride > 1:
                out = F.interpolate(out, x.shape[2:], mode="bilinear", align_corners=False)
        return x + (self.gamma * out).to(x.dtype)

    def _pooled(self, maps: Tensor, keys: Tensor) -> Tensor:
        """Saliency alone, which is the same for every query: (N, M·d)."""
        if self.watchers:
            self.note(SpatialTerms(self.project(maps, keys)[0]))
        salience = self._saliency_weight()
        value = self.value.weight.unflatten(0, (self.heads, -1))
        return pool_by_salience(keys.flatten(1, 2), salience if self.scale == 1 else salience * self.scale, value)

    def _saliency_weight(self) -> Tensor:
        """V^C and u as one projection of a key's content, (M, C): no key is projected for E3 alone."""
        assert self.key is not None
        assert self.key_bias is not None
        return (self.key.weight * self.key_bias[:, None]).unflatten(0, (self.heads, -1)).sum(1)

    def project(self, queries: Tensor, keys: Tensor) -> tuple[Factors, Tensor]:
        """What the terms are made of, and the values.

        Args:
            queries: maps in channels-last order at the positions of queries, (N, h, w, C).
            keys: at the positions of keys, (N, h', w', C).

        Returns:
            The factors, and V x, (N, h', w', M, d).
        """
        (h, w), (h_keys, w_keys) = queries.shape[1:3], keys.shape[1:3]
        strides, reach = (self.q_stride, self.kv_stride), self.spatial_range
        biases = (None if b is None else b.unflatten(0, (self.heads, -1)) for b in (self.key_bias, self.position_bias))
        key_bias, position_bias = biases
        across, down = self._tables((h, w, h_keys, w_keys))
        key, salience, values = self._of_keys(keys)
        factors = Factors(
            terms=self.terms,
            query=None if self.query is None else self._split(self.query(queries)),
            key=key,
            salience=salience,
            key_bias=key_bias,
            position_bias=position_bias,
            across=across,
            down=down,
            near_x=near(w, w_keys, strides, reach, keys.device) if reach >= 0 else None,
            near_y=near(h, h_keys, strides, reach, keys.device) if reach >= 0 else None,
            batch=keys.shape[0],
            heads=self.heads,
            size=(h, w, h_keys, w_keys),
            scale=self.scale,
        )
        return factors, values

    def _of_keys(self, keys: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor]:
        """V^C x for E1 or uᵀ V^C x for E3 without it, and V x, all by one product."""
        e1, _, e3, _ = (digit == "1" for digit in self.terms)
        if not (e1 or e3):
            return None, None, self._split(self.value(keys))
        assert self.key is not None
        first = self.key.weight if e1 else self._saliency_weight()
        both = F.linear(keys, torch.cat([first, self.value.weight]))
        of_key, values = both.split([len(first), len(self.value.weight)], -1)
        return self._split(of_key) if e1 else None, None if e1 else of_key, self._split(values)

    def _tables(self, size: tuple[int, int, int, int]) -> tuple[Tensor | None, Tensor | None]:
        """V^R R along x and along y, (queries, keys − 1, M, d), in float32 or wider."""
        if self.position_x is None or self.position_y is None:
            return None, None
        h, w, h_keys, w_keys = size
        device = self.position_x.weight.device.type
        autocasts = device != "meta" and torch.is_autocast_enabled(device)
        with torch.autocast(device, enabled=False) if autocasts else nullcontext():
            return self._table(self.position_x.weight, w, w_keys), self._table(self.position_y.weight, h, h_keys)

    def _table(self, weight: Tensor, queries: int, keys: int) -> Tensor:
        strides = self.q_stride, self.kv_stride
        codes = relative_codes(queries, keys, strides, self.position_magnitude, self.frequencies, weight)
        return self._split(F.linear(codes, weight.to(codes.dtype)))

    def _split(self, projected: Tensor) -> Tensor:
        """(..., M·d) to (..., M, d)."""
        return projected.unflatten(-1, (self.heads, self.head_channels))

    def macs(self, height: int, width: int) -> int:
        """Multiply-accumulates of the equations for one map; position terms along each axis by itself."""
        e1, e2, e3, e4 = (digit == "1" for digit in self.terms)
        h, w = (-(-side // self.q_stride) for side in (height, width))
        h_keys, w_keys = (-(-side // self.kv_stride) for side in (height, width))
        n, keys, c = h * w, h_keys * w_keys, self.channels
        alone = self.terms == "0010"
        projections = n * (e1 or e2) + keys * (e1 or e3) + keys + (1 if alone else n)
        positions = e2 * n * (w_keys + h_keys) + e4 * (w * w_keys + h * h_keys)
        pairs = e1 * n * keys + (keys if alone else n * keys)
        return projections * c * c + (positions + pairs + e3 * keys) * c

    def extra_repr(self) -> str:
        """Show what the children do not."""
        return f"terms={self.terms!r}, heads={self.heads}, kv_stride={self.kv_stride}"


def check_terms(terms: str | int) -> str:
    """``terms`` as text, if it is four digits 0 or 1, at least one of them 1; a number cannot begin with 0."""
    digits = str(terms)
    if not re.fullmatch("[01]{4}", digits):
        raise UserError(
            f"terms={terms!r}: expected four digits, for the terms of query and key content, query content and "
            "position, key content, and position, such as '1111' or '0010' (in YAML with quotes)"
        )
    if digits == "0000":
        raise UserError("terms='0000' switches all four terms off: turn at least one on, such as '0010' for saliency")
    return digits
