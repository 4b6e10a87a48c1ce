"""The report of task ``classify``: what the models saw, and where they look for each class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from foveal.measure.attention_overlap import OVERLAP_INNER, OVERLAP_LAST
from foveal.runs import Group, Run
from foveal.see import Samples, TopClasses
from foveal.see.draw.top_classes import KIND_NAMES
from foveal.see.page import Section, class_maps_section, samples_section
from foveal.tasks.report import ReportWords

CLASS_ATTENTION = (OVERLAP_INNER.key, OVERLAP_LAST.key, "inner_in_last", "pointing_game", "energy_in_box")
SEVERAL_KINDS = (
    "A_ch or Grad-CAM below a model is what its maps are; those of A_ch overlap more in any network, so that models "
    "with different maps do not compare in these measures."
)


def report_words(groups: Sequence[Group]) -> ReportWords:
    """Pictures, and what they show."""
    stored = next((group.samples for group in groups if group.samples is not None), None)
    asked = "what they show" if stored is None else stored.about.get("asked", "what they show")
    kinds = {group.name: kind for group in groups if (kind := map_kind(group.runs[0])) in KIND_NAMES}
    several = len(set(kinds.values())) > 1
    gates = any(group.samples is not None and "map" in group.samples.tensors for group in groups)
    return ReportWords(
        doing=f"were shown pictures and asked for {asked}",
        looks=bool(kinds) or gates,
        things="pictures",
        headlines={"accuracy": "{who} answered {value} of the questions right."},
        key=[SEVERAL_KINDS] if several else [],
        notes={name: [f"maps: {KIND_NAMES[kind]}"] for name, kind in kinds.items()},
        incomparable=CLASS_ATTENTION if several else (),
    )


def report_sections(groups: Sequence[Group], colours: Mapping[str, int]) -> list[Section]:
    """The samples, and the maps of the classes that each model thinks of first."""
    samples: dict[str, Samples] = {}
    tops: dict[str, tuple[Samples, TopClasses]] = {}
    for group in groups:
        if (stored := group.samples) is None:
            continue
        samples[group.name] = Samples.from_tensors(stored.tensors, stored.about)
        if (top := TopClasses.from_tensors(stored.tensors)) is not None:
            kind = map_kind(next(run for run in group.runs if run.samples is stored))
            tops[group.name] = (samples[group.name], replace(top, kind=kind))
    sections = [samples_section(samples, colours=colours)] if samples else []
    return [*sections, *([class_maps_section(tops, colours=colours)] if tops else [])]


def map_kind(run: Run) -> str | None:
    """What a run's class maps are, ``channel`` or ``gradcam``; None if its recipe has none. Also of old recipes."""
    return run.setting("measure", "class_attention", "kind") or run.setting("loss", "sharpen", "kind")
