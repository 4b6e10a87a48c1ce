"""English number words and their German translations: generated, and small enough for a CPU.

German says the ones before the tens ("two-and-forty") and writes all as one word, so that a translation has to reorder
what it reads: "three hundred and forty-two" is "dreihundertzweiundvierzig".
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch

from foveal.data._random import integers, uniform
from foveal.data.text.parallel import ParallelFormat, ParallelOptions, register_parallel
from foveal.data.text.parallel_lines import Pairs, ParallelCorpus
from foveal.errors import UserError

EN_TEENS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
DE_TEENS = (
    "null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn "
    "achtzehn neunzehn"
)
EN_SMALL, DE_SMALL = EN_TEENS.split(), DE_TEENS.split()
EN_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
DE_TENS = ["zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig"]
COUNTS = {"train": 12_000, "val": 500, "test": 1_000}


def english(number: int) -> str:
    """A number from 0 to 999,999 in English words.

    >>> english(342), english(70_015)
    ('three hundred and forty-two', 'seventy thousand and fifteen')
    """
    if number < 20:
        return EN_SMALL[number]
    if number < 100:
        rest = f"-{EN_SMALL[number % 10]}" if number % 10 else ""
        return EN_TENS[number // 10 - 2] + rest
    unit, name = (100, "hundred") if number < 1000 else (1000, "thousand")
    over = number % unit
    joint = " and " if over < 100 else " "
    return f"{english(number // unit)} {name}" + (f"{joint}{english(over)}" if over else "")


def german(number: int) -> str:
    """The same in German.

    >>> german(342), german(70_001), german(1)
    ('dreihundertzweiundvierzig', 'siebzigtausendeins', 'eins')
    """
    text = _german(number)
    return f"{text}s" if number % 100 == 1 else text


def _german(number: int) -> str:
    """As the beginning of a longer word."""
    if number < 20:
        return DE_SMALL[number]
    if number < 100:
        ones = f"{DE_SMALL[number % 10]}und" if number % 10 else ""
        return ones + DE_TENS[number // 10 - 2]
    unit, name = (100, "hundert") if number < 1000 else (1000, "tausend")
    rest = number % unit
    return _german(number // unit) + name + (_german(rest) if rest else "")


def numbers(seed: int) -> dict[str, list[int]]:
    """Different numbers for each split; short ones and round ones are more frequent than by chance."""
    total = sum(COUNTS.values())
    draws = torch.arange(8 * total)
    most = 10 ** integers(2, 6, uniform(seed, 0, draws))
    values = integers(0, most - 1, uniform(seed, 1, draws))
    unit = 10 ** integers(-6, 3, uniform(seed, 3, draws)).clamp_min(0)  # every third ends with zeros
    chosen = list(dict.fromkeys((values // unit * unit).tolist()))[:total]
    order = uniform(seed, 2, torch.arange(total)).argsort().tolist()
    shuffled = iter(chosen[i] for i in order)
    return {split: [next(shuffled) for _ in range(count)] for split, count in COUNTS.items()}


def read_number_words(folder: Path, options: ParallelOptions) -> ParallelCorpus:
    """Pairs of number words; there is no folder."""
    sides = {"en": english, "de": german}
    if {options.source, options.target} != set(sides):
        raise UserError("number-words has en and de alone; set data.source and data.target to these, in either order")
    by_split = numbers(options.seed)

    def pairs(split: str) -> Pairs:
        return ((sides[options.source](n), sides[options.target](n)) for n in by_split[split])

    return ParallelCorpus({split: partial(pairs, split) for split in by_split}, list(COUNTS.values()))


register_parallel(
    ParallelFormat("number-words", "number words", read_number_words),
    "number words up to a million, English and German; embedded",
)
