"""Elements of SVG and HTML, escaped by the standard library."""

from __future__ import annotations

from xml.etree import ElementTree

from foveal.see.draw._type import printable

Element = ElementTree.Element


def element(tag: str, *children: Element | str, **attributes: object) -> Element:
    """An element; underscores in names of attributes stand for hyphens, one at the end is dropped.

    A child that is a text may only come first.
    """
    named = {name.rstrip("_").replace("_", "-"): str(value) for name, value in attributes.items()}
    root = ElementTree.Element(tag, {name.replace("viewbox", "viewBox"): value for name, value in named.items()})
    for child in children:
        if isinstance(child, str):
            root.text = printable(child)
        else:
            root.append(child)
    return root


def markup(root: Element) -> str:
    """An element as text."""
    return ElementTree.tostring(root, encoding="unicode")
