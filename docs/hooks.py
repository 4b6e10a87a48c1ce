"""Fills the marked places of the pages with tables made from results, dataclasses and registries.

MkDocs calls :func:`on_page_markdown` for every page. A marker is an HTML comment on a line of its own::

    <!-- results:hattnet -->               tables of results/hattnet.csv
    <!-- classes:icasc/voc2012-lite -->    average precision of every class, beside the published ones
    <!-- splits:icasc/voc2012-lite -->     measures of attention by right and wrong answers
    <!-- compare:fan-documents -->         recipes of results/fan-documents.csv in pairs
    <!-- bench:aw -->                      charts and table of results/bench-aw.csv
    <!-- keys:foveal.recipe.Optim -->      keys of a dataclass, from its docstring
    <!-- keys:data -->                     options of every dataset
    <!-- datasets -->  <!-- models -->     what is registered

``docs/tables.py`` writes the same results into README.md.
"""

from __future__ import annotations

import re
from typing import Any

from charts import bench
from listings import data_keys, datasets, keys, models, named
from result_tables import classes, comparisons, results, splits

MARKER = re.compile(
    r"^<!-- (results|classes|splits|compare|bench|keys|datasets|models)(?::([\w./-]+))? -->$", re.MULTILINE
)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace every marker of a page (called by MkDocs)."""
    return MARKER.sub(lambda found: fill(found[1], found[2]), markdown)


def fill(kind: str, what: str | None) -> str:
    """What stands in the place of one marker."""
    if kind == "results":
        return results(what or "").replace(" ± ", "&nbsp;±&nbsp;")  # stays on one line
    if kind == "classes":
        return classes(what or "")
    if kind == "splits":
        return splits(what or "")
    if kind == "compare":
        return comparisons(what or "")
    if kind == "bench":
        return bench(what or "")
    if kind == "keys":
        return data_keys() if what == "data" else keys(named(what or ""))
    return datasets() if kind == "datasets" else models()
