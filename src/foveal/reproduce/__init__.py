"""Tables of papers: their cells, jobs that run them, and comparisons over seeds."""

from foveal.reproduce.cells import Cell, cells, find_table, run_path
from foveal.reproduce.comparing import against_first, compare, compare_runs, paired_groups
from foveal.reproduce.jobs import Failure, run_all
from foveal.reproduce.rows import read_csv, recorded, seed_values, seeds_of, shown, write_csv
from foveal.reproduce.statistics import Comparison, holm, paired, together
from foveal.reproduce.summary import spread, summarise

__all__ = [
    "Cell",
    "Comparison",
    "Failure",
    "against_first",
    "cells",
    "compare",
    "compare_runs",
    "find_table",
    "holm",
    "paired",
    "paired_groups",
    "read_csv",
    "recorded",
    "run_all",
    "run_path",
    "seed_values",
    "seeds_of",
    "shown",
    "spread",
    "summarise",
    "together",
    "write_csv",
]
