"""What a reader, a table and a link checker see of a page."""

from __future__ import annotations

import html.parser

VOID = ("meta", "link", "img", "br", "wbr")


class Reader(html.parser.HTMLParser):
    """The text of a page, the addresses it refers to, its tags and its table rows."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.tags: list[str] = []
        self.rows: list[list[str]] = []
        self.words: list[str] = []
        self.feed(text)
        self.text = " ".join("".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [
            value for name, value in attrs if value and name in ("src", "href", "srcset", "action", "data")
        ]
        assert not any(name.startswith("on") for name, _ in attrs)
        if tag not in VOID:
            self.open.append(tag)
        self.words.append("" if tag in ("wbr", "strong") else " ")
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        elif self.rows and self.rows[-1] and tag != "wbr":
            self.rows[-1][-1] += " "

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag
        self.words.append("" if tag == "strong" else " ")

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)
        if self.rows and ("td" in self.open or "th" in self.open):
            self.rows[-1][-1] += data

    def row(self, title: str) -> list[str]:
        """The cells of the row of a model."""
        return next(cells for cells in self.table() if cells[0].split()[0] == title)

    def table(self) -> list[list[str]]:
        """All rows, cells without needless spaces."""
        return [[" ".join(cell.split()) for cell in row] for row in self.rows]


def read(text: str) -> Reader:
    """Read a page or a fragment; every tag must be closed."""
    reader = Reader(text)
    assert reader.open == []
    return reader
