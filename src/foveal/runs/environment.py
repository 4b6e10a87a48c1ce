"""What a run was made with: package versions, hardware, and the revision of foveal's source."""

from __future__ import annotations

import contextlib
import os
import platform
from importlib import metadata
from typing import Any

from foveal.revision import revision

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
