"""AW-convolution beside the plain convolution it replaces: time and memory.

    foveal bench aw                             # this machine
    python benchmarks/aw.py --csv results/bench-aw.csv
    python benchmarks/aw.py --only convolution --shapes resnext50_32x4d convnext_tiny --forms fused
    python benchmarks/aw.py --tune --shapes resnet50 --batches 64 256 --table src/foveal/kernels/launches.json

The four 3×3 stages of ResNet-50, or the convolutions of other models, forward and forward with backward, for every
form of the AW-convolution; then whole training steps of ResNet-50 with it and without, and of the ResNet-20 for small
images with every mechanism. On a GPU: bf16 and channels last; figures are replays of a CUDA graph, so that what is
compared is the device's work, and for whole steps also the time with all that Python takes to launch them. On a CPU:
float32, batch 16.

``--tune`` measures the launch configurations of the fused kernels at these shapes instead (without ``--shapes``: of
several usual models), prints how much slower what is used without measuring is, and keeps the fastest for later
processes, in the user's cache or in ``--table``.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foveal.bench import cleared, clock, hardware, peak, write_rows
from foveal.kernels import tune
from foveal.kernels.aw.fused import aw_conv2d, fusable
from foveal.kernels.aw.loop import conv_one_by_one
from foveal.kernels.aw.plain import conv_by_products, conv_by_taps, conv_per_sample
from foveal.models.registry import any_model


@dataclass(frozen=True)
class Shape:
    """A convolution: channels, size of the input, side of the kernel, stride, padding and groups."""

    c1: int
    c2: int
    h: int
    w: int
    kernel: int = 3
    stride: int = 1
    padding: int = 1
    groups: int = 1

    def __str__(self) -> str:
        channels = f"{self.c1}" if self.c1 == self.c2 else f"{self.c1} to {self.c2}"
        depthwise = self.groups == self.c1 == self.c2
        groups = " depthwise" if depthwise else f" in {self.groups} groups" if self.groups > 1 else ""
        stride = f", stride {self.stride}" if self.stride > 1 else ""
        return f"{self.kernel}×{self.kernel} {channels}{groups} at {self.h}×{self.w}{stride}"

    @property
    def options(self) -> dict[str, Any]:
        """Of the convolution."""
        stride, padding = (self.stride,) * 2, (self.padding,) * 2
        return {"stride": stride, "padding": padding, "dilation": (1, 1), "groups": self.groups}


STAGES = tuple(Shape(channels, channels, side, side) for channels, side in ((64, 56), (128, 28), (256, 14), (512, 7)))
SMALL = tuple(f"{mechanism}cifar_resnet20" for mechanism in ("", "aw_", "se_", "aw_se_", "cbam_", "aw_cbam_"))
MODELS = {"resnet50": (("resnet50", "aw_resnet50"), 224), "cifar_resnet20": (SMALL, 32)}  # and the side of images
TUNED = (
    "resnet34", "resnet50", "resnext50_32x4d", "regnety_016", "convnext_tiny", "mobilenetv2_100", "efficientnet_b0"
)  # fmt: skip
FORMS: dict[str, Callable[[Shape, Tensor, Tensor, Tensor], Tensor]] = {
    "plain": lambda shape, x, w, s: F.conv2d(x, w, **shape.options),
    "fused": lambda shape, x, w, s: aw_conv2d(x, w, s, None, *shape.options.values()),
    "taps": lambda shape, x, w, s: conv_by_taps(x, w, s, None, **shape.options),
    "products": lambda shape, x, w, s: conv_by_products(x, w, s, None, **shape.options),
    "grouped": lambda shape, x, w, s: conv_per_sample(x, w * s[:, :, None], None, "grouped", **shape.options),
    "loop": lambda shape, x, w, s: conv_one_by_one(x, w, s[:, :, None], None, **shape.options),
}


def shapes_of(name: str, side: int = 224) -> list[Shape]:
    """The convolutions of a model that are larger than 1×1 and have more than three input channels, each shape once."""
    shapes: dict[Shape, None] = {}

    def note(conv: nn.Conv2d, inputs: tuple[Tensor, ...], _: Tensor) -> None:
        _, c1, h, w = inputs[0].shape
        (kernel, other), (padding, _) = conv.kernel_size, conv.padding
        if c1 > 3 and kernel == other > 1 and conv.dilation == (1, 1):
            shapes[Shape(c1, conv.out_channels, h, w, kernel, conv.stride[0], padding, conv.groups)] = None

    with torch.device("meta"):
        model = any_model(name).eval()
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                module.register_forward_hook(note)  # type: ignore[arg-type]
        model(torch.empty(1, 3, side, side))
    return list(shapes)


def inputs(shape: Shape, batch: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images, kernel, multiplier and a gradient of the output, in channels last."""
    torch.manual_seed(0)
    make = {"device": device, "dtype": torch.bfloat16 if device.type == "cuda" else torch.float32}
    k, depth = shape.kernel, shape.c1 // shape.groups
    x = torch.randn(batch, shape.c1, shape.h, shape.w, **make)
    w = torch.randn(shape.c2, depth, k, k, **make) / (k * depth**0.5)
    s = 1 + torch.rand(batch, shape.c2, k, k, **make)
    x, w, s = (t.to(memory_format=torch.channels_last) for t in (x, w, s))
    return x, w, s, torch.randn_like(F.conv2d(x, w, **shape.options))


