"""Part-of-speech tags for whole corpora, offline.

The default is the tagger of pattern.en that comes with textblob: a lexicon and Brill's rules for English, hundreds of
thousands of words a second. spaCy models that the user has installed and functions of the user's own work too.
``foveal bench tagger`` measures their accuracy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from foveal.errors import UserError
from foveal.plugins import own_module
from foveal.supervise.targets import Tag

Tagger = Callable[[Sequence[str]], list[Tag]]
"""The tags of one sentence, one for each token."""

LANGUAGES = {"pattern": ("en",)}  # of the taggers that come with foveal

# Petrov, Das, McDonald: "A universal part-of-speech tagset" (https://arxiv.org/abs/1104.2086), the table for Penn tags.
_PENN = {
    Tag.NOUN: "NN NNS NNP NNPS",
    Tag.VERB: "VB VBD VBG VBN VBP VBZ MD",
    Tag.ADJ: "JJ JJR JJS AFX",
    Tag.ADV: "RB RBR RBS WRB",
    Tag.PRON: "PRP PRP$ WP WP$ EX",
    Tag.DET: "DT PDT WDT",
    Tag.ADP: "IN",
    Tag.NUM: "CD",
    Tag.CONJ: "CC",
    Tag.PRT: "RP TO POS",
    Tag.X: "FW LS SYM UH ADD GW XX",
    Tag.PUNCT: "# $ `` '' \" , . : ( ) -LRB- -RRB- HYPH NFP",
}
PENN = {name: tag for tag, names in _PENN.items() for name in names.split()}
UNIVERSAL = {
    "PROPN": Tag.NOUN,
    "AUX": Tag.VERB,
    "CCONJ": Tag.CONJ,
    "SCONJ": Tag.CONJ,
    "PART": Tag.PRT,
    "INTJ": Tag.X,
    "SYM": Tag.X,
    "SPACE": Tag.X,
} | {tag.name: tag for tag in Tag if tag is not Tag.PAD}


def penn(name: str) -> Tag:
    """The universal tag of a Penn treebank tag, ``X`` for one that does not exist; ``NNP-PERS`` counts as ``NNP``.

    >>> penn("NNS").name, penn("WRB").name, penn("?").name
    ('NOUN', 'ADV', 'X')
    """
    return PENN.get(name) or PENN.get(name.partition("-")[0], Tag.X)


def find_tagger(name: str, language: str = "en") -> Tagger:
    """The tagger called ``name``.

    Args:
        name: ``pattern`` (English); ``spacy:MODEL``, for example ``spacy:en_core_web_sm``, where spaCy and that model
            are installed; or ``module:function``, which gets the tokens of a sentence and returns as many universal or
            Penn tags.
        language: of the texts, as a two-letter code.
    """
    if name in LANGUAGES and language not in LANGUAGES[name]:
        raise UserError(
            f"the tagger {name!r} knows {', '.join(LANGUAGES[name])} and not {language!r}; use data.tagger=spacy:MODEL "
            f"with a model for {language!r}, a function of your own (module:function), or data.tagger=none and no "
            "supervision or that of different words"
        )
    return _find(name)


@lru_cache(maxsize=4)
def _find(name: str) -> Tagger:
    if name == "pattern":
        return _pattern()
    kind, colon, rest = name.partition(":")
    if kind == "spacy":
        return _spacy(rest)
    if not colon:
        raise UserError(f"unknown tagger {name!r}; use pattern, spacy:MODEL, or module:function")
    return _named(kind, rest)


def _pattern() -> Tagger:
    try:
        from textblob.en import parser
    except ModuleNotFoundError as error:
        raise UserError("the tagger 'pattern' needs textblob: install foveal[text], or use data.tagger=none") from error

    def tag(tokens: Sequence[str]) -> list[Tag]:
        return [penn(name) for _, name in parser.find_tags(list(tokens))] if tokens else []

    return tag


def _spacy(model: str) -> Tagger:
    try:
        import spacy
    except ModuleNotFoundError as error:
        raise UserError("a spaCy tagger needs spaCy: pip install spacy, and a model of it") from error
    try:
        pipeline = spacy.load(model, exclude=["parser", "ner", "lemmatizer"])
    except (OSError, ValueError) as error:
        raise UserError(
            f"spaCy has no model {model!r}; write spacy:MODEL, for example spacy:en_core_web_sm, after installing it"
        ) from error

    def tag(tokens: Sequence[str]) -> list[Tag]:
        words = spacy.tokens.Doc(pipeline.vocab, words=list(tokens))
        return [UNIVERSAL.get(token.pos_, Tag.X) for token in pipeline(words)]

    return tag


def _named(module: str, function: str) -> Tagger:
    try:
        own = getattr(own_module(module), function)
    except (ImportError, AttributeError, ValueError, TypeError) as error:  # the last two of names such as "" and ".a"
        raise UserError(f"the tagger {module}:{function} cannot be loaded: {error}; use module:function") from error
    if not callable(own):
        raise UserError(f"the tagger {module}:{function} is not a function but {type(own).__name__}")

    def tag(tokens: Sequence[str]) -> list[Tag]:
        result = own(list(tokens))
        if not isinstance(result, Iterable):
            raise UserError(
                f"the tagger {module}:{function} returned {type(result).__name__}; expected a list with one tag for "
                "each token"
            )
        names = list(result)
        if len(names) != len(tokens):
            raise UserError(
                f"the tagger {module}:{function} returned {len(names)} tags for {len(tokens)} tokens; expected one each"
            )
        return [UNIVERSAL.get(str(name)) or penn(str(name)) for name in names]

    return tag


FIVE = (Tag.NOUN, Tag.VERB, Tag.ADJ, Tag.ADV)  # and all others as one: the classes of semantic pairs


def accuracy(tagger: Tagger, sentences: Sequence[Sequence[tuple[str, str, str]]]) -> dict[str, float]:
    """Share of tokens whose tag is right.

    Returns:
        ``five``: five classes (noun, verb, adjective, adverb, other) against the Penn tags, ``five_universal``: against
        the universal tags, which do not count *not* as an adverb, and ``all``: all twelve classes against Penn.

    >>> accuracy(lambda tokens: [Tag.NOUN] * len(tokens), [[("fast", "ADJ", "JJ"), ("cars", "NOUN", "NNS")]])
    {'five': 0.5, 'five_universal': 0.5, 'all': 0.5}
    """
    right = {"five": 0, "five_universal": 0, "all": 0}
    count = 0
    for sentence in sentences:
        for (_, universal, name), tag in zip(sentence, tagger([token for token, _, _ in sentence]), strict=True):
            count += 1
            right["five"] += _five(tag) == _five(penn(name))
            right["five_universal"] += _five(tag) == _five(UNIVERSAL.get(universal, Tag.X))
            right["all"] += tag == penn(name)
    return {name: hits / max(1, count) for name, hits in right.items()}


def _five(tag: Tag) -> Tag:
    return tag if tag in FIVE else Tag.X
