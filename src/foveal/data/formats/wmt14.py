"""WMT 2014 English–German: Europarl v7, Common Crawl and News Commentary v9; newstest2013 and newstest2014.

Bojar et al.: "Findings of the 2014 workshop on statistical machine translation" (https://statmt.org/wmt14). The
archives ``training-parallel-europarl-v7``, ``-commoncrawl`` and ``-nc-v9``, ``dev`` and ``test-full``, unpacked into
one folder.
"""

from __future__ import annotations

from pathlib import Path

from foveal.data.formats.iwslt import segment
from foveal.data.place import Place
from foveal.data.text.parallel import ParallelFormat, ParallelOptions, register_parallel
from foveal.data.text.parallel_lines import ParallelCorpus, corpus, named

TRAINING = ("training/europarl-v7.de-en", "commoncrawl.de-en", "training/news-commentary-v9.de-en")
ENDS = ("en", "de")
ELSEWHERE = ("", "training", "dev", "test-full")


def read_wmt14(folder: Path, options: ParallelOptions) -> ParallelCorpus:
    """Training on all three corpora, validation on newstest2013 and test on newstest2014."""
    languages = (options.source, options.target)
    first, second = languages
    test = "test-full/newstest2014-deen"
    files = {
        "train": [(_find(folder, f"{stem}.{first}"), _find(folder, f"{stem}.{second}")) for stem in TRAINING],
        "val": [(_find(folder, f"dev/newstest2013.{first}"), _find(folder, f"dev/newstest2013.{second}"))],
        "test": [(_find(folder, f"{test}-src.{first}.sgm"), _find(folder, f"{test}-ref.{second}.sgm"))],
    }
    return corpus(files, options.encoding, segment, languages)


def _find(folder: Path, name: str) -> Path:
    """A file where its archive puts it, or in one of the other folders."""
    usual = named(folder, name)
    candidates = (named(folder / other, Path(name).name) for other in ELSEWHERE)
    return usual if usual.is_file() else next((file for file in candidates if file.is_file()), usual)


register_parallel(
    ParallelFormat(
        "wmt14",
        "WMT 2014",
        read_wmt14,
        Place(
            folders=("wmt14", "wmt14_en_de"),
            needs=(
                *(f"{stem}.{end}" for stem in TRAINING for end in ENDS),
                *(f"dev/newstest2013.{end}" for end in ENDS),
                "test-full/newstest2014-deen-src.en.sgm",
                "test-full/newstest2014-deen-ref.de.sgm",
            ),
            how="the archives of https://statmt.org/wmt14/translation-task.html, unpacked into one folder",
        ),
    ),
    "4.5 million pairs of parliament, web and news",
)
