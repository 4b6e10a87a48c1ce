"""One attention map per image from a network with several gates.

Seo, Lin, Cohen, Shen, Han: "Hierarchical Attention Networks" (https://arxiv.org/abs/1606.02393). The paper does not
define the map of a network with several gates. Every gate multiplies the input of the next ones, so the default is
their product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from torch import Tensor

from foveal.attention.records.placement import place
from foveal.attention.records.record import AttentionRecord
from foveal.errors import UserError, unknown

Gates = Literal["product", "last"]


def _values(position: int, record: AttentionRecord | Tensor) -> Tensor:
    """The (N, h, w) map of one gate."""
    name = f"gate {position}"
    if isinstance(record, AttentionRecord):
        name, kind, record = record.site, record.kind, record.values
        if kind != "spatial":
            raise UserError(
                f"{name} is {kind} attention, which has no map; leave it out, as with foveal.watch(model, at=…)"
            )
    if record.ndim != 3 or 0 in record.shape[1:]:
        raise UserError(f"the attention of {name} must be (N, h, w), got shape {tuple(record.shape)}")
    return record


def _chosen(
    records: Mapping[str, AttentionRecord] | Sequence[AttentionRecord | Tensor], upto: int | None
) -> list[Tensor]:
    """The maps of the first ``upto`` gates."""
    if isinstance(records, (Tensor, AttentionRecord)):
        raise UserError(
            "records must be what foveal.watch recorded, or a list with one entry per gate; put it in a list"
        )
    listed = list(records.values() if isinstance(records, Mapping) else records)
    if not listed:
        raise UserError("no attention was recorded; run the model inside `with foveal.watch(model) as seen:` first")
    if upto is not None and not 1 <= upto <= len(listed):
        raise UserError(f"upto must be between 1 and {len(listed)}, the number of gates, got {upto}")
    maps = [_values(position, record) for position, record in enumerate(listed[:upto])]
    if len({len(values) for values in maps}) > 1:
        raise UserError(f"gates must see the same samples, got batches of {[len(values) for values in maps]}")
    return maps


def attention_map(
    records: Mapping[str, AttentionRecord] | Sequence[AttentionRecord | Tensor],
    size: tuple[int, int],
    gates: Gates = "product",
    *,
    upto: int | None = None,
    placed: bool = True,
) -> Tensor:
    """One map per sample, at image size, from all gates of a network.

    Each gate is brought to ``size``; then the gates are multiplied, or only the last is used. Gates count in the order
    in which the network holds them. A gate that knows where its values belong in the input (``AttentionRecord.grid``)
    is drawn there, and each value fades linearly to zero at the next receptive field's centre; others are stretched
    over the image (bilinear, ``align_corners=False``).

    Args:
        records: what :func:`foveal.watch` recorded, or a sequence of spatial records or of tensors (N, h, w).
        size: (H, W) of the map: that of the model's input and its mask.
        gates: ``product`` of the gates, or the ``last`` one alone.
        upto: use only the first ``upto`` gates, to show the attention after each of them.
        placed: False to stretch all gates over the image.

    Returns:
        (N, H, W), float32, attached to the graph of the records. Not normalised.

    >>> import torch, foveal
    >>> model = foveal.create_model("hattnet")
    >>> with foveal.watch(model) as seen:
    ...     _ = model(torch.rand(2, 3, 100, 100), torch.tensor([3, 8]))
    >>> attention_map(seen, (100, 100)).shape
    torch.Size([2, 100, 100])
    >>> attention_map([torch.full((1, 2, 2), 0.5), torch.full((1, 1, 1), 0.5)], (1, 3))
    tensor([[[0.2500, 0.2500, 0.2500]]])
    """
    if gates not in ("product", "last"):
        raise unknown("gates", gates, ("product", "last"))
    if len(size) != 2 or min(size) < 1:
        raise UserError(f"size must be (H, W), both at least 1, got {tuple(size)}")
    maps = _chosen(records, upto)
    listed = list(records.values() if isinstance(records, Mapping) else records)
    grids = [getattr(record, "grid", None) if placed else None for record in listed[: len(maps)]]
    if gates == "last":
        maps, grids = maps[-1:], grids[-1:]
    large = [place(values.float(), size, grid) for values, grid in zip(maps, grids, strict=True)]
    product = large[0]
    for values in large[1:]:
        product = product * values
    return product
