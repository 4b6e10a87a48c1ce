"""What a run was made with."""

import json
import subprocess

import torch

from foveal.runs import environment as module
from foveal.runs.environment import environment, revision


def test_packages_hardware_and_revision(monkeypatch):
    monkeypatch.setenv("FOVEAL_REVISION", "abc123")
    about = json.loads(json.dumps(environment()))
    assert about.keys() == {"packages", "python", "system", "cpus", "gpu", "revision"}
    assert about["revision"] == "abc123"
    assert about["packages"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert (about["gpu"] is None) == (not torch.cuda.is_available())


def test_the_revision_is_that_of_foveal_alone(tmp_path, monkeypatch):
    """Installed inside a repository of somebody else, it does not pass that one's revision for its own."""
    monkeypatch.delenv("FOVEAL_REVISION", raising=False)
    for words in (["init", "-q"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x", "--allow-empty"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    file = tmp_path / "package" / "runs" / "environment.py"
    file.parent.mkdir(parents=True)
    file.write_text("")
    monkeypatch.setattr(module, "__file__", str(file))
    assert revision() is None


def test_a_revision_is_dirty_if_the_package_was_edited(tmp_path, monkeypatch):
    monkeypatch.delenv("FOVEAL_REVISION", raising=False)
    file = tmp_path / "package" / "runs" / "environment.py"
    file.parent.mkdir(parents=True)
    file.write_text("")
    monkeypatch.setattr(module, "__file__", str(file))

    def git(*words):
        words = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "x")
    assert revision() == git("rev-parse", "--short=12", "HEAD")
    (tmp_path / "results.csv").write_text("a run wrote it")
    git("add", ".")
    assert revision() == git("rev-parse", "--short=12", "HEAD")
    (tmp_path / "package" / "own.py").write_text("of the user")
    assert revision() == git("rev-parse", "--short=12", "HEAD") + "-dirty"
    git("add", ".")
    git("commit", "-qm", "y")
    git("tag", "v0.2")
    assert revision() == "v0.2"
