"""What attention costs in a model: a training step and inference as you run them, beside the plain model.

    foveal bench insert resnet50 --mechanism aw
    foveal bench insert resnet50 --mechanism aw se aw+se "cbam pools=avg" --modes eager default --size 512
    foveal bench insert resnet50 --mechanism aw --profile           # where the time of one site goes
    python benchmarks/insert.py --preset h200 --jobs 8 --minutes 8 --csv results/bench-insert.csv

A mechanism is a name of ``foveal list mechanisms``; several joined by + are inserted in turn. key=value after it are
its options, also ``at`` and ``start``. On a GPU: bf16 autocast, channels last, fused SGD with momentum; on a CPU
float32. cuDNN does not search for the fastest convolutions (torch.backends.cudnn.benchmark is off, as PyTorch starts).
Times are medians with all that Python takes, no CUDA graph unless the mode makes one. The first step is that of a fresh
model, on a GPU in a fresh process with empty caches; a compiled model is compiled in it.

With --jobs several processes prepare their models side by side. While one times itself the others are stopped, so that
its milliseconds are those of a machine that does nothing else. Seconds of first steps and of compiling are taken in
company, without the time that a process was stopped; the column jobs says how many processes there were.

With --csv every row is written as soon as it is measured, and rows that the file has are not measured again, so that a
long list can be measured in several sittings. Something that fails is a row with the error.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import timm
import torch
import yaml
from rich.console import Console
from rich.status import Status
from torch import Tensor, nn

import foveal
from foveal.bench import cleared, clock_beside, peak, peak_on_cpu, stopwatch
from foveal.bench.prices import MODES, PARTS, PLAIN, Case, Rows, compared, key_of, row_key, sentence, show
from foveal.bench.processes import Job, side_by_side, wait_for_turn
from foveal.bench.steps import profile_site, step_of
from foveal.errors import UserError
from foveal.models.registry import any_model

H200 = (
    ("resnet50", 64), ("resnet34", 128), ("resnext50_32x4d", 64), ("mobilenetv2_100", 128), ("regnety_016", 128),
    ("efficientnet_b0", 64), ("convnext_tiny", 64), ("resnet50", 256),
)  # fmt: skip
PRESETS = {"h200": (H200, tuple(MODES)), "cpu": ((("resnet18", 16),), ("eager", "default"))}  # models with batch; modes
FIRST = ("aw", "se", "cbam")  # mechanisms that are measured before the others
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "FOVEAL_CACHE")


def build(case: Case) -> tuple[nn.Module, Tensor]:
    """The model with its attention, and images."""
    torch.manual_seed(0)
    model = any_model(case.model)
    if case.mechanism != PLAIN:
        insert_all(model, case.mechanism)
    layout = torch.channels_last if case.channels_last else torch.contiguous_format
    images = torch.randn(case.batch, 3, case.size, case.size)
    return model.to(case.device, memory_format=layout), images.to(case.device, memory_format=layout)  # type: ignore


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


def measure(
    cases: Sequence[Case], part: str, caches: Path, wait: Callable[[str], None] = lambda part: None
) -> list[dict[str, Any]]:
    """Milliseconds, MiB and seconds of the first step of each case, or its error; times are taken in turns.

    ``wait(part)`` is called before, when all else is done.
    """
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
            run, held = step_of(*build(case), part, MODES[case.mode])
            begin = time.monotonic()
            figures.append({"first s": stopwatch(run, device)})
            figures[i]["spans"] = {"first s": (begin, time.monotonic())}
            if device.type == "cuda":
                figures[i]["peak MiB"] = peak(lambda run=run: [run() for _ in range(4)]) - before
            else:
                figures[i]["peak MiB"] = peak_on_cpu(run) + held
            runs[str(i)] = run
        except Exception as error:
            traceback.print_exc()
            figures[i:] = [{"error": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}]
    if runs:
        wait(part)
        for name, milliseconds in clock_beside(runs, device, seconds).items():
            figures[int(name)]["ms"] = milliseconds
    return figures


def measure_as_child(case: Case, parts: Sequence[str]) -> None:
    """Measure in a process of ``side_by_side``."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for part in parts:
            (figures,) = measure([case], part, Path(folder), wait_for_turn)
            print(json.dumps({"part": part, **figures}), flush=True)


