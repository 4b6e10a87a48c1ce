"""Samples, rows and journals made up for the tests: digits on black, maps from Gaussians, curves like training."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_digits
from torch.nn import functional as F

from foveal.measure.info import MetricInfo
from foveal.see import DocumentSamples, Samples, TopClasses, precision_recall, scale_accuracy, training
from foveal.see.draw.chart import slots
from foveal.see.page import (
    Details,
    ModelRow,
    Page,
    Section,
    Value,
    class_maps_section,
    curves_section,
    documents_section,
    metric_table,
    paragraph,
    parts_table,
    samples_section,
)

sys.path.insert(0, str(Path(__file__).parent))  # for readhtml

ANSWERS = ("green", "yellow", "white", "red", "blue")
COLOURS = {"green": "#10a651", "yellow": "#fff14e", "white": "#e0e0e0", "red": "#921010", "blue": "#1062c0"}
RGB = torch.tensor([[16, 166, 81], [255, 241, 78], [224, 224, 224], [146, 16, 16], [16, 98, 192]]) / 255
MODELS = {  # title: (accuracy, strength, published accuracy, published strength, gate sizes, width of the maps)
    "STN": (0.391, 0.06, 0.3910, None, [100], 60.0),
    "SOFT": (0.80, 0.131, 0.8294, 0.1361, [4], 22.0),
    "HARD": (0.79, 0.135, 0.8184, 0.1395, [4], 20.0),
    "HAttNet": (0.95, 0.19, 0.9592, 0.1739, [49, 23, 10, 4], 12.0),
    "HAttNet-CTX": (0.981, 0.247, 0.9851, 0.2259, [49, 23, 10, 4], 9.0),
}
INFOS = [MetricInfo("accuracy", "Accuracy"), MetricInfo("true_positive_strength", "True-positive strength")]


@functools.cache
def scenes(count: int, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Images (K,3,100,100) uint8, query (K,), label (K,), mask (K,100,100) uint8, centre (K,2) of the target."""
    make = torch.Generator().manual_seed(seed)
    digits = load_digits()
    images, queries, labels, masks, centres = [], [], [], [], []
    for _ in range(count):
        image, owner = torch.zeros(3, 100, 100), torch.full((100, 100), -1)
        placed = []
        for digit in torch.randperm(10, generator=make)[:7].tolist():
            choice = int(torch.randint(0, 100, (1,), generator=make))
            small = torch.tensor(digits.images[digits.target == digit][choice] / 16).float()
            for _ in range(60):
                side = int(28 * (0.6 + 1.4 * float(torch.rand(1, generator=make)) ** 2))
                top, left = torch.randint(0, 100 - side, (2,), generator=make).tolist()
                window = (slice(top, top + side), slice(left, left + side))
                if (owner[window] < 0).all():
                    alpha = F.interpolate(small[None, None], (side, side), mode="bilinear")[0, 0]
                    colour = int(torch.randint(0, 5, (1,), generator=make))
                    image[(slice(None), *window)] = alpha * RGB[colour][:, None, None]
                    owner[window] = torch.where(alpha > 0, digit, owner[window])
                    placed.append((digit, colour, top + side / 2, left + side / 2))
                    break
        digit, colour, *centre = placed[int(torch.randint(0, len(placed), (1,), generator=make))]
        images.append((image * 255).round().byte())
        queries.append(digit)
        labels.append(colour)
        masks.append((owner == digit).byte())
        centres.append(torch.tensor(centre))
    return torch.stack(images), torch.tensor(queries), torch.tensor(labels), torch.stack(masks), torch.stack(centres)


def gaussian(centre: torch.Tensor, size: int, width: float) -> torch.Tensor:
    """(size, size) map of a 100×100 image with its peak at ``centre`` (row, column)."""
    at = (torch.arange(size) + 0.5) * 100 / size
    squares = (at[:, None] - centre[0]) ** 2 + (at[None] - centre[1]) ** 2
    return torch.exp(-squares / (2 * width**2)) + 1e-4


