"""One folder per task, and everything around a run: training, resuming, testing, predicting, reporting."""

from foveal.tasks.base import Task
from foveal.tasks.optim import build_schedule
from foveal.tasks.prediction import Prediction, Trained, predict
from foveal.tasks.registry import register_task
from foveal.tasks.results import Results
from foveal.tasks.saved import load, save
from foveal.tasks.train import build_source, evaluate, fit
from foveal.tasks.weights import load_model

__all__ = [
    "Prediction",
    "Results",
    "Task",
    "Trained",
    "build_schedule",
    "build_source",
    "evaluate",
    "fit",
    "load",
    "load_model",
    "predict",
    "register_task",
    "save",
]
