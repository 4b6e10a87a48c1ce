"""The cache: safe against crashes, damage and two processes at once."""

import os
import warnings
from pathlib import Path

import pytest
import torch
from forked import Forked

from foveal.data.cache import cache_folder, cached

KEY = {"seed": 1, "split": "train"}


@pytest.fixture(autouse=True)
def folder(cache):
    return cache


class Maker:
    """Makes tensors and counts how often."""

    def __init__(self, value=0):
        self.value, self.calls = value, 0

    def __call__(self):
        self.calls += 1
        return {
            "images": (torch.arange(24).view(2, 3, 4) + self.value).to(torch.uint8),
            "box": torch.arange(5) - 2,
            "scale": torch.tensor([0.5, 3.0]),
            "used": torch.tensor([True, False]),
        }


def assert_right(tensors, value=0):
    expected = Maker(value)()
    assert tensors.keys() == expected.keys()
    for name in expected:
        assert tensors[name].dtype == expected[name].dtype
        assert torch.equal(tensors[name], expected[name])


def only_file(folder):
    (path,) = folder.glob("*.safetensors")
    return path


def test_the_second_call_does_not_make_again(folder):
    make = Maker()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_right(cached("x", KEY, make))
        assert_right(cached("x", dict(reversed(KEY.items())), make))
    assert make.calls == 1
    assert only_file(folder).name.startswith("x-")
    assert not list(folder.glob("*.partial"))


def test_files_can_be_read_by_others(folder):
    cached("x", KEY, Maker())
    assert only_file(folder).stat().st_mode & 0o777 == 0o644


def test_other_keys_and_names_are_other_files(folder):
    for value, (name, key) in enumerate([("x", KEY), ("x", KEY | {"seed": 2}), ("y", KEY)]):
        assert_right(cached(name, key, Maker(value)), value)
    assert len(list(folder.glob("*.safetensors"))) == 3
    assert_right(cached("x", KEY, Maker(9)), 0)


def test_two_keys_of_one_file_name_are_told_apart(folder, monkeypatch):
    monkeypatch.setattr("foveal.data.cache.zlib.crc32", lambda data, value=0: 7)
    assert_right(cached("x", KEY, Maker(0)), 0)
    assert_right(cached("x", {"seed": 5}, Maker(1)), 1)
    assert only_file(folder)


@pytest.mark.parametrize("keep", [0, 4, 60, -1])
def test_a_truncated_file_is_noticed_and_made_again(keep, folder):
    cached("x", KEY, Maker())
    path = only_file(folder)
    path.write_bytes(path.read_bytes()[:keep])
    make = Maker()
    with pytest.warns(UserWarning, match=r"x-.*\.safetensors is damaged .* making it again"):
        assert_right(cached("x", KEY, make))
    assert make.calls == 1
    assert_right(cached("x", KEY, make))
    assert make.calls == 1


def test_a_flipped_byte_in_a_tensor_is_noticed_and_made_again(folder):
    cached("x", KEY, Maker())
    path = only_file(folder)
    raw = bytearray(path.read_bytes())
    raw[-3] ^= 1
    path.write_bytes(raw)
    make = Maker()
    with pytest.warns(UserWarning, match=r"is damaged \(wrong checksum\); making it again"):
        assert_right(cached("x", KEY, make))
    assert make.calls == 1
    assert_right(cached("x", KEY, make))
    assert make.calls == 1


@pytest.mark.slow
def test_no_flipped_bit_anywhere_changes_what_comes_back(folder):
    cached("x", KEY, Maker())
    path = only_file(folder)
    whole = path.read_bytes()
    for at in range(len(whole)):
        raw = bytearray(whole)
        raw[at] ^= 1 << at % 3
        path.write_bytes(raw)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert_right(cached("x", KEY, Maker()))


def test_an_unusable_folder_still_gives_data(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("FOVEAL_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.warns(UserWarning, match="cannot use the cache in .*; set FOVEAL_CACHE to a writable folder"):
        assert_right(cached("x", KEY, Maker()))


def test_a_write_that_fails_still_gives_data(folder, monkeypatch):
    def full(tensors, path, about):
        Path(path).write_bytes(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr("foveal.data.cache.save_file", full)
    with pytest.warns(UserWarning, match=r"could not write the cache .*No space left on device"):
        assert_right(cached("x", KEY, Maker()))
    assert not list(folder.glob("*.partial"))
    assert not list(folder.glob("*.safetensors"))


def test_an_error_while_making_leaves_the_cache_usable():
    def fail():
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        cached("x", KEY, fail)
    assert_right(cached("x", KEY, Maker()))


def test_the_folder(monkeypatch, tmp_path):
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("FOVEAL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "foveal"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "foveal"


PROCESS = """
import sys, time, warnings
from pathlib import Path
import torch
from foveal.data.cache import cached
warnings.simplefilter("error")
folder, me = Path(sys.argv[1]), sys.argv[2]
(folder / f"ready-{me}").touch()
while len(list(folder.glob("ready-*"))) < 2:
    time.sleep(0.01)

def make():
    (folder / f"made-{me}").touch()
    time.sleep(0.3)
    return {"x": torch.arange(10_000) * 7}

tensors = cached("big", {"k": 1}, make)["x"]
assert torch.equal(tensors, torch.arange(10_000) * 7), tensors
"""


@pytest.mark.slow
def test_two_processes_at_once_make_it_once(tmp_path, folder):
    environment = os.environ | {"FOVEAL_CACHE": str(folder)}
    running = [Forked(PROCESS, tmp_path, me, env=environment) for me in ("a", "b")]
    for process in running:
        status, _, errors = process.wait(120)
        assert status == 0, errors
    assert len(list(tmp_path.glob("made-*"))) == 1
    assert only_file(folder)
    assert not list(folder.glob("*.partial"))
