"""The report of task ``document``: which words and sentences counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from foveal.runs import Group
from foveal.see import DocumentSamples
from foveal.see.page import Section, documents_section
from foveal.tasks.report import ReportWords


def report_words(groups: Sequence[Group]) -> ReportWords:
    """Texts and their classes."""
    stored = next((group.samples for group in groups if group.samples is not None), None)
    classes = f" (one of {len(stored.about['answers'])})" if stored is not None and "answers" in stored.about else ""
    return ReportWords(
        doing=f"were given texts and asked for their class{classes}",
        looks=True,
        strength="stronger the colour",
        things="texts",
        headlines={"accuracy": "{who} put {value} of the texts into their class."},
    )


def report_sections(groups: Sequence[Group], colours: Mapping[str, int]) -> list[Section]:
    """The documents as the models read them."""
    models = {
        group.name: DocumentSamples.from_tensors(group.samples.tensors, group.samples.about)
        for group in groups
        if group.samples is not None
    }
    return [documents_section(models, colours=colours)] if models else []
