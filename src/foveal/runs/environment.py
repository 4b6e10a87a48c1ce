"""What a run was made with: package versions, hardware, and the revision of foveal's source."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("foveal", "torch", "torchvision", "timm", "lightning", "torchmetrics", "numpy", "scikit-learn")


def environment() -> dict[str, Any]:
    """Package versions, hardware and the revision of foveal's source."""
    import torch

    versions = {}
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return {
        "packages": versions,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cpus": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "revision": revision(),
    }


def revision() -> str | None:
    """What ``git describe`` says of foveal's source, ``-dirty`` if the package was edited; None outside a checkout."""
    if "FOVEAL_REVISION" in os.environ:  # for a copy of the source without its history
        return os.environ["FOVEAL_REVISION"]
    package = Path(__file__).resolve().parents[1]

    def git(*words: str) -> str:
        options: dict[str, Any] = {"capture_output": True, "text": True, "check": True, "timeout": 5}
        return subprocess.run(["git", *words], cwd=package, **options).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", __file__)  # a copy installed inside somebody else's repository is not in it
        changed = git("status", "--porcelain", "--", ".")  # results that a run itself writes do not change the code
        return git("describe", "--always", "--tags", "--abbrev=12") + ("-dirty" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None
