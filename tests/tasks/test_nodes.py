"""Several nodes and split weights train what one process does."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tiny import write_recipe

from foveal.recipe import load
from foveal.runs import RunFolder
from foveal.tasks import fit

EVEN = ["model.dropout=0", "model.norm=false", "train.epochs=2", "optim.name=sgd"]  # nothing depends on the process
NODES = {"node0": "10.77.0.1", "node1": "10.77.0.2"}  # name of the interface and address of each


@pytest.fixture
def namespaces() -> Iterator[dict[str, str]]:
    """Two network namespaces joined by a cable, as two machines are; name of each by node."""
    names = {node: f"foveal-{os.getpid()}-{node}" for node in NODES}
    commands = [f"netns add {name}" for name in names.values()]
    one, other = NODES
    commands.append(f"link add name {one} netns {names[one]} type veth peer name {other} netns {names[other]}")
    for node, name in names.items():
        commands += [f"-n {name} address add {NODES[node]}/24 dev {node}"]
        commands += [f"-n {name} link set {interface} up" for interface in (node, "lo")]
    try:
        for command in commands:
            subprocess.run(["ip", *command.split()], check=True, capture_output=True, text=True)
        yield names
    except FileNotFoundError:
        pytest.skip("network namespaces need the program ip (iproute2)")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"network namespaces are not permitted here: {error.stderr.strip()}")
    finally:
        for name in names.values():
            with contextlib.suppress(FileNotFoundError):
                subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


@pytest.mark.slow
def test_two_nodes_by_torchrun_equal_one_process(tmp_path: Path, namespaces: dict[str, str]) -> None:
    flags = ["train.batch=10", "train.nodes=2", "train.strategy=ddp"]
    recipe, out = write_recipe(tmp_path), tmp_path / "two"
    nodes = []
    for rank, (node, name) in enumerate(namespaces.items()):
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
        torchrun += [f"--node-rank={rank}", f"--master-addr={NODES['node0']}", "--master-port=29500", "-m"]
        command = ["ip", "netns", "exec", name, *torchrun, "foveal", "train", str(recipe), *EVEN, *flags]
        env = {**os.environ, "GLOO_SOCKET_IFNAME": node}
        nodes.append(subprocess.Popen([*command, "--out", str(out)], env=env, stdout=-1, stderr=-1, text=True))
    try:
        printed = [node.communicate(timeout=240) for node in nodes]
    finally:
        for node in nodes:
            node.kill()
    assert [node.returncode for node in nodes] == [0, 0], printed
    assert [text.count("accuracy") for text, _ in printed] == [1, 0]  # the first node speaks for both
    assert_equals_one_process(tmp_path, out)


@pytest.mark.slow
def test_fsdp2_on_two_processes_equals_one(tmp_path: Path) -> None:
    recipe, out = write_recipe(tmp_path), tmp_path / "two"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m"]
    flags = ["train.batch=10", "train.devices=2", "train.strategy=fsdp2"]
    command = [*torchrun, "foveal", "train", str(recipe), *EVEN, *flags, "--out", str(out)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == 0, ran.stderr
    assert_equals_one_process(tmp_path, out)


def assert_equals_one_process(folder: Path, out: Path) -> None:
    one = folder / "one"
    fit(load(folder / "tiny.yaml", [*EVEN, "train.batch=20"]), one, progress=False)
    expected, found = (RunFolder(run).tensors("weights.safetensors").tensors for run in (one, out))
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")
    metrics = [RunFolder(run).result()["metrics"] for run in (one, out)]
    assert metrics[0] == pytest.approx(metrics[1], rel=1e-4)
