"""Errors for people: what was given, what was expected, what to do.

Every mistake of a user is raised as :class:`UserError` (a ``ValueError``) or a subclass of it: the command line prints
one line and exits with status 2, and a library user can catch it. Any other exception is a bug in foveal.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Something the user gave cannot be used; the message says what to do about it."""


class UnknownNameError(UserError):
    """A name that is not in the list it was looked up in."""


class DataError(UserError):
    """A dataset, image or cache file that is missing, empty or damaged."""


class RunError(UserError):
    """A run folder that cannot be written, resumed or read."""


class InterruptedRunError(RunError):
    """The user stopped a run; it can be resumed."""


class RenamedWarning(UserWarning):
    """A former name was used; the message says the present one."""


class DamagedRunWarning(UserWarning):
    """Files of a run folder cannot be read and were left out; the message names them."""


class TrainingError(RuntimeError):
    """Training itself went wrong; the message says how far it got and how to go on."""


class DivergedError(TrainingError):
    """The loss is no longer a number."""


def unknown(kind: str, name: object, known: Iterable[str]) -> UnknownNameError:
    """The error for an unknown name, with its close matches, upper or lower case, or else the known names.

    Args:
        kind: of thing, for the message.
        name: as the user wrote it.
        known: all names of this kind.

    >>> print(unknown("model", "hatnet", ["hattnet", "soft"]))
    unknown model 'hatnet'; did you mean 'hattnet'?
    >>> print(unknown("model", "zzz", ["hattnet", "soft"]))
    unknown model 'zzz'; known: hattnet, soft
    >>> print(unknown("mechanism", "SE", ["aw", "cbam", "se"]))
    unknown mechanism 'SE'; did you mean 'se'?
    >>> print(unknown("pooling", 3, ["avg", "max"]))
    unknown pooling 3; known: avg, max
    """
    names = sorted(known)
    by_lower: dict[str, list[str]] = {}
    for candidate in names:
        by_lower.setdefault(candidate.lower(), []).append(candidate)
    matches = difflib.get_close_matches(str(name).lower(), by_lower, n=3, cutoff=0.6)
    close = [candidate for match in matches for candidate in by_lower[match]][:3]
    if close:
        return UnknownNameError(f"unknown {kind} {name!r}; did you mean {' or '.join(map(repr, close))}?")
    shown = ", ".join(names[:20]) + (f", … ({len(names)} in all)" if len(names) > 20 else "")
    return UnknownNameError(f"unknown {kind} {name!r}; known: {shown or 'none'}")
