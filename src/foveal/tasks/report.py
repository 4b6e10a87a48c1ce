"""The report of one run or many: general parts from the run folders, the rest from each task.

A section a task and dataset: the result in one sentence, what the data is, the table of metrics, the sections that the
task supplies, and the curves of training. :mod:`foveal.see.page` makes one HTML file of it.
"""

from __future__ import annotations

import json
import os
import statistics
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from markupsafe import Markup, escape

import foveal
from foveal import registry
from foveal.errors import DamagedRunWarning, RunError, UnknownNameError
from foveal.files import write_text
from foveal.measure.info import MetricInfo
from foveal.runs import Group, Run, grouped, read_runs
from foveal.see.draw.chart import slots
from foveal.see.draw.curves import training
from foveal.see.page import (
    Details,
    ModelRow,
    Page,
    Section,
    Value,
    best,
    curves_section,
    metric_table,
    paragraph,
    parts_table,
    render,
)
from foveal.see.page.phrases import count
from foveal.tasks.base import Task


@dataclass(frozen=True)
class ReportWords:
    """What a task says of its runs on one dataset.

    Attributes:
        doing: to follow "five models": ``were shown pictures and asked for the colour of one digit``.
        looks: whether there is attention to look at.
        strength: how much attention looks in the pictures: ``brighter``, ``stronger the colour``.
        things: what the data consists of.
        headlines: sentence for the best model by metric, with ``{who}`` and ``{value}``.
        key: further sentences below the table.
        notes: what stands below a model's name.
        incomparable: keys of metrics in which these models do not compare.
    """

    doing: str
    looks: bool = False
    strength: str = "brighter"
    things: str = "samples"
    headlines: Mapping[str, str] = field(default_factory=dict)
    key: Sequence[str] = ()
    notes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    incomparable: Sequence[str] = ()


