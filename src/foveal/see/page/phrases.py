"""Numbers and names in words."""

from __future__ import annotations

import re

from markupsafe import Markup, escape

WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def count(number: int) -> str:
    """A whole number, in words up to ten.

    >>> count(3), count(24)
    ('three', '24')
    """
    return WORDS[number] if 0 <= number < len(WORDS) else str(number)


def duration(seconds: float) -> str:
    """Seconds as hours, minutes and seconds.

    >>> duration(31.2), duration(250), duration(7260)
    ('31 s', '4 min 10 s', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


def step_time(seconds: float) -> str:
    """How long a training step takes.

    >>> step_time(0.00321), step_time(10.94)
    ('3.21 ms a step', '10.9 s a step')
    """
    return f"{1000 * seconds:.3g} ms a step" if seconds < 0.9995 else f"{seconds:.3g} s a step"


def breakable(name: str) -> Markup:
    """A name that a browser breaks between its parts, and not within them.

    >>> breakable("mobilenetv3_small")
    Markup('mobilenetv3_<wbr>small')
    """
    parts = re.findall(r"[^_\-/.=]*[_\-/.=]+|[^_\-/.=]+", str(name))
    return Markup("<wbr>").join(escape(part) for part in parts)
