"""Task ``refer``: an image and a query that names one object in it; predict something about that object."""

from foveal.tasks.refer.task import Refer

__all__ = ["Refer"]
