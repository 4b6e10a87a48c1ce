"""Tables of papers: their cells, jobs that run them, and comparisons over seeds."""

from foveal.reproduce.cells import Cell, cells, find_table, run_path
from foveal.reproduce.comparing import against_first, compare, compare_groups, compare_rows, compare_runs
from foveal.reproduce.jobs import Failure, run_all
from foveal.reproduce.rows import read_csv, recorded, runs_of, seed_values, shown, write_csv
from foveal.reproduce.statistics import Comparison, holm, paired, together, unpaired
from foveal.reproduce.summary import spread, summarise

__all__ = [
    "Cell",
    "Comparison",
    "Failure",
    "against_first",
    "cells",
    "compare",
    "compare_groups",
    "compare_rows",
    "compare_runs",
    "find_table",
    "holm",
    "paired",
    "read_csv",
    "recorded",
    "run_all",
    "run_path",
    "runs_of",
    "seed_values",
    "shown",
    "spread",
    "summarise",
    "together",
    "unpaired",
    "write_csv",
]
