"""Task ``segment``: an image; predict the class of every pixel."""

from foveal.tasks.segment.task import Segment

__all__ = ["Segment"]