def make_samples(title: str, count: int = 6) -> Samples:
    accuracy, _, _, _, sizes, width = MODELS.get(title, MODELS["SOFT"])
    images, query, label, mask, centre = scenes(count)
    make = torch.Generator().manual_seed(len(title))
    wrong = torch.rand(count, generator=make) > accuracy
    prediction = torch.where(wrong, (label + 1) % 5, label)
    looked = torch.where(wrong[:, None], 100 - centre, centre)
    noise = 0.15 * torch.rand(count, 100, 100, generator=make)
    maps = tuple(
        torch.stack([gaussian(looked[k], size, width * (2.5 - 0.4 * i)) for k in range(count)])
        * (1 - F.interpolate(noise[:, None], (size, size))[:, 0])
        for i, size in enumerate(sizes)
    )
    whole = math.prod(F.interpolate(gate[:, None], (100, 100), mode="bilinear")[:, 0] for gate in maps)
    probability = torch.full((count, 5), 0.02)
    probability[torch.arange(count), prediction] = torch.where(wrong, 0.54, 0.92)
    return Samples(
        image=images,
        query=query,
        label=label,
        prediction=prediction,
        probability=probability,
        mask=mask,
        gates=maps,
        map=whole,
        queries=tuple(map(str, range(10))),
        answers=ANSWERS,
        sites=tuple(f"gates.{i}" for i in range(4 - len(sizes), 4)) if len(sizes) > 1 else ("gates.3",),
        question="What colour is the {query}?",
        colours=COLOURS,
    )


def make_top(samples: Samples, seed: int = 0, kind: str = "channel") -> TopClasses:
    """Best-scoring classes of the samples: all of their answers, in some order, each with a map somewhere."""
    make = torch.Generator().manual_seed(seed)
    count, classes = len(samples), len(samples.answers)
    rank = torch.rand(count, classes, generator=make).argsort(1)
    places = 20 + 60 * torch.rand(count, classes, 2, generator=make)
    maps = torch.stack([torch.stack([gaussian(place, 7, 18.0) for place in row]) for row in places])
    order = rank.argsort(1)[:, :5]
    probability = torch.tensor([0.5, 0.25, 0.12, 0.08, 0.05]).expand(count, 5)
    return TopClasses(order, probability, maps.gather(1, order[:, :, None, None].expand(-1, -1, 7, 7)), rank, kind)


TEXT = [["the", "old", "cat"], ["sleeps"], ["it", "never", "hunts", "mice"]]


def make_documents(texts=(TEXT,), *, focus=True, label=(0,), seed=0, sentences=4, words=6) -> DocumentSamples:
    g = torch.Generator().manual_seed(seed)
    count = len(texts)
    mask = torch.zeros(count, sentences, words, dtype=torch.bool)
    for k, text in enumerate(texts):
        for s, sentence in enumerate(text):
            mask[k, s, : len(sentence)] = True
    scores = torch.randn(count, sentences, words, generator=g).masked_fill(~mask, -1e9)
    pairs = torch.randn(count, sentences, words, words, generator=g).masked_fill(~mask[:, :, None], -1e9)
    real = mask.any(2)
    return DocumentSamples(
        texts=tuple(texts),
        word_attention=scores.softmax(2) * mask,
        sentence_attention=torch.randn(count, sentences, generator=g).masked_fill(~real, -1e9).softmax(1) * real,
        prediction=torch.zeros(count, dtype=torch.int64),
        probability=torch.tensor([[0.8, 0.2]]).expand(count, 2),
        label=torch.tensor(list(label) * count)[:count],
        pairs=pairs.softmax(3) * mask[..., None] if focus else None,
        answers=("cats & <dogs>", "b"),
    )


def make_epochs(title: str, count: int = 40, seed: int = 0) -> list[dict[str, float]]:
    """The journal of a run: losses that fall and an accuracy that rises."""
    accuracy = MODELS.get(title, MODELS["SOFT"])[0]
    make = torch.Generator().manual_seed(seed + len(title))
    rows = []
    for epoch in range(count):
        near = 1 - math.exp(-epoch / 9)
        jitter = 0.02 * float(torch.randn(1, generator=make))
        rows.append(
            {
                "epoch": epoch,
                "train/loss": 1.55 - 1.5 * accuracy * near + jitter / 2,
                "val/loss": 1.6 - 1.45 * accuracy * near + jitter,
                "val/accuracy": min(1.0, max(0.0, 0.2 + (accuracy - 0.2) * near + jitter / 2)),
            }
        )
    return rows


