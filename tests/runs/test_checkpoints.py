"""Checkpoints that are whole or not there, and that hold no code."""

import pickle
import signal
from types import SimpleNamespace

import pytest
import torch

from foveal.errors import RunError
from foveal.runs.checkpoints import SafeCheckpointIO


def test_a_full_disk_is_called_so(tmp_path, monkeypatch):
    """Also where torch gives no reason, or one of its own."""

    def save(*args):
        raise RuntimeError("[enforce fail at inline_container.cc:671] . unexpected pos 704 vs 598")

    monkeypatch.setattr(torch, "save", save)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=0))
    with pytest.raises(RunError, match=r"last\.ckpt: No space left on device; .* resume with: foveal train "):
        SafeCheckpointIO().save_checkpoint({}, tmp_path / "last.ckpt")
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1 << 30))
    with pytest.raises(RunError, match=r"last\.ckpt: .*unexpected pos"):
        SafeCheckpointIO().save_checkpoint({}, tmp_path / "last.ckpt")
    assert not list(tmp_path.iterdir())


class InterruptedFile:
    """A file during whose every write Ctrl-C is pressed."""

    def __init__(self, file):
        self.file, self.flush = file, file.flush

    def write(self, content):
        signal.raise_signal(signal.SIGINT)
        return self.file.write(content)


def test_ctrl_c_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    """The checkpoint becomes whole; in the middle of a write torch could raise another error or end the process."""
    save, path = torch.save, tmp_path / "last.ckpt"
    monkeypatch.setattr(torch, "save", lambda content, file: save(content, InterruptedFile(file)))
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        SafeCheckpointIO().save_checkpoint({"state_dict": {"x": torch.ones(2)}}, path)
    assert signal.getsignal(signal.SIGINT) is handler
    assert SafeCheckpointIO().load_checkpoint(path)["state_dict"]["x"].tolist() == [1, 1]
    assert list(tmp_path.iterdir()) == [path]


def test_checkpoints_do_not_unpickle_code(tmp_path):
    """A checkpoint that carries code is refused, not run."""

    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "hacked"), "w"))

    torch.save({"x": Evil()}, tmp_path / "evil.ckpt", pickle_module=pickle)
    with pytest.raises(RunError, match="damaged"):
        SafeCheckpointIO().load_checkpoint(tmp_path / "evil.ckpt")
    assert not (tmp_path / "hacked").exists()


def test_what_was_saved_is_loaded(tmp_path):
    SafeCheckpointIO().save_checkpoint({"epoch": 1}, tmp_path / "last.ckpt")
    SafeCheckpointIO().save_checkpoint({"epoch": 2, "state_dict": {"x": torch.ones(2)}}, tmp_path / "last.ckpt")
    loaded = SafeCheckpointIO().load_checkpoint(tmp_path / "last.ckpt")
    assert loaded["epoch"] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["last.ckpt"]


def test_a_missing_checkpoint_says_what_starts_the_run_again(tmp_path):
    (tmp_path / "last.ckpt").write_bytes(b"")
    again = rf"best\.ckpt is missing; .*: rm {tmp_path}/last\.ckpt; foveal train {tmp_path}"
    with pytest.raises(RunError, match=again):
        SafeCheckpointIO().load_checkpoint(tmp_path / "best.ckpt")
