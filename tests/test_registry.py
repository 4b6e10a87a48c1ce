"""Names of things, foveal's own and the user's."""

import sys

import pytest

from foveal import registry
from foveal.errors import UnknownNameError
from foveal.registry import Registry


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


def test_an_unknown_name_is_answered_with_close_ones():
    things = Registry("fruit")
    things.register("pear", 1)
    with pytest.raises(UnknownNameError, match="did you mean 'pear'"):
        things.get("peer")
    assert "peer" not in things


def test_a_package_that_fails_is_imported_again(package):
    things = Registry("fruit", package)
    import orchard

    with pytest.raises(AttributeError):
        things.names()  # orchard.things is None
    orchard.things = things
    assert things.names() == ["pear"]


@pytest.mark.parametrize("things", [registry.tasks, registry.datasets, registry.metrics, registry.attention_losses])
def test_foveals_own_are_there(things):
    assert things.names()
