"""Finished runs that nothing was trained for."""

from fake_runs import write_run
from tiny import tiny_recipe

from foveal.recipe import Cell as Place
from foveal.reproduce import Cell

DELAY = {"title": "Delay", "unit": "ms", "better": "lower", "about": ""}


def finished_cells(folder, results, name="mine/a", place=(0, 0), published=None, first_seed=0):
    """Cells of one recipe whose runs have these metrics, one a seed from ``first_seed`` on."""
    runs = []
    for seed, changes in enumerate(results, first_seed):
        recipe = tiny_recipe(folder, f"seed={seed}")
        recipe.name, recipe.cell = name, Place("t", "R", "C", place)
        recipe.published = published or {}
        out = write_run(folder / name / f"seed{seed}", seed=seed, kept=False, **changes)
        runs.append(Cell(recipe, out))
    return runs


def metrics(**values):
    infos = {"delay": DELAY} if "delay" in values else {}
    return {"metrics": values, "infos": infos, "parts": {}, "parameters": 7, "epochs": 2, "seconds": 3.0}
