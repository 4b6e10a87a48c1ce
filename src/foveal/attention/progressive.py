"""The progressive attention gate.

Seo, Lin, Cohen, Shen, Han: "Hierarchical Attention Networks" (https://arxiv.org/abs/1606.02393), later "Progressive
Attention Networks for Visual Attribute Prediction" (BMVC 2018).

A gate is placed between two stages of a CNN. It scores every position of the feature map against a query and multiplies
the map by the result, so that features that do not match the query are weakened before the next stage. All gates but
the last are independent sigmoids; the last is a softmax over positions.

Departures: the query may also be a vector instead of a class index (``query_channels``); the batch norm, which the
authors' code builds but does not use, is off unless ``norm=True``.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from foveal.attention.records.record import Attends
from foveal.errors import UserError
from foveal.kernels.support import observed


def spatial_softmax(scores: Tensor) -> Tensor:
    """Softmax over all positions of ``scores`` (N, 1, H, W)."""
    return scores.flatten(1).softmax(1).view_as(scores)


class ProgressiveGate(Attends):
    """Attend to the positions of a feature map that match a query.

    With f the features, e the query's embedding and k×k the context::

        s = conv1x1(relu(conv_kxk(f) + e));  α = softmax_ij(s) if last else sigmoid(s);  f̂ = α · f

    Args:
        channels: channels C of the feature map.
        queries: number of query classes; the query is then an index (N,).
        query_channels: size D of a query vector instead; the query is then a float tensor (N, D).
        hidden: width of the fused representation.
        context: side k of the neighbourhood that a position is scored with, odd; 1 for none. Not for the last gate.
        last: whether this is the last gate, normalised over positions.
        norm: batch norm on the fused representation.

    >>> gate = ProgressiveGate(32, queries=10)
    >>> gate(torch.rand(2, 32, 23, 17), torch.tensor([3, 8])).shape
    torch.Size([2, 32, 23, 17])
    """

    kind = "spatial"

    def __init__(
        self,
        channels: int,
        *,
        queries: int | None = None,
        query_channels: int | None = None,
        hidden: int = 32,
        context: int = 3,
        last: bool = False,
        norm: bool = False,
    ) -> None:
        super().__init__()
        if (queries is None) == (query_channels is None):
            raise UserError("give exactly one of queries (number of query classes) and query_channels (vector size)")
        if context < 1 or context % 2 == 0:
            raise UserError(f"context must be an odd number of positions, got {context}")
        self.last = self.normalised = last
        self.queries, self.query_channels = queries, query_channels
        kernel = 1 if last else context
        self.features = nn.Conv2d(channels, hidden, kernel, padding=kernel // 2)
        self.query: nn.Module
        if queries is not None:
            self.query = nn.Embedding(queries, hidden)
        else:
            assert query_channels is not None
            self.query = nn.Linear(query_channels, hidden, bias=False)
        self.norm = nn.BatchNorm2d(hidden) if norm else nn.Identity()
        self.score = nn.Conv2d(hidden, 1, 1)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot-uniform weights, zero biases."""
        for module in (self.features, self.query, self.score):
            nn.init.xavier_uniform_(module.weight)  # type: ignore[arg-type]
        for conv in (self.features, self.score):
            nn.init.zeros_(conv.bias)  # type: ignore[arg-type]

    def _check_query(self, query: Tensor) -> None:
        if not isinstance(query, Tensor):
            raise UserError(f"query must be a torch.Tensor, got {type(query).__name__}; use torch.as_tensor(query)")
        if self.queries is None or observed(query):
            return
        if query.dtype.is_floating_point or query.ndim != 1:
            raise UserError(f"query must be class numbers (N,), integers, got {query.dtype} {tuple(query.shape)}")
        if (
            query.device.type == "cpu"
            and query.numel()
            and not 0 <= int(query.min()) <= int(query.max()) < self.queries
        ):
            got = f"{int(query.min())} to {int(query.max())}"
            raise UserError(f"query must be between 0 and {self.queries - 1}, this gate's queries, got {got}")

    def scores(self, features: Tensor, query: Tensor) -> Tensor:
        """Attention scores s, (N, 1, H, W)."""
        self._check_query(query)
        fused = torch.relu(self.norm(self.features(features) + self.query(query)[:, :, None, None]))
        if type(self.score) is not nn.Conv2d:  # attention was inserted
            return self.score(fused)
        # The 1×1 convolution to one channel as a weighted sum: it compiles into one kernel with the ReLU.
        return (fused * self.score.weight[0]).sum(1, keepdim=True) + self.score.bias  # type: ignore[operator]

    def attend(self, features: Tensor, query: Tensor) -> Tensor:
        """Attention α, (N, 1, H, W), which :func:`foveal.watch` records."""
        scores = self.scores(features, query)
        attention = (spatial_softmax(scores) if self.last else scores.sigmoid()).squeeze(1)
        self.note(attention)
        return attention.unsqueeze(1)

    def forward(self, features: Tensor, query: Tensor) -> Tensor:
        """Attended features.

        Args:
            features: (N, C, H, W).
            query: (N,) class indices, or (N, D) vectors if the gate was built with ``query_channels``.

        Returns:
            f̂ (N, C, H, W). Sum it over positions to get the attended vector of a last gate.
        """
        return self.attend(features, query).to(features.dtype) * features

    def extra_repr(self) -> str:
        """Show what the children do not."""
        return f"last={self.last}"
