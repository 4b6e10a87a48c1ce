"""The report of one run or many: one HTML file that needs nothing else, for a desk or a phone, in light or dark."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from importlib import resources
from pathlib import Path
from string import Template

import torch

import foveal
from foveal.files import write_text
from foveal.see import curves
from foveal.see.cards import data_uri, gates_html
from foveal.see.class_maps import TopClasses, class_maps, read_top_classes
from foveal.see.documents import DocumentSamples, documents_html
from foveal.see.question import task
from foveal.see.runs import Group, Run, grouped, read_runs
from foveal.see.samples import Samples
from foveal.see.svg import finite, slots
from foveal.see.table import CLASS_MAPS, best, metrics, name, several_kinds, split_table, table

SHOWN = 6  # samples a dataset
ROWS, MOST_ROWS = 8, 36  # of class maps: in one picture, and of a dataset
WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def report(run_dir: str | Path | Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Write ``report.html`` for one run or many: results, pictures, curves and settings in one file.

    Args:
        run_dir: a run folder, a folder with run folders at any depth, or a list of such folders. A run folder holds
            ``recipe.yaml``; whatever else it lacks is left out, and a run without ``result.json`` is called unfinished.
        out: the file, or a folder for it; by default ``report.html`` in ``run_dir``, for a list in the folder that
            holds all of them.

    Returns:
        Where the report is. It replaces an older one only when it is complete.

    Raises:
        RunError: no run is found, or the file cannot be written.

    >>> import tempfile
    >>> report(tempfile.mkdtemp())
    Traceback (most recent call last):
    ...
    foveal.errors.RunError: no run in ...: a run folder holds recipe.yaml; ...
    """
    runs = read_runs(run_dir)
    path = _place(run_dir, out)
    write_text(path, page(runs), "Give another place with `out`")
    return path


def page(runs: Sequence[Run]) -> str:
    """The whole report as HTML."""
    datasets = grouped(runs)
    colours = slots(group.name for groups in datasets.values() for group in groups)
    sections = [_section(i, *dataset, groups, colours) for i, (dataset, groups) in enumerate(datasets.items())]
    title = _title(runs)
    contents = "".join(f'<a href="#data-{i}">{escape(dataset)}</a>' for i, (dataset, _) in enumerate(datasets))
    template = (resources.files("foveal.see") / "template.html").read_text(encoding="utf-8")
    return Template(template).substitute(
        title=escape(title),
        lede=_lede(runs),
        contents=f"<nav>{contents}</nav>" if len(datasets) > 1 else "",
        sections="".join(sections),
        details=_details(runs),
        version=escape(foveal.__version__),
    )


def _title(runs: Sequence[Run]) -> str:
    titles = {run.title for run in runs}
    if not _looks(runs):
        return f"What {titles.pop()} says" if len(titles) == 1 else f"What {_count(len(titles))} models say"
    return f"Where {titles.pop()} looks" if len(titles) == 1 else f"Where {_count(len(titles))} models look"


def _looks(runs: Sequence[Run]) -> bool:
    """Whether some run has attention to show; one without samples may have."""
    return any(run.samples is None or run.samples.map is not None or run.kind for run in runs)


def _lede(runs: Sequence[Run]) -> str:
    """What one looks at, in plain words."""
    seen = next((run.samples for run in runs if run.samples is not None), None)
    titles = len({run.title for run in runs})
    who = f"{_count(titles).capitalize()} models were" if titles > 1 else "A model was"
    asked = task(seen.queries, seen.answers) if seen else "something about one part of a picture"
    looked = "each of them" if titles > 1 else "it"
    given, bright = "shown pictures", "brighter"
    if texts := next((run.documents for run in runs if run.documents is not None), None):
        given, bright = "given texts" if seen is None else "shown pictures or texts", "stronger the colour"
        asked = asked if seen else f"their class (one of {len(texts.answers)})"
    lede = f"{who} {given} and asked for {escape(asked)}. Below is how often the answers were right"
    if _looks(runs):
        lede += f", and where {looked} looked to find them: <em>the {bright}, the more attention</em>"
    lede += "."
    unfinished = sum(not run.finished for run in runs)
    if unfinished:
        of = f"{_count(unfinished).capitalize()} of {len(runs)} runs" if len(runs) > 1 else "The run"
        lede += f" {of} {'is' if unfinished == 1 else 'are'} unfinished; what there is so far is shown."
    return lede


def _section(i: int, dataset: str, embedded: bool, groups: list[Group], colours: Mapping[str, int]) -> str:
    badge = '<span class="badge">embedded data</span>' if embedded else ""
    return (
        f'<section id="data-{i}"><h2>{escape(dataset)}{badge}</h2>{_headline(groups)}{_about(groups, embedded)}'
        f"{table(groups, colours)}{_key(groups)}{split_table(groups)}{_pictures(groups, colours)}{_classes(groups)}"
        f"{_texts(groups, colours)}"
        f"{_charts(groups, colours)}</section>"
    )


