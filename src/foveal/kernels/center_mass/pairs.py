"""The labelled pairs of a batch of graphs, given as pairs or as labels of entities."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LabelledPairs:
    """Labelled pairs of B graphs of N entities; the pair of an entity with itself never counts.

    Attributes:
        rule: what ``target`` holds. ``pairs``: the pairs themselves, bool (G, N, N). Otherwise a label for each entity,
            int (G, N), negative for none; a pair is labelled if its labels are ``different``, if they are the
            ``same``, or if ``table`` says so.
        target: as the rule says.
        owner: int (B,), which of the G targets belongs to each graph; heads share one.
        table: bool (G, C, C), true where a row's label (first) goes with a column's (second); only for ``table``.
    """

    rule: str
    target: Tensor
    owner: Tensor
    table: Tensor | None = None

    def block(self, graphs: slice, rows: slice) -> Tensor:
        """Whether each pair of the entities ``rows`` with all entities is labelled, bool (b, m, N)."""
        owner = self.owner[graphs]
        if self.rule == "pairs":
            labelled = self.target[owner, rows]
        else:
            column = self.target[owner].long()
            if self.table is not None:
                column = column.masked_fill(column >= self.table.shape[-1], -1)  # the table has no such label
            row = column[:, rows]
            if self.table is not None:
                graph = owner[:, None, None]
                labelled = self.table[graph, row.clamp_min(0)[:, :, None], column.clamp_min(0)[:, None, :]]
            else:
                same = row[:, :, None] == column[:, None, :]
                labelled = same if self.rule == "same" else ~same
            labelled = labelled & (row >= 0)[:, :, None] & (column >= 0)[:, None, :]
        index = torch.arange(labelled.shape[-1], device=labelled.device)
        return labelled & (index[rows, None] != index)
