"""Write the tables of results into README.md: ``uv run python docs/tables.py``.

``<!-- table:hattnet hattnet/table1 accuracy -->`` stands before a table of results/hattnet.csv, ``<!-- /table -->``
after it.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from expected import TABLES
from result_tables import MISSING, RESULTS, ROOT, block, read

BLOCK = re.compile(r"<!-- table:(\S+) (\S+) (\S+) -->\n.*?<!-- /table -->", re.DOTALL)


def table(found: re.Match[str]) -> str:
    """One table between its marks."""
    paper, name, metric = found.groups()
    rows = [row for row in read(RESULTS / f"{paper}.csv") if (row["table"], row["metric"]) == (name, metric)]
    about = TABLES[paper][name]
    rows, about = [row for row in rows if row["model"] not in about.again], replace(about, models=about.once)
    made = block(f"`{name}`: {about.about}", rows, about) if rows else f"`{name}`: {MISSING}."
    return f"<!-- table:{paper} {name} {metric} -->\n\n{made}\n\n<!-- /table -->"


def rewritten(text: str) -> str:
    """``text`` with every marked table made anew."""
    return BLOCK.sub(table, text)


def main(readme: Path = ROOT / "README.md") -> None:
    """Rewrite the file if its tables changed."""
    before = readme.read_text(encoding="utf-8")
    after = rewritten(before)
    if after != before:
        readme.write_text(after, encoding="utf-8")
    print(f"{readme.name}: {'tables rewritten' if after != before else 'tables are up to date'}")


if __name__ == "__main__":
    main()
