"""CoNLL-U files of Universal Dependencies: tokens with their part-of-speech tags, to measure a tagger with."""

from __future__ import annotations

from pathlib import Path

from foveal.errors import DataError


def read_conllu(path: Path) -> list[list[tuple[str, str, str]]]:
    """Sentences as lists of (token, universal tag, Penn tag); ranges and empty nodes are left out."""
    sentences: list[list[tuple[str, str, str]]] = [[]]
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read ({error}); get a .conllu file of Universal Dependencies") from error
    for number, line in enumerate(lines, 1):
        columns = line.split("\t")
        if not line.strip():
            sentences.append([])
        elif not line.startswith("#") and columns[0].isdigit():
            if len(columns) != 10:
                raise DataError(f"{path}, line {number}: {len(columns)} fields instead of 10; not a CoNLL-U file")
            sentences[-1].append((columns[1], columns[3], columns[4]))
    sentences = [sentence for sentence in sentences if sentence]
    if not sentences:
        raise DataError(f"{path} holds no tagged sentence; get a .conllu file of Universal Dependencies")
    return sentences
