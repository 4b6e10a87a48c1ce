"""What a translator attends to, as matrices between tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from foveal.attention import watch
from foveal.attention.records.record import AttentionRecord
from foveal.models.transformer import Transformer

FAMILIES = {  # part of a site's name: what it attends between
    "cross": ("decoder.*.cross", "target to source"),
    "encoder": ("encoder.*.attention", "source to source"),
    "decoder": ("decoder.*.attention", "target to target"),
}
BEGIN = 2


@torch.no_grad()
def look(model: Transformer, source: Tensor, translation: Tensor) -> dict[str, Tensor]:
    """The attention of a sentence and its translation, as the mean of all layers and heads.

    Args:
        model: in eval mode.
        source: tokens int64 (S,), with their end.
        translation: tokens int64 (T,), with their end.

    Returns:
        By ``cross``, ``encoder`` and ``decoder``, and with the name of a term, such as ``cross/E1``, what it would be by
        that term alone: (T, S), (S, S) and (T, T), rows being queries. Convolutions have none.
    """
    first = torch.full_like(translation[:1], BEGIN)
    with watch(model) as seen:
        model(source[None], torch.cat([first, translation[:-1]])[None])
    found: dict[str, list[Tensor]] = {}
    for site, record in seen.items():
        parts = site.split(".")
        if record.kind == "pairwise":
            family = "cross" if parts[-1] == "cross" else parts[0]
            for name, one in {"": record, **record.parts}.items():
                found.setdefault(f"{family}/{name}".rstrip("/"), []).append(_mean(one))
    return {name: torch.stack(matrices).mean(0) for name, matrices in found.items()}


def _mean(record: AttentionRecord) -> Tensor:
    return record.values[0].float().mean(0).cpu()
