"""What a translator attends to, as matrices between tokens, and pictures of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from PIL import Image
from torch import Tensor

from foveal.attention import watch
from foveal.data.text.subwords import BEGIN
from foveal.models.transformer import Transformer
from foveal.see import all_pairs
from foveal.see.draw.query import TITLES

FAMILIES = {  # what each kind of attention is between
    "cross": "translation to sentence",
    "encoder": "inside the sentence",
    "decoder": "inside the translation",
}


MANY, MOST = 60, 100  # pieces from which on terms are not drawn one by one, and those that are drawn at all


@torch.no_grad()
def look(model: Transformer, source: Tensor, translation: Tensor) -> dict[str, Tensor]:
    """The attention of a sentence and its translation, as the mean of all layers and heads.

    Args:
        model: in eval mode.
        source: tokens int64 (S,), with their end.
        translation: tokens int64 (T,), with their end.

    Returns:
        By ``cross``, ``encoder`` and ``decoder``, and with the name of a term, such as ``cross/E1``, what it would be
        by that term alone: (T, S), (S, S) and (T, T), rows being queries. Convolutions have none. Of long sides there
        is only what is drawn: the first pieces, and no single terms.
    """
    first = torch.full_like(translation[:1], BEGIN)
    with watch(model) as seen:
        model(source[None], torch.cat([first, translation[:-1]])[None])
    matrices: dict[str, list[Tensor]] = {}
    for site, record in seen.items():
        if record.kind != "pairwise":
            continue
        stack, *_, own = site.split(".")
        family = own if own in FAMILIES else stack
        queries, keys = record.shape[-2:]
        parts = record.parts if max(queries, keys) <= MANY else {}
        for name, part in {"": record, **parts}.items():
            mean = part.rows(range(min(queries, MOST)))[0, ..., :MOST].float().mean(0).cpu()
            matrices.setdefault(f"{family}/{name}".rstrip("/"), []).append(mean)
    return {name: torch.stack(layers).mean(0) for name, layers in matrices.items()}


def families(
    matrices: Mapping[str, Tensor], source: Sequence[str], translation: Sequence[str]
) -> dict[str, Image.Image]:
    """A picture of each kind of attention: all terms together and, unless a side is long, each one by itself.

    Args:
        matrices: as :func:`look` returns them.
        source: pieces of the sentence, S.
        translation: pieces of the translation, T; a row of the picture is what was attended to for this piece.
    """
    so_far = ["⊢", *translation[:-1]]  # what the decoder has read
    axes = {"cross": (translation, source), "encoder": (source, source), "decoder": (translation, so_far)}
    pictures = {}
    for family, (rows, columns) in axes.items():
        terms = {name.partition("/")[2]: values for name, values in matrices.items() if name.split("/")[0] == family}
        if not terms or not rows:
            continue
        longest = max(len(rows), len(columns))
        if longest > MANY:
            terms = {name: values[:MOST, :MOST] for name, values in terms.items() if not name}
        if len(terms) == 2:  # one term: all of them together are the same
            terms = {name: values for name, values in terms.items() if name}
        named = {f"{TITLES[name]} ({name})" if name else TITLES["together"]: terms[name] for name in sorted(terms)}
        title, *others = named
        first = f"{FAMILIES[family]}: {title}" + (f", first {MOST} of {longest} pieces" if longest > MOST else "")
        named = {first: named[title], **{other: named[other] for other in others}}
        pictures[family] = all_pairs(rows[:MOST], named, columns=columns[:MOST])
    return pictures
