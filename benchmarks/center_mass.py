"""The center-mass loss of q and k beside attention of the same size, and beside the loss of the whole matrix.

    foveal bench center_mass                    # this machine
    python benchmarks/center_mass.py --csv results/bench-center-mass.csv
    python benchmarks/center_mass.py --tune --table src/foveal/kernels/launches.json

Forward and backward from q and k of graphs of N entities, one graph a head, with pairs of entities of different labels.
``light`` gives the loss q and k, ``attention`` is scaled-dot-product attention of the same shape, and ``plain`` builds
the matrix of affinities and gives it to the loss. The batch is as large as it takes to keep a GPU busy. A step's time
is that of a user's call with all of Python; ``device_ms`` is the replay of a CUDA graph. Memory is the peak above what
q, k and the labels take. With the fewest heads, and where it fits, ``plain`` is measured too, and ``light`` compared
with it in loss and gradients. On a GPU: bf16; on a CPU: float32, small graphs, and neither memory nor ``device_ms``.

``--tune`` measures the tiles of the kernels at these shapes instead, prints how much slower the ones are that are used
without measuring, and keeps the fastest for later processes, in the user's cache or in ``--table``.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from foveal.bench import clock, hardware, peak, write_rows
from foveal.kernels import tune
from foveal.supervise import center_mass_loss

LABELS = 20  # as many categories as in Pascal VOC
GPU_GRID = ((256, 512, 1024, 2048, 4096, 8192, 12000, 16384), (32, 48, 64, 128), (1, 4, 8, 12))
CPU_GRID = ((300, 1024, 2048), (64,), (1,))  # entities, widths, heads


def plain(q: Tensor, k: Tensor, labels: Tensor) -> Tensor:
    target = (labels[..., :, None] != labels[..., None, :]) & (labels >= 0)[..., :, None] & (labels >= 0)[..., None, :]
    return center_mass_loss(q @ k.mT * q.shape[-1] ** -0.5, target)


def light(q: Tensor, k: Tensor, labels: Tensor) -> Tensor:
    return center_mass_loss((q, k), labels, related="different")


def attention(q: Tensor, k: Tensor, labels: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, k).sum()


FORMS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "attention": attention,
    "light": light,
    "plain": plain,
}


def inputs(batch: int, heads: int, count: int, width: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Vectors q and k (B, H, N, d), and labels (B, 1, N), some of them background."""
    generator = torch.Generator(device).manual_seed(0)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    here: dict[str, Any] = {"generator": generator, "device": device}
    q, k = (torch.randn(batch, heads, count, width, dtype=dtype, **here).requires_grad_() for _ in range(2))
    return q, k, torch.randint(-1, LABELS, (batch, 1, count), **here)


def step(form: str, arguments: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, ...]:
    loss = FORMS[form](*arguments)
    return (loss.detach(), *torch.autograd.grad(loss, arguments[:2]))


def difference(arguments: tuple[Tensor, Tensor, Tensor]) -> float:
    """Greatest difference of loss and gradients between the two forms, relative to the greatest value of each."""
    pairs = zip(step("plain", arguments), step("light", arguments), strict=True)
    return max(float((a.float() - b.float()).abs().max() / a.float().abs().max().clamp_min(1e-12)) for a, b in pairs)


def measure(form: str, arguments: tuple[Tensor, Tensor, Tensor], seconds: float) -> dict[str, float | str]:
    """Milliseconds of a step as run and on the device alone, and MiB at its peak."""
    device = arguments[0].device
    run = partial(step, form, arguments)
    for _ in range(3):
        run()
    times: dict[str, float | str] = {"step_ms": round(clock(run, device, seconds, graph=False), 4)}
    gpu = device.type == "cuda"
    times["device_ms"] = round(clock(run, device, seconds), 4) if gpu else ""
    times["peak_mib"] = round(peak(run, above=True), 1) if gpu else ""
    return times


def search(shapes: list[dict[str, int]], device: torch.device, table: Path) -> None:
    """Measure the tiles of the kernels at all shapes, and keep the fastest."""
    for shape in shapes:
        with tune.searching() as result:
            step("light", inputs(**shape, device=device))
        tune.write_table(table, result.table)
        slower = " ".join(f"{usual / fastest:6.2f}×" for usual, fastest in result.times.values())
        print(f"{describe(shape)}   without measuring: {slower}", flush=True)


def describe(shape: dict[str, int]) -> str:
    return "N {count:6} d {width:4} heads {heads:3} batch {batch:4}".format(**shape)


def compare(shape: dict[str, int], device: torch.device, seconds: float, with_plain: bool) -> Iterator[dict[str, Any]]:
    """A row for each form."""
    arguments = inputs(**shape, device=device)
    apart = difference(arguments) if with_plain else None
    reference = 0.0
    for form in FORMS if with_plain else ("attention", "light"):
        times = measure(form, arguments, seconds)
        reference = reference or float(times["step_ms"])
        ratio = round(float(times["step_ms"]) / reference, 3)
        checked = form == "light" and apart is not None
        note = f"   differs from plain by {apart:.1e}" if checked else ""
        print(f"{describe(shape)} {form:10} {times['step_ms']:10.3f} ms {ratio:6.2f}×{note}", flush=True)
        where = {"entities": shape["count"], "width": shape["width"], "heads": shape["heads"], "batch": shape["batch"]}
        yield (
            {"form": form, **where, "dtype": str(arguments[0].dtype)[6:], **times, "ratio_to_attention": ratio}
            | {"difference": f"{apart:.1e}" if checked else ""}
            | {"hardware": hardware(device), "torch": torch.__version__}
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entities", type=int, nargs="+", help="sizes of the graph")
    parser.add_argument("--widths", type=int, nargs="+", help="of q and k")
    parser.add_argument("--heads", type=int, nargs="+")
    parser.add_argument("--pairs", type=int, default=2**28, help="in all graphs of a batch; decides the batch (GPU)")
    parser.add_argument("--plain-up-to", type=int, default=2**28, help="largest number of pairs whose matrix is built")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=0.02, help="for each figure; five times as long on a CPU")
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--tune", action="store_true", help="search tiles instead; needs an NVIDIA GPU")
    parser.add_argument("--table", type=Path, help="where --tune keeps them; the user's cache if left out")
    options = parser.parse_args()
    device = torch.device(options.device)
    gpu = device.type == "cuda"
    grid = zip((options.entities, options.widths, options.heads), GPU_GRID if gpu else CPU_GRID, strict=True)
    counts, widths, heads = (chosen or usual for chosen, usual in grid)
    shapes = [
        {"count": n, "width": d, "heads": h, "batch": max(1, options.pairs // (h * n**2)) if gpu else 1}
        for n, d, h in itertools.product(counts, widths, heads)
    ]
    if options.tune:
        if not gpu:
            parser.error("--tune needs an NVIDIA GPU")
        return search(shapes, device, options.table or tune.user_table())
    rows: list[dict[str, Any]] = []
    for shape in shapes:
        pairs = shape["batch"] * shape["heads"] * shape["count"] ** 2
        with_plain = shape["heads"] == min(heads) and pairs <= options.plain_up_to
        rows += compare(shape, device, options.seconds, with_plain)
        if options.csv is not None:
            write_rows(options.csv, rows)


if __name__ == "__main__":
    main()
