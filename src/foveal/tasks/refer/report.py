"""The report of task ``refer``: where each model looked for the asked-for object."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from foveal.runs import Group
from foveal.see import Samples, precision_recall, scale_accuracy
from foveal.see.page import Section, curves_section, samples_section
from foveal.tasks.report import ReportWords

AREA = "target_area"


def report_words(groups: Sequence[Group]) -> ReportWords:
    """Pictures, and what was asked about them."""
    stored = next((group.samples for group in groups if group.samples is not None), None)
    asked = "something about one object in each" if stored is None else stored.about.get("asked", "one object in each")
    area = _area(groups)
    key = [] if area is None else [f"Attention spread evenly would reach {100 * area:.1f} % true-positive strength."]
    return ReportWords(
        doing=f"were shown pictures and asked for {asked}",
        looks=True,
        things="pictures",
        headlines={"accuracy": "{who} answered {value}" + _of(groups) + " right."},
        key=key,
    )


def report_sections(groups: Sequence[Group], colours: Mapping[str, int]) -> list[Section]:
    """The samples with their gates, then curves over thresholds and scales."""
    models = {
        group.name: Samples.from_tensors(group.samples.tensors, group.samples.about)
        for group in groups
        if group.samples is not None
    }
    sections = [samples_section(models, colours=colours)] if models else []
    curves = curves_section([_precision_recall(groups, colours), _scales(groups, colours)])
    return [*sections, *([replace(curves, title="Attention and scale")] if curves is not None else [])]


def _precision_recall(groups: Sequence[Group], colours: Mapping[str, int]) -> str:
    curves = {}
    for group in groups:
        precision, recall = (group.curve("pixel_pr", key) for key in ("precision", "recall"))
        if precision and recall and len(precision) == len(recall):
            curves[group.name] = (precision, recall)
    return precision_recall(curves, even=_area(groups), colours=colours) if curves else ""


def _scales(groups: Sequence[Group], colours: Mapping[str, int]) -> str:
    edges = next((e for group in groups if (e := group.curve("scale_accuracy", "edges")) and None not in e), None)
    if edges is None:
        return ""
    accuracy = {group.name: group.curve("scale_accuracy", "accuracy") for group in groups}
    fitting = {name: values for name, values in accuracy.items() if values and len(values) == len(edges) - 1}
    return scale_accuracy([float(edge or 0) for edge in edges], fitting, colours=colours) if fitting else ""


def _area(groups: Sequence[Group]) -> float | None:
    areas = [area for group in groups for area in group.numbers(AREA) if 0 <= area <= 1]
    return statistics.fmean(areas) if areas else None


def _of(groups: Sequence[Group]) -> str:
    counts = next((c for group in groups if (c := group.curve("scale_accuracy", "count"))), None)
    return f" of {sum(int(n or 0) for n in counts):,} questions" if counts else " of the questions"
