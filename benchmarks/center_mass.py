"""The center-mass loss of large graphs: from the matrix of affinities, and without ever storing it.

    foveal bench center_mass                    # this machine
    python benchmarks/center_mass.py --csv results/bench-center-mass.csv

Forward and backward from q and k of N entities, d = 64, pairs of entities with different labels. ``plain`` builds the
matrix and gives it to the loss, ``light`` gives the loss q and k, ``attention`` is one scaled-dot-product attention of
the same size, forward and backward, for scale. Memory is the peak above what q, k and the labels take, and is measured
on GPUs only. Where both fit, ``plain`` and ``light`` are compared first, in loss and gradients. On a GPU: bf16, and
times are those of a CUDA graph, the device's work alone; on a CPU: float32 and small graphs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from foveal.bench import clock, hardware, peak, write_rows
from foveal.supervise import center_mass_loss

LABELS = 20  # as many categories as in Pascal VOC


def plain(q: Tensor, k: Tensor, labels: Tensor) -> Tensor:
    target = (labels[:, :, None] != labels[:, None, :]) & (labels >= 0)[:, :, None] & (labels >= 0)[:, None, :]
    return center_mass_loss(q @ k.mT * q.shape[-1] ** -0.5, target)


def light(q: Tensor, k: Tensor, labels: Tensor) -> Tensor:
    return center_mass_loss((q, k), labels, related="different")


def attention(q: Tensor, k: Tensor, labels: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q[:, None], k[:, None], k[:, None]).float().sum()


FORMS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {"plain": plain, "light": light, "attention": attention}


def inputs(count: int, width: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    q, k = (torch.randn(1, count, width, generator=generator).to(device, dtype).requires_grad_() for _ in range(2))
    labels = torch.randint(-1, LABELS, (1, count), generator=generator).to(device)  # some are background
    return q, k, labels


def step(form: str, given: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, ...]:
    loss = FORMS[form](*given)
    return (loss.detach(), *torch.autograd.grad(loss, given[:2]))


def difference(given: tuple[Tensor, Tensor, Tensor]) -> float:
    """Greatest difference of loss and gradients between the two forms, relative to the greatest value of each."""
    pairs = zip(step("plain", given), step("light", given), strict=True)
    return max(float((a.float() - b.float()).abs().max() / a.float().abs().max().clamp_min(1e-12)) for a, b in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entities", type=int, nargs="*", help="sizes of the graph")
    parser.add_argument("--plain-up-to", type=int, default=8192, help="largest graph whose matrix is built")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=0.3, help="for each figure; five times as long on a CPU")
    parser.add_argument("--csv", type=Path)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    sizes = arguments.entities or ([300, 1024, 4096, 8192, 16384] if device.type == "cuda" else [300, 1024, 2048])
    where = f"{hardware(device)}, torch {torch.__version__}"
    rows = []
    for count in sizes:
        given = inputs(count, arguments.width, device)
        fits = count <= arguments.plain_up_to
        apart = difference(given) if fits else ""
        for form in FORMS:
            if form == "plain" and not fits:
                continue
            row = {"form": form, "entities": count, "width": arguments.width, "dtype": str(given[0].dtype)[6:]}
            run = partial(step, form, given)
            run()
            row["milliseconds"] = round(clock(run, device, arguments.seconds), 3)
            row["peak_mib"] = round(peak(run, above=True), 1) if device.type == "cuda" else ""
            rows.append(row | {"difference": apart if form == "light" else "", "hardware": where})
            memory = f"{row['peak_mib']:>10} MiB" if row["peak_mib"] != "" else ""
            said = f"   differs from plain by {apart:.1e}" if form == "light" and fits else ""
            print(f"{count:6} {form:10} {row['milliseconds']:10.3f} ms {memory}{said}", flush=True)
    if arguments.csv is not None:
        write_rows(arguments.csv, rows)


if __name__ == "__main__":
    main()
