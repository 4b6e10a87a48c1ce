"""How long commands take to start, beside the import of PyTorch and timm.

Each line is the median over fresh processes::

    foveal bench startup
    foveal bench startup --repeats 5 --imports "foveal list mechanisms"    # which packages the time goes to
"""

from __future__ import annotations

import argparse
import re
import shlex
import statistics
import subprocess
import sys
import time
from collections import Counter

COMMANDS = {
    "import torch, timm": ["-c", "import torch, timm"],
    "import torch, timm, lightning": ["-c", "import torch, timm, lightning"],
    "import foveal": ["-c", "import foveal"],
    "import foveal.attention": ["-c", "import foveal.attention"],
    "import foveal.tasks": ["-c", "import foveal.tasks"],
    "foveal --help": ["-m", "foveal", "--help"],
    "foveal list mechanisms": ["-m", "foveal", "list", "mechanisms"],
    "foveal list": ["-m", "foveal", "list"],
    "foveal data": ["-m", "foveal", "data"],
    "foveal sites resnet18": ["-m", "foveal", "sites", "resnet18"],
}


def seconds(arguments: list[str], repeats: int) -> float:
    def once() -> float:
        begin = time.perf_counter()
        subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
        return time.perf_counter() - begin

    once()  # files are in the cache afterwards
    return statistics.median(once() for _ in range(repeats))


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
    options = parser.parse_args()
    if options.imports:
        for package, spent in imports(options.imports).most_common(15):
            print(f"{package:30} {spent / 1e6:7.2f} s")
        return
    for name, arguments in COMMANDS.items():
        print(f"{name:32} {seconds(arguments, options.repeats):7.2f} s", flush=True)


if __name__ == "__main__":
    main()
