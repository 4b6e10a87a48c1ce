"""A training step with attention separability and consistency beside the plain step and the obvious way to do it.

    foveal bench icasc                                # this machine
    foveal bench icasc --models resnet34 --rounds 20
    foveal bench icasc --models convnext_tiny --at stages.2 stages.3
    python benchmarks/icasc.py --csv results/bench-icasc.csv

Images of 224×224, target and confuser maps at the last two stages. ``plain`` is forward, cross entropy, backward and
SGD. ``first order`` and ``second order`` are ``foveal.supervise.Sharpen`` without any other option. Of the first model
there are more forms; ``two backwards`` is how published code does it: a whole ``backward`` for each class, with the
features' gradients read from hooks and the parameters' gradients thrown away. Steps of all kinds take turns and the
best time of each counts, so that what else the machine does matters little. On a GPU: bf16, channels last, batch 64,
and also the replay of a CUDA graph, which is the device's work alone; on a CPU: float32, batch 16.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foveal.attention import class_attention
from foveal.bench import cleared, clock, hardware, peak, write_rows
from foveal.errors import UserError
from foveal.models.registry import any_model
from foveal.supervise import Sharpen, confusing_class, consistency, separability

MODELS = ("resnet18", "resnet50", "regnety_016")
STAGES = (("layer3", "layer4"), ("s3", "s4"), ("stages.2", "stages.3"))  # ResNets; RegNets; ConvNeXt and others


def last_stages(model: nn.Module) -> tuple[str, str]:
    """Names of the inner and the last layer whose maps are compared."""
    names = {name for name, _ in model.named_modules()}
    for stages in STAGES:
        if names.issuperset(stages):
            return stages
    raise UserError("the last two stages have none of the usual names; give them with --at INNER LAST")


def two_backwards(model: nn.Module, at: tuple[str, str], x: Tensor, y: Tensor) -> Tensor:
    """Cross entropy and attention losses, the maps from two backward passes through the whole network."""
    features: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: object, output: Tensor) -> None:
            output.retain_grad()
            features[name] = output

        return hook

    handles = [model.get_submodule(name).register_forward_hook(keep(name)) for name in at]
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
    attention = sum(separability(true[name], confuser[name]) for name in at)
    return F.cross_entropy(logits.float(), y) + attention + consistency(true[at[0]], true[at[1]])


def steps(
    name: str, at: tuple[str, str] | None, batch: int, size: int, device: torch.device, compiled: bool, all_forms: bool
) -> dict[str, Callable[[], None]]:
    """Every kind of step, each with a model of its own; without ``all_forms`` plain, first and second order."""
    gpu = device.type == "cuda"
    x = torch.randn(batch, 3, size, size, device=device).to(memory_format=torch.channels_last)
    y = torch.randint(0, 10, (batch,), device=device)  # every network has that many classes
    layers = at or last_stages(any_model(name))

    def of(loss: Callable[[nn.Module], Callable[[], Tensor]]) -> Callable[[], None]:
        torch.manual_seed(0)
        model = any_model(name).to(device, memory_format=torch.channels_last).train()  # type: ignore[call-overload]
        optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        run = loss(torch.compile(model) if compiled else model)

        def step() -> None:
            optimiser.zero_grad()
            with torch.autocast(device.type, torch.bfloat16, enabled=gpu):
                total = run()
            total.backward()
            optimiser.step()

        return step

    def sharpened(**options: object) -> Callable[[nn.Module], Callable[[], Tensor]]:
        def make(model: nn.Module) -> Callable[[], Tensor]:
            sharpen = Sharpen(model, layers, **options)  # type: ignore[arg-type]

            def run() -> Tensor:
                logits, losses = sharpen(x, y)
                return F.cross_entropy(logits.float(), y) + sharpen.total(losses)

            return run

        return make

    kinds = {
        "plain": of(lambda model: lambda: F.cross_entropy(model(x).float(), y)),
        "first order": of(sharpened()),
    }
    if not compiled:  # what is compiled is differentiated once, and published code hooks into it
        kinds["second order"] = of(sharpened(order=2))
    if all_forms:
        kinds["first order, last layer alone"] = of(
            sharpened(weights={"separability_inner": 0, "consistency_inner": 0})
        )
    if all_forms and not compiled:
        kinds["first order, frozen batch norm"] = of(sharpened(batch_norm="frozen"))
        kinds["two backwards"] = of(lambda model: lambda: two_backwards(model, layers, x, y))
    return kinds


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
    return {name: min(taken) for name, taken in times.items()}


def measured(kinds: dict[str, Callable[[], None]], rounds: int, device: torch.device) -> dict[str, dict[str, float]]:
    """Time of each kind of step, and on a GPU also that of the device alone and peak memory, by measure."""
    for step in (*kinds.values(), *kinds.values()):
        step()
    values = {"step ms": as_run(kinds, rounds, device)}
    if device.type == "cuda":
        values["GPU ms"] = {name: clock(step, device) for name, step in kinds.items()}
        values["peak MiB"] = {name: peak(step, above=True) for name, step in kinds.items()}
    return values


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=MODELS, help="networks of timm, torchvision or foveal")
    parser.add_argument("--at", nargs=2, metavar=("INNER", "LAST"), help="layers with maps; the last two stages")
    parser.add_argument("--batch", type=int, help="64 on a GPU, 16 on a CPU")
    parser.add_argument("--size", type=int, default=224, help="side of the images")
    parser.add_argument("--rounds", type=int, help="steps of each kind: 50 on a GPU, 5 on a CPU")
    parser.add_argument("--compile", action="store_true", help="also with torch.compile")
    parser.add_argument("--csv", type=Path, help="also write the rows to this file")
    options = parser.parse_args(words)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    gpu = device.type == "cuda"
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    batch, rounds = options.batch or (64 if gpu else 16), options.rounds or (50 if gpu else 5)
    where = {"precision": "bf16" if gpu else "fp32", "hardware": hardware(device), "torch": torch.__version__}
    rows: list[dict[str, object]] = []
    for model in options.models:
        for compiled in (False, True) if options.compile else (False,):
            cleared()
            at = tuple(options.at) if options.at else None
            kinds = steps(model, at, batch, options.size, device, compiled, model == options.models[0])
            what = f"{model} at {options.size}" + (", compiled" if compiled else "")
            for measure, values in measured(kinds, rounds, device).items():
                for name, value in values.items():
                    ratio = value / values["plain"]
                    print(f"{what}, {name:30} {measure:8} {value:10.1f}  {ratio:5.2f} × plain", flush=True)
                    row = {"what": what, "form": name, "batch": batch, "measure": measure, "value": round(value, 2)}
                    rows.append(row | {"ratio to plain": round(ratio, 3), **where, "model": model})
            del kinds
    if options.csv:
        write_rows(options.csv, rows)


if __name__ == "__main__":
    main()
