import pytest

from foveal.data import dataset
from foveal.errors import UnknownNameError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FOVEAL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_an_unknown_dataset():
    with pytest.raises(UnknownNameError, match="unknown dataset 'mreff'; did you mean 'mref'"):
        dataset("mreff")
