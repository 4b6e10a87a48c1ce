"""The comparison table: one row a model, ours beside the published number."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from html import escape

from foveal.see.class_maps import KIND_NAMES
from foveal.see.runs import Group, Run
from foveal.see.svg import colour, finite, nice

NAMES = {
    "accuracy": "Accuracy",
    "top5_accuracy": "Top-5 accuracy",
    "mean_average_precision": "Mean average precision",
    "weighted_average_precision": "Weighted average precision",
    "center_mass": "Center-mass",
    "true_positive_strength": "True-positive strength",
    "true_positive_strength_last": "True-positive strength, last gate",
    "true_positive_strength_resized": "True-positive strength, maps stretched",
}
CLASS_MAPS = {  # measures of class maps, in words
    "overlap_last": "Overlap last is how much the maps of the true class and of the best-scoring other one share in "
    "the last layer: 0 if they lie apart, 100 if they are equal.",
    "overlap_inner": "Overlap inner is the same in an inner layer.",
    "inner_in_last": "Inner in last is the share of the inner layer's attention where the last layer attends.",
    "pointing_game": "Pointing game is the share of images whose strongest position lies in the object.",
    "energy_in_box": "Energy in box is the share of attention inside the object.",
}
SIDES = ("right", "wrong")
OF_THE_DATA = {"target_area"}  # metrics that describe the data, the same for every model


def table(groups: Sequence[Group], colours: Mapping[str, int]) -> str:
    """One row a model: every metric with its spread, the published number and the difference, size, epochs, time.

    Args:
        groups: the models.
        colours: slot of each model, see :func:`foveal.see.svg.slots`.
    """
    keys = metrics(groups)
    columns = {key: _column(groups, key, colours) for key in keys}
    head = "".join(f"<th>{_heading(groups, key)}</th>" for key in keys)
    rows = "".join(
        f'<tr><th scope="row">{_model(group, colours)}</th>{"".join(columns[key][i] for key in keys)}'
        f"<td>{_parameters(group)}</td><td>{_epochs(group)}</td><td>{_time(group)}</td></tr>"
        for i, group in enumerate(groups)
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="results"><table><thead><tr><th>Model</th>{head}'
        f"<th>Parameters</th><th>Epochs</th><th>Training time</th></tr></thead><tbody>{rows}</tbody></table></div>"
    )


def split_table(groups: Sequence[Group]) -> str:
    """One row a model: measures of class maps over the images it answered right and over those it answered wrong."""
    measured = [key for key in metrics(groups) if key in CLASS_MAPS]
    keys = [key for key in measured if any(group.split(key, side) for group in groups for side in SIDES)]
    if not keys:
        return ""
    head = "".join(f'<th colspan="2">{escape(name(key))},&nbsp;%</th>' for key in keys)
    sides = "".join(f"<th>{side}</th>" for _ in keys for side in SIDES)
    rows = "".join(
        f'<tr><th scope="row">{escape(group.name)}</th>{"".join(_split_cell(group, k, s) for k in keys for s in SIDES)}'
        "</tr>"
        for group in groups
        if group.finished
    )
    return (
        '<h4>Of images answered right, and of those answered wrong</h4><div class="scroll split" tabindex="0" '
        'role="region" aria-label="right and wrong answers"><table><thead><tr><th rowspan="2">Model</th>'
        f"{head}</tr><tr>{sides}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _split_cell(group: Group, key: str, side: str) -> str:
    numbers = group.split(key, side)
    return f"<td>{spread(numbers, percent=True)}</td>" if numbers else '<td class="empty">–</td>'


def several_kinds(groups: Sequence[Group]) -> bool:
    """Whether some models' class maps are A_ch and others' are by Grad-CAM, so that overlaps do not compare."""
    return len({group.kind for group in groups if group.kind}) > 1


def metrics(groups: Sequence[Group]) -> list[str]:
    """The metrics that some model has, well-known ones first."""
    found = dict.fromkeys(key for group in groups for run in group.finished for key in run.part("metrics"))
    known = [key for key in NAMES if key in found]
    return known + [key for key in found if key not in NAMES and key not in OF_THE_DATA]


def name(key: str) -> str:
    """A metric in words.

    >>> name("accuracy"), name("my_new_metric")
    ('Accuracy', 'My new metric')
    """
    return NAMES.get(key) or key.replace("_", " ").strip().capitalize()


def best(groups: Sequence[Group], key: str) -> list[Group]:
    """The groups with the best mean as it is shown; none when there is nothing to compare."""
    means = {group.name: statistics.fmean(numbers) for group in groups if (numbers := group.numbers(key, "metrics"))}
    if len(means) < 2 or (key in CLASS_MAPS and several_kinds(groups)):
        return []
    top = (min if _lower_is_better(key) else max)(means.values())
    return [group for group in groups if group.name in means and abs(means[group.name] - top) < 5e-5]


def spread(numbers: Sequence[float], percent: bool) -> str:
    """Mean, and the standard deviation of several.

    >>> spread([0.5, 0.52], percent=True), spread([0.5], percent=True), spread([3.25], percent=False)
    ('51.0 ± 1.4', '50.0', '3.25')
    """
    mean = statistics.fmean(numbers)
    shown = f"{100 * mean:.1f}" if percent else f"{mean:.4g}"
    if len(numbers) < 2:
        return shown
    deviation = statistics.stdev(numbers)
    return f"{shown} ± {100 * deviation:.1f}" if percent else f"{shown} ± {deviation:.2g}"


def duration(seconds: float) -> str:
    """Seconds in the words of a clock.

    >>> duration(31.2), duration(250), duration(7260)
    ('31 s', '4 min 10 s', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


def step_time(seconds: float) -> str:
    """How long a training step takes.

    >>> step_time(0.00321), step_time(10.94)
    ('3.21 ms a step', '10.9 s a step')
    """
    return f"{1000 * seconds:.3g} ms a step" if seconds < 0.9995 else f"{seconds:.3g} s a step"


def _lower_is_better(key: str) -> bool:
    return "loss" in key or "error" in key or key.startswith("overlap")


def _percent(groups: Sequence[Group], key: str) -> bool:
    """Metrics are fractions; one that leaves [0, 1] is shown as it is."""
    return "loss" not in key and all(0 <= value <= 1 for group in groups for value in group.numbers(key, "metrics"))


def _heading(groups: Sequence[Group], key: str) -> str:
    return escape(name(key)) + (",&nbsp;%" if _percent(groups, key) else "")


def _column(groups: Sequence[Group], key: str, colours: Mapping[str, int]) -> list[str]:
    percent, winners = _percent(groups, key), best(groups, key)
    every = [v for g in groups for part in ("metrics", "published") for v in g.numbers(key, part)]
    end = 1.0 if key == "accuracy" else nice(max(every, default=1.0))
    cells = []
    for group in groups:
        numbers, published = group.numbers(key, "metrics"), group.numbers(key, "published")
        if not numbers:
            cells.append('<td class="empty">–</td>')
            continue
        shown = f'<span class="value">{spread(numbers, percent)}</span>'
        shown = f"<strong>{shown}</strong>" if group in winners else shown
        paper = statistics.fmean(published) if published else None
        mean = statistics.fmean(numbers)
        bar = (
            _bar(mean / end, None if paper is None else paper / end, colour(colours.get(group.name, 0)))
            if percent
            else ""
        )
        cells.append(f"<td>{shown}{bar}{'' if paper is None else _beside(mean, paper, percent)}</td>")
    return cells


def _bar(ours: float, paper: float | None, ink: str) -> str:
    tick = "" if paper is None else f'<b style="left:{100 * min(paper, 1):.1f}%"></b>'
    filled = f'<i style="width:{100 * min(ours, 1):.1f}%;background:{ink}"></i>'
    return f'<span class="bar" aria-hidden="true">{filled}{tick}</span>'


def _beside(ours: float, paper: float, percent: bool) -> str:
    factor, digits = (100, 1) if percent else (1, 3)
    difference = round(round(factor * ours, digits) - round(factor * paper, digits), digits)
    sign = "+" if difference > 0 else "−" if difference < 0 else ""
    return f'<small class="nowrap">paper {factor * paper:.{digits}f} ({sign}{abs(difference):.{digits}f})</small>'


def _model(group: Group, colours: Mapping[str, int]) -> str:
    finished, all_ = len(group.finished), len(group.runs)
    seeds = {run.seed for run in group.finished}
    what = "seed" if len(seeds) == finished else "run"
    notes = [f"{finished} {what}s" if finished > 1 else f"seed {group.finished[0].seed}"] if finished else []
    if finished < all_:
        notes.append("unfinished" if not finished else f"{all_ - finished} unfinished")
    notes += [_kind(group)] if _kind(group) else []
    swatch = f'<i class="dot" style="background:{colour(colours.get(group.name, 0))}"></i>'
    return f"{swatch}{escape(group.name)}<small>{escape(', '.join(notes))}</small>"


def _kind(group: Group) -> str:
    return f"maps: {KIND_NAMES[group.kind]}" if group.kind in KIND_NAMES else ""


def _parameters(group: Group) -> str:
    counts = group.numbers("parameters")
    return f"{round(counts[0]):,}" if counts else "–"


def _epochs(group: Group) -> str:
    if not group.finished:
        return _progress(group.runs[0])
    counts, best_epochs = group.numbers("epochs"), group.numbers("best_epoch")
    if not counts:
        return "–"
    text = f"{statistics.fmean(counts):.0f}"
    return text + (f"<small>best {statistics.fmean(best_epochs):.0f}</small>" if best_epochs else "")


def _progress(run: Run) -> str:
    if not run.epochs:
        return "0<small>so far</small>"
    score = next((v for k, v in run.epochs[-1].items() if k.startswith("val/") and k != "val/loss"), None)
    validation = f", validation {100 * score:.1f} %" if finite(score) else ""
    return f"{len(run.epochs)}<small>so far{validation}</small>"


def _time(group: Group) -> str:
    seconds, steps = group.numbers("seconds"), group.numbers("step_seconds")
    each = f"<small>{step_time(statistics.median(steps))}</small>" if steps else ""
    return duration(statistics.fmean(seconds)) + each if seconds else "–"
