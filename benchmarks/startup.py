"""How long commands take to start, beside the import of PyTorch and timm.

Each row is the least over fresh processes: seconds by the clock, and seconds that a processor worked, which other work
on the machine changes little. ``more`` is the latter beside ``import torch, timm``. Commands with "starts" end
where they would build the data or the model, or write the page; the others are timed whole::

    foveal bench startup
    foveal bench startup --csv results/bench-startup.csv
    foveal bench startup --repeats 5 --imports "foveal list mechanisms"    # which packages the time goes to
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

PLAIN = "import torch, timm"
AT_ONCE = "; import os; os._exit(0)"  # without tidying up
STARTS = """
import os, sys
import foveal.cli.models, foveal.cli.runs
from foveal.cli import main
from foveal.cli.imports import quick_imports
BEGINNINGS = ("foveal.tasks.train", "build_source"), ("foveal.tasks.report", "page")
class Imports:
    def __enter__(self):
        self.quick = quick_imports()
        self.quick.__enter__()
    def __exit__(self, *error):
        self.quick.__exit__(*error)
        for module, name in BEGINNINGS:
            if module in sys.modules:
                setattr(sys.modules[module], name, lambda *args, **kwargs: os._exit(0))
        sys.modules["torch"].nn.Module.__init__ = lambda *args, **kwargs: os._exit(0)
foveal.cli.models.quick_imports = foveal.cli.runs.quick_imports = Imports
main()
sys.exit("it did nothing")
"""
COMMANDS = {
    PLAIN: ["-c", PLAIN + AT_ONCE],
    "import torch, timm, lightning": ["-c", "import torch, timm, lightning" + AT_ONCE],
    "import foveal": ["-c", "import foveal"],
    "import foveal.attention": ["-c", "import foveal.attention"],
    "import foveal.tasks": ["-c", "import foveal.tasks"],
    "foveal --help": ["-m", "foveal", "--help"],
    "foveal list mechanisms": ["-m", "foveal", "list", "mechanisms"],
    "foveal list": ["-m", "foveal", "list"],
    "foveal data": ["-m", "foveal", "data"],
    "foveal compare results/fan-documents.csv fan/table6/hatt fan/table6/fan-unsup": [
        *("-m", "foveal", "compare", str(Path(__file__).parents[1] / "results" / "fan-documents.csv")),
        *("fan/table6/hatt", "fan/table6/fan-unsup"),
    ],
    "foveal sites resnet18 starts": ["-c", STARTS, "sites", "resnet18"],
    "foveal train demo/refer/soft starts": ["-c", STARTS, "train", "demo/refer/soft", "--out", "new"],
    "foveal test RUN starts": ["-c", STARTS, "test", "run"],
    "foveal predict RUN IMAGE QUERY starts": ["-c", STARTS, "predict", "run", "image.png", "3"],
    "foveal see RUN starts": ["-c", STARTS, "see", "run"],
    "foveal see RUN, all of it": ["-m", "foveal", "see", "run"],
    "foveal compare RUN RUN": ["-m", "foveal", "compare", "run", "other"],
}
TINY = ("demo/refer/soft", "data.triples=[40,40,40]", "train.batch=40", "train.epochs=1", "train.accelerator=cpu")


def once(arguments: list[str], folder: str) -> tuple[float, float]:
    """Seconds of a command by the clock, and of the processor, with one thread."""
    begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    one = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=one, cwd=folder)
    if done.returncode:
        sys.exit(done.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    worked = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - begin, worked


def make_runs(folder: str) -> None:
    """Two small runs, and an image of their data's size."""
    for name, title in (("run", "first"), ("other", "second")):
        once(["-m", "foveal", "train", *TINY, f"title={title}", "--out", name], folder)
    once(["-c", "from PIL import Image; Image.new('RGB', (32, 32)).save('image.png')"], folder)


def rows(repeats: int) -> Iterator[dict[str, object]]:
    """A row for each command; they take turns, so that whatever else the machine does slows all of them."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as folder:
        make_runs(folder)
        for turn in range(repeats + 1):
            for name, arguments in COMMANDS.items():
                measured = once(arguments, folder)
                if turn:  # in the first one, files come into the cache
                    times[name].append(measured)
    plain = min(worked for _, worked in times[PLAIN])
    for name, measured in times.items():
        elapsed, worked = (min(values) for values in zip(*measured, strict=True))
        yield {
            "command": name,
            "seconds": f"{elapsed:.2f}",
            "cpu seconds": f"{worked:.2f}",
            "more": f"{worked - plain:+.2f}",
            "repeats": repeats,
            "hardware": f"{platform.machine()} CPU, {os.cpu_count()} cores",
            "load": f"{os.getloadavg()[1]:.1f}",
            "torch": metadata.version("torch"),
        }


def imports(command: str) -> Counter[str]:
    """Seconds that the modules of each package took to import."""
    arguments = COMMANDS.get(command) or ["-m", *shlex.split(command)]
    done = subprocess.run([sys.executable, "-X", "importtime", *arguments], capture_output=True, text=True, check=True)
    spent: Counter[str] = Counter()
    for own, module in re.findall(r"^import time:\s+(\d+) \|\s+\d+ \|\s*(\S+)$", done.stderr, re.MULTILINE):
        spent[module.partition(".")[0]] += int(own)
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--imports", metavar="COMMAND", help="packages that a command imports, the slowest first")
    parser.add_argument("--csv", type=Path, help="also write the rows to this file")
    options = parser.parse_args()
    if options.imports:
        for package, spent in imports(options.imports).most_common(15):
            print(f"{package:30} {spent / 1e6:7.2f} s")
        return
    measured = list(rows(options.repeats))
    for row in measured:
        print(f"{row['command']:48.48} {row['seconds']:>7} s {row['cpu seconds']:>7} s of CPU, {row['more']:>6}")
    if options.csv is not None:
        from foveal.bench import write_rows  # imports PyTorch

        write_rows(options.csv, measured)


if __name__ == "__main__":
    main()
