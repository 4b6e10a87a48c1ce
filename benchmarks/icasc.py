"""A training step with attention separability and consistency beside the plain step and the obvious way to do it.

    foveal bench icasc                          # this machine
    python benchmarks/icasc.py --csv results/bench-icasc.csv

ResNet-18 at 224×224, target and confuser maps at layer3 and layer4. ``plain`` is forward, cross entropy, backward and
SGD. ``two backwards`` is how published code does it: a whole ``backward`` for each class, with the features' gradients
read from hooks and the parameters' gradients thrown away. The rest is ``foveal.supervise.Sharpen``. Steps of all kinds
take turns and the best time of each counts, so that what else the machine does matters little. On a GPU: bf16, channels
last, batch 64, the losses' arithmetic compiled, and also the replay of a CUDA graph, which is the device's work alone;
on a CPU: float32, batch 16.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional as F

from foveal.attention import class_attention
from foveal.bench import clock, hardware, peak, write_rows
from foveal.supervise import Sharpen, confusing_class, consistency, separability

LAYERS = ("layer3", "layer4")


def two_backwards(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Cross entropy and attention losses, the maps from two backward passes through the whole network."""
    features: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: object, output: Tensor) -> None:
            output.retain_grad()
            features[name] = output

        return hook

    handles = [model.get_submodule(name).register_forward_hook(keep(name)) for name in LAYERS]
    logits = model(x)
    for handle in handles:
        handle.remove()
    maps = []
    for classes in (y, confusing_class(logits, y)[0]):
        for each in features.values():
            each.grad = None
        logits.gather(1, classes[:, None]).float().sum().backward(retain_graph=True)
        maps.append({name: class_attention(each, each.grad) for name, each in features.items()})  # type: ignore[arg-type]
    model.zero_grad()
    true, confuser = maps
    attention = sum(separability(true[name], confuser[name]) for name in LAYERS)
    return F.cross_entropy(logits.float(), y) + attention + consistency(true["layer3"], true["layer4"])


def steps(batch: int, size: int, device: torch.device, compiled: bool) -> dict[str, Callable[[], None]]:
    """Every kind of step, each with a model of its own."""
    gpu = device.type == "cuda"
    x = torch.randn(batch, 3, size, size, device=device).to(memory_format=torch.channels_last)
    y = torch.randint(0, 1000, (batch,), device=device)

    def of(loss: Callable[[nn.Module], Callable[[], Tensor]]) -> Callable[[], None]:
        torch.manual_seed(0)
        model: nn.Module = torchvision.models.resnet18().to(device, memory_format=torch.channels_last).train()
        optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        run = loss(torch.compile(model) if compiled else model)  # type: ignore[arg-type]

        def step() -> None:
            optimiser.zero_grad()
            with torch.autocast(device.type, torch.bfloat16, enabled=gpu):
                found = run()
            found.backward()
            optimiser.step()

        return step

    def sharpened(**options: object) -> Callable[[nn.Module], Callable[[], Tensor]]:
        def make(model: nn.Module) -> Callable[[], Tensor]:
            sharpen = Sharpen(model, LAYERS, **options)  # type: ignore[arg-type]

            def run() -> Tensor:
                logits, losses = sharpen(x, y)
                return F.cross_entropy(logits.float(), y) + sharpen.total(losses)

            return run

        return make

    last = {"separability_inner": 0, "consistency_inner": 0}
    found = {
        "plain": of(lambda model: lambda: F.cross_entropy(model(x).float(), y)),
        "first order": of(sharpened(order=1, compile=gpu)),
        "first order, last layer alone": of(sharpened(order=1, compile=gpu, weights=last)),
    }
    if not compiled:  # what is compiled is differentiated once, and published code hooks into it
        found["two backwards"] = of(lambda model: lambda: two_backwards(model, x, y))
        found["second order"] = of(sharpened(order=2, compile=gpu))
        found["first order, frozen batch norm"] = of(sharpened(order=1, compile=gpu, batch_norm="frozen"))
        if gpu:
            found["first order, nothing compiled"] = of(sharpened(order=1))
    return found


def as_run(kinds: dict[str, Callable[[], None]], rounds: int, device: torch.device) -> dict[str, float]:
    """Best milliseconds of each kind of step, with all the time that Python takes; they take turns."""
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(rounds):
        for name, step in kinds.items():
            start = time.perf_counter()
            step()
            if device.type == "cuda":
                torch.cuda.synchronize()
            times[name].append(1e3 * (time.perf_counter() - start))
    return {name: min(found) for name, found in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, help="64 on a GPU, 16 on a CPU")
    parser.add_argument("--size", type=int, default=224, help="side of the images")
    parser.add_argument("--rounds", type=int, help="steps of each kind: 100 on a GPU, 5 on a CPU")
    parser.add_argument("--compile", action="store_true", help="also with torch.compile")
    parser.add_argument("--csv", type=Path, help="also write the rows to this file")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    gpu = device.type == "cuda"
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    batch, rounds = options.batch or (64 if gpu else 16), options.rounds or (100 if gpu else 5)
    where = {"precision": "bf16" if gpu else "fp32", "hardware": hardware(device), "torch": torch.__version__}
    rows: list[dict[str, object]] = []
    for compiled in (False, True) if options.compile else (False,):
        kinds = steps(batch, options.size, device, compiled)
        for step in (*kinds.values(), *kinds.values()):
            step()
        values = {"step ms": as_run(kinds, rounds, device)}
        if gpu:
            values["GPU ms"] = {name: clock(step, device) for name, step in kinds.items()}
            values["peak MiB"] = {name: peak(step, above=True) for name, step in kinds.items()}
        what = f"ResNet-18 at {options.size}" + (", compiled" if compiled else "")
        for measure, found in values.items():
            for name, value in found.items():
                ratio = value / found["plain"]
                print(f"{what}, {name:34} {measure:8} {value:10.1f}  {ratio:5.2f} × plain", flush=True)
                about_it = {"what": what, "form": name, "batch": batch, "measure": measure, "value": round(value, 2)}
                rows.append(about_it | {"ratio to plain": round(ratio, 3), **where})
    if options.csv:
        write_rows(options.csv, rows)


if __name__ == "__main__":
    main()
