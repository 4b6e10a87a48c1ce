"""Spatial attention beside its equations, deformable convolution beside torchvision's, dynamic beside unfolding.

    foveal bench spatial                        # this machine
    python benchmarks/spatial.py --csv results/bench-spatial.csv
    python benchmarks/spatial.py --csv results/bench-spatial-cpu.csv    # on a CPU

Forward with backward: milliseconds as Python launches it (``ms``) and, in eager mode on a GPU, of the replay of a CUDA
graph (``GPU ms``); and the peak of memory above what was held before. On a GPU: bf16 autocast and channels last.
On a CPU: float32, small maps.

The reference builds the energies of all pairs of positions, as the authors' released module does. The other forms are
the module with a kernel of PyTorch's that it does not choose by itself.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torchvision.ops import deform_conv2d

from foveal.attention import DeformConv2d, DynamicConv2d, SpatialAttention
from foveal.bench import cleared, clock, hardware, peak, write_rows
from foveal.kernels.spatial import fused, plain

SETTINGS = ("1111", "1000", "0100", "0010", "0001", "0110", "0011")
MAPS = ((97, 97, 256), (50, 84, 256), (25, 42, 512))  # segmentation at 769×769; conv4 and conv5 at 1333×800
STAGES = ((64, 64, 128), (32, 32, 256), (16, 16, 512))  # conv3, conv4 and conv5 of ResNet-50 at 512×512
SMALL = ((25, 42, 64),)
KERNELS = {
    "efficient": (SDPBackend.EFFICIENT_ATTENTION, False),
    "cudnn": (SDPBackend.CUDNN_ATTENTION, True),
    "cudnn narrow": (SDPBackend.CUDNN_ATTENTION, False),
}
Run = Callable[[Tensor], Tensor]
Case = tuple[str, str, nn.Module, Run]  # what, form, module, its call


def by_equations(module: SpatialAttention, x: Tensor) -> Tensor:
    """Spatial attention with energies of all pairs."""
    maps = x.permute(0, 2, 3, 1)
    keys = maps[:, :: module.kv_stride, :: module.kv_stride]
    queries = (
        maps[:, :1, :1] if module.terms == "0010" else maps
    )  # the same for all queries, in the released module too
    out = module.proj(plain.attend(*module.project(queries, keys)).flatten(3))
    return x + module.gamma * out.permute(0, 3, 1, 2)


def with_kernel(module: SpatialAttention, backend: SDPBackend, widen: bool, x: Tensor) -> Tensor:
    """Spatial attention by one kernel of PyTorch's, with values widened to the number of columns or not."""
    maps = x.permute(0, 2, 3, 1)
    keys = maps[:, :: module.kv_stride, :: module.kv_stride]
    with sdpa_kernel(backend):
        gathered = fused.attend(*module.project(maps, keys), widen=widen)
    return x + module.gamma * module.proj(gathered.flatten(3)).permute(0, 3, 1, 2)


def by_torchvision(conv: DeformConv2d, x: Tensor) -> Tensor:
    """Deformable convolution by torchvision's operator, which knows no bfloat16; not modulated."""
    offset = conv.deform.offset(x)
    with torch.autocast(x.device.type, enabled=False):
        return deform_conv2d(x.float(), offset.float(), conv.weight, conv.bias, conv.stride, conv.padding).to(
            offset.dtype
        )


