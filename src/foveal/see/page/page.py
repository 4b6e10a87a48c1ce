"""A page is a list of sections; it becomes one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from foveal.see.page.phrases import breakable


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes:
        title: its heading; a part without one has none.
        body: its content.
        intro: a paragraph between heading and content, e.g. how to read the pictures below.
        anchor: name that links on the page point to; sections of a page get one if it is empty.
        badge: a remark beside the heading.
        sections: parts of the part, below ``body``.
    """

    title: str
    body: Markup = field(default_factory=Markup)
    intro: str = ""
    anchor: str = ""
    badge: str = ""
    sections: Sequence[Section] = ()


@dataclass(frozen=True)
class Details:
    """Something long that opens with a click, e.g. the settings of a run.

    Attributes:
        title: what it is about.
        texts: heading to text, shown as it is.
        note: more text beside the title.
        badge: a remark beside them.
        problems: what is wrong with it.
    """

    title: str
    texts: Mapping[str, str]
    note: str = ""
    badge: str = ""
    problems: Sequence[str] = ()


@dataclass(frozen=True)
class Page:
    """A whole page.

    Attributes:
        title: its heading.
        lede: a paragraph that says what the page shows.
        sections: its parts; several get a list of links.
        details: the runs behind it.
        version: of foveal.
        problems: what could not be shown, in words.
    """

    title: str
    lede: str | Markup
    sections: Sequence[Section]
    details: Sequence[Details] = ()
    version: str = ""
    problems: Sequence[str] = ()


def render(page: Page) -> str:
    """The page as one HTML file: light and dark, desk and phone, no script, no network.

    >>> text = render(Page("Mine & yours", "What one sees.", [Section("Numbers", Markup("<p>1, 2, 3</p>"))]))
    >>> "<h1>Mine &amp; yours</h1>" in text, "<p>1, 2, 3</p>" in text
    (True, True)
    """
    return str(fill("page.html.j2", page=page))


def fill(template: str, **values: Any) -> Markup:
    """A template of this package with values filled in, escaped unless they are markup."""
    return Markup(_environment().get_template(template).render(**values))


def paragraph(text: str | Markup, role: str = "") -> Markup:
    """A paragraph.

    Args:
        text: escaped unless it is markup.
        role: how it looks: ``headline``, ``data`` (a description), ``note`` (a warning), ``key`` (how to read a
            table), or empty.

    >>> paragraph(Markup("<b>{}</b> won").format("<A>"), "headline")
    Markup('<p class="headline"><b>&lt;A&gt;</b> won</p>')
    """
    return Markup('<p class="{}">{}</p>').format(role, text) if role else Markup("<p>{}</p>").format(text)


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("foveal.see.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["breakable"] = breakable
    return environment
