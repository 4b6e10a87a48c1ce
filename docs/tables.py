"""Write the tables of results into README.md: ``uv run python docs/tables.py``."""

from __future__ import annotations

import re
from pathlib import Path

from hooks import ROOT, results

BLOCK = re.compile(r"<!-- results:(\w+) -->\n.*?<!-- /results -->", re.DOTALL)


def rewritten(text: str) -> str:
    """``text`` with every marked block made anew."""
    return BLOCK.sub(lambda found: f"<!-- results:{found[1]} -->\n\n{results(found[1])}\n\n<!-- /results -->", text)


def main(readme: Path = ROOT / "README.md") -> None:
    """Rewrite the file if its tables changed."""
    before = readme.read_text(encoding="utf-8")
    after = rewritten(before)
    if after != before:
        readme.write_text(after, encoding="utf-8")
    print(f"{readme.name}: {'tables rewritten' if after != before else 'tables are up to date'}")


if __name__ == "__main__":
    main()
