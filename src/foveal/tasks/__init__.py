"""One LightningModule per task, and everything around a run: folders, checkpoints, progress, resuming."""

from foveal.tasks.classify import Classify
from foveal.tasks.document import Document
from foveal.tasks.refer import Refer
from foveal.tasks.run import evaluate, fit

__all__ = ["Classify", "Document", "Refer", "evaluate", "fit"]
