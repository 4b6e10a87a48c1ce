"""Multi30k: ``train``, ``val`` and ``test_2016_flickr`` with the endings ``.en``, ``.de`` and others, plain or gzipped.

Elliott, Frank, Sima'an, Specia: "Multi30K: Multilingual English-German image descriptions"
(https://arxiv.org/abs/1605.00459); the files of https://github.com/multi30k/dataset, ``data/task1/raw``.
"""

from __future__ import annotations

from pathlib import Path

from foveal.data.place import GZIPPED, Place
from foveal.data.text.parallel import ParallelFormat, ParallelOptions, register_parallel
from foveal.data.text.parallel_lines import FilePair, ParallelCorpus, corpus, named
from foveal.errors import unknown

TEST = "2016_flickr"


def read_multi30k(folder: Path, options: ParallelOptions) -> ParallelCorpus:
    """Training, validation and one of the test sets."""
    languages = (options.source, options.target)
    test = options.test or TEST
    tests = {file.name.split(".")[0].removeprefix("test_") for file in folder.glob("test_*")}
    if tests and test not in tests:
        raise unknown("test set of Multi30k", test, tests)
    files: dict[str, list[FilePair]] = {}
    for split, stem in {"train": "train", "val": "val", "test": f"test_{test}"}.items():
        source, target = (named(folder, f"{stem}.{language}") for language in languages)
        files[split] = [(source, target)]
    return corpus(files, options.encoding, languages=languages)


register_parallel(
    ParallelFormat(
        "multi30k",
        "Multi30k",
        read_multi30k,
        Place(
            folders=("multi30k", "multi30k/data/task1/raw"),
            needs=tuple(f"{stem}.{end}{GZIPPED}" for stem in ("train", "val", f"test_{TEST}") for end in ("en", "de")),
            how="data/task1/raw of https://github.com/multi30k/dataset",
        ),
    ),
    "29,000 descriptions of photographs, in English and other languages",
)
