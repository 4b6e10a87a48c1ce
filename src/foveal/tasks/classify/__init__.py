"""Task ``classify``: an image; predict its class, or all of its classes where it may have several."""

from foveal.tasks.classify.task import Classify

__all__ = ["Classify"]
