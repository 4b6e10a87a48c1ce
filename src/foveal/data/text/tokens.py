"""Documents to sentences and sentences to tokens, by rules that need neither a model nor a download.

Made for English and related languages; a language without spaces between words needs another splitter.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

# Contractions are split as in the Penn treebank (do n't, it 's), which taggers and GloVe expect.
_TOKEN = re.compile(r"[^\W_]+(?=n't\b)|n't\b|'(?:s|re|ve|ll|d|m)\b|\d+(?:[.,:]\d+)+|[^\W_]+|[^\w\s]|_", re.IGNORECASE)
_END = re.compile(r"""[.!?…]+["')\]]*(?=\s)|[。！？]|\n\s*\n|\n(?=[A-Z][\w-]{1,24}: )""")
_ABBREVIATIONS = (
    " mr mrs ms dr prof st sr jr vs etc eg ie e.g i.e cf fig no vol pp ed eds inc ltd co corp dept univ approx est "
    "jan feb mar apr jun jul aug sep sept oct nov dec mon tue wed thu fri sat sun a.m p.m u.s u.k "
)
_LAST_WORD = re.compile(r"(\S+)$")


def sentences(text: str) -> Iterator[str]:
    r"""Split a text into sentences: at full stops, question and exclamation marks, empty lines and header lines.

    A stop after an abbreviation or an initial ends no sentence, nor do dots before a small letter.

    >>> list(sentences("Dr. Who left. Was it 3.5 p.m. already?\n\nYes"))
    ['Dr. Who left.', 'Was it 3.5 p.m. already?', 'Yes']
    """
    begin = 0
    for end in _END.finditer(text):
        if end[0].startswith(".") and not _stops(text, begin, end):
            continue
        sentence = text[begin : end.end()].strip()
        if sentence:
            yield sentence
        begin = end.end()
    rest = text[begin:].strip()
    if rest:
        yield rest


def _stops(text: str, begin: int, end: re.Match[str]) -> bool:
    """Whether full stops end a sentence: one does, unless it follows an abbreviation or an initial; several may not."""
    if end[0].startswith(".."):
        return not text[end.end() : end.end() + 40].lstrip()[:1].islower()
    word = _LAST_WORD.search(text[max(begin, end.start() - 20) : end.start()])
    if end[0] != "." or word is None:
        return True
    last = word[1].lstrip("(\"'[").lower()
    return f" {last} " not in _ABBREVIATIONS and not (len(last) == 1 and last.isalpha() and last != "i")


def tokens(sentence: str) -> list[str]:
    """Split a sentence into words and punctuation marks.

    >>> tokens("Don't say it's 3.5 e-mails, John_Doe!")
    ['Do', "n't", 'say', 'it', "'s", '3.5', 'e', '-', 'mails', ',', 'John', '_', 'Doe', '!']
    """
    return _TOKEN.findall(sentence.replace("’", "'"))


def is_word(token: str) -> bool:
    """Whether a token has a letter or a digit.

    >>> [is_word(token) for token in ("a", "n't", "7", "--", "!")]
    [True, True, True, False, False]
    """
    return any(letter.isalnum() for letter in token)
