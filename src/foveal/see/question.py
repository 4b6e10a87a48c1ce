"""What a model is asked, in plain words."""

from __future__ import annotations

from collections.abc import Sequence

COLOURS = {
    "red": "#921010",
    "green": "#10a651",
    "blue": "#1062c0",
    "yellow": "#fff14e",
    "white": "#e0e0e0",
}
"""The answers of the colour-reference experiments as colours on a screen."""


def question(query: str | None, answers: Sequence[str]) -> str:
    """Put the query as a question; None asks about the whole picture.

    >>> question("7", ["red", "green"])
    'What colour is the 7?'
    >>> question("dog", ["wooden", "furry"])
    'How would you describe the dog?'
    >>> question(None, ["dog", "cat"])
    'What does this show?'
    """
    if query is None:
        return "What does this show?"
    return f"What colour is the {query}?" if about_colour(answers) else f"How would you describe the {query}?"


def task(queries: Sequence[str], answers: Sequence[str]) -> str:
    """Name the task, to follow "asked for".

    >>> task(["0", "1"], ["red", "green"])
    'the colour of one digit among many'
    >>> task(["dog", "cup"], ["wooden", "furry"])
    'an attribute (one of 2) of one object (one of 2 kinds)'
    >>> task([], ["dog", "cat"])
    'what they show (2 classes)'
    """
    if not queries and answers:
        return f"what they show ({len(answers)} classes)"
    thing = "digit among many" if queries and all(q.isdigit() for q in queries) else "object"
    if thing == "object" and queries:
        thing += f" (one of {len(queries)} kinds)"
    what = "the colour" if about_colour(answers) else "an attribute" + (f" (one of {len(answers)})" if answers else "")
    return f"{what} of one {thing}"


def about_colour(answers: Sequence[str]) -> bool:
    """Whether every answer is a colour."""
    return bool(answers) and all(answer in COLOURS for answer in answers)
