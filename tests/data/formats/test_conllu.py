"""CoNLL-U files."""

import pytest

from foveal.data.formats.conllu import read_conllu
from foveal.errors import DataError


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot be read"), ("1\tx\n", "2 fields instead of 10"), ("# nothing\n", "no tagged sentence")],
)
def test_damaged_samples(tmp_path, content, message):
    file = tmp_path / "some.conllu"
    if content is not None:
        file.write_text(content)
    with pytest.raises(DataError, match=message):
        read_conllu(file)
