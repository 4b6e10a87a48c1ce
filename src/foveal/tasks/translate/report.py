"""The report of task ``translate``: some translations, their alignment, and what each term attends to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup
from torch import Tensor

from foveal.data.text.subwords import Subwords
from foveal.runs import Group
from foveal.runs.folder import Stored
from foveal.see import pairs
from foveal.see.page import Section, cards, figure, picture
from foveal.tasks.report import ReportWords
from foveal.tasks.translate.looking import FAMILIES, MOST, families

LIMIT = 3  # sentences
LONG = 24  # pieces from which on a picture needs the whole width of the page
MOST_MODELS = 6  # beside each other
SIDES = ("source", "translation")


def report_words(groups: Sequence[Group]) -> ReportWords:
    """Sentences and their translations."""
    stored = next((group.samples for group in groups if group.samples is not None), None)
    ways = f" from {stored.about['source']} to {stored.about['target']}" if stored is not None else ""
    return ReportWords(
        doing=f"translated sentences{ways}",
        looks=True,
        strength="stronger the colour",
        things="sentences",
        headlines={"bleu": "{who} reached {value} BLEU."},
    )


def report_sections(groups: Sequence[Group]) -> list[Section]:
    """Translations of the same sentences with their alignment, and every term of the attention in one of them."""
    stored = {group.name: group.samples for group in groups if group.samples is not None and group.samples.tensors}
    if not stored:
        return []
    models = {name: Shown(samples) for name, samples in list(stored.items())[:MOST_MODELS]}
    shared = [n for n in next(iter(models.values())).numbers if all(n in model.numbers for model in models.values())]
    chosen = shared[:: max(1, len(shared) // LIMIT)][:LIMIT]
    return [_translations(models, chosen), _terms(models, chosen)] if chosen else []


class Shown:
    """The test sentences that a run kept."""

    def __init__(self, stored: Stored) -> None:
        self.subwords = Subwords.load(stored.about["subwords"], stored.about["lowercase"])
        self.sentences: dict[int, dict[str, Tensor]] = {}
        for key, tensor in stored.tensors.items():
            number, _, name = key.partition("/")
            self.sentences.setdefault(int(number), {})[name] = tensor

    @property
    def numbers(self) -> list[int]:
        """Of the sentences in the test set."""
        return sorted(self.sentences)

    def text(self, number: int, name: str) -> str:
        """The source, the reference or the translation."""
        return self.subwords.decode([self.sentences[number][name].tolist()])[0]

    def pieces(self, number: int, name: str) -> list[str]:
        """The same in pieces."""
        return self.subwords.pieces(self.sentences[number][name].tolist())


def _translations(models: Mapping[str, Shown], chosen: Sequence[int]) -> Section:
    items = []
    first = next(iter(models.values()))
    for number in chosen:
        texts = (first.text(number, side) for side in ("source", "reference"))
        parts = [Markup("<p>{}</p><p><em>{}</em></p>").format(*texts)]
        for name, model in models.items():
            text = model.text(number, "translation")
            parts.append(figure(_alignment(model, number), f"{name}: {text or 'nothing'}"))
        items.append((f"test sentence {number + 1}", Markup("").join(parts)))
    longest = max(len(model.pieces(n, side)) for model in models.values() for n in chosen for side in SIDES)
    intro = (
        "A sentence, its reference in italics, and what each model made of it. A row of a picture is a piece of the "
        "translation, a column one of the sentence: the stronger the colour, the more attention it got, as the mean of "
        "all layers and heads. A dot before a piece means that it continues a word; ⏎ is the end."
    )
    return Section("What they translate", cards(items) if longest <= LONG else _wide(items), intro)


def _wide(items: Sequence[tuple[str, Markup]]) -> Markup:
    """What cards are too narrow for, one below the other."""
    return Markup("").join(Markup("<h4>{}</h4>{}").format(title, content) for title, content in items)


def _alignment(model: Shown, number: int) -> Markup:
    pieces = model.pieces(number, "translation")
    if not pieces:
        return Markup("")
    source = model.pieces(number, "source")
    cell = 18 if max(len(pieces), len(source)) <= LONG else 14
    weights = model.sentences[number]["cross"][:MOST, :MOST]
    drawn = pairs(pieces[:MOST], weights, columns=source[:MOST], cell=cell)
    return picture(drawn, f"alignment of test sentence {number + 1}", max(drawn.size))


def _terms(models: Mapping[str, Shown], chosen: Sequence[int]) -> Section:
    """Every term of every model, for the shortest of the sentences."""
    items = []
    for name, model in models.items():
        number = min(chosen, key=lambda n: len(model.pieces(n, "source")))
        pieces = [model.pieces(number, side) for side in SIDES]
        drawn = families(model.sentences[number], *pieces)
        shown = [picture(one, f"{name}, {FAMILIES[family]}", max(one.size)) for family, one in drawn.items()]
        items.append((f"{name}, test sentence {number + 1}", Markup("").join(shown)))
    intro = (
        "What all terms attend to together, and what each would attend to by itself. Convolutions in place of "
        "attention are not drawn."
    )
    return Section("Term by term", _wide(items), intro)
