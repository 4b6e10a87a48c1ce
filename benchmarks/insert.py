"""What attention costs in a model: a training step and inference as you run them, beside the plain model.

    foveal bench insert resnet50 --mechanism aw
    foveal bench insert resnet50 --mechanism aw se aw+se "cbam pools=avg" --modes eager default --size 512
    foveal bench insert resnet50 --mechanism aw --profile           # where the time of one site goes
    python benchmarks/insert.py --preset h200 --minutes 9 --csv results/bench-insert.csv

A mechanism is a name of ``foveal list mechanisms``; several joined by + are inserted in turn. key=value after it are
its options, also ``at`` and ``start``. On a GPU: bf16 autocast, channels last, fused SGD with momentum; on a CPU
float32. Times are medians with all that Python takes, no CUDA graph unless the mode makes one. The first step is that
of a fresh model, on a GPU in a fresh process with empty caches; a compiled model is compiled in it.

With --csv every row is written as soon as it is measured, and rows that the file has are not measured again, so that a
long list can be measured in several sittings. Something that fails is a row with the error.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import timm
import torch
import torch.nn.functional as F
import yaml
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import foveal
from foveal.bench import cleared, clock_beside, hardware, host_time, launches, peak, peak_on_cpu, stopwatch, write_rows
from foveal.errors import UserError
from foveal.models.registry import any_model

MODES = {"eager": None, "default": "default", "reduce-overhead": "reduce-overhead"}  # and torch.compile's mode
PARTS = {"train": "a training step", "infer": "inference"}
H200 = (
    ("resnet50", 64), ("resnet34", 128), ("resnext50_32x4d", 64), ("mobilenetv2_100", 128), ("regnety_016", 128),
    ("efficientnet_b0", 64), ("convnext_tiny", 64), ("resnet50", 256),
)  # fmt: skip
PRESETS = {"h200": (H200, tuple(MODES)), "cpu": ((("resnet18", 16),), ("eager", "default"))}  # models with batch; modes
PLAIN = "plain"
KEYS = ("model", "batch", "size", "mechanism", "mode", "part", "precision", "layout", "hardware", "torch")
FIGURES = (
    "ms", "plain ms", "time ratio", "peak MiB", "plain peak MiB", "memory ratio", "first s", "plain first s",
    "compile s", "plain compile s", "error",
)  # fmt: skip
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "FOVEAL_CACHE")


@dataclass(frozen=True)
class Case:
    """One model with one mechanism in one mode.

    Attributes:
        model: name of a network of timm, torchvision or foveal.
        batch: number of images.
        size: their side in pixels; 0 for the model's own.
        mechanism: names and options, or ``plain``.
        mode: a key of MODES.
        device: ``cuda`` or ``cpu``.
        channels_last: layout of images and model.
        seconds: how long each part is measured.
    """

    model: str
    batch: int
    size: int
    mechanism: str
    mode: str
    device: str
    channels_last: bool
    seconds: float

    def build(self) -> tuple[nn.Module, Tensor]:
        """The model with its attention, and images."""
        torch.manual_seed(0)
        model = any_model(self.model)
        if self.mechanism != PLAIN:
            insert_all(model, self.mechanism)
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        images = torch.randn(self.batch, 3, self.size, self.size)
        return model.to(self.device, memory_format=layout), images.to(self.device, memory_format=layout)  # type: ignore


def insert_all(model: nn.Module, mechanism: str) -> list[foveal.attention.Insertion]:
    """Insert ``aw``, or ``aw+se reduction=8``: the options belong to the last name."""
    names, *pairs = mechanism.split()
    options = dict(pair.split("=", 1) for pair in pairs)
    *first, last = names.split("+")
    done = [foveal.insert(model, name) for name in first]
    values = {key: text if text[0] == "0" else yaml.safe_load(text) for key, text in options.items()}  # terms=0010
    return [*done, foveal.insert(model, last, **values)]


def mechanisms_of(words: list[str]) -> list[str]:
    """Words of the command line, ``["aw", "cbam", "pools=avg"]``, as mechanisms with options."""
    result: list[str] = []
    for word in " ".join(words).split():
        if "=" not in word:
            result.append(word)
        elif result and "=" not in (word[0], word[-1]):
            result[-1] += f" {word}"
        else:
            raise UserError(f"--mechanism {word}: expected the name of a mechanism, then its options as key=value")
    return result


# Measuring --------------------------------------------------------------------------------------------------------


def runner(case: Case, part: str) -> tuple[Callable[[], object], float]:
    """A training step or an inference of ``case``, and the MiB of what it keeps between steps on a CPU."""
    gpu = case.device == "cuda"
    model, images = case.build()
    autocast = torch.autocast(case.device, torch.bfloat16, enabled=gpu)
    compiled: Any = model if MODES[case.mode] is None else torch.compile(model, mode=MODES[case.mode])
    size = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers())) / 2**20
    if part == "infer":
        model.eval()

        def infer() -> object:
            with torch.inference_mode(), autocast:
                return compiled(images)

        return infer, size
    model.train()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=gpu)
    labels = torch.arange(case.batch, device=case.device) % 2

    def step() -> None:
        optimiser.zero_grad()
        with autocast:
            logits = compiled(images)
        F.cross_entropy(logits.float(), labels).backward()
        optimiser.step()

    return step, 2 * size  # with momentum


def measure(cases: Sequence[Case], part: str, caches: Path) -> list[dict[str, Any]]:
    """Milliseconds, MiB and seconds of the first step of each case, or its error; times are taken in turns."""
    device, seconds = torch.device(cases[0].device), cases[0].seconds
    runs: dict[str, Callable[[], object]] = {}
    figures: list[dict[str, Any]] = []
    for i, case in enumerate(cases):
        if MODES[case.mode] is not None:
            torch.compiler.reset()
        for name in CACHES:  # nothing that an earlier case or the user compiled or tuned
            os.environ[name] = str(caches / part / str(i) / name)
        before = cleared()
        try:
            run, held = runner(case, part)
            figures.append({"first s": stopwatch(run, device)})
            if device.type == "cuda":
                figures[i]["peak MiB"] = peak(lambda run=run: [run() for _ in range(4)]) - before
            else:
                figures[i]["peak MiB"] = peak_on_cpu(run) + held
            runs[str(i)] = run
        except Exception as error:
            traceback.print_exc()
            figures[i:] = [{"error": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}]
    for name, milliseconds in clock_beside(runs, device, seconds).items() if runs else ():
        figures[int(name)]["ms"] = milliseconds
    return figures


def measure_apart(case: Case, parts: Sequence[str], timeout: float) -> dict[str, dict[str, Any]]:
    """The same for one case in a process of its own, by part."""
    words = [sys.executable, __file__, "--case", json.dumps(asdict(case)), "--parts", *parts]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return {part: {"error": f"not done after {timeout:.0f} s"} for part in parts}
    last = (done.stderr.strip().splitlines() or [""])[-1][:200]
    figures = {part: {"error": f"the process ended with status {done.returncode}: {last}"} for part in parts}
    for line in done.stdout.splitlines():
        if line.startswith('{"part"'):
            measured = json.loads(line)
            figures[measured.pop("part")] = measured
    return figures


def group_figures(cases: list[Case], options: argparse.Namespace) -> Iterator[tuple[Case, dict[str, Any]]]:
    """Measure a plain model and the same with mechanisms; yields each of the latter with its rows by part."""
    plain, *attended = cases
    if options.isolate:
        beside = measure_apart(plain, options.parts, options.timeout)
        for case in attended:
            apart = measure_apart(case, options.parts, options.timeout)
            yield case, {part: compared(case, part, beside[part], figures) for part, figures in apart.items()}
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        measured = {part: measure(cases, part, Path(folder)) for part in options.parts}
    for i, case in enumerate(attended, 1):
        yield case, {part: compared(case, part, rows[0], rows[i]) for part, rows in measured.items()}


def compared(case: Case, part: str, plain: dict[str, Any], figures: dict[str, Any]) -> dict[str, object]:
    """A row: a model with attention beside the plain one."""
    error = f"plain model: {plain['error']}" if "error" in plain else figures.get("error", "")
    row = key_of(case, part) | dict.fromkeys(FIGURES, "") | {"error": error}
    if not error:
        row |= {name: round(figures[name], 3) for name in ("ms", "peak MiB", "first s")}
        row |= {f"plain {name}": round(plain[name], 3) for name in ("ms", "peak MiB", "first s")}
        row["time ratio"] = round(figures["ms"] / plain["ms"], 3)
        row["memory ratio"] = round(figures["peak MiB"] / plain["peak MiB"], 3)
        if MODES[case.mode] is not None:
            row["compile s"] = round(figures["first s"] - figures["ms"] / 1e3, 2)
            row["plain compile s"] = round(plain["first s"] - plain["ms"] / 1e3, 2)
    return row


def key_of(case: Case, part: str) -> dict[str, object]:
    """What a row is about; a file has one row for each."""
    device = torch.device(case.device)
    return {
        "model": case.model, "batch": case.batch, "size": case.size, "mechanism": case.mechanism, "mode": case.mode,
        "part": part, "precision": "bf16" if device.type == "cuda" else "fp32",
        "layout": "channels last" if case.channels_last else "channels first",
        "hardware": hardware(device), "torch": torch.__version__,
    }  # fmt: skip


# Host time of one site --------------------------------------------------------------------------------------------


def profile(case: Case, console: Console) -> None:
    """Print what one site costs Python and how many kernels it launches, plain and with its mechanism."""
    model, images = case.build()
    sites = insert_all(any_model(case.model), case.mechanism)[-1].sites
    site, device = sites[len(sites) // 2], torch.device(case.device)
    inputs: list[Tensor] = []
    layer = model.get_submodule(site)
    hook = layer.register_forward_pre_hook(lambda _, args: inputs.append(args[0].detach()))
    autocast = torch.autocast(case.device, torch.bfloat16, enabled=device.type == "cuda")
    with torch.no_grad(), autocast:
        model(images)
    hook.remove()
    x = inputs[0].clone().requires_grad_()
    table = Table("", "forward µs", "with backward µs", "launches", "with backward", title=f"{site}, {tuple(x.shape)}")
    for name, network in ((PLAIN, replace(case, mechanism=PLAIN).build()[0]), (case.mechanism, model)):
        layer = network.train().get_submodule(site)
        with autocast:
            gradient = torch.ones_like(layer(x))

            def forward(layer: nn.Module = layer) -> object:
                return layer(x)

            def both(layer: nn.Module = layer, gradient: Tensor = gradient) -> None:
                layer(x).backward(gradient)

            for _ in range(3):
                both()
            times = [f"{host_time(run, device):.0f}" for run in (forward, both)]
            counts = [str(launches(run)) if device.type == "cuda" else "" for run in (forward, both)]
        table.add_row(name, *times, *counts)
    console.print(table)
    with torch.profiler.profile() as profiler, autocast:
        both()
    console.print(profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=15), soft_wrap=True)


# The command ------------------------------------------------------------------------------------------------------


def groups(options: argparse.Namespace) -> Iterator[list[Case]]:
    """The plain model and the same with every mechanism, one list for a model, batch and mode; important ones first."""
    preset, preset_modes = PRESETS.get(options.preset, ([(options.model, options.batch)], ()))
    modes = options.modes or preset_modes or (("eager", "default") if options.device == "cuda" else ("eager",))
    late = [[mode for mode in modes if (mode == "reduce-overhead") is late] for late in (False, True)]
    for chosen in late:
        for model, batch in preset:
            config = timm.get_pretrained_cfg(model) if timm.is_model(model) else None
            size = options.size or (config.input_size[-1] if config else 224)
            mechanisms = options.mechanism or usual_mechanisms(model)
            for mode in chosen:
                yield [
                    Case(model, batch, size, name, mode, options.device, options.channels_last, options.seconds)
                    for name in (PLAIN, *mechanisms)
                ]


def usual_mechanisms(model: str) -> list[str]:
    """Mechanisms that have usual places in a model and need no options; those of the tables first."""
    names = sorted(foveal.mechanisms(), key=lambda name: (*(name != known for known in ("aw", "se", "cbam")), name))
    network, usual = any_model(model), []
    for name in names:
        with contextlib.suppress(UserError):
            foveal.insert(network, name).eject()
            usual.append(name)
    return usual


def sentence(row: dict[str, Any]) -> str:
    """A row in words."""
    what = f"{row['mechanism']} in {row['model']}, batch {row['batch']}, {row['size']}×{row['size']}, {row['mode']}"
    if row["error"]:
        return f"{what}, {row['part']}: {row['error']}"
    later = float(row["first s"]) - float(row["plain first s"])
    return (
        f"{what}: {float(row['time ratio']):.2f}× the time of {PARTS[row['part']]} "
        f"({float(row['plain ms']):.1f} → {float(row['ms']):.1f} ms), {float(row['memory ratio']):.2f}× the memory, "
        f"{later:+.1f} s at the first one"
    )


def show(rows: list[dict[str, Any]], console: Console) -> None:
    """Print a table of rows."""
    table = Table(title="attention beside the plain model in the same mode", caption=str(rows[0]["hardware"]))
    for head in ("model, batch", "mechanism", "mode", "part"):
        table.add_column(head)
    for head in ("time", "ms (plain)", "memory", "MiB (plain)", "first, s (plain)"):
        table.add_column(head, justify="right")
    for row in rows:
        cells = [f"{row['model']}, {row['batch']}", row["mechanism"], row["mode"], row["part"]]
        if row["error"]:
            table.add_row(*cells, "failed")
            continue
        ratios = [f"{float(row[f'{name} ratio']):.2f}×" for name in ("time", "memory")]
        pairs = [
            f"{float(row[name]):.{digits}f} ({float(row[f'plain {name}']):.{digits}f})"
            for name, digits in (("ms", 1), ("peak MiB", 0), ("first s", 1))
        ]
        table.add_row(*cells, ratios[0], pairs[0], ratios[1], *pairs[1:])
    console.print(table)


def read_rows(path: Path | None) -> dict[tuple[str, ...], dict[str, Any]]:
    """Rows of a file, by what they are about."""
    if path is None or not path.exists():
        return {}
    with open(path, newline="", encoding="utf-8") as file:
        return {row_key(row): row for row in csv.DictReader(file)}


def row_key(row: dict[str, Any]) -> tuple[str, ...]:
    return tuple(str(row[name]) for name in KEYS)


def run_all(options: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    """Measure what is not in the file yet, write it there, and return the rows that were asked for."""
    known = {} if options.again else read_rows(options.csv)
    written = read_rows(options.csv)
    asked: list[dict[str, Any]] = []
    until = time.monotonic() + 60 * options.minutes
    for plain, *attended in list(groups(options)):
        keys = {case: [row_key(key_of(case, part)) for part in options.parts] for case in attended}
        asked += [known[key] for case in attended for key in keys[case] if key in known]
        missing = [case for case in attended if not all(key in known for key in keys[case])]
        if not missing or time.monotonic() > until:
            continue
        what = f"{plain.model}, batch {plain.batch}, {plain.mode}: plain, {', '.join(c.mechanism for c in missing)}"
        with console.status(f"measuring {what}"):
            for _, rows in group_figures([plain, *missing], options):
                for row in rows.values():
                    asked.append(row)
                    written[row_key(row)] = row
                    console.print(sentence(row), soft_wrap=True, highlight=False, markup=False)
                    if options.csv:
                        write_rows(options.csv, list(written.values()))
                if time.monotonic() > until:
                    break
    return asked


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options, with those that depend on the machine."""
    gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="a network of timm, torchvision or foveal")
    parser.add_argument("--mechanism", nargs="+", help="names with options; all with usual places if left out")
    parser.add_argument("--preset", choices=PRESETS, help="a list of models and batches instead of one model")
    parser.add_argument("--batch", type=int, default=64 if gpu else 8)
    parser.add_argument("--size", type=int, default=0, help="side of the images; the model's own if left out")
    parser.add_argument("--modes", nargs="+", choices=MODES, help="eager and default on a GPU, eager on a CPU")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seconds", type=float, default=2.0 if gpu else 6.0, help="how long each is repeated")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if gpu else "cpu")
    parser.add_argument("--channels-last", action=argparse.BooleanOptionalAction, help="on a GPU unless said otherwise")
    parser.add_argument("--isolate", action=argparse.BooleanOptionalAction, help="a process each; on a GPU likewise")
    parser.add_argument("--timeout", type=float, default=600, help="seconds that such a process may take")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin nothing more after this time")
    parser.add_argument("--csv", type=Path, help="write rows to this file; those it has are not measured again")
    parser.add_argument("--again", action="store_true", help="measure them again")
    parser.add_argument("--profile", action="store_true", help="instead: host time and launches of one site")
    parser.add_argument("--case", help=argparse.SUPPRESS)  # one process of --isolate
    options = parser.parse_args(arguments)
    for name in ("channels_last", "isolate"):
        if getattr(options, name) is None:
            setattr(options, name, options.device == "cuda")
    if not (options.model or options.preset or options.case):
        raise UserError("which model? for example: foveal bench insert resnet50 --mechanism aw")
    options.mechanism = mechanisms_of(options.mechanism or [])
    return options


def main(arguments: list[str] | None = None) -> None:
    options, console = parsed(arguments), Console()
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    if options.case:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            for part in options.parts:
                (figures,) = measure([Case(**json.loads(options.case))], part, Path(folder))
                print(json.dumps({"part": part, **figures}), flush=True)
        return
    if options.profile:
        for _, *attended in groups(options):
            for case in attended:
                profile(case, console)
        return
    if options.model:
        for mechanism in options.mechanism:
            insert_all(any_model(options.model), mechanism)  # a mistake is said before anything is measured
    rows = run_all(options, console)
    if rows:
        show(rows, console)


if __name__ == "__main__":
    main()
