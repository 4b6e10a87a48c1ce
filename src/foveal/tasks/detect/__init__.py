"""Task ``detect``: an image; find its objects, each with a box and a class."""

from foveal.tasks.detect.task import Detect

__all__ = ["Detect"]
