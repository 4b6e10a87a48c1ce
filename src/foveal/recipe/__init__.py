"""Recipes: what to train, on what, how, as typed and validated YAML.

A recipe is a cell of a table that comes with foveal (``hattnet/table1/mref-soft``) or a file anywhere else
(``./mine.yaml``). ``extends`` names a recipe to start from; ``key=value`` overrides come last. Everything is checked
before anything is built: an unknown key or a wrong type is one clear message that names the key.
"""

from foveal.recipe.choice import fixed, number
from foveal.recipe.loading import available, complete, load
from foveal.recipe.optim import Optim, register_optimiser
from foveal.recipe.schedules import Schedule, Warmup, register_schedule
from foveal.recipe.schema import AttentionLoss, Cell, LossOptions, MeasureOptions, Recipe, Train

__all__ = [
    "AttentionLoss",
    "Cell",
    "LossOptions",
    "MeasureOptions",
    "Optim",
    "Recipe",
    "Schedule",
    "Train",
    "Warmup",
    "available",
    "complete",
    "fixed",
    "load",
    "number",
    "register_optimiser",
    "register_schedule",
]
