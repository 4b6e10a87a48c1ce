from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch
from forked import side_by_side


def flat(value) -> torch.Tensor:
    return torch.cat([part.flatten().double() for part in (value if isinstance(value, tuple) else (value,))])


@pytest.mark.slow
def test_two_processes_measure_what_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))  # other processes inherit the path
    worker = importlib.import_module("ddp_worker")
    side_by_side(worker.work, str(tmp_path))

    together = worker.measure(slice(None))
    for rank in range(2):
        actual = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        alone = worker.measure(worker.share_of(rank, 2))
        assert actual.keys() == together.keys()
        for name, value in together.items():
            torch.testing.assert_close(
                flat(actual[name]), flat(value), equal_nan=True, msg=lambda m, n=name: f"{n}: {m}"
            )
            assert not torch.allclose(flat(alone[name]), flat(value), equal_nan=True), f"{name} proves nothing"
