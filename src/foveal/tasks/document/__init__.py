"""Task ``document``: a text of several sentences; predict its class."""

from foveal.tasks.document.task import Document

__all__ = ["Document"]
