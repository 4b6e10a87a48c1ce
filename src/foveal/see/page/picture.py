"""Pictures inside a page."""

from __future__ import annotations

import base64
import io

from markupsafe import Markup
from PIL import Image

FORMATS: dict[str, dict[str, int | bool]] = {"png": {"optimize": True}, "webp": {"quality": 88}}
SMALL = 6000  # bytes up to which a picture stays PNG, without loss


def picture(image: Image.Image, alt: str, longest: int = 256) -> Markup:
    """An ``<img>`` that holds its picture.

    Args:
        image: the picture.
        alt: what it shows, for those who cannot see it; also its tooltip.
        longest: longest side in pixels; a larger picture is shrunk.

    >>> picture(Image.new("RGB", (8, 4)), "a black bar")[:22]
    Markup('<img src="data:image/p')
    """
    if max(image.size) > longest:
        image = image.copy()
        image.thumbnail((longest, longest))
    width, height = image.size
    return Markup('<img src="{}" width="{}" height="{}" alt="{}" title="{}">').format(
        data_uri(image), width, height, alt, alt
    )


def data_uri(image: Image.Image) -> str:
    """A picture as an address that holds it: PNG while small, else WebP where that is smaller."""
    encoded = {}
    for kind, settings in FORMATS.items():
        buffer = io.BytesIO()
        image.save(buffer, kind, **settings)
        encoded[kind] = buffer.getvalue()
    kind = "webp" if len(encoded["png"]) > max(SMALL, len(encoded["webp"])) else "png"
    return f"data:image/{kind};base64,{base64.b64encode(encoded[kind]).decode()}"
