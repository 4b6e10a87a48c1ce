"""How good and how fast a part-of-speech tagger is.

    foveal bench tagger                                # textblob's, on $FOVEAL_DATA/pos/en_ewt-ud-test.conllu
    foveal bench tagger --tagger spacy:en_core_web_sm --file mine.conllu

Prints tokens a second, and the share of them that is tagged right: of five classes (noun, verb, adjective, adverb,
other) against the Penn and the universal tags of the file, and of all twelve classes.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from foveal.data import data_root
from foveal.data.formats.conllu import read_conllu
from foveal.data.text.tagging import accuracy, find_tagger
from foveal.errors import UserError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tagger", default="pattern")
    parser.add_argument("--file", type=Path, help="a .conllu file; pos/en_ewt-ud-test.conllu in the data folder")
    arguments = parser.parse_args()
    file = arguments.file
    if file is None:
        root = data_root()
        if root is None:
            raise UserError("set FOVEAL_DATA to a folder that holds pos/en_ewt-ud-test.conllu, or give --file")
        file = root / "pos" / "en_ewt-ud-test.conllu"
    sentences = read_conllu(file)
    tagger = find_tagger(arguments.tagger)
    tagger(["Load", "the", "lexicon", "first", "."])
    words = [[token for token, _, _ in sentence] for sentence in sentences]
    begin = time.perf_counter()
    for sentence in words:
        tagger(sentence)
    seconds = time.perf_counter() - begin
    count = sum(map(len, words))
    found = accuracy(tagger, sentences)
    print(f"{arguments.tagger} on {file.name}: {count:,} tokens, {count / seconds:,.0f} a second")
    for name, value in found.items():
        print(f"  {name:16} {value:.4f}")


if __name__ == "__main__":
    main()
