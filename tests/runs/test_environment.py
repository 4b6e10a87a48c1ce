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
    (tmp_path / "environment.py").write_text("")
    monkeypatch.setattr(module, "__file__", str(tmp_path / "environment.py"))
    assert revision() is None
    subprocess.run(["git", "add", "environment.py"], cwd=tmp_path, check=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert revision() == head.stdout.strip() + "+changes"