def report(run_dir: str | Path | Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Write ``report.html``, see :func:`foveal.see.report`."""
    content = page(read_runs(run_dir))
    path = _place(run_dir, out)
    for problem in content.problems:
        warnings.warn(problem, DamagedRunWarning, stacklevel=2)
    write_text(path, render(content), "Give another place with `out`")
    return path


def page(runs: Sequence[Run]) -> Page:
    """The report of ``runs``."""
    datasets = grouped(runs)
    colours = slots(group.name for groups in datasets.values() for group in groups)
    parts = [_Part(*key, groups, colours) for key, groups in datasets.items()]
    sections = [part.section(f"data-{i}") for i, part in enumerate(parts)]
    problems = [f"{run.folder}: {problem}" for run in runs for problem in run.problems]
    return Page(
        title=_title(runs, parts),
        lede=_lede(runs, parts),
        sections=sections,
        details=[_details(run) for run in sorted(runs, key=lambda run: (run.dataset, run.title, run.seed))],
        version=foveal.__version__,
        problems=(*problems, *(f"{part.dataset}: {part.problem}" for part in parts if part.problem)),
    )


class _Part:
    """The runs of one task on one dataset."""

    def __init__(
        self, task: str, embedded: bool, dataset: str, groups: list[Group], colours: Mapping[str, int]
    ) -> None:
        self.embedded, self.dataset, self.groups, self.colours = embedded, dataset, groups, colours
        self.task, self.problem = _find(task, groups)
        self.words = self.task.report_words(groups)
        keys = dict.fromkeys(key for group in groups for key in group.metrics)
        self.infos = [info for key in keys if (info := self._info(key)).better is not None]
        self.rows = [self._row(group) for group in groups]

    def section(self, anchor: str) -> Section:
        epochs = {group.name: [run.epochs for run in group.runs] for group in self.groups}
        curves = curves_section(training(epochs, info=self._info, colours=self.colours))
        try:
            own = self.task.report_sections(self.groups, self.colours)
        except RunError as error:
            own, self.problem = [], f"pictures are missing: {error}"
        inner = [self._parts(), *own, curves]
        table = metric_table(self.rows, self.infos, incomparable=self.words.incomparable, colours=self.colours)
        body = [self._headline(), *self._about(), table, self._key()]
        return Section(
            self.dataset,
            Markup("").join(body),
            anchor=anchor,
            badge="embedded data" if self.embedded else "",
            sections=[section for section in inner if section is not None],
        )

    def _info(self, key: str) -> MetricInfo:
        """What is known of a metric, from a model that measured it."""
        owner = next((group for group in self.groups if key in group.metrics), self.groups[0])
        return owner.info(key)

    def _row(self, group: Group) -> ModelRow:
        values = {}
        for info in self.infos:
            published = group.published(info.key)
            value = Value.of(group.numbers(info.key), () if published is None else (published,))
            if value is not None:
                values[info.key] = value
        epochs, best_epoch, run = group.values("epochs"), group.values("best_epoch"), group.runs[0]
        return ModelRow(
            group.name,
            values,
            notes=[*_seeds(group), *_undefined(group), *self.words.notes.get(group.name, ())],
            parameters=int(counts[0]) if (counts := group.values("parameters")) else None,
            epochs=statistics.fmean(epochs) if epochs else float(len(run.epochs)),
            best_epoch=statistics.fmean(best_epoch) if best_epoch else None,
            progress="" if group.finished else self._progress(run),
            seconds=statistics.fmean(seconds) if (seconds := group.values("seconds")) else None,
            step_seconds=statistics.median(steps) if (steps := group.values("step_seconds")) else None,
        )

    def _progress(self, run: Run) -> str:
        scores = (
            [(k, v) for k, v in run.epochs[-1].items() if k.startswith("val/") and k != "val/loss"]
            if run.epochs
            else []
        )
        if not scores:
            return "so far"
        key, value = scores[0]
        info = self._info(key.removeprefix("val/"))
        return f"so far, validation {info.with_unit(value)}"

    def _headline(self) -> Markup:
        """The result in one sentence."""
        if not self.infos:
            return paragraph("No run has finished yet.", "headline")
        info = self.infos[0]
        winners = best(self.rows, info) or [row for row in self.rows if info.key in row.values][:1]
        if not winners:
            return Markup("")
        who = _listed([Markup("<strong>{}</strong>").format(row.name) for row in winners])
        value = Markup("<strong>{}</strong>").format(info.with_unit(winners[0].values[info.key].mean))
        sentence = self.words.headlines.get(info.key, "{who} reached {value} {metric}.")
        return paragraph(escape(sentence).format(who=who, value=value, metric=info.title.lower()), "headline")

    def _about(self) -> list[Markup]:
        """What the data is, and plainly whether published numbers compare."""
        finished = [run for group in self.groups for run in group.finished]
        lines = dict.fromkeys(str(run.result["data"]) for run in finished if run.result.get("data"))
        about = [paragraph(line, "data") for line in lines]
        if self.embedded and any(run.part("published") for run in finished):
            about.append(
                paragraph(
                    Markup(
                        "<strong>These are not the paper's {}.</strong> The data comes with foveal, so published "
                        "numbers do not compare directly: read them for the order of the models, not for the last "
                        "percent."
                    ).format(self.words.things),
                    "note",
                )
            )
        elif self.embedded:
            about.append(paragraph("The data comes with foveal: no published number compares.", "note"))
        return about

    def _key(self) -> Markup:
        """How to read the table."""
        parts = []
        if any(len(group.finished) > 1 for group in self.groups):
            parts.append("± is the standard deviation over seeds.")
        units = {
            self._info(key).unit
            for row in self.rows
            for key, value in row.values.items()
            if value.published is not None
        }
        if "%" in units:  # others have no bar
            parts.append("The upright tick on a bar is the published number; in brackets, ours minus it.")
        elif units:
            parts.append("In brackets is our number minus the published one.")
        parts += [info.about for info in self.infos if info.about]
        parts += self.words.key
        return paragraph(" ".join(dict.fromkeys(parts)), "key") if parts else Markup("")

    def _parts(self) -> Section | None:
        """Metrics by part: right and wrong answers, classes."""
        keys = dict.fromkeys(key for g in self.groups for run in g.finished for key in run.part("parts"))
        infos = [self._info(key) for key in keys]
        values = {
            group.name: {
                info.key: {
                    part: value for part, numbers in group.parts(info.key).items() if (value := Value.of(numbers))
                }
                for info in infos
            }
            for group in self.groups
        }
        measured = {name: by_metric for name, by_metric in values.items() if any(by_metric.values())}
        body = parts_table(measured, infos, label="parts")
        return Section("In parts", body) if body else None


def _find(task: str, groups: Sequence[Group]) -> tuple[type[Task], str]:
    """The task's class; the general one, and why, if it is not known here."""
    try:
        return registry.tasks.get(task), ""
    except UnknownNameError:
        runs = [run for group in groups for run in group.runs]
        plugins = dict.fromkeys(name for run in runs for name in run.header.get("plugins", ()))
        return Task, (
            f"the task {task or 'of these runs'} is not known here, so that its own sections are missing; "
            f"FOVEAL_PLUGINS={','.join(plugins) or 'MODULE'} makes it known"
        )


def _undefined(group: Group) -> list[str]:
    """Metrics that have no value in any run, where it is known why."""
    notes = {key: note for run in group.finished for key, note in run.part("notes").items()}
    return [f"{group.info(key).title} is undefined: {note}" for key, note in notes.items() if not group.numbers(key)]


def _listed(names: Sequence[Markup]) -> Markup:
    """Names in a sentence.

    >>> print(_listed([Markup("HARD"), Markup("SOFT"), Markup("STN")]), "or", _listed([Markup("HARD")]))
    HARD, SOFT and STN or HARD
    """
    *others, last = names
    return Markup(" and ").join([Markup(", ").join(others), last]) if others else last


def _seeds(group: Group) -> list[str]:
    finished, total = len(group.finished), len(group.runs)
    word = "seeds" if len({run.seed for run in group.finished}) == finished else "runs"
    notes = [f"{finished} {word}" if finished > 1 else f"seed {group.finished[0].seed}"] if finished else []
    if finished < total:
        notes.append(f"{total - finished} unfinished" if finished else "unfinished")
    return notes


def _title(runs: Sequence[Run], parts: Sequence[_Part]) -> str:
    titles = sorted({run.title for run in runs})
    who = titles[0] if len(titles) == 1 else f"{count(len(titles))} models"
    if any(part.words.looks for part in parts):
        return f"Where {who} looks" if len(titles) == 1 else f"Where {who} look"
    return f"What {who} says" if len(titles) == 1 else f"What {who} say"


def _lede(runs: Sequence[Run], parts: Sequence[_Part]) -> Markup:
    """What one looks at, in plain words."""
    models: dict[str, set[str]] = {}
    details: dict[str, list[str]] = {}
    for part in parts:  # the same on other data is said once: "(3 classes; 10 classes)"
        text, _, detail = part.words.doing.partition(" (")
        models.setdefault(text, set()).update(run.title for group in part.groups for run in group.runs)
        details.setdefault(text, []).extend([detail.removesuffix(")")] if detail else [])
    sentences = []
    for text, titles in models.items():
        several = "; ".join(dict.fromkeys(details[text]))
        sentences.append(_doing(f"{text} ({several})" if several else text, len(titles)))
    looking = next((part.words for part in parts if part.words.looks), None)
    if looking is not None:
        looked = "each of them" if len({run.title for run in runs}) > 1 else "it"
        text = "Below is how well that went, and where {} looked: <em>the {}, the more attention</em>."
        sentences.append(Markup(text).format(looked, looking.strength))
    else:
        sentences.append(Markup("Below is how well that went."))
    unfinished = sum(not run.finished for run in runs)
    if unfinished:
        of = f"{count(unfinished).capitalize()} of {len(runs)} runs" if len(runs) > 1 else "The run"
        verb = "is" if unfinished == 1 else "are"
        sentences.append(Markup("{} {} unfinished; what there is so far is shown.").format(of, verb))
    return Markup(" ").join(sentences)


def _doing(doing: str, models: int) -> Markup:
    if models == 1:
        return Markup("A model {}.").format(doing.replace("were ", "was ", 1))
    return Markup("{} models {}.").format(count(models).capitalize(), doing)


def _details(run: Run) -> Details:
    texts = {"Recipe": run.recipe_text.strip()}
    if run.environment is not None:
        texts["Environment"] = json.dumps(run.environment, indent=2, ensure_ascii=False)
    badge = "" if run.finished else "unfinished"
    return Details(run.title, texts, note=f"{run.dataset}, seed {run.seed}", badge=badge, problems=run.problems)


def _place(run_dir: str | Path | Sequence[str | Path], out: str | Path | None) -> Path:
    if out is not None:
        return Path(out) / "report.html" if Path(out).is_dir() else Path(out)
    folders = [run_dir] if isinstance(run_dir, str | Path) else list(run_dir)
    common = os.path.commonpath([Path(folder).absolute() for folder in folders]) if len(folders) > 1 else folders[0]
    return Path(common) / "report.html"
