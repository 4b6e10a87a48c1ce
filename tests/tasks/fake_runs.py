"""Run folders written without training: maps from Gaussians, curves that look like training."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
import yaml

from foveal.measure.info import metric_info
from foveal.runs import RunFolder, Stored
from foveal.see import TopClasses

ANSWERS = ["green", "yellow", "white", "red", "blue"]
MODELS = {  # title: (accuracy, strength, published accuracy, published strength, gate sizes, width of the maps)
    "STN": (0.391, 0.06, 0.3910, None, [20], 12.0),
    "SOFT": (0.80, 0.131, 0.8294, 0.1361, [4], 5.0),
    "HARD": (0.79, 0.135, 0.8184, 0.1395, [4], 4.0),
    "HAttNet": (0.95, 0.19, 0.9592, 0.1739, [14, 10, 6, 4], 3.0),
    "HAttNet-CTX": (0.981, 0.247, 0.9851, 0.2259, [14, 10, 6, 4], 2.0),
}
COUNT, SIDE = 6, 20
ABOUT = {
    "queries": [str(i) for i in range(10)],
    "answers": ANSWERS,
    "multilabel": False,
    "size": SIDE,
    "question": "What colour is the {query}?",
    "asked": "the colour of one digit among many",
}


def gaussians(size: int, width: float) -> torch.Tensor:
    """Maps (COUNT, size, size), each with its peak elsewhere."""
    at = (torch.arange(size) + 0.5) * SIDE / size
    peaks = torch.linspace(4, 16, COUNT)
    squares = (at[None, :, None] - peaks[:, None, None]) ** 2 + (at[None, None] - peaks.flip(0)[:, None, None]) ** 2
    return torch.exp(-squares / (2 * width**2)) + 1e-4


def samples(title: str) -> Stored:
    """What a run of task ``refer`` keeps."""
    accuracy, _, _, _, sizes, width = MODELS.get(title, MODELS["SOFT"])
    label = torch.arange(COUNT) % 5
    wrong = torch.arange(COUNT) / COUNT > accuracy
    prediction = torch.where(wrong, (label + 1) % 5, label)
    draw = torch.Generator().manual_seed(0)
    tensors = {
        "image": torch.randint(0, 256, (COUNT, 3, SIDE, SIDE), generator=draw).byte(),
        "query": torch.arange(COUNT),
        "label": label,
        "prediction": prediction,
        "probability": torch.full((COUNT, 5), 0.02).scatter(1, prediction[:, None], 0.92),
        "mask": gaussians(SIDE, 2.0) > 0.5,
        "map": gaussians(SIDE, width),
    }
    tensors |= {f"gate.{i}": gaussians(size, width) for i, size in enumerate(sizes)}
    return Stored(tensors, ABOUT | {"sites": [f"gates.{i}" for i in range(len(sizes))]})


def epochs(accuracy: float, count: int) -> list[dict[str, float]]:
    near = [1 - math.exp(-epoch / 9) for epoch in range(count)]
    return [
        {
            "epoch": epoch,
            "step": 150 * (epoch + 1),
            "seconds": 1.2 * (epoch + 1),
            "lr": 0.003,
            "train/loss": 1.55 - 1.5 * accuracy * near[epoch],
            "val/loss": 1.6 - 1.45 * accuracy * near[epoch],
            "val/accuracy": 0.2 + (accuracy - 0.2) * near[epoch],
        }
        for epoch in range(count)
    ]


def write_run(
    path: Path,
    title: str = "SOFT",
    *,
    dataset: str = "MREF",
    task: str = "refer",
    seed: int = 0,
    embedded: bool = False,
    finished: bool = True,
    count: int = 40,
    truncated: bool = False,
    kept: bool = True,
    place: tuple[int, int] | None = None,
    settings: dict[str, Any] | None = None,
    **changes: Any,
) -> Path:
    """Write a run folder; ``settings`` replace entries of the recipe, ``changes`` those of result.json."""
    folder = RunFolder(path)
    path.mkdir(parents=True)
    accuracy = MODELS.get(title, MODELS["SOFT"])[0] + 0.004 * (seed - 1)
    recipe = {"version": 2, "name": f"mine/{dataset.lower()}-{title.lower()}", "title": title, "task": task}
    recipe |= {"seed": seed, "data": {"name": "mref"}, "model": {"name": "soft"}, "train": {"epochs": 60}}
    recipe |= {"cell": {"table": "mine", "row": title, "column": dataset, "place": list(place)}} if place else {}
    recipe |= settings or {}
    folder.file("recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    folder.write_json("run.json", {"format": 2, "task": task, "dataset": dataset, "embedded": embedded})
    folder.write_json("environment.json", {"python": "3.12.1", "gpu": None, "packages": {"torch": "2.9.0"}})
    folder.write_epochs(epochs(accuracy, count))
    if truncated:
        text = folder.file("metrics.jsonl").read_text()
        folder.file("metrics.jsonl").write_text(text[:-40])
    if finished:
        folder.write_json("result.json", result(recipe, dataset, embedded, accuracy, count) | changes)
        if kept:
            folder.write_tensors("samples.safetensors", samples(title))
    return path


def result(recipe: dict[str, Any], dataset: str, embedded: bool, accuracy: float, count: int) -> dict[str, Any]:
    """``result.json`` of task ``refer``."""
    _, strength, paper, paper_strength, sizes, _ = MODELS.get(recipe["title"], MODELS["SOFT"])
    thresholds = [i / 20 for i in range(21)]
    metrics = {
        "accuracy": accuracy,
        "true_positive_strength": strength + 0.002 * recipe["seed"],
        "true_positive_strength_last": 0.9 * strength,
        "target_area": 0.0234,
    }
    loss = 0.02 if len(sizes) > 1 else 0.3
    published = {"accuracy": paper, "true_positive_strength": paper_strength}
    return {
        "format": 2,
        "task": recipe["task"],
        "recipe": recipe["name"],
        "title": recipe["title"],
        "dataset": dataset,
        "cell": recipe.get("cell"),
        "seed": recipe["seed"],
        "embedded": embedded,
        "data": "seven digits in five colours on black, 10,000 questions held out",
        "parameters": 30470 if len(sizes) == 1 else 59273,
        "epochs": count,
        "best_epoch": count - 7,
        "seconds": 31.2 + 5 * len(sizes),
        "step_seconds": 0.0032,
        "published": {key: value for key, value in published.items() if value is not None},
        "metrics": metrics,
        "infos": {key: metric_info(key).dump() for key in metrics},
        "parts": {},
        "curves": {
            "scale_accuracy": {
                "edges": [0.5, 1, 1.5, 2, 2.5, 3],
                "accuracy": [min(1.0, accuracy * (1 - loss * abs(i - 1.6) / 2)) for i in range(5)],
                "count": [4200, 3000, 1500, 900, 400],
            },
            "pixel_pr": {
                "precision": [0.0234 + (3.2 * strength - 0.0234) * t for t in thresholds],
                "recall": [(1 - t) ** (0.16 / strength) for t in thresholds],
            },
        },
    }


MEASURES = ("overlap_inner", "overlap_last", "inner_in_last", "pointing_game", "energy_in_box")


def write_classifier(path: Path, title: str, kind: str = "channel", overlap: float = 0.25) -> Path:
    """Write a run of task ``classify`` that measured class attention of a kind."""
    metrics = {"accuracy": 0.5, **dict.fromkeys(MEASURES, overlap)}
    write_run(
        path,
        title,
        task="classify",
        settings={"data": {"name": "digits"}, "measure": {"class_attention": {"kind": kind}}},
        metrics=metrics,
        infos={key: metric_info(key).dump() for key in metrics},
        parts={key: {"right": overlap - 0.125, "wrong": overlap + 0.125} for key in MEASURES},
        curves={},
        kept=False,
    )
    draw = torch.Generator().manual_seed(len(title))
    rank = torch.rand(COUNT, 5, generator=draw).argsort(1)
    top = TopClasses(rank.argsort(1), torch.full((COUNT, 5), 0.2), torch.rand(COUNT, 5, 4, 4, generator=draw), rank)
    stored = samples("SOFT")
    kept = {key: stored.tensors[key] for key in ("image", "label", "prediction", "probability")}
    about = {key: ABOUT[key] for key in ("answers", "multilabel", "size")} | {"sites": []}
    about |= {"question": "What does this show?", "asked": "what they show (5 classes)"}
    RunFolder(path).write_tensors("samples.safetensors", Stored(kept | top.tensors(), about))
    return path


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
