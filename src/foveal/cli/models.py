"""Commands on models: where attention would go, and what things cost."""

from __future__ import annotations

import ast
import json
import runpy
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from foveal.cli.imports import quick_imports
from foveal.cli.terminal import columns, listing, say
from foveal.errors import UserError, unknown

OWN = {"model", "mechanism", "at", "example"}  # arguments of foveal.sites that are no options of the mechanism


def sites(
    model: Annotated[str, typer.Argument(help="A timm or torchvision model, or one of foveal's.")],
    options: Annotated[
        list[str] | None, typer.Argument(help="key=value options of the mechanism, e.g. terms=0010 or start=identity.")
    ] = None,
    mechanism: Annotated[str, typer.Option(help="What would be inserted; see foveal list mechanisms.")] = "aw",
    at: Annotated[str | None, typer.Option(help="A glob on layer names; the default sites if left out.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the sites as JSON.")] = False,
) -> None:
    """Dry run: where attention would go in a model, and what it would cost."""
    from foveal.recipe.loading import mechanism_options

    settings = mechanism_options(options or [])
    if own := OWN & settings.keys():
        raise UserError(f"{min(own)}= is no option of the mechanism; layers are chosen with --at")
    with quick_imports():
        from foveal.attention import sites as find_sites
        from foveal.models.registry import any_model

    rows = find_sites(any_model(model), mechanism, at, **settings)
    if as_json:
        say(json.dumps([asdict(row) for row in rows], indent=1))
        return
    table = [("site", "layer", "shape", "extra parameters", "extra MFLOPs")]
    table += [
        (row.name, row.layer, "×".join(map(str, row.shape or "?")), f"{row.parameters:,}", _mflops([row.flops]))
        for row in rows
    ]
    parameters = sum(row.parameters for row in rows)
    table.append((f"{len(rows)} sites", "", "", f"{parameters:,}", _mflops([row.flops for row in rows])))
    say(f"{' '.join([mechanism, *(options or ())])} in {model}")
    columns(table, numbers=2)


def _mflops(flops: Sequence[int | None]) -> str:
    known = [number for number in flops if number is not None]
    return "?" if len(known) < len(flops) else f"{sum(known) / 1e6:.3f}"


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
        listing("benchmarks", {name: _first_line(path) for name, path in known.items()})
        return
    if name not in known:
        raise unknown("benchmark", name, known)
    sys.argv = [str(known[name]), *context.args]
    runpy.run_path(str(known[name]), run_name="__main__")


def _first_line(script: Path) -> str:
    """What a script says it does, without running it."""
    return (ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or "").partition("\n")[0]
