"""Word vectors from text files in the format of GloVe: a word and its numbers on each line.

Pennington, Socher, Manning: "GloVe: global vectors for word representation" (EMNLP 2014).
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foveal.errors import DataError

SPREAD = 0.1  # of random vectors where the file has a single number, which has no spread


def read_glove(path: Path, vocabulary: Sequence[str]) -> tuple[Tensor, int]:
    """Vectors of the words of a vocabulary.

    Args:
        path: a text file, or one compressed with gzip; its other words are skipped.
        vocabulary: words by number; the first is padding and stays zero.

    Returns:
        Vectors (V, d), random with the mean and spread of the others for words that the file lacks, and how many of
        the words it has.
    """
    numbers = {word: i for i, word in enumerate(vocabulary) if i}
    rows: dict[int, np.ndarray[Any, Any]] = {}
    size = None
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8", errors="replace") as lines:
            for number, line in enumerate(lines, 1):
                word, _, rest = line.rstrip().partition(" ")
                if word not in numbers:
                    continue
                with np.errstate(over="ignore"):  # a number that is too large is refused below
                    vector = np.array(rest.split(" "), dtype=np.float32)
                if size not in (None, len(vector)):
                    raise DataError(
                        f"{path}, line {number}: {len(vector)} numbers instead of {size}; get the file again"
                    )
                if not np.isfinite(vector).all():
                    raise DataError(f"{path}, line {number}: a number that is not finite; get the file again")
                size, rows[numbers[word]] = len(vector), vector
    except (OSError, EOFError) as error:
        raise DataError(
            f"{path} cannot be read ({error}); get glove.6B.zip from https://nlp.stanford.edu/projects/glove, or use "
            "data.embeddings=null for random vectors"
        ) from error
    except ValueError as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path}, line {number}: not a word and its numbers ({error})") from error
    if not rows:
        raise DataError(f"{path} has none of the {len(numbers):,} words; expected lines of a word and its numbers")
    known = torch.from_numpy(np.stack(list(rows.values())))
    generator = torch.Generator().manual_seed(0)
    spread = known.std() if known.numel() > 1 else SPREAD
    vectors = torch.randn(len(vocabulary), known.shape[1], generator=generator) * spread + known.mean()
    vectors[list(rows)] = known
    vectors[0] = 0
    return vectors, len(rows)
