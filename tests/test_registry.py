"""Things by name: near misses, packages that are searched, and plugins."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from foveal import registry
from foveal.errors import UnknownNameError
from foveal.registry import Registry

PLUGIN = "from foveal import registry\nregistry.metrics.register({name!r}, {name!r} + ' found')\n"


@pytest.fixture
def colours():
    colours: Registry[int] = Registry("colour")
    for value, name in enumerate(("red", "green", "blue")):
        colours.register(name, value)
    return colours


def test_lookup(colours):
    assert colours.get("red") == 0
    assert colours.names() == ["blue", "green", "red"]
    assert colours.items() == {"blue": 2, "green": 1, "red": 0}
    assert "red" in colours
    assert "pink" not in colours


def test_a_later_thing_of_the_same_name_replaces_the_first(colours):
    assert colours.register("red", 7) == 7
    assert colours.get("red") == 7


@pytest.mark.parametrize(("name", "advice"), [("gren", "did you mean 'green'"), ("Q", "known: blue, green, red")])
def test_an_unknown_name(colours, name, advice):
    with pytest.raises(UnknownNameError, match=f"unknown colour '{name}'; {advice}"):
        colours.get(name)


def test_an_unknown_name_may_be_in_a_module_that_was_not_named(colours, monkeypatch):
    monkeypatch.delenv("FOVEAL_PLUGINS", raising=False)
    with pytest.raises(UnknownNameError, match="known: blue, green, red; FOVEAL_PLUGINS=MODULE"):
        colours.get("Q")
    monkeypatch.setenv("FOVEAL_PLUGINS", "mine")
    with pytest.raises(UnknownNameError, match=r"known: blue, green, red$"):
        colours.get("Q")


def test_what_foveal_brings():
    assert {"classify", "document", "refer"} <= set(registry.tasks.names())
    assert {"mref", "digits", "voc2012"} <= set(registry.datasets.names())
    assert {"accuracy", "label_map", "pointing_game"} <= set(registry.metrics.names())
    assert "mask" in registry.attention_losses


# Packages that are searched -------------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package whose module registers ``pear`` with the registry that the test puts there."""
    folder = tmp_path / "orchard"
    folder.mkdir()
    (folder / "__init__.py").write_text("things = None\n")
    (folder / "trees.py").write_text("import orchard\n\norchard.things.register('pear', 'of the package')\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "orchard"
    for name in ("orchard", "orchard.trees"):
        sys.modules.pop(name, None)


def test_packages_are_imported_at_the_first_lookup(package):
    things = Registry("fruit", package)
    import orchard

    orchard.things = things
    assert "orchard.trees" not in sys.modules
    assert things.items() == {"pear": "of the package"}


@pytest.mark.parametrize("first", [True, False], ids=["registered before the lookup", "registered after it"])
def test_a_name_of_the_users_replaces_that_of_the_package(package, first):
    things = Registry("fruit", package)
    import orchard

    orchard.things = things
    if not first:
        things.names()
    things.register("pear", "mine")
    assert things.get("pear") == "mine"


def test_a_package_that_fails_is_imported_again(package):
    things = Registry("fruit", package)
    import orchard

    with pytest.raises(AttributeError):
        things.names()  # orchard.things is None
    orchard.things = things
    assert things.names() == ["pear"]


# Plugins, in a process of their own and without PyTorch -----------------------------------------------------


def run(code: str, folder: Path, plugins: str = "", path: str = "") -> str:
    """What some Python prints; ``names`` is a registry that no package of foveal fills."""
    around = {**os.environ, "FOVEAL_PLUGINS": plugins, "PYTHONPATH": path}
    lines = ["from foveal import registry", "names = registry.Registry('name')", "registry.metrics = names", code]
    command = [sys.executable, "-c", "\n".join(lines)]
    done = subprocess.run(command, cwd=folder, env=around, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def write_package(folder: Path, value: str) -> str:
    """An installed package whose entry point of group ``foveal`` is ``value``."""
    info = folder / "site" / "mine-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[foveal]\nthings = {value}\n")
    return str(folder / "site")


def test_modules_that_the_environment_names(tmp_path):
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text(PLUGIN.format(name=name))
    assert run("print(names.items())", tmp_path, " one, two,") == "{'one': 'one found', 'two': 'two found'}\n"


def test_a_module_that_an_installed_package_names(tmp_path):
    site = write_package(tmp_path, "of_a_package")
    Path(site, "of_a_package.py").write_text(PLUGIN.format(name="package"))
    assert run("print(names.get('package'))", tmp_path, path=site) == "package found\n"


def test_a_plugin_that_looks_things_up_itself(tmp_path):
    (tmp_path / "one.py").write_text(PLUGIN.format(name="one"))
    (tmp_path / "two.py").write_text("from foveal import registry\nregistry.metrics.get('one')\n")
    assert run("print(names.names())", tmp_path, "one,two") == "['one']\n"


FAILING = """
for attempt in (1, 2):
    try:
        print(names.names())
    except Exception as error:
        print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "No module named 'mine'"),
        ("import nowhere_at_all", "No module named 'nowhere_at_all'"),
        ("1 / 0", "division by zero"),
        ("def", "invalid syntax"),
        ("assert False", "AssertionError"),
    ],
)
def test_a_plugin_that_fails_says_so_every_time(text, reason, tmp_path):
    if text is not None:
        (tmp_path / "mine.py").write_text(text)
    lines = run(FAILING, tmp_path, "mine").splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line.startswith("UserError FOVEAL_PLUGINS: mine cannot be imported")
        assert reason in line


def test_an_entry_point_that_fails_is_named(tmp_path):
    site = write_package(tmp_path, "missing_module:start")
    for line in run(FAILING, tmp_path, path=site).splitlines():
        assert line.startswith("UserError the entry point things = missing_module:start cannot be imported")


def test_a_plugin_that_was_interrupted_is_tried_again(tmp_path):
    """Ctrl-C while a plugin is imported must not leave its things unknown."""
    (tmp_path / "mine.py").write_text(
        "import pathlib\n"
        "if not pathlib.Path('tried').exists():\n"
        "    pathlib.Path('tried').touch()\n"
        "    raise KeyboardInterrupt\n" + PLUGIN.format(name="mine")
    )
    code = "try:\n    names.names()\nexcept KeyboardInterrupt:\n    print(names.names())"
    assert run(code, tmp_path, "mine") == "['mine']\n"
