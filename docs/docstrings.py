"""Turns the docstrings of foveal into Markdown for the reference pages (an extension of Griffe).

The docstrings carry doctests without a heading, ``::`` before blocks of equations and ``:func:`` roles. Markdown would
show the first as quotations and the others as they are. Section numbers of the specification mean nothing to readers of
the pages and go.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:func|class|meth|mod|data|attr):`~?([^`]+)`")
DOCTEST = re.compile(r"^>>> .*?(?=\n\s*\n|\Z)", re.MULTILINE | re.DOTALL)
SECTION = re.compile(r" \(spec[^)]*\)")
LITERAL = re.compile(r"::$", re.MULTILINE)


def markdown(text: str) -> str:
    """Rewrite one docstring.

    >>> print(markdown("See :func:`foveal.watch`::"))
    See `foveal.watch`:
    """
    text = SECTION.sub("", text)
    text = DOCTEST.sub(lambda match: f"```pycon\n{match[0]}\n```", text)
    return LITERAL.sub(":", ROLE.sub(r"`\1`", text))


class Markdown(griffe.Extension):
    """Rewrites every docstring once it is collected."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)