def make_row(title: str, seeds: int = 1) -> ModelRow:
    accuracy, strength, paper, paper_strength, sizes, _ = MODELS.get(title, MODELS["SOFT"])
    values = {
        "accuracy": Value.of([accuracy + 0.004 * (seed - 1) for seed in range(seeds)], [paper]),
        "true_positive_strength": Value.of([strength], [paper_strength] if paper_strength else []),
    }
    return ModelRow(title, values, ["seed 0"], 30470 * len(sizes), 40, 33, "", 31.2 + 5 * len(sizes), 0.0032)


def make_page() -> Page:
    """A page with everything: five models on images, an unfinished one, class maps, documents, curves, runs."""
    bare, long = "mobilenetv3_small_100_without_attention", "mobilenetv3_large_100-with-a-name-that-does-not-end"
    models = {title: make_samples(title) for title in MODELS}
    models |= {bare: replace(models["SOFT"], map=None, gates=(), sites=())}
    models[long] = replace(models["HAttNet"], gates=models["HAttNet"].gates * 4, total_gates=25, sites=())
    colours = slots(models)
    rows = [make_row(title) for title in models]
    rows += [ModelRow("unfinished", notes=["unfinished"], epochs=7, progress="so far, validation 61.2 %")]
    thresholds = [i / 20 for i in range(21)]
    curves = {
        title: ([0.02 + (3 * row[1] - 0.02) * t for t in thresholds], [(1 - t) ** 0.8 for t in thresholds])
        for title, row in MODELS.items()
    }
    scale = {title: [row[0] * (1 - 0.05 * abs(i - 1.6)) for i in range(5)] for title, row in MODELS.items()}
    epochs = {title: [make_epochs(title)] for title in MODELS}
    figures = [
        precision_recall(curves, even=0.0234, colours=colours),
        scale_accuracy([0.5, 1, 1.5, 2, 2.5, 3], scale, colours=colours),
        *training(epochs, colours=colours),
    ]
    body = paragraph("HAttNet-CTX answered 98.1 % of 10,000 questions right.", "headline")
    body += paragraph("Seven digits in five colours on black.", "data") + metric_table(rows, INFOS, colours=colours)
    body += paragraph("The upright tick on a bar is the published number.", "key")
    images = Section(
        "MREF",
        body,
        badge="embedded data",
        sections=[samples_section(models, colours=colours), curves_section(figures)],
    )
    named = replace(
        models["SOFT"], answers=("American Staffordshire terrier", "tench", "black_grouse", "Saint-Bernard", "ox")
    )
    tops = {title: (named, make_top(named, seed)) for seed, title in enumerate(("baseline", "sharpened"))}
    split = {title: {"overlap": {"right": Value(0.2), "wrong": Value(0.3)}} for title in tops}
    classes = Section(
        "VOC", parts_table(split, [MetricInfo("overlap", "Overlap")]), sections=[class_maps_section(tops, limit=2)]
    )
    wide = [["antidisestablishmentarianism"] * 6] * 4
    texts = {
        title: make_documents([TEXT, wide], seed=i)
        for i, title in enumerate(("Hatt", "FAN-hatt-unsup", "FAN-hatt-sup"))
    }
    details = [Details(title, {"Recipe": "model: x\n" * 3}, "MREF, seed 0") for title in models]
    details.append(Details("unfinished", {"Recipe": "x"}, badge="unfinished", problems=["result.json is damaged"]))
    return Page(
        "Where seven models look",
        "Seven models were shown pictures.",
        [images, classes, Section("Texts", sections=[documents_section(texts)])],
        details,
        "0.1.0",
    )


@pytest.fixture
def samples_of() -> Callable[..., Samples]:
    return make_samples


@pytest.fixture
def top_of() -> Callable[..., TopClasses]:
    return make_top


@pytest.fixture
def documents_of() -> Callable[..., DocumentSamples]:
    return make_documents


@pytest.fixture
def epochs_of() -> Callable[..., list[dict[str, float]]]:
    return make_epochs


@pytest.fixture
def row_of() -> Callable[..., ModelRow]:
    return make_row


@pytest.fixture(scope="session")
def whole_page() -> Page:
    return make_page()
