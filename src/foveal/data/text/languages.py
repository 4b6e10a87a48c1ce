"""Whether two files hold the languages that their names say, told by the commonest words of some languages."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from foveal.data.problems import is_checking, note
from foveal.errors import DataError

STRETCH, LOOKED_AT = 200, 50  # pairs; of every stretch the first are looked at
ENOUGH, TIMES = 20, 3  # words of the other language: more than so many, and so many times as many as of its own
SHARE = 0.005  # of the stretches; large corpora have some that nobody translated
COMMON = {  # words that a few sentences of a language are sure to have, and few others
    language: set(words.split())
    for language, words in {
        "cs": "je na se že jsem není jako ale jsou který",
        "de": "der die das und ist ein eine nicht ich auf mit den dem",
        "en": "the and is a of to in you it that with are",
        "es": "el los las una que es en un por del no",
        "fr": "le les des une est et que dans pas sur je",
        "it": "il che di è un una non per sono gli",
        "nl": "het een van ik niet dat en is je zijn",
        "pt": "o os uma que não em do da um para",
    }.items()
}
SWAPPED, SOURCE, TARGET = "both sides", "the source", "the target"  # that are in the language of the other one


def checked(
    files: tuple[Path, Path], pairs: Iterator[tuple[str, str]], languages: tuple[str, str]
) -> Iterator[tuple[str, str]]:
    """The pairs themselves; after the last one it raises if many are the same sentence or in each other's language.

    Args:
        files: source and target, for messages.
        pairs: of sentences.
        languages: of source and target, two letters each; of others than ``COMMON`` nothing is known.
    """
    known = all(language in COMMON for language in languages) and languages[0] != languages[1]
    total = same = stretches = 0
    places: dict[str, list[int]] = {}
    while stretch := list(itertools.islice(pairs, STRETCH)):
        yield from stretch
        some = stretch[:LOOKED_AT]
        wrong = wrong_side(some, languages) if known else None
        if wrong is not None:
            places.setdefault(wrong, []).append(total + 1)
        total, stretches = total + len(stretch), stretches + 1
        same += sum(first == second for first, second in stretch)
    if total > 9 and same > total / 2:
        raise DataError(f"{files[0]} and {files[1]} hold the same sentences; one of them must be the translation")
    for wrong, firsts in places.items():
        message = _message(files, languages, wrong, firsts, stretches)
        if len(firsts) > SHARE * stretches:
            raise DataError(message)
        if is_checking():
            note(message)
        else:
            warnings.warn(message, stacklevel=2)


def wrong_side(pairs: Sequence[tuple[str, str]], languages: tuple[str, str]) -> str | None:
    """Which side of some pairs is in the language of the other one.

    >>> wrong_side([("der Hund und die Katze", "the dog and the cat")] * 9, ("en", "de"))
    'both sides'
    >>> wrong_side([("the dog and the cat", "the dog and the cat")] * 9, ("en", "de"))
    'the target'
    """
    sides = [" ".join(side).lower().split() for side in zip(*pairs, strict=True)]
    own, other = (
        [sum(word in COMMON[language] for word in words) for words, language in zip(sides, order, strict=True)]
        for order in (languages, languages[::-1])
    )
    counts = {SWAPPED: (sum(own), sum(other)), SOURCE: (own[0], other[0]), TARGET: (own[1], other[1])}
    return next((wrong for wrong, (few, many) in counts.items() if many > max(ENOUGH, TIMES * few)), None)


def _message(
    files: tuple[Path, Path], languages: tuple[str, str], wrong: str, firsts: Sequence[int], stretches: int
) -> str:
    (source, target), whole = files, len(firsts) == stretches
    where = "" if whole else f" (from pair {firsts[0]:,} on, and in {len(firsts):,} of {stretches:,} places in all)"
    if wrong == SWAPPED:
        what = "their names" if whole else "these lines"
        return (
            f"{source} looks like {languages[1]} and {target} like {languages[0]}{where}: they are in each other's "
            f"place; exchange {what}"
        )
    language = languages[1] if wrong == SOURCE else languages[0]
    return f"{source} and {target} both look like {language}{where}; one of them must be the translation"