def _headline(groups: list[Group]) -> str:
    """The result in one sentence."""
    keys = metrics(groups)
    if not keys:
        return '<p class="headline">No run has finished yet.</p>'
    key = keys[0]
    winners = best(groups, key) or [group for group in groups if group.numbers(key, "metrics")][:1]
    mean = statistics.fmean(winners[0].numbers(key, "metrics")) if winners else None
    if mean is None or not 0 <= mean <= 1:
        return ""
    who = " and ".join(f"<strong>{escape(group.name)}</strong>" for group in winners)
    if key != "accuracy":
        return f'<p class="headline">{who} reached {100 * mean:.1f} % {escape(name(key).lower())}.</p>'
    if any(group.documents for group in winners):
        return f'<p class="headline">{who} put <strong>{100 * mean:.1f} %</strong> of the texts into their class.</p>'
    counts = (run.part("scale_accuracy").get("count") for group in winners for run in group.finished)
    asked = next((sum(n for n in count if finite(n)) for count in counts if isinstance(count, list)), 0)
    of = f" of {asked:,} questions" if asked else " of its questions"
    return f'<p class="headline">{who} answered <strong>{100 * mean:.1f} %</strong>{of} right.</p>'


def _about(groups: list[Group], embedded: bool) -> str:
    """What the data is, and plainly whether published numbers compare."""
    lines = dict.fromkeys(str(run.result["data"]) for g in groups for run in g.finished if run.result.get("data"))
    about = "".join(f'<p class="data">{escape(line)}</p>' for line in lines)
    published = any(run.part("published") for group in groups for run in group.finished)
    if embedded and published:
        what = "texts" if any(group.documents for group in groups) else "pictures"
        about += (
            f'<p class="note"><strong>These are not the paper\'s {what}.</strong> The data comes with foveal, '
            "so published numbers do not compare directly: read them for the order of the models, not for the last "
            "percent.</p>"
        )
    elif embedded:
        about += '<p class="note">The data comes with foveal: no published number compares.</p>'
    return about


def _key(groups: list[Group]) -> str:
    """How to read the table."""
    parts = []
    if any(len(group.finished) > 1 for group in groups):
        parts.append("± is the standard deviation over seeds.")
    if any(run.part("published") for group in groups for run in group.finished):
        parts.append("The upright tick on a bar is the published number; in brackets, ours minus it in points.")
    if any("true_positive_strength" in run.part("metrics") for group in groups for run in group.finished):
        area = _area(groups)
        even = f" Attention spread evenly would reach {100 * area:.1f} %." if area is not None else ""
        parts.append(f"True-positive strength is the share of all attention that falls on the target.{even}")
    if any("center_mass" in run.part("metrics") for group in groups for run in group.finished):
        parts.append("Center-mass is the share of the attention between words that rests on pairs that should matter.")
    parts += [said for key, said in CLASS_MAPS.items() if any(group.numbers(key, "metrics") for group in groups)]
    if several_kinds(groups):
        parts.append(
            "A_ch or Grad-CAM below a model is what its maps are; those of A_ch overlap more in any network, so that "
            "models with different maps do not compare in these measures."
        )
    return f'<p class="key">{" ".join(parts)}</p>' if parts else ""


def _pictures(groups: list[Group], colours: Mapping[str, int]) -> str:
    models: dict[str, Samples] = {group.name: seen for group in groups if (seen := group.samples) is not None}
    if not models:
        return ""
    framed = any(samples.mask is not None for samples in models.values())
    looks = any(samples.map is not None for samples in models.values())
    how = [
        "The large picture is the input, darkened where attention is low; the small ones are the maps of the gates, "
        "first to last, one square a position. Each is scaled to its own maximum."
        if looks
        else "",
        "A white frame marks the target for you; no model sees it." if framed else "",
        f"{'A red frame' if looks else 'Red'} is a wrong answer; the percentage is how sure the model was.",
    ]
    cards = gates_html(models, limit=SHOWN, colours=colours)
    who = "they" if len(models) > 1 else "it"
    return f'<h3>What {who} saw</h3><p class="how">{" ".join(filter(None, how))}</p>{cards}'


