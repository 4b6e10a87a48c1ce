"""Commands on models: where attention would go, and what things cost."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from foveal.cli.terminal import console, listing
from foveal.errors import unknown


def sites(
    model: Annotated[str, typer.Argument(help="A timm or torchvision model, or one of foveal's.")],
    mechanism: Annotated[str, typer.Option(help="What would be inserted; see foveal list mechanisms.")] = "aw",
    at: Annotated[str | None, typer.Option(help="A glob on layer names; the usual places if left out.")] = None,
) -> None:
    """Dry run: where attention would go in a model, and what it would cost."""
    from foveal.attention import sites as find_sites
    from foveal.models.registry import any_model

    rows = find_sites(any_model(model), mechanism, at)
    table = Table("site", "layer", "shape", "extra parameters", "extra MFLOPs", title=f"{mechanism} in {model}")
    for row in rows:
        shape = "?" if row.shape is None else "×".join(map(str, row.shape))
        flops = "?" if row.flops is None else f"{row.flops / 1e6:.3f}"
        table.add_row(row.name, row.layer, shape, f"{row.parameters:,}", flops)
    table.add_section()
    total = "?" if any(r.flops is None for r in rows) else f"{sum(r.flops or 0 for r in rows) / 1e6:.3f}"
    table.add_row(f"{len(rows)} sites", "", "", f"{sum(r.parameters for r in rows):,}", total)
    console.print(table)


def bench(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="A benchmark; lists them if left out.")] = None,
) -> None:
    """Speed and memory, side by side with what you would otherwise run.

    Options after the name are the benchmark's own: foveal bench NAME -- --help lists them.
    """
    package = Path(__file__).resolve().parents[1]
    folder = next((f for f in (package.parents[1] / "benchmarks", package / "benchmarks") if f.is_dir()), None)
    known = {p.stem: p for p in sorted(folder.glob("*.py"))} if folder else {}
    if name is None:
        listing("benchmarks", dict.fromkeys(known, ""))
        return
    if name not in known:
        raise unknown("benchmark", name, known)
    sys.argv = [str(known[name]), *context.args]
    runpy.run_path(str(known[name]), run_name="__main__")
