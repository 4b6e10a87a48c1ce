"""Attention over positions as what its terms are made of, so that no matrix is built before somebody needs it."""

from __future__ import annotations

import torch
from torch import Tensor

from foveal.kernels.spatial.plain import Factors, energies, weights


class SpatialTerms:
    """Lazy pairwise attention between the positions of a map, all terms together or one by itself.

    Args:
        factors: of the forward pass.
        term: ``E1`` … ``E4`` for the softmax of this term alone; None for all together.

    Attributes:
        query_size: (h, w): query y · w + x is the one at (x, y).
        key_size: (h', w'), likewise.
    """

    def __init__(self, factors: Factors, term: str | None = None) -> None:
        self.factors, self.term = factors, term
        self.query_size, self.key_size = factors.size[:2], factors.size[2:]

    @property
    def parts(self) -> dict[str, SpatialTerms]:
        """The attention that each term would have by itself; none if this is one term."""
        if self.term is not None:
            return {}
        return {f"E{i}": SpatialTerms(self.factors, f"E{i}") for i, on in enumerate(self.factors.terms, 1) if on == "1"}

    @property
    def shape(self) -> torch.Size:
        """(B, M, h · w, h' · w')."""
        h, w, h_keys, w_keys = self.factors.size
        return torch.Size((self.factors.batch, self.factors.heads, h * w, h_keys * w_keys))

    def whole(self) -> Tensor:
        """All weights, (B, M, h · w, h' · w'), float32 or wider."""
        return self._weights(None)

    def rows(self, queries: Tensor, heads: Tensor | None) -> Tensor:
        """Weights of some queries, int64 (Q,), of all heads or of int64 (H,): (B, H, Q, h' · w')."""
        chosen = self._weights(queries)
        return chosen if heads is None else chosen.index_select(1, heads.to(chosen.device))

    def _weights(self, queries: Tensor | None) -> Tensor:
        terms = energies(self.factors, queries)
        energy = sum(terms.values()) if self.term is None else terms[self.term]
        assert isinstance(energy, Tensor)
        return weights(energy, self.factors, queries)