def _classes(groups: list[Group]) -> str:
    """The maps of the classes that each model thinks of first, for runs that kept them of the same images."""
    kept: dict[str, tuple[Samples, TopClasses]] = {}
    for group in groups:
        run = next((run for run in group.runs if run.samples is not None), None)
        top = None if run is None else read_top_classes(run.folder / "samples.safetensors")
        if run is not None and run.samples is not None and top is not None:
            kept[group.name] = (run.samples, replace(top, kind=run.kind))
    if not kept:
        return ""
    first = next(iter(kept.values()))[0]
    same = [
        (title, top)
        for title, (samples, top) in kept.items()
        if torch.equal(samples.image, first.image) and samples.answers == first.answers
    ]
    how = (
        "For every class that a model thinks of first, from left to right, where it looks for it; the true class is "
        "framed. The less the maps of two classes overlap, the less they are confused. A_ch or Grad-CAM beside a "
        "model's name is what its maps are."
    )
    pictures = []
    for n in range(min(SHOWN, len(first), max(2, MOST_ROWS // len(same)))):
        for start in range(0, len(same), ROWS):
            rows = {title: top.only(n) for title, top in same[start : start + ROWS]}
            label = None if first.label is None else first.label[n : n + 1]
            picture = class_maps(rows, first.image[n : n + 1], label, names=first.answers)
            (width, height), data = picture.size, data_uri(picture, max(picture.size))
            alt = f"class attention maps of image {n + 1}, a row a model"
            drawn = f'<img src="{data}" width="{width}" height="{height}" alt="{alt}">'
            pictures.append(f'<div class="scroll" tabindex="0">{drawn}</div>')
    shown = f'<div class="classes">{"".join(pictures)}</div>'
    return f'<h3>Where it looks for each class</h3><p class="how">{how}</p>{shown}'


def _texts(groups: list[Group], colours: Mapping[str, int]) -> str:
    models: dict[str, DocumentSamples] = {group.name: seen for group in groups if (seen := group.documents) is not None}
    if not models:
        return ""
    how = (
        "The ring is the sentence that counted most, clockwise from the top: the longer a word's bar, the more "
        "important it is, and lines across join words that attend to each other. Below it is the whole text as the "
        "models saw it: a bar for the share of each sentence, colour for that of each word. The percentage is how sure "
        "the model was."
    )
    who = "they" if len(models) > 1 else "it"
    return f'<h3>What {who} read</h3><p class="how">{how}</p>{documents_html(models, colours=colours)}'


def _charts(groups: list[Group], colours: Mapping[str, int]) -> str:
    pairs = {g.name: (g.average("pixel_pr", "precision"), g.average("pixel_pr", "recall")) for g in groups}
    pr = {title: (p, r) for title, (p, r) in pairs.items() if p and r and len(p) == len(r)}
    edges = next((e for g in groups if (e := g.average("scale_accuracy", "edges")) and None not in e), None)
    scales = {
        g.name: a
        for g in groups
        if (a := g.average("scale_accuracy", "accuracy")) and edges and len(a) == len(edges) - 1
    }
    figures = [
        curves.precision_recall(pr, even=_area(groups), colours=colours) if pr else "",
        curves.scale_accuracy([float(e or 0) for e in edges], scales, colours=colours) if edges and scales else "",
        *curves.training({g.name: [run.epochs for run in g.runs] for g in groups}, colours=colours),
    ]
    drawn = "".join(figures)
    return f'<h3>In curves</h3><div class="charts">{drawn}</div>' if drawn else ""


def _area(groups: list[Group]) -> float | None:
    areas = [area for group in groups for area in group.numbers("target_area", "metrics") if 0 <= area <= 1]
    return statistics.fmean(areas) if areas else None


def _details(runs: Sequence[Run]) -> str:
    blocks = []
    for run in sorted(runs, key=lambda run: (run.dataset, run.title, run.seed)):
        state = "" if run.finished else '<span class="badge">unfinished</span>'
        problems = "".join(f'<p class="note">{escape(problem)}</p>' for problem in run.problems)
        parts = {"Recipe": run.recipe.strip()}
        if run.environment is not None:
            parts["Environment"] = json.dumps(run.environment, indent=2, ensure_ascii=False)
        body = "".join(f"<h4>{title}</h4><pre>{escape(text)}</pre>" for title, text in parts.items())
        summary = f"{escape(run.title)} <span>{escape(run.dataset)}, seed {escape(run.seed)}</span>{state}"
        blocks.append(f"<details><summary>{summary}</summary>{problems}{body}</details>")
    return "".join(blocks)


def _count(number: int) -> str:
    return WORDS[number] if number < len(WORDS) else str(number)


def _place(run_dir: str | Path | Sequence[str | Path], out: str | Path | None) -> Path:
    if out is not None:
        return Path(out) / "report.html" if Path(out).is_dir() else Path(out)
    folders = [run_dir] if isinstance(run_dir, str | Path) else list(run_dir)
    common = os.path.commonpath([Path(folder).absolute() for folder in folders]) if len(folders) > 1 else folders[0]
    return Path(common) / "report.html"
