"""Ask a finished run about one image."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from foveal import measure
from foveal.attention.record import watch
from foveal.data.pictures import read_image
from foveal.errors import unknown
from foveal.see import Samples, gates
from foveal.tasks.folder import load_run
from foveal.tasks.refer import pixels
from foveal.tasks.run import load_model


@dataclass(frozen=True)
class Prediction:
    """Answers with their probabilities, most probable first, and a picture of where the model looked."""

    answers: list[tuple[str, float]]
    picture: Image.Image


def predict(run: str | Path, image: str | Path, query: str) -> Prediction:
    """What the model of ``run`` says about the object ``query`` in the file ``image``, and where it looks.

    The image is resized to the size the model was trained on.
    """
    model, about = load_model(run)
    queries, answers = about["queries"], about["answers"]
    if query not in queries:
        raise unknown("query", query, queries)
    recipe = load_run(Path(run))
    side = recipe.data.get("canvas") or recipe.data.get("image_size") or (224 if about["multilabel"] else 100)
    picture = read_image(Path(image)).resize((side, side), Image.Resampling.BILINEAR)
    batch = torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None]
    asked = torch.tensor([queries.index(query)])
    with torch.no_grad(), watch(model) as seen:
        logits = model(pixels(batch), asked).float()
    probability = logits.sigmoid() if about["multilabel"] else logits.softmax(1)
    samples = Samples(
        image=batch.contiguous(),
        query=asked,
        prediction=(probability > 0.5).long() if about["multilabel"] else probability.argmax(1),
        gates=tuple(record.values for record in seen.values()),
        map=measure.attention_map(seen, (side, side)),
        probability=probability,
        queries=tuple(queries),
        answers=tuple(answers),
        sites=tuple(seen),
    )
    order = probability[0].argsort(descending=True).tolist()
    return Prediction([(answers[i], float(probability[0, i])) for i in order], gates({recipe.title: samples}, size=180))
