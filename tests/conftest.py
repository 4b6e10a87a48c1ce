"""Settings of the whole test run."""

import contextlib
import dataclasses
import functools
import inspect
import os
import random
import signal
import sys
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent / "tasks"))  # helpers shared by tests of runs, also in child processes
os.environ.setdefault("HF_HUB_OFFLINE", "1")
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as a shell starts what it runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)


def quick_interpreter():
    """Triton's interpreter without what takes two thirds of its time and changes no result, where Triton has that."""
    from triton.runtime import interpreter

    # Compiled kernels check whole numbers for overflow only when they are debugged.
    builder = interpreter.interpreter_builder
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)

    # Namespaces are searched for built-in functions whenever a kernel calls a function; once is enough.
    is_builtin, patch = interpreter.tl.core.is_builtin, interpreter._patch_attr

    @functools.cache
    def builtins(namespace):
        return [name for name, member in inspect.getmembers(namespace) if is_builtin(member)]

    def patch_builtins(namespace, *rest):
        for name in builtins(namespace):
            if is_builtin(member := getattr(namespace, name)):
                patch(namespace, name, member, *rest)

    if hasattr(interpreter, "_patch_builtin"):
        interpreter._patch_builtin = patch_builtins


if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported: its kernels then run on the CPU
    with contextlib.suppress(ImportError, AttributeError):
        quick_interpreter()

os.environ["OMP_NUM_THREADS"] = "1"  # tests run side by side; tiny tensors gain nothing from threads
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # nor do small graphs from a pool of processes that import PyTorch
torch.set_num_threads(1)

# The same examples in every run: a failure comes from the change at hand. --hypothesis-profile=search draws others.
hypothesis.settings.register_profile("same", derandomize=True, deadline=None)
hypothesis.settings.register_profile("search", max_examples=1000, deadline=None)
hypothesis.settings.load_profile("same")


def seed():
    """The same random numbers in every run, whatever ran in this process before."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    seed()  # of fixtures


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call():
    seed()  # of the test, whose fixtures may have been made by an earlier one


def pytest_addoption(parser):
    parser.addoption("--run-slow", action="store_true", help="also run the tests that are marked slow")


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--run-slow"):
        skip = pytest.mark.skip(reason="slow: give --run-slow to run it")
        for item in items:
            if "slow" in item.keywords:
                item.add_marker(skip)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    """Tests neither use nor fill the user's cache."""
    os.environ["FOVEAL_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def real_data():
    """The folder of real datasets, or skip."""
    folder = os.environ.get("FOVEAL_DATA")
    if not folder:
        pytest.skip("real data: set FOVEAL_DATA to a folder with the official files")
    return Path(folder)
