"""What importing foveal costs, and which names it has."""

import subprocess
import sys

import pytest

import foveal

HEAVY = ("torch", "lightning", "torchvision", "matplotlib", "timm", "sklearn", "numpy")


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("module", ["foveal", "foveal.cli", "foveal.recipe", "foveal.registry", "foveal.errors"])
def test_importing_is_cheap(module):
    done = run(f"import sys, {module}; print([name for name in {HEAVY} if name in sys.modules])")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_names_of_recipes_are_cheap():
    code = "from foveal.recipe import available; import sys; print(len(available()) > 100, 'torch' in sys.modules)"
    assert run(code).stdout.strip() == "True False"


IN_TURN = """
import sys, foveal
def loaded(*names): return [name for name in names if name in sys.modules]
print(foveal.attention.__name__, loaded("torch", "torch._dynamo"))
print(foveal.see.__name__, loaded("jinja2", "matplotlib", "timm", "torch._dynamo"))
print(foveal.watch is foveal.attention.watch, foveal.create_model is foveal.models.create_model)
print(loaded("lightning", "matplotlib"))
"""


@pytest.mark.slow
def test_names_are_loaded_when_first_used():
    """One room after the other, and none imports the compiler, a drawing library or Lightning without need."""
    done = run(IN_TURN)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["foveal.attention ['torch']", "foveal.see []", "True True", "[]"]


@pytest.mark.parametrize("name", foveal.__all__)
def test_every_public_name_is_there(name):
    assert getattr(foveal, name) is getattr(foveal, name)
    assert name in dir(foveal)


def test_an_unknown_name():
    with pytest.raises(AttributeError, match="module 'foveal' has no attribute 'atention'"):
        foveal.atention  # noqa: B018
    assert not hasattr(foveal, "Attends")


def test_the_version_is_a_number():
    assert all(part.isdigit() for part in foveal.__version__.split("."))
