"""Complete and mark the rows of ``results/*.csv``: how each was made, and whether today's recipe makes it so.

Run ``uv run python docs/provenance.py`` in a checkout with its history, then ``docs/tables.py``.

Rows of before they said how they were made get what the history knows: the commit that recorded them (``until`` it; the
revision that made them is not known), and the settings of the recipe in that commit, with the row's own precision. What
is not known stays empty. The column ``older`` of every row says what sets it apart from today's code and recipe.

Rows of benchmarks (``results/bench-*.csv``) get the last commit of their file in the same way.
"""

from __future__ import annotations

import csv
import io
import json
import os
import shlex
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from expected import TABLES
from result_tables import RESULTS, ROOT, Row, read

from foveal.recipe import load
from foveal.recipe.grids import former_names
from foveal.reproduce.provenance import differences, settings
from foveal.reproduce.summary import COLUMNS

UNRECORDED = "revision not recorded"
DUMP = "import json, sys; from foveal.recipe import load; print(json.dumps([load(n).dump() for n in sys.argv[1:]]))"
Key = tuple[str, str, str]


def completed(rows: list[Row], path: Path) -> list[Row]:
    """Rows in the columns of today, those without a revision with what the history of the file at ``path`` knows."""
    rows = [{column: row.get(column) or "" for column in COLUMNS} for row in rows]
    unknown = [row for row in rows if not row["revision"]]
    recorded = _recorded(path) if unknown else {}
    for row in unknown:
        commit, name = recorded[_key(row)]
        row["hardware"], _, row["torch"] = row["hardware"].partition(", torch ")
        row["revision"] = f"until {commit}"
        recipe = _recipes(commit, path)[name]
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(recipe)
            file.flush()
            change = f"train.precision={row['precision']}"
            if settings(load(file.name))["precision"] != row["precision"]:
                row["overrides"] = shlex.join([change])
            row |= settings(load(file.name, [change]))
    return rows


def marked(rows: list[Row]) -> list[Row]:
    """Rows with what sets each apart from today's code and recipe."""
    return [row | {"older": "; ".join([*[UNRECORDED] * unrecorded(row), *differences(row)])} for row in rows]


def unrecorded(row: Row) -> bool:
    """Whether a row was made before rows said by which revision."""
    return row["revision"].startswith("until ")


def recorded_benchmark(path: Path) -> list[Row]:
    """Rows of a benchmark; those that do not say which revision measured them get the last commit of their file."""
    rows = read(path)
    if all(row.get("revision") for row in rows):
        return rows
    commit = _git("log", "-1", "--format=%h", "--abbrev=12", "--", str(path)).strip()
    return [{**row, "revision": row.get("revision") or f"until {commit}"} for row in rows]


def _key(row: Row) -> Key:
    """What a row keeps when recipes and metrics are renamed."""
    return former_names().get(row["recipe"], row["recipe"]), row["mean"], row["values"]


def _recorded(path: Path) -> dict[Key, tuple[str, str]]:
    """The commit that first had each row, and the name of its recipe there."""
    found: dict[Key, tuple[str, str]] = {}
    for commit in _git("log", "--reverse", "--format=%h", "--abbrev=12", "--", str(path)).split():
        text = _git("show", f"{commit}:{path.relative_to(ROOT)}")
        for row in csv.DictReader(io.StringIO(text)):
            found.setdefault(_key(row), (commit, row["recipe"]))
    return found


@cache
def _recipes(commit: str, path: Path) -> dict[str, str]:
    """Recipes of the rows that a commit had, as its own code resolves them."""
    rows = csv.DictReader(io.StringIO(_git("show", f"{commit}:{path.relative_to(ROOT)}")))
    names = sorted({row["recipe"] for row in rows})
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", commit, "src"], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        code = {**os.environ, "PYTHONPATH": f"{folder}/src"}
        words = [sys.executable, "-W", "ignore", "-c", DUMP, *names]
        texts = subprocess.run(words, env=code, check=True, capture_output=True, text=True).stdout
    return dict(zip(names, json.loads(texts), strict=True))


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def main() -> None:
    """Rewrite the files of ``foveal reproduce`` and of benchmarks."""
    for path in [RESULTS / f"{name}.csv" for name in TABLES]:
        if not path.exists():
            continue
        rows = marked(completed(read(path), path))
        _write(path, rows, COLUMNS)
        print(f"{path.name}: {sum(bool(row['older']) for row in rows)} of {len(rows)} rows are of older code")
    for path in sorted(RESULTS.glob("bench-*.csv")):
        rows = recorded_benchmark(path)
        _write(path, rows, tuple(rows[0]))
        print(f"{path.name}: {sum(map(unrecorded, rows))} of {len(rows)} rows do not name their revision")


def _write(path: Path, rows: list[Row], columns: tuple[str, ...]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    path.write_text(text.getvalue(), encoding="utf-8")


if __name__ == "__main__":
    main()