def convolution(form: str, batch: int, shape: Shape, device: torch.device) -> dict[str, float]:
    """Milliseconds forward and forward with backward, and the peak of memory in MiB (GPU only)."""
    held = cleared()
    x, w, s, g = inputs(shape, batch, device)
    leaves = [t.requires_grad_() for t in ((x, w) if form == "plain" else (x, w, s))]

    def forward() -> Tensor:
        with torch.no_grad():
            return FORMS[form](shape, x, w, s)

    def both() -> tuple[Tensor, ...]:
        return torch.autograd.grad(FORMS[form](shape, x, w, s), leaves, g)

    both()  # warms up
    measures = {"forward ms": clock(forward, device), "forward+backward ms": clock(both, device)}
    if device.type == "cuda":
        measures["peak MiB"] = peak(both) - held
    return measures


def search(shapes: list[Shape], batches: list[int], device: torch.device, table: Path) -> None:
    """Measure the launches of the fused kernels; the table is written after every shape."""
    for shape, batch in itertools.product(shapes, batches):
        cleared()
        x, w, s, g = inputs(shape, batch, device)
        if not fusable(x, w, (shape.stride,) * 2, (1, 1), shape.groups):
            continue
        leaves = [t.requires_grad_() for t in (x, w, s)]
        with tune.searching() as result:
            torch.autograd.grad(FORMS["fused"](shape, x, w, s), leaves, g)
        tune.write_table(table, result.table)
        for key, (first, best) in result.times.items():
            print(
                f"{shape!s:36} batch {batch:3} {key.kernel:24} {best:8.4f} ms, unmeasured {first / best:5.2f}×",
                flush=True,
            )


def _possible(form: str, batch: int, shape: Shape, device: torch.device) -> bool:
    if form == "products":
        return shape.groups == 1
    if device.type != "cuda":
        return form != "fused"
    if form == "fused":
        x = torch.empty(1, shape.c1, shape.h, shape.w, dtype=torch.bfloat16, device=device)
        weight = torch.empty(shape.c2, shape.c1 // shape.groups, shape.kernel, shape.kernel, device="meta")
        return fusable(x, weight, (shape.stride,) * 2, (1, 1), shape.groups)
    if form == "grouped":
        return batch * shape.c1 * shape.c2 // shape.groups < 256 * 512 * 512  # a kernel tensor of gigabytes
    return form != "loop"  # thousands of launches


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
    measures = {"step ms": clock(step, device, 1.0, graph=False)}
    if gpu:
        measures["peak MiB"] = peak(step) - held
        if not compiled:  # a CUDA graph cannot be recorded into another
            measures["GPU ms"] = clock(step, device, 1.0)
    return measures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", help="64 256 on a GPU, 16 on a CPU")
    parser.add_argument(
        "--forms", nargs="+", choices=FORMS, default=list(FORMS), help="of the convolution; plain always"
    )
    parser.add_argument("--only", choices=("convolution", "model"), help="one half of it")
    parser.add_argument("--shapes", nargs="+", metavar="MODEL", help="the convolutions of these timm models at 224×224")
    parser.add_argument("--tune", action="store_true", help="search launch configurations instead; needs an NVIDIA GPU")
    parser.add_argument("--table", type=Path, help="where --tune keeps them; the user's cache if left out")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), help="whole ones")
    parser.add_argument("--compile", action="store_true", help="whole models also with torch.compile")
    parser.add_argument("--csv", type=Path, help="also write the rows to this file")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    gpu = device.type == "cuda"
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    batches = options.batches or ([64, 256] if gpu else [16])
    models = options.shapes or (TUNED if options.tune else ())
    shapes = list(dict.fromkeys(shape for model in models for shape in shapes_of(model))) or list(STAGES)
    if options.tune:
        if not gpu:
            parser.error("--tune needs an NVIDIA GPU")
        return search(shapes, batches, device, options.table or tune.user_table())
    where = {
        "hardware": hardware(device),
        "torch": torch.__version__,
        "precision": "bf16" if gpu else "fp32",
    }
    rows: list[dict[str, object]] = []

    def show(what: str, form: str, batch: int, measures: dict[str, float], plain: dict[str, float]) -> None:
        columns = "   ".join(f"{k} {v:9.3f} ({v / plain[k]:5.2f}×)" for k, v in measures.items())
        print(f"{what:36} batch {batch:3} {form:22} {columns}", flush=True)
        for measure, value in measures.items():
            ratio = round(value / plain[measure], 4)
            row = {"what": what, "form": form, "batch": batch, "measure": measure, "value": round(value, 4)}
            rows.append({**row, "ratio to plain": ratio, **where})

    if options.only != "model":
        for batch, shape in itertools.product(batches, shapes):
            plain: dict[str, float] = {}
            for form in FORMS:
                if form not in ("plain", *options.forms) or not _possible(form, batch, shape, device):
                    continue
                measures = convolution(form, batch, shape, device)
                plain = plain or measures
                show(str(shape), form, batch, measures, plain)
    if options.only != "convolution":
        for model, batch, compiled in itertools.product(
            options.models, batches, (False, True) if options.compile else (False,)
        ):
            (names, side), plain = MODELS[model], {}
            for name in names:
                measures = training_step(name, batch, side, device, compiled)
                plain = plain or measures
                show(f"{model} step" + ", compiled" * compiled, name, batch, measures, plain)
    if options.csv:
        write_rows(options.csv, rows)


if __name__ == "__main__":
    main()
