"""The revision of foveal's source, which runs and measurements carry."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any


def revision() -> str | None:
    """What ``git describe`` says of foveal's source, ``-dirty`` if the package was edited; None outside a checkout."""
    if "FOVEAL_REVISION" in os.environ:  # for a copy of the source without its history
        return os.environ["FOVEAL_REVISION"]
    package = Path(__file__).resolve().parent

    def git(*words: str) -> str:
        options: dict[str, Any] = {"capture_output": True, "text": True, "check": True, "timeout": 5}
        return subprocess.run(["git", *words], cwd=package, **options).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", __file__)  # a copy installed inside somebody else's repository is not in it
        changed = git("status", "--porcelain", "--", ".")  # results that a run itself writes do not change the code
        return git("describe", "--always", "--tags", "--abbrev=12") + ("-dirty" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None
