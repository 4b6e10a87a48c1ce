"""What each cell of a table of segmentation models costs: arithmetic, time and memory of a training step.

    python benchmarks/atlas.py --table spatial/atlas --csv results/bench-atlas.csv

One row a cell: parameters; GFLOPs of the forward pass of one training crop (``torch.utils.flop_counter``, two for a
multiplication and an addition, deformable convolutions included); on a GPU the milliseconds of a whole training step
with the recipe's batch, precision and crop, and its peak memory. ``foveal.see.pareto`` draws results against these.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from foveal.attention import mechanisms
from foveal.bench import cleared, clock, hardware, peak, write_rows
from foveal.models.build import build_model
from foveal.recipe import Recipe, load
from foveal.reproduce import find_table
from foveal.tasks.segment.costs import mflops
from foveal.tasks.segment.task import pixel_loss

CLASSES = 21


def build(recipe: Recipe) -> torch.nn.Module:
    """The recipe's model with random weights."""
    section = {key: value for key, value in recipe.model.items() if key != "checkpoint"}
    return build_model(section, {"num_classes": CLASSES})


def step_of(recipe: Recipe, crop: tuple[int, int], device: torch.device) -> Callable[[], None]:
    """A training step of the recipe, with random images."""
    model = build(recipe).to(device, memory_format=torch.channels_last).train()
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    run: Any = torch.compile(model) if recipe.train.compile else model
    images = torch.randn(recipe.train.batch, 3, *crop, device=device).to(memory_format=torch.channels_last)
    label: Tensor = torch.randint(0, CLASSES, (recipe.train.batch, *crop), device=device)

    def step() -> None:
        optimiser.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=recipe.train.precision == "bf16"):
            logits = run(images)
            loss = pixel_loss(logits["out"], label) + 0.4 * pixel_loss(logits["aux"], label)
        loss.backward()
        optimiser.step()

    return step


def measure(name: str, device: torch.device, overrides: list[str]) -> dict[str, object]:
    """The row of a cell."""
    recipe = load(name, overrides)
    crop = tuple(recipe.data["crop"])
    row: dict[str, object] = {
        "recipe": name,
        "parameters": sum(p.numel() for p in build(recipe).parameters()),
        "gflops": round(mflops(build(recipe).to(device), crop) / 1e3, 3),
    }
    if device.type == "cuda":
        cleared()
        step = step_of(recipe, crop, device)
        for _ in range(3):
            step()
        row |= {"ms": round(clock(step, device, graph=False), 3), "mib": round(peak(step), 1)}
    else:
        row |= {"ms": "", "mib": ""}
    return row | {"hardware": hardware(device), "torch": torch.__version__, "precision": recipe.train.precision}


def main() -> None:
    """Measure every cell whose mechanisms are known."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("overrides", nargs="*", help="key=value, changes of every recipe")
    parser.add_argument("--table", default="spatial/atlas")
    parser.add_argument("--csv", type=Path)
    arguments = parser.parse_args()
    device, rows = torch.device("cuda" if torch.cuda.is_available() else "cpu"), []
    grid = find_table(arguments.table)
    for cell in grid.cells():
        inserted = [one["mechanism"] for one in load(grid.full_name(cell)).model.get("insert", [])]
        if unknown := [name for name in inserted if name not in mechanisms()]:
            print(f"{cell}: no mechanism {', '.join(unknown)}")
            continue
        rows.append(measure(grid.full_name(cell), device, arguments.overrides))
        print(" ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    if arguments.csv and rows:
        write_rows(arguments.csv, rows)


if __name__ == "__main__":
    main()
