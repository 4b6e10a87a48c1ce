"""What attention costs in a model: a training step and inference as you run them, beside the plain model.

    foveal bench insert resnet50 --mechanism aw
    foveal bench insert resnet50 --mechanism aw se aw+se "cbam pools=avg" --modes eager default --size 512
    foveal bench insert resnet50 --mechanism aw none                # and a second plain model: what chance does
    foveal bench insert resnet50 --mechanism aw --first             # also how long the first step takes
    foveal bench insert resnet50 --mechanism aw --profile           # where the time of one site goes
    python benchmarks/insert.py --preset h200 --jobs 8 --minutes 8 --csv results/bench-insert.csv

A mechanism is a name of ``foveal list mechanisms``; several joined by + are inserted in turn. key=value after it are
its options, also ``at`` and ``start``. ``none`` is the plain model once more: how far its ratio is from 1 is chance.

On a GPU: bf16 autocast, channels last, fused SGD with momentum; on a CPU float32. cuDNN does not search for the fastest
convolutions (torch.backends.cudnn.benchmark is off, as PyTorch starts). Times are medians with all that Python takes,
without a CUDA graph unless the mode makes one.

The plain model and the same with each mechanism are in one process, and are timed in turns: milliseconds of the same
model differ by a quarter between processes, so that only ratios within one mean something. On a GPU, and with --jobs,
each such group is for one part a process of its own. With --jobs several of them prepare their models side by side;
while one is timed the others are stopped. They keep their memory on the GPU; with --jobs 1 there are none.

``gpu ms`` are those of the kernels alone, one after the other. Where they are far less than ``ms``, the GPU waits for
Python: a faster host, a larger batch or a CUDA graph brings the ratio towards that of the GPU.

The first step, in which a model is compiled, is measured only with --first: afterwards, in a fresh process with empty
caches for each model, because kernels that one model compiled stay in the memory of its process. With --jobs these
run side by side and are slower for it; the column jobs says how many processes there were. Without --first the columns
are empty.

With --csv every row is written as soon as it is measured, and what the file has is not measured again, so that a long
list can be measured in several sittings. Something that fails is a row with the error.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
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
from rich.console import Console
from rich.status import Status
from torch import Tensor, nn

import foveal
from foveal.bench import cleared, clock_beside, gpu_time, peak, peak_on_cpu, stopwatch
from foveal.bench.prices import MODES, PARTS, PLAIN, Case, Rows, compared, sentence, table
from foveal.bench.processes import Job, Report, side_by_side, wait_for_turn
from foveal.bench.steps import profile_site, step_of
from foveal.compat import raise_recompile_limit
from foveal.errors import UserError
from foveal.models.registry import any_model
from foveal.recipe.loading import mechanism_options

H200 = (
    ("resnet50", 64), ("resnet34", 128), ("resnext50_32x4d", 64), ("mobilenetv2_100", 128), ("regnety_016", 128),
    ("efficientnet_b0", 64), ("convnext_tiny", 64), ("resnet50", 256),
)  # fmt: skip
PRESETS = {"h200": (H200, tuple(MODES)), "cpu": ((("resnet18", 16),), ("eager", "default"))}  # models with batch; modes
FIRST = ("aw", "se", "cbam")  # mechanisms that are measured before the others
NONE = "none"  # the mechanism of a second plain model
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
    """Insert ``aw``, or ``aw+se reduction=8``: the options belong to the last name; nothing if it is ``none``."""
    names, *pairs = mechanism.split()
    if names == NONE and not pairs:
        return []
    *first, last = names.split("+")
    done = [foveal.insert(model, name) for name in first]
    return [*done, foveal.insert(model, last, **mechanism_options(pairs))]


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


def measure(cases: Sequence[Case], part: str, wait: Callable[[str], None] = lambda part: None) -> list[dict[str, Any]]:
    """Milliseconds and MiB of each case, or its error; times are taken in turns.

    ``wait(part)`` is called before, when all else is done.
    """
    if MODES[cases[0].mode] is not None:
        torch.compiler.reset()
        raise_recompile_limit()  # the models share the code of their classes
    runs: dict[str, Callable[[], object]] = {}
    figures: list[dict[str, Any]] = []
    for i, case in enumerate(cases):
        try:
            runs[str(i)], mebibytes = prepare(case, part)
            figures.append({"peak MiB": mebibytes})
        except Exception as error:
            traceback.print_exc()
            figures.append({"error": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"})
    if runs:
        wait(part)
        for name, milliseconds in clock_beside(runs, torch.device(cases[0].device), cases[0].seconds).items():
            figures[int(name)]["ms"] = milliseconds
        for name, run in runs.items() if cases[0].device == "cuda" else ():
            figures[int(name)]["gpu ms"] = gpu_time(run)
    return figures


def prepare(case: Case, part: str) -> tuple[Callable[[], object], float]:
    """A function that does ``part`` and has done it before, and its peak MiB."""
    before = cleared()
    run, held = step_of(*build(case), part, MODES[case.mode])
    run()
    if case.device == "cuda":
        return run, peak(lambda: [run() for _ in range(4)]) - before
    return run, peak_on_cpu(run) + held


def first_step(case: Case, part: str) -> dict[str, float]:
    """Seconds of the first step of a model; in a fresh process."""
    run, _ = step_of(*build(case), part, MODES[case.mode])
    return {"first s": stopwatch(run, torch.device(case.device))}


@contextlib.contextmanager
def empty_caches() -> Iterator[None]:
    """Nothing that the user compiled or tuned; the folders are looked up whenever they are used."""
    before = {name: os.environ[name] for name in CACHES if name in os.environ}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ.update({name: str(Path(folder, name)) for name in CACHES})
        yield
    for name in CACHES:
        del os.environ[name]
    os.environ.update(before)


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
    """Mechanisms that have default sites in a model and need no options; those of the tables first."""
    names = sorted(foveal.mechanisms(), key=lambda name: (*(name != known for known in FIRST), name))
    network, usual = any_model(model), []
    for name in names:
        with contextlib.suppress(UserError):
            foveal.insert(network, name).eject()
            usual.append(name)
    return usual


def jobs_of(
    plan: list[list[Case]], rows: Rows, options: argparse.Namespace, first: bool, status: Status
) -> Iterator[Job]:
    """What is not known yet: a process for each group, or for each first step; shown when it is taken."""
    words = (sys.executable, __file__, *(["--first"] if first else []), "--job")
    for plain, *attended in plan:
        missing = {case: rows.missing(case, options.parts, "first s" if first else "ms") for case in attended}
        cases = [plain, *(case for case in attended if missing[case])]
        parts = [part for part in options.parts if any(part in names for names in missing.values())]
        if parts:
            status.update(f"measuring {', '.join([str(plain), *(case.mechanism for case in cases[1:])])}")
        items = [asdict(case) for case in cases]
        for part in parts:  # compiled separately, and so in processes of their own
            yield from (Job(words, of, [part]) for of in ([[item] for item in items] if first else [items]))


def reports(jobs: Iterator[Job], options: argparse.Namespace, until: float, first: bool) -> Iterator[Report]:
    """Figures of the parts of jobs, on a CPU measured in this process unless that must not be."""
    if options.device == "cpu" and options.jobs == 1 and not first:
        with empty_caches():
            for job in itertools.takewhile(lambda job: time.monotonic() < until, jobs):
                yield from ((job, part, measure([Case(**item) for item in job.items], part)) for part in job.parts)
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        environment = {"TMPDIR": folder}  # also what a killed process leaves there goes
        if options.jobs > 1:
            environment["TORCHINDUCTOR_COMPILE_THREADS"] = str(max(1, (os.cpu_count() or 1) // options.jobs))
        yield from side_by_side(jobs, most=options.jobs, timeout=options.timeout, until=until, environment=environment)


def joined(new: Iterator[Report], rows: Rows, jobs: int, first: bool) -> Iterator[dict[str, Any]]:
    """Rows of reports: first steps of any two processes, but times only of one process."""
    known: dict[tuple[Case, str], dict[str, Any] | None] = {}
    for job, part, figures in new:
        if not first:
            known.clear()
        known |= {(Case(**item), part): one for item, one in zip(job.items, figures, strict=True)}
        for case, of in list(known):
            plain, attended = known.get((replace(case, mechanism=PLAIN), of)), known[case, of]
            if case.mechanism != PLAIN and plain and attended:
                yield compared(case, of, plain, attended, rows.row(case, of) | {"jobs": jobs})
                del known[case, of]


def run_all(options: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    """Measure what is not in the file yet, write it there, and return the rows that were asked for."""
    rows, plan = Rows(options.csv, options.again), groups(options)
    until = time.monotonic() + 60 * options.minutes
    with console.status("measuring") as status:
        for first in (False, True)[: 1 + options.first]:
            jobs = jobs_of(plan, rows, options, first, status)
            with contextlib.closing(reports(jobs, options, until, first)) as new:
                for row in joined(new, rows, options.jobs, first):
                    rows.add(row)
                    console.print(sentence(row), soft_wrap=True, highlight=False, markup=False)
    asked = (rows.row(case, part) for _, *attended in plan for part in options.parts for case in attended)
    return [row for row in asked if row]


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options, with those that depend on the machine."""
    gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="a network of timm, torchvision or foveal")
    parser.add_argument("--mechanism", nargs="+", help="names with options; all with default sites if left out")
    parser.add_argument("--preset", choices=PRESETS, help="a list of models and batches instead of one model")
    parser.add_argument("--batch", type=int, default=64 if gpu else 8)
    parser.add_argument("--size", type=int, default=0, help="side of the images; the model's own if left out")
    parser.add_argument("--modes", nargs="+", choices=MODES, help="eager and default on a GPU, eager on a CPU")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seconds", type=float, default=1.5 if gpu else 6.0, help="how long each is repeated")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if gpu else "cpu")
    parser.add_argument("--channels-last", action=argparse.BooleanOptionalAction, help="on a GPU unless said otherwise")
    parser.add_argument("--first", action="store_true", help="also the first step, in a process of its own")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side, each timed alone")
    parser.add_argument("--timeout", type=float, default=600, help="seconds that a process may take for each model")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin nothing more after this time")
    parser.add_argument("--csv", type=Path, help="write rows to this file; those it has are not measured again")
    parser.add_argument("--again", action="store_true", help="measure them again")
    parser.add_argument("--profile", action="store_true", help="instead: host time and launches of one site")
    parser.add_argument("--job", type=json.loads, help=argparse.SUPPRESS)  # what such a process measures
    options = parser.parse_args(arguments)
    if options.channels_last is None:
        options.channels_last = options.device == "cuda"
    if options.jobs < 1:
        raise UserError(f"--jobs {options.jobs}: expected at least 1")
    if not (options.model or options.preset or options.job):
        raise UserError("which model? for example: foveal bench insert resnet50 --mechanism aw")
    options.mechanism = mechanisms_of(options.mechanism or [])
    return options


def main(arguments: list[str] | None = None) -> None:
    options, console = parsed(arguments), Console()
    torch.set_float32_matmul_precision("high")
    if options.job:  # in a process of side_by_side
        cases = [Case(**item) for item in options.job["items"]]
        with empty_caches():
            for part in options.job["parts"]:
                figures = [first_step(cases[0], part)] if options.first else measure(cases, part, wait_for_turn)
                print(json.dumps({"part": part, "figures": figures}), flush=True)
        return
    if options.profile:
        for plain, *attended in groups(options):
            for case in attended:
                if case.mechanism != NONE:
                    profile(plain, case, console)
        return
    if options.model:
        for mechanism in options.mechanism:
            insert_all(any_model(options.model), mechanism)  # a mistake is said before anything is measured
    rows = run_all(options, console)
    if rows:
        console.print(f"\n{table(rows)}", soft_wrap=True, highlight=False, markup=False)


if __name__ == "__main__":
    main()
