"""How the texts of a corpus are read, and the options of a recipe's ``data`` section."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from foveal.data.place import Place
from foveal.data.text.encode import Form
from foveal.data.text.reading import Corpus, Texts, decoded
from foveal.errors import UserError, unknown

STRIPPED = ("headers", "footers", "quotes")  # parts of a newsgroup message that can be cut


@dataclass(frozen=True)
class TextOptions:
    """The ``data`` section of a recipe.

    Attributes:
        folder: folder of the files, absolute or relative to the data folder; null: where the dataset unpacks to.
        sentences: greatest number of sentences per document; the others are cut off.
        words: greatest number of words per sentence.
        vocabulary: size of the vocabulary: the most frequent words of the training texts.
        min_count: words that occur less often in the training texts count as unknown.
        embeddings: a file of word vectors such as ``glove.6B.100d.txt``, absolute or relative to the data
            folder; random vectors if null.
        tagger: ``pattern`` (English), ``spacy:MODEL``, ``module:function``, or ``none`` for no part-of-speech tags.
        language: language of the texts, as a two-letter code.
        encoding: encoding of the files; null: UTF-8, for 20 Newsgroups Latin-1.
        strip: any of ``headers footers quotes``, cut from newsgroup texts as scikit-learn does (``20news`` only).
        per_class: number of training texts of each class, drawn at random; null: all (``yahoo-answers``, ``ag-news``,
            ``textcsv``); 5000 and 70000 are Yahoo-mini and Yahoo-half.
        text: column of the texts, several as ``title+body`` (``textcsv`` only).
        label: column of the labels (``textcsv`` only).
        val_fraction: part of the training texts used for validation, if the dataset has no validation split; 0:
            validate on the test texts.
        test_fraction: part of the texts used for testing, if the dataset has no test split.
        seed: seed of the random splits; independent of the training seed.
        processes: processes that split and tag the texts; null: one per processor, up to 8.
        stream: read batches from disk instead of holding all in memory; null: do so if a split is larger than 2 GB.
    """

    folder: str | None = None
    sentences: int = 15
    words: int = 30
    vocabulary: int = 20_000
    min_count: int = 2
    embeddings: str | None = None
    tagger: str = "pattern"
    language: str = "en"
    encoding: str | None = None
    strip: str = ""
    per_class: int | None = None
    text: str = "text"
    label: str = "label"
    val_fraction: float = 0.1
    test_fraction: float = 0.1
    seed: int = 0
    processes: int | None = None
    stream: bool | None = None

    def __post_init__(self) -> None:
        for name in ("sentences", "words", "vocabulary", "min_count"):
            if getattr(self, name) < 1:
                raise UserError(f"data.{name}={getattr(self, name)}: expected at least 1")
        for name in ("val_fraction", "test_fraction"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"data.{name}={getattr(self, name)}: expected at least 0 and below 1")
        for name in self.strip.split():
            if name not in STRIPPED:
                raise unknown("part of a newsgroup text", name, STRIPPED)
        if self.encoding is not None:
            try:
                b"x".decode(self.encoding, errors="replace")
            except (LookupError, ValueError) as error:
                raise UserError(
                    f"data.encoding={self.encoding}: no text encoding of that name; use one such as utf-8 or latin-1"
                ) from error

    @property
    def form(self) -> Form:
        """How a document is cut."""
        return Form(self.sentences, self.words, self.tagger, self.language)


SPECIAL_OPTIONS = ("strip", "per_class", "text", "label")  # they belong to some corpora only


@dataclass(frozen=True)
class TextFormat:
    """How the texts of one corpus are read, and new ones like them.

    Attributes:
        name: of the dataset.
        title: what people call it.
        read: ``read(folder, options, encoding)``, texts as they are in the files; an embedded corpus has no folder.
        place: where its files are; None for an embedded corpus.
        only: those of ``SPECIAL_OPTIONS`` that this corpus has.
        encoding: of the files, unless the options say otherwise.
        clean: ``clean(text, options)`` makes of a text in the files what is to be learnt from.
        own_files: whether the texts are the user's own, so that the dataset is called after their folder.
    """

    name: str
    title: str
    read: Callable[[Path, TextOptions, str], Corpus]
    place: Place | None = None
    only: tuple[str, ...] = ()
    encoding: str = "utf-8"
    clean: Callable[[str, TextOptions], str] = lambda text, _: text
    own_files: bool = False

    def check_options(self, options: TextOptions) -> None:
        """Raise for an option that belongs to other corpora."""
        for name in SPECIAL_OPTIONS:
            if name not in self.only and getattr(options, name) != getattr(TextOptions, name):
                raise UserError(f"data.{name} has no meaning for {self.name}; leave it out")

    def corpus(self, folder: Path, options: TextOptions) -> Corpus:
        """The whole corpus, its texts cleaned."""
        corpus = self.read(folder, options, options.encoding or self.encoding)
        cleaned: dict[str, Callable[[], Texts]] = {
            split: partial(self._cleaned, read, options) for split, read in corpus.splits.items()
        }
        return replace(corpus, splits=cleaned)

    def _cleaned(self, read: Callable[[], Texts], options: TextOptions) -> Texts:
        return ((self.clean(text, options), label) for text, label in read())

    def text(self, text: str | bytes, options: TextOptions) -> str:
        """A new text, or the content of a file, as the corpus has its own."""
        if isinstance(text, bytes):
            text = decoded(text, options.encoding or self.encoding)
        return self.clean(text, options)
