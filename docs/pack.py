"""Make a model of the zoo of a finished run: weights in float16, tested again as they are, and a card.

Run ``FOVEAL_DATA=DATA uv run python docs/pack.py RUN NAME --about TEXT --licence TEXT``.
"""

from __future__ import annotations

import argparse
import json
import shutil
from dataclasses import asdict
from pathlib import Path

from foveal.files import write_text
from foveal.runs import RunFolder, Stored, find_run
from foveal.runs.zoo import Card, model_folder
from foveal.tasks import evaluate

KEPT = ("recipe.yaml", "run.json")


def pack(run: Path, name: str, about: str, licence: str) -> Card:
    """Write the folder of the model ``name`` from the finished ``run``."""
    source, packed = find_run(run), RunFolder(model_folder(name))
    packed.path.mkdir(parents=True, exist_ok=True)
    for file in KEPT:
        shutil.copyfile(source.file(file), packed.file(file))
    stored = source.tensors("weights.safetensors")
    half = {key: tensor.half() if tensor.is_floating_point() else tensor for key, tensor in stored.tensors.items()}
    packed.write_tensors("weights.safetensors", Stored(half, stored.about))
    result = evaluate(packed.path)
    made = json.loads(source.file("environment.json").read_text(encoding="utf-8"))
    card = Card(
        title=result["title"],
        about=about,
        data=f"{result['dataset']}: {result['data']}",
        recipe=result["recipe"],
        revision=made["revision"],
        torch=made["packages"]["torch"],
        hardware=made["gpu"] or "CPU",
        parameters=result["parameters"],
        metrics={key: round(value, 4) for key, value in result["metrics"].items() if value is not None},
        licence=licence,
    )
    write_text(packed.file("card.json"), json.dumps(asdict(card), indent=1, ensure_ascii=False) + "\n")
    return card


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("name")
    parser.add_argument("--about", required=True, help="what it answers, in one sentence")
    parser.add_argument("--licence", required=True)
    print(pack(**vars(parser.parse_args())))
