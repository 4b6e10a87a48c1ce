"""Task ``translate``: a sentence; predict its translation."""

from foveal.tasks.translate.task import Translate

__all__ = ["Translate"]
