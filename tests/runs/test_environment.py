"""What a run was made with."""

import json

import torch

from foveal.runs.environment import environment


def test_packages_hardware_and_revision(monkeypatch):
    monkeypatch.setenv("FOVEAL_REVISION", "abc123")
    about = json.loads(json.dumps(environment()))
    assert about.keys() == {"packages", "python", "system", "cpus", "gpu", "revision"}
    assert about["revision"] == "abc123"
    assert about["packages"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert (about["gpu"] is None) == (not torch.cuda.is_available())