def profile(plain: Case, case: Case, console: Console) -> None:
    """Print what the middle site of a mechanism costs, beside the plain layer."""
    sites = insert_all(any_model(case.model), case.mechanism)[-1].sites
    models = {one.mechanism: build(one)[0] for one in (plain, case)}
    profile_site(models, sites[len(sites) // 2], build(case)[1], console)


# The command ------------------------------------------------------------------------------------------------------


def groups(options: argparse.Namespace) -> list[list[Case]]:
    """The plain model and the same with some mechanisms, one list for a model, batch and mode; important ones first.

    Those are FIRST in all models, without compiling and then compiled; then the other mechanisms; then CUDA graphs.
    """
    preset, preset_modes = PRESETS.get(options.preset, ([(options.model, options.batch)], ()))
    modes = options.modes or preset_modes or (("eager", "default") if options.device == "cuda" else ("eager",))
    found: list[tuple[tuple[bool, bool, int], list[Case]]] = []
    for model, batch in preset:
        config = timm.get_pretrained_cfg(model) if timm.is_model(model) else None
        size = options.size or (config.input_size[-1] if config else 224)
        usual = [] if options.mechanism else usual_mechanisms(model)
        first = options.mechanism or [name for name in usual if name in FIRST]
        others = [name for name in usual if name not in FIRST]
        for mode in modes:
            for late, mechanisms in enumerate((first, others)):
                order = (mode == "reduce-overhead", bool(late), 0 if late else list(MODES).index(mode))
                cases = [
                    Case(model, batch, size, name, mode, options.device, options.channels_last, options.seconds)
                    for name in (PLAIN, *mechanisms)
                ]
                found += [(order, cases)] if mechanisms else []
    return [cases for _, cases in sorted(found, key=lambda pair: pair[0])]


@functools.cache
def usual_mechanisms(model: str) -> list[str]:
    """Mechanisms that have usual places in a model and need no options; those of the tables first."""
    names = sorted(foveal.mechanisms(), key=lambda name: (*(name != known for known in FIRST), name))
    usual = []
    with torch.device("meta"):  # nothing is initialised
        network = any_model(model)
        for name in names:
            with contextlib.suppress(UserError):
                foveal.insert(network, name).eject()
                usual.append(name)
    return usual


def measured_together(
    plan: list[list[Case]], rows: Rows, options: argparse.Namespace, until: float, status: Status
) -> Iterator[dict[str, Any]]:
    """Rows measured in this process, those of a group in turns."""
    for plain, *attended in plan:
        missing = [case for case in attended if rows.missing(case, options.parts)]
        if not missing or time.monotonic() > until:
            continue
        status.update(f"measuring {plain}, and with {', '.join(case.mechanism for case in missing)}")
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            measured = {part: measure([plain, *missing], part, Path(folder)) for part in options.parts}
        for i, case in enumerate(missing, 1):
            for part, figures in measured.items():
                yield compared(case, part, figures[0], figures[i], 1)


def measured_apart(
    plan: list[list[Case]], rows: Rows, options: argparse.Namespace, until: float, status: Status
) -> Iterator[dict[str, Any]]:
    """Rows measured in a process for each case, ``options.jobs`` side by side."""
    figures: dict[tuple[Case, str], dict[str, Any]] = {}
    waiting: list[tuple[Case, str]] = []  # for the plain model
    jobs = jobs_of(plan, rows, options, figures)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        environment = {"TMPDIR": folder}  # also what a killed process leaves there goes
        if options.jobs > 1:
            environment["TORCHINDUCTOR_COMPILE_THREADS"] = str(max(1, (os.cpu_count() or 1) // options.jobs))
        reports = side_by_side(
            announced(jobs, status), most=options.jobs, timeout=options.timeout, until=until, environment=environment
        )
        with contextlib.closing(reports):
            for job, part, reported in reports:
                figures[job.name, part] = reported
                if job.name.mechanism != PLAIN:
                    waiting.append((job.name, part))
                for key in list(waiting):
                    plain = figures.get((replace(key[0], mechanism=PLAIN), key[1]))
                    if plain is not None:
                        waiting.remove(key)
                        yield compared(*key, plain, figures[key], options.jobs)


def announced(jobs: list[Job], status: Status) -> Iterator[Job]:
    """The jobs, each shown when it is taken."""
    for i, job in enumerate(jobs, 1):
        status.update(f"measuring {i} of {len(jobs)}: {job.name}")
        yield job


def jobs_of(
    plan: list[list[Case]], rows: Rows, options: argparse.Namespace, figures: dict[tuple[Case, str], dict[str, Any]]
) -> list[Job]:
    """What is not known yet, plain models first; puts what rows say of plain models into ``figures``."""
    parts: dict[Case, list[str]] = {}
    for plain, *attended in plan:
        missing = {case: rows.missing(case, options.parts) for case in attended}
        for part in options.parts:
            if any(part in names for names in missing.values()) and part not in parts.setdefault(plain, []):
                known = rows.plain(plain, part, options.jobs)
                if known:
                    figures[plain, part] = known
                else:
                    parts[plain].append(part)
        parts |= missing
    return [
        Job(case, (sys.executable, __file__, "--case", json.dumps(asdict(case)), "--parts"), names)
        for case, names in parts.items()
        if names
    ]


def run_all(options: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    """Measure what is not in the file yet, write it there, and return the rows that were asked for."""
    rows, plan = Rows(options.csv, options.again), groups(options)
    until = time.monotonic() + 60 * options.minutes
    measured = measured_apart if options.isolate else measured_together
    with console.status("measuring") as status, contextlib.closing(measured(plan, rows, options, until, status)) as new:
        for row in new:
            rows.add(row)
            console.print(sentence(row), soft_wrap=True, highlight=False, markup=False)
    asked = [row_key(key_of(case, part)) for _, *attended in plan for case in attended for part in options.parts]
    return [rows.known[key] for key in asked if key in rows.known]


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
    parser.add_argument("--seconds", type=float, default=1.5 if gpu else 6.0, help="how long each is repeated")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if gpu else "cpu")
    parser.add_argument("--channels-last", action=argparse.BooleanOptionalAction, help="on a GPU unless said otherwise")
    parser.add_argument("--isolate", action=argparse.BooleanOptionalAction, help="a process each; on a GPU likewise")
    parser.add_argument("--jobs", type=int, default=1, help="such processes side by side, each timed alone")
    parser.add_argument("--timeout", type=float, default=600, help="seconds that such a process may take")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin nothing more after this time")
    parser.add_argument("--csv", type=Path, help="write rows to this file; those it has are not measured again")
    parser.add_argument("--again", action="store_true", help="measure them again")
    parser.add_argument("--profile", action="store_true", help="instead: host time and launches of one site")
    parser.add_argument("--case", help=argparse.SUPPRESS)  # one process of --isolate
    options = parser.parse_args(arguments)
    for name in ("channels_last", "isolate"):
        if getattr(options, name) is None:
            setattr(options, name, options.device == "cuda" or (name == "isolate" and options.jobs > 1))
    if options.jobs < 1 or (options.jobs > 1 and not options.isolate):
        raise UserError(f"--jobs {options.jobs}: expected at least 1, and 1 with --no-isolate")
    if not (options.model or options.preset or options.case):
        raise UserError("which model? for example: foveal bench insert resnet50 --mechanism aw")
    options.mechanism = mechanisms_of(options.mechanism or [])
    return options


def main(arguments: list[str] | None = None) -> None:
    options, console = parsed(arguments), Console()
    torch.set_float32_matmul_precision("high")
    if options.case:
        measure_as_child(Case(**json.loads(options.case)), options.parts)
        return
    if options.profile:
        for plain, *attended in groups(options):
            for case in attended:
                profile(plain, case, console)
        return
    if options.model:
        for mechanism in options.mechanism:
            insert_all(any_model(options.model), mechanism)  # a mistake is said before anything is measured
    rows = run_all(options, console)
    if rows:
        show(rows, console)


if __name__ == "__main__":
    main()
