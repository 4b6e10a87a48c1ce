"""What one attention module computed in one forward pass, and the base class of modules that record it.

Every attention module of foveal derives from :class:`Attends` and calls :meth:`Attends.note` in its forward. That is
all :func:`foveal.watch` needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from foveal.errors import UserError

AttentionKind = Literal["spatial", "channel", "weight", "pairwise", "points"]


@runtime_checkable
class LazyValues(Protocol):
    """Pairwise attention that is computed when it is needed; :class:`~.dot_product.DotProduct` is one.

    Keep tensors of the forward pass in it, not the module: then it works in compiled models, and stays correct after
    the weights have changed.
    """

    @property
    def shape(self) -> torch.Size:
        """Shape of the whole attention, (N, ..., N_q, N_k)."""
        ...

    def whole(self) -> Tensor:
        """The whole attention."""
        ...

    def rows(self, queries: Tensor, heads: Tensor | None) -> Tensor:
        """The rows ``queries``, int64 (Q,), of all heads or of ``heads``, int64 (H,): (N, ..., Q, N_k)."""
        ...


class AttentionRecord:
    """What one attention module computed in one forward pass.

    Args:
        site: name of the module inside the watched model.
        kind: ``spatial`` (N, H, W), ``channel`` (N, C), ``weight`` (N, ...kernel), ``pairwise`` (N, ..., N_q, N_k), or
            ``points`` (N, ..., 2), places that were sampled.
        values: the attention itself, attached to the graph it came from; or how to compute it, see :class:`LazyValues`.
        normalised: whether each sample's values sum to one (a softmax) or are independent (a sigmoid).
        grid: for spatial attention, where in the model's input its values belong: the pixel at the centre of the first
            value's receptive field, and the distance in pixels from one to the next. None if they span the whole input.

    Attributes:
        noted: what was given as ``values``, before anything is computed.
    """

    def __init__(
        self,
        site: str,
        kind: AttentionKind,
        values: Tensor | LazyValues,
        normalised: bool,
        grid: tuple[float, float] | None = None,
    ) -> None:
        self.site, self.kind, self.normalised, self.grid = site, kind, normalised, grid
        self.noted = values
        self._values = values if isinstance(values, Tensor) else None

    @property
    def values(self) -> Tensor:
        """The attention, in the shape of its kind. A lazy record computes it at the first use, and keeps it."""
        if self._values is None:
            assert not isinstance(self.noted, Tensor)
            self._values = self.noted.whole()
        return self._values

    @property
    def shape(self) -> torch.Size:
        """Shape of :attr:`values`; computes nothing."""
        return self.noted.shape

    def rows(self, queries: Sequence[int] | Tensor, heads: Sequence[int] | Tensor | None = None) -> Tensor:
        """What some queries attend to. A lazy record computes these rows only, never the whole matrix.

        Args:
            queries: numbers of Q rows, int (Q,); negative ones count from the end.
            heads: numbers of H heads, int (H,); None for all, or for attention without heads.

        Returns:
            (N, Q, N_k), or (N, H, Q, N_k) for attention with heads; attached to the graph.
        """
        if self.kind != "pairwise":
            raise UserError(f"{self.site} is {self.kind} attention, which has no rows; use .values")
        if heads is not None and len(self.shape) < 4:
            raise UserError(f"{self.site} has no heads, its attention is {tuple(self.shape)}; leave heads out")
        rows = self._indices("queries", queries, self.shape[-2])
        chosen_heads = None if heads is None else self._indices("heads", heads, self.shape[-3])
        values = self._values
        if values is None:
            assert not isinstance(self.noted, Tensor)
            return self.noted.rows(rows, chosen_heads)
        if chosen_heads is not None:
            values = values.index_select(-3, chosen_heads.to(values.device))
        return values.index_select(-2, rows.to(values.device))

    @property
    def parts(self) -> dict[str, AttentionRecord]:
        """What the attention consists of, by name: the terms of spatial attention, the modulation of sampling points.

        Empty for attention without parts.
        """
        parts: dict[str, Tensor | LazyValues] = getattr(self.noted, "parts", {})
        records = {}
        for name, values in parts.items():
            kind = "weight" if isinstance(values, Tensor) else self.kind
            records[name] = AttentionRecord(f"{self.site}:{name}", kind, values, self.normalised, self.grid)
        return records

    def map_at(self, position: tuple[int, int]) -> Tensor:
        """Where the query at one position of a map attends to.

        Args:
            position: (x, y) of the query on its map.

        Returns:
            (N, h', w'), or (N, heads, h', w'), over the map of keys; attached to the graph.
        """
        size = getattr(self.noted, "query_size", None)
        if size is None:
            raise UserError(f"{self.site} is not attention between the positions of a map; use .rows or .values")
        (x, y), (height, width) = position, size
        if not (0 <= x < width and 0 <= y < height):
            raise UserError(f"position {position} of {self.site} must be inside its map of {width}×{height} queries")
        return self.rows([y * width + x]).squeeze(-2).unflatten(-1, getattr(self.noted, "key_size"))  # noqa: B009

    def matrix(self, sample: int = 0) -> Tensor:
        """Pairwise attention of one sample, (N_q, N_k), as the mean of its heads; attached to the graph."""
        if self.kind != "pairwise" or not 3 <= len(self.shape) <= 4:
            raise UserError(
                f"{self.site} is {self.kind} attention {tuple(self.shape)}, no matrix per sample; use .values"
            )
        if not 0 <= sample < self.shape[0]:
            raise UserError(f"sample={sample}: {self.site} has recorded {self.shape[0]}")
        weights = self.values[sample]
        return weights.mean(0) if weights.ndim == 3 else weights

    def _indices(self, name: str, numbers: Sequence[int] | Tensor, count: int) -> Tensor:
        indices = torch.as_tensor(numbers)
        whole = not (indices.is_floating_point() or indices.dtype == torch.bool) or not indices.numel()
        if indices.ndim != 1 or not whole:
            raise UserError(f"{name} must be a list of whole numbers, such as [0, 57], got {numbers!r}")
        if indices.numel() and not -count <= int(indices.min()) <= int(indices.max()) < count:
            raise UserError(f"{name} of {self.site} must be from 0 to {count - 1}, got {indices.tolist()}")
        return indices.long() % max(count, 1)

    def __repr__(self) -> str:
        lazy = ", not computed yet" if self._values is None else ""
        return f"AttentionRecord({self.site!r}, {self.kind} {tuple(self.shape)}{lazy})"


class Attends(nn.Module):
    """Base of every module whose attention can be watched."""

    kind: AttentionKind = "spatial"
    normalised: bool = False
    grid: tuple[float, float] | None = None

    def __init__(self) -> None:
        super().__init__()
        self.watchers = 0
        self.noted: Tensor | LazyValues | None = None

    def note(self, values: Tensor | LazyValues) -> None:
        """Keep ``values``, or how to compute them, for :func:`foveal.watch`; costs nothing when nothing is watched."""
        if self.watchers:
            self.noted = values

    def __getstate__(self) -> dict[str, object]:
        # A copy or a pickle of a watched module is not watched, and carries no graph.
        return self.__dict__ | {"watchers": 0, "noted": None}
