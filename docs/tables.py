"""Write generated tables into README.md and the pages, and the names that ``foveal list`` shows.

Run ``uv run python docs/tables.py``.

A table stands between two marks, so that it can be read in the repository as well::

    <!-- table:hattnet hattnet/table1 accuracy -->   <!-- /table -->      a metric of a table of results/hattnet.csv
    <!-- keys:foveal.recipe.Train -->                <!-- /keys -->       keys of a dataclass, from its docstring
    <!-- keys:optimisers -->                         <!-- /keys -->       further lists of docs/listings.py: schedules,
                                                                         averages, tasks, data
    <!-- prices:train short -->                      <!-- /prices -->     of results/bench-insert.csv; without a part,
                                                                         training and inference in all modes
    <!-- datasets -->                                <!-- /datasets -->   what is registered
    <!-- models -->                                  <!-- /models -->
    <!-- zoo -->                                     <!-- /zoo -->        cards of trained models
"""

from __future__ import annotations

import re
from pathlib import Path

import listings
from prices import prices
from result_tables import MISSING, RESULTS, ROOT, Table, block, read

PAGES = [ROOT / page for page in ("README.md", "docs/recipes.md", "docs/insert.md", "docs/data.md", "docs/zoo.md")]
MARKED = re.compile(r"<!-- (table|keys|prices|datasets|models|zoo)(?::([^>]+))? -->\n.*?<!-- /\1 -->", re.DOTALL)


def rewritten(text: str) -> str:
    """``text`` with everything between marks made anew."""
    return MARKED.sub(_marked, text)


def _marked(match: re.Match[str]) -> str:
    kind, what = match.groups()
    mark = f"{kind}:{what}" if what else kind
    return f"<!-- {mark} -->\n\n{generated(kind, what or '')}\n\n<!-- /{kind} -->"


def generated(kind: str, what: str) -> str:
    """What stands between two marks."""
    if kind == "table":
        return _results(*what.split())
    if kind == "keys":
        return listings.keys_of(what)
    if kind == "prices":
        return prices(what)
    return {"datasets": listings.datasets, "models": listings.models, "zoo": listings.zoo}[kind]()


def _results(paper: str, name: str, metric: str) -> str:
    table = Table.of(name, read(RESULTS / f"{paper}.csv"), again=False)
    measured = any(row["metric"] == metric for row in table.rows)
    return block(table.title, table, metric) if measured else f"`{name}`: {MISSING}."


def main(pages: list[Path] = PAGES) -> None:
    """Rewrite the files whose tables changed."""
    for page in pages:
        before = page.read_text(encoding="utf-8")
        after = rewritten(before)
        if after != before:
            page.write_text(after, encoding="utf-8")
        print(f"{page.name}: {'tables rewritten' if after != before else 'tables are up to date'}")


if __name__ == "__main__":
    from foveal.cli import catalogue

    main()
    catalogue.write()
