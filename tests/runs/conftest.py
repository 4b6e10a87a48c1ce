"""Old runs, made by foveal at revision 5d4ffa9, the last one that wrote run format 1 and recipes of version 1."""

import shutil
from pathlib import Path

import pytest
from small_texts import write_texts
from small_voc import write_voc

OLD = Path(__file__).parent / "old"


@pytest.fixture
def old_run(tmp_path):
    """Copy an old run to where a test may change it."""

    def copy(name: str) -> Path:
        folder = Path(shutil.copytree(OLD / name, tmp_path / "old" / name))
        for checkpoint in folder.glob("*.checkpoint"):  # *.ckpt is not kept in the repository
            checkpoint.rename(checkpoint.with_suffix(".ckpt"))
        return folder

    return copy


@pytest.fixture(scope="session")
def old_data(tmp_path_factory):
    """The folder of datasets that the old runs were trained on, those with embedded data left aside."""
    return write_voc(write_texts(tmp_path_factory.mktemp("old-data")))
