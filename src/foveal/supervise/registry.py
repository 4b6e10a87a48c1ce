"""Losses on attention by name, for recipes: a function of a record and the batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from torch import Tensor

from foveal import registry
from foveal.attention.records.record import AttentionRecord
from foveal.errors import UserError


class AttentionLoss(Protocol):
    """A loss on one record: ``loss(record, batch, **options)`` returns a scalar to be minimised."""

    def __call__(self, record: AttentionRecord, batch: Mapping[str, Tensor], **options: Any) -> Tensor:
        """The loss of one batch."""
        ...


L = TypeVar("L", bound=Callable[..., Tensor])


def register_attention_loss(name: str, *, needs_mask: bool = False) -> Callable[[L], L]:
    """Make the decorated function available as ``name`` to ``loss.attention`` of a recipe.

    Args:
        name: in recipes.
        needs_mask: whether it reads ``batch["mask"]``; then training asks the dataset for masks.

    >>> import torch
    >>> @register_attention_loss("sparse")
    ... def sparse(record, batch, power=0.5):
    ...     return record.values.clamp_min(1e-6).pow(power).mean()
    >>> "sparse" in registry.attention_losses.names()
    True
    """
    if not isinstance(name, str) or not name or ":" in name:
        raise UserError(f"the name of a loss on attention is a word without a colon, got {name!r}")

    def decorate(loss: L) -> L:
        if not callable(loss):
            raise UserError(f"loss {name!r}: expected a function of a record and a batch, got {loss!r}")
        loss.needs_mask = needs_mask  # type: ignore[attr-defined]
        return registry.attention_losses.register(name, loss)

    return decorate
