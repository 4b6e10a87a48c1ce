"""Fills the marked places of the pages with tables and charts of results.

MkDocs calls :func:`on_page_markdown` for every page. A marker is an HTML comment on a line of its own::

    <!-- results:hattnet -->               tables of results/hattnet.csv
    <!-- classes:icasc/voc2012-lite -->    average precision of every class, beside the published ones
    <!-- splits:icasc/voc2012-lite -->     measures of attention by right and wrong answers
    <!-- compare:fan-documents -->         cells of results/fan-documents.csv in pairs
    <!-- bench:aw -->                      charts and table of results/bench-aw.csv
    <!-- tradeoff:spatial/atlas -->        results against costs, and what the paper concludes

Tables of keys, datasets and models stand in the pages themselves, written by ``docs/tables.py``.
"""

from __future__ import annotations

import re
from typing import Any

from charts import bench, tradeoff
from result_tables import classes, comparisons, results, splits

FILLED = {
    "results": results,
    "classes": classes,
    "splits": splits,
    "compare": comparisons,
    "bench": bench,
    "tradeoff": tradeoff,
}
MARKER = re.compile(rf"^<!-- ({'|'.join(FILLED)}):([\w./-]+) -->$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace every marker of a page (called by MkDocs)."""
    return MARKER.sub(lambda match: fill(match[1], match[2]), markdown)


def fill(kind: str, what: str) -> str:
    """What stands in the place of one marker."""
    return FILLED[kind](what).replace(" ± ", "&nbsp;±&nbsp;")  # stays on one line
