"""IWSLT 2014 and 2017, talks: ``train.tags.de-en.en`` with markup in it, ``IWSLT14.TED.dev2010.de-en.en.xml`` ….

Cettolo, Girardi, Federico: "WIT3: Web inventory of transcribed and translated talks" (EAMT 2012). Also read: the folder
that fairseq's ``prepare-iwslt14.sh`` makes, ``train``, ``valid`` and ``test`` with the endings of the languages.

Validation is ``dev``, the test all ``tst`` sets, or the one that ``data.test`` names.
"""

from __future__ import annotations

import html
import re
from pathlib import Path

from foveal.data.formats.parallel import read_parallel
from foveal.data.place import Layout, Place
from foveal.data.text.parallel import ParallelFormat, ParallelOptions, register_parallel
from foveal.data.text.parallel_lines import ParallelCorpus, corpus
from foveal.errors import DataError, unknown

_SEGMENT = re.compile(r"^\s*<seg[^>]*>(.*?)</seg>\s*$", re.IGNORECASE)


def segment(line: str) -> str | None:
    """The sentence of a line of markup, of an XML or SGM file; None for other markup.

    >>> segment('<seg id="1"> Tom &amp; Jerry </seg>'), segment("<doc>"), segment("A talk.")
    ('Tom & Jerry', None, 'A talk.')
    """
    if match := _SEGMENT.match(line):
        return html.unescape(match[1]).strip()
    return None if line.lstrip().startswith("<") else line


def read_iwslt(folder: Path, options: ParallelOptions) -> ParallelCorpus:
    """Talks of the official files, in either direction."""
    languages = (options.source, options.target)
    pair = next(
        (pair for pair in ("-".join(languages), "-".join(languages[::-1])) if any(folder.glob(f"train.tags.{pair}.*"))),
        None,
    )
    if pair is None:
        return read_parallel(folder, options)
    train = (folder / f"train.tags.{pair}.{languages[0]}", folder / f"train.tags.{pair}.{languages[1]}")
    sets = {}
    for source in sorted(folder.glob(f"IWSLT*.{pair}.{languages[0]}.xml")):
        name = source.name.split(".")[2]  # such as dev2010
        sets[name] = (source, source.with_name(f"{source.name.removesuffix(f'{languages[0]}.xml')}{languages[1]}.xml"))
    tests = {name: files for name, files in sets.items() if name.startswith("tst")}
    if options.test is not None:
        if options.test not in sets:
            raise unknown("test set of IWSLT", options.test, sets)
        tests = {options.test: sets[options.test]}
    val = [files for name, files in sets.items() if name.startswith("dev") and name not in tests]
    if not tests or not val:
        raise DataError(
            f"{folder} lacks IWSLT*.dev*.{pair}.*.xml or IWSLT*.tst*.{pair}.*.xml; unpack the whole archive"
        )
    files = {"train": [train], "val": val, "test": [*tests.values()]}
    return corpus(files, options.encoding, segment, languages)


def _register(year: str) -> None:
    register_parallel(
        ParallelFormat(
            f"iwslt{year}",
            f"IWSLT 20{year}",
            read_iwslt,
            Place(
                folders=(f"iwslt{year}", f"iwslt{year}/de-en", f"iwslt{year}/en-de", "de-en", "en-de"),
                needs=("train.tags.*", "IWSLT*.xml"),
                layouts=(Layout("prepared by fairseq", ("train.*", "valid.*", "test.*")),),
                how=f"the archive of the language pair from https://wit3.fbk.eu (20{year}-01), unpacked",
            ),
        ),
        f"transcribed talks, IWSLT 20{year}",
    )


_register("14")
_register("17")
