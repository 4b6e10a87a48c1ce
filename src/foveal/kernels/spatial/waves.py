"""Position terms of long sequences with as many columns as the code of a position has numbers.

The code of an offset is made of sines and cosines, and those of a difference are products of those of its parts::

    sin(q − k) = sin q · cos k − cos q · sin k        cos(q − k) = cos q · cos k + sin q · sin k

So with a and b the factors of a query for sines and cosines, its energy is an inner product with the code of the key's
own position: (b · sin q − a · cos q) · sin k + (a · sin q + b · cos q) · cos k. Nothing grows with queries × keys.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Waves(NamedTuple):
    """What position terms of a sequence are made of.

    Attributes:
        projection: V^R, (M, d, 2F) for F frequencies.
        queries: codes of the positions of queries, (w, 2F): sines, then cosines.
        keys: codes of the positions of keys, (w', 2F).
    """

    projection: Tensor
    queries: Tensor
    keys: Tensor

    def of_queries(self, query: Tensor, chosen: Tensor | None = None) -> Tensor:
        """Columns of queries that meet the codes of keys.

        Args:
            query: (..., w, M, d), or (M, d) for all alike.
            chosen: numbers of the queries, int64 (w,); None for all in order.

        Returns:
            (..., w, M, 2F), in the precision of ``query``.
        """
        codes = self.queries if chosen is None else self.queries[chosen]
        wide = torch.promote_types(query.dtype, torch.float32)
        factors = torch.einsum("...md,mdf->...mf", query, self.projection.to(query.dtype)).to(wide)
        sine, cosine = (code[:, None] for code in codes.to(wide).chunk(2, -1))
        a, b = factors.chunk(2, -1)
        return torch.cat([b * sine - a * cosine, a * sine + b * cosine], -1).to(query.dtype)

    def energies(self, query: Tensor, chosen: Tensor) -> Tensor:
        """Energies of queries (B, Q, M, d) at the positions ``chosen``, int64 (Q,): (B, M, Q, w')."""
        return torch.einsum("bqmf,kf->bmqk", self.of_queries(query, chosen), self.keys.to(query.dtype))
