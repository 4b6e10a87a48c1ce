"""AW-convolution beside the plain convolution it replaces: time and memory.

    foveal bench aw                             # this machine
    python benchmarks/aw.py --csv results/bench-aw.csv

The four 3×3 stages of ResNet-50, forward and forward with backward, for every form of the AW-convolution; then whole
training steps of ResNet-50 with it and without, and of the ResNet-20 for small images with every mechanism. On a GPU:
bf16 and channels last; figures are replays of a CUDA graph, so that what is compared is the device's work, and for
whole steps also the time with all that Python takes to launch them. On a CPU: float32, batch 16.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from foveal.bench import cleared, clock, hardware, peak, write_rows
from foveal.kernels.aw.fused import aw_conv2d
from foveal.kernels.aw.plain import conv_by_products, conv_by_taps, conv_per_sample
from foveal.models.registry import any_model

STAGES = ((64, 56), (128, 28), (256, 14), (512, 7))  # channels and side of the 3×3 convolutions at 224×224
SMALL = tuple(f"{mechanism}cifar_resnet20" for mechanism in ("", "aw_", "se_", "aw_se_", "cbam_", "aw_cbam_"))
MODELS = {"resnet50": (("resnet50", "aw_resnet50"), 224), "cifar_resnet20": (SMALL, 32)}  # and the side of images
HOW: dict[str, Any] = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
FORMS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "plain": lambda x, w, s: F.conv2d(x, w, padding=1),
    "fused": lambda x, w, s: aw_conv2d(x, w, s, None, [1, 1], [1, 1], [1, 1]),
    "taps": lambda x, w, s: conv_by_taps(x, w, s, None, **HOW),
    "products": lambda x, w, s: conv_by_products(x, w, s, None, **HOW),
    "grouped": lambda x, w, s: conv_per_sample(x, w * s[:, :, None], None, "grouped", **HOW),
    "loop": lambda x, w, s: conv_per_sample(x, w * s[:, :, None], None, "loop", **HOW),
}


def convolution(form: str, batch: int, channels: int, side: int, device: torch.device) -> dict[str, float]:
    """Milliseconds forward and forward with backward, and the peak of memory in MiB (GPU only)."""
    torch.manual_seed(0)
    held = cleared()
    gpu = device.type == "cuda"
    dtype = torch.bfloat16 if gpu else torch.float32
    make = {"device": device, "dtype": dtype}
    x = torch.randn(batch, channels, side, side, **make).to(memory_format=torch.channels_last)
    w = (torch.randn(channels, channels, 3, 3, **make) / (3 * channels**0.5)).to(memory_format=torch.channels_last)
    s = (1 + torch.rand(batch, channels, 3, 3, **make)).to(memory_format=torch.channels_last)
    leaves = [t.requires_grad_() for t in ((x, w) if form == "plain" else (x, w, s))]
    g = torch.randn_like(x)

    def forward() -> Tensor:
        with torch.no_grad():
            return FORMS[form](x, w, s)

    def both() -> tuple[Tensor, ...]:
        return torch.autograd.grad(FORMS[form](x, w, s), leaves, g)

    both()  # warms up
    found = {"forward ms": clock(forward, device), "forward+backward ms": clock(both, device)}
    if gpu:
        found["peak MiB"] = peak(both) - held
    return found


def training_step(name: str, batch: int, side: int, device: torch.device, compiled: bool) -> dict[str, float]:
    """Milliseconds of a model's training step, as it runs and on the GPU alone, and MiB at its peak.

    It is compiled as :class:`foveal.tasks.base.Task` does, into CUDA graphs.
    """
    torch.manual_seed(0)
    torch._dynamo.reset()
    held = cleared()
    gpu = device.type == "cuda"
    model = any_model(name, num_classes=1000).to(device, memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=gpu)
    images = torch.randn(batch, 3, side, side, device=device).to(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (batch,), device=device)

    def loss() -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=gpu):
            return F.cross_entropy(model(images).float(), labels)

    call = torch.compile(loss, mode="reduce-overhead" if gpu else None) if compiled else loss

    def step() -> None:
        optimiser.zero_grad()
        call().backward()
        optimiser.step()

    for _ in range(5 if gpu else 1):
        step()
    found = {"step ms": clock(step, device, 1.0, graph=False)}
    if gpu:
        found["peak MiB"] = peak(step) - held
        if not compiled:  # a CUDA graph cannot be recorded into another
            found["GPU ms"] = clock(step, device, 1.0)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", help="64 256 on a GPU, 16 on a CPU")
    parser.add_argument(
        "--forms", nargs="+", choices=FORMS, default=list(FORMS), help="of the convolution; plain always"
    )
    parser.add_argument("--only", choices=("convolution", "model"), help="one half of it")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), help="whole ones")
    parser.add_argument("--compile", action="store_true", help="whole models also with torch.compile")
    parser.add_argument("--csv", type=Path, help="also write the rows to this file")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    gpu = device.type == "cuda"
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    batches = options.batches or ([64, 256] if gpu else [16])
    where = {
        "hardware": hardware(device),
        "torch": torch.__version__,
        "precision": "bf16" if gpu else "fp32",
    }
    rows: list[dict[str, object]] = []

    def show(what: str, form: str, batch: int, found: dict[str, float], plain: dict[str, float]) -> None:
        said = "   ".join(f"{k} {v:9.3f} ({v / plain[k]:5.2f}×)" for k, v in found.items())
        print(f"{what:18} batch {batch:3} {form:22} {said}", flush=True)
        for measure, value in found.items():
            ratio = round(value / plain[measure], 4)
            row = {"what": what, "form": form, "batch": batch, "measure": measure, "value": round(value, 4)}
            rows.append({**row, "ratio to plain": ratio, **where})

    if options.only != "model":
        for batch, (channels, side) in itertools.product(batches, STAGES):
            plain: dict[str, float] = {}
            for form in FORMS:
                if form not in ("plain", *options.forms) or (not gpu and form == "fused"):
                    continue
                if gpu and (form == "loop" or (form == "grouped" and batch * channels >= 256 * 512)):
                    continue  # thousands of launches, and a kernel tensor of gigabytes
                found = convolution(form, batch, channels, side, device)
                plain = plain or found
                show(f"3×3 {channels} at {side}×{side}", form, batch, found, plain)
    if options.only != "convolution":
        for model, batch, compiled in itertools.product(
            options.models, batches, (False, True) if options.compile else (False,)
        ):
            (names, side), plain = MODELS[model], {}
            for name in names:
                found = training_step(name, batch, side, device, compiled)
                plain = plain or found
                show(f"{model} step" + ", compiled" * compiled, name, batch, found, plain)
    if options.csv:
        write_rows(options.csv, rows)


if __name__ == "__main__":
    main()