def by_unfolding(module: DynamicConv2d, x: Tensor) -> Tensor:
    """Dynamic convolution with a copy of the map for each tap."""
    taps = module.kernel**2
    weights = module.weights(x).unflatten(1, (module.groups, taps)).softmax(2).flatten(3)
    columns = F.unfold(module.value(x), module.kernel, padding=module.kernel // 2)
    columns = columns.unflatten(1, (module.groups, -1, taps))
    gathered = (columns * weights[:, :, None].to(columns.dtype)).sum(3).flatten(1, 2).view_as(x)
    return x + module.gamma * module.proj(gathered)


def cases(only: str | None, settings: list[str], gpu: bool) -> Iterator[tuple[tuple[int, int, int], int, list[Case]]]:
    """Size of the map, batch, and what to compare on it; the first is what others are compared with."""
    if only in (None, "spatial"):
        for size in MAPS if gpu else SMALL:
            for terms in settings:
                module = SpatialAttention(size[2], terms=terms)
                forms: dict[str, Run] = {"reference": partial(by_equations, module), "module": module}
                if gpu and terms != "0010":
                    forms |= {name: partial(with_kernel, module, *kernel) for name, kernel in KERNELS.items()}
                yield size, 2, [(f"spatial {terms}", form, module, run) for form, run in forms.items()]
    for size in STAGES if gpu else SMALL:
        channels = size[2]
        if only in (None, "deform"):
            square = {"kernel_size": 3, "padding": 1, "bias": False}
            plainly, v1 = nn.Conv2d(channels, channels, **square), DeformConv2d(channels, channels, **square)
            v2 = DeformConv2d(channels, channels, **square, modulated=True)
            yield (
                size,
                8,
                [
                    ("deform", "plain", plainly, plainly),
                    ("deform", "v1, torchvision", v1, partial(by_torchvision, v1)),
                    ("deform", "v1", v1, v1),
                    ("deform", "v2", v2, v2),
                ],
            )
        if only in (None, "dynamic"):
            dynamic = DynamicConv2d(channels)
            runs: dict[str, Run] = {"unfold": partial(by_unfolding, dynamic), "module": dynamic}
            yield size, 8, [("dynamic", form, dynamic, run) for form, run in runs.items()]


def measure(module: nn.Module, run: Run, x: Tensor, compiled: bool) -> dict[str, float]:
    """Milliseconds and MiB of one forward and backward pass."""
    device = x.device
    gpu = device.type == "cuda"
    torch._dynamo.reset()
    call = torch.compile(run) if compiled else run
    leaves = [x, *module.parameters()]
    gradient = torch.randn_like(x)

    def both() -> tuple[Tensor, ...]:
        with torch.autocast(device.type, torch.bfloat16) if gpu else nullcontext():
            out = call(x)
        return torch.autograd.grad(out, leaves, gradient.to(out.dtype), allow_unused=True)

    for _ in range(3):
        both()
    values = {"ms": clock(both, device, graph=False)}
    if gpu:
        values["peak MiB"] = peak(both, above=True)
        if not compiled:
            values["GPU ms"] = clock(both, device)
    return values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("spatial", "deform", "dynamic"), help="one third of it")
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), help="switch settings of spatial attention")
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    parser.add_argument("--csv", type=Path, help="also write the rows to this file")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    gpu = device.type == "cuda"
    where = {"hardware": hardware(device), "torch": torch.__version__, "precision": "bf16" if gpu else "fp32"}
    rows: list[dict[str, object]] = []
    for compiled in (False,) if options.eager else (False, True):
        for (height, width, channels), batch, forms in cases(options.only, options.settings, gpu):
            first: dict[str, float] = {}
            for what, form, module, run in forms:
                if compiled and form in KERNELS:
                    continue  # would only be compiled in vain: the kernels are the same
                cleared()
                torch.manual_seed(0)
                module.to(device)
                dtype = torch.bfloat16 if gpu else torch.float32
                x = torch.randn(batch, channels, height, width, device=device, dtype=dtype)
                x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
                try:
                    values = measure(module, run, x, compiled)
                except RuntimeError as error:
                    if form not in KERNELS:
                        raise
                    print(f"{what:13} {form}: {error}".splitlines()[0])
                    continue
                if isinstance(module, SpatialAttention):
                    values["GMAC of the equations, forward"] = batch * module.macs(height, width) / 1e9
                first = first or values
                mode = "compiled" if compiled else "eager"
                text = "   ".join(
                    f"{name} {value:9.3f} ({value / first[name]:5.2f}×)" for name, value in values.items()
                )
                print(f"{what:13} {height}×{width}×{channels:3} batch {batch} {mode:8} {form:16} {text}", flush=True)
                for name, value in values.items():
                    row = {"what": what, "map": f"{height}×{width}×{channels}", "batch": batch, "mode": mode}
                    ratio = round(value / first[name], 4)
                    rows.append(
                        {**row, "form": form, "measure": name, "value": round(value, 4), "ratio": ratio, **where}
                    )
    if options.csv:
        write_rows(options.csv, rows)


if __name__ == "__main__":
    main()
