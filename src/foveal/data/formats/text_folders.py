"""Text files sorted into one folder for each class: ``train/CLASS/*.txt``, ``val`` and ``test``, or just ``CLASS``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from foveal.data.place import Place
from foveal.data.problems import collected
from foveal.data.splits import SPLITS
from foveal.data.text.documents import TextFormat, register_texts
from foveal.data.text.reading import TEXT_ENDINGS, Corpus, Texts, check_classes, decoded, stamp, unreadable
from foveal.errors import DataError


def read_folders(
    folders: dict[str, Path], encoding: str, endings: Sequence[str] = (), classes: Sequence[str] = ()
) -> Corpus:
    """Text files sorted into one folder for each class, below one folder for each split.

    Args:
        folders: of each split; ``train`` is needed.
        encoding: of the files.
        endings: of the files, such as ``.txt``; all files if empty.
        classes: their names, if not all folders are classes.
    """
    answers = list(classes) or _class_names(folders["train"])
    splits, files = {}, list[Path]()
    for split, folder in folders.items():
        names = list(classes) or _class_names(folder)
        check_classes(names, answers, folder)
        files_of = {name: _text_files(folder / name, endings) for name in answers if name in names}
        listed = [(file, answers.index(name)) for name, members in files_of.items() for file in members]
        for name in answers if split == "train" and listed else ():
            with collected():
                if not files_of.get(name):
                    raise DataError(f"{folder / name} holds no text files; add some or remove the folder")
        if not listed:
            raise DataError(f"{folder} holds no text files; add some")
        splits[split] = partial(_read_files, listed, encoding)
        files += [file for file, _ in listed]
    return Corpus(answers, splits, stamp(files))  # type: ignore[arg-type]


def read_textfolder(folder: Path, encoding: str = "utf-8") -> Corpus:
    """Any ``*.txt`` files as ``train/CLASS``, ``val/CLASS`` and ``test/CLASS``, or just ``CLASS``."""
    present = {split: folder / split for split in SPLITS if (folder / split).is_dir()}
    if present and "train" not in present:
        raise DataError(f"{folder} has {' and '.join(present)} but no train folder")
    return read_folders(present or {"train": folder}, encoding, TEXT_ENDINGS)


def _class_names(folder: Path) -> list[str]:
    names = sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not names:
        raise DataError(f"{folder} has no class folders; expected one folder of text files for each class")
    return names


def _text_files(folder: Path, endings: Sequence[str]) -> list[Path]:
    return sorted(
        Path(parent, name)
        for parent, _, names in os.walk(folder, followlinks=True)
        for name in names
        if not name.startswith(".") and (not endings or Path(name).suffix.lower() in endings)
    )


def _read_files(files: Sequence[tuple[Path, int]], encoding: str) -> Texts:
    for file, label in files:
        text = None
        with collected():
            try:
                text = decoded(file.read_bytes(), encoding, file)
            except OSError as error:
                raise unreadable(file, error) from error
        if text is not None:
            yield text, label


register_texts(
    TextFormat(
        "textfolder",
        "text folder",
        lambda folder, _, encoding: read_textfolder(folder, encoding),
        Place(
            folders=("textfolder",),
            needs=("*/*",),
            how="put texts there as train/CLASS/*.txt, val/CLASS/*.txt and test/CLASS/*.txt, or as CLASS/*.txt",
        ),
        own_files=True,
    ),
    "any text files sorted into one folder for each class",
)
