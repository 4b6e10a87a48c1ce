import warnings
from typing import Literal, TypeVar

import pytest
import torch
from small_net import SmallNet, images
from torch import nn

import foveal
from foveal.attention import Gate, Kernel
from foveal.attention.insertion import registry
from foveal.errors import UnknownNameError, UserError

T = TypeVar("T")


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch):
    """What a test registers is forgotten after it."""
    monkeypatch.setattr(registry, "_MECHANISMS", dict(registry._MECHANISMS))
    monkeypatch.setattr(registry, "_loaded", True)


def scale_gate(name):
    @foveal.register_mechanism(name)
    class Scale(Gate):
        """Multiply by learned numbers.

        More about it.
        """

        def __init__(self, channels, *, start="identity", value=3.0):
            super().__init__()
            self.scale = nn.Parameter(torch.full((channels, 1, 1), 1.0 if start == "identity" else value))

        def forward(self, x):
            self.note(self.scale.flatten().expand(len(x), -1))
            return x * self.scale

    return Scale


def test_what_there_is():
    known = foveal.mechanisms()
    assert {"aw", "se", "cbam"} <= set(known)
    assert list(known) == sorted(known)
    for message in known.values():
        assert message
        assert "\n" not in message


@pytest.mark.parametrize("name", ["scale", "my-scale"])
def test_a_gate_of_ones_own(name):
    cls = scale_gate(name)
    assert isinstance(cls, type)  # the decorator hands the class back
    assert foveal.mechanisms()[name] == "Multiply by learned numbers."
    model, x = SmallNet(), images()
    rows = foveal.sites(model, name, value=2.0)
    assert [row.parameters for row in rows] == [8, 8, 16, 16, 12]
    before = model(x)
    done = foveal.insert(model, name)
    torch.testing.assert_close(model(x), before)
    with foveal.watch(model) as seen:
        model(x)
    assert list(seen) == [f"{site}.attached.{name}" for site in done.sites]
    with pytest.raises(UserError, match=f"has '{name}' already"):
        foveal.insert(model, name)
    done.eject()
    done = foveal.insert(model, name, at="last", start="paper", value=2.0)
    more = foveal.insert(model, name, at="last", start="paper", stack=True)
    bias = model.head.bias
    torch.testing.assert_close(model(x) - bias, 6 * (before - bias), atol=1e-5, rtol=1e-5)
    more.eject()
    torch.testing.assert_close(model(x) - bias, 2 * (before - bias), atol=1e-5, rtol=1e-5)


def test_a_kernel_of_ones_own():
    @foveal.register_mechanism("twice")
    class Twice(Kernel):
        """Twice the kernel."""

        @classmethod
        def for_layer(cls, layer, *, start, **options):
            return cls()

        @classmethod
        def usual(cls, model):
            return ["last"]

        @classmethod
        def serves(cls, layer):
            return None if isinstance(layer, nn.Conv2d) else "it is no convolution"

        def convolve(self, conv, x):
            return conv._conv_forward(x, 2 * conv.weight, conv.bias)

    model, x = SmallNet(), torch.randn(2, 16, 4, 4)
    plain = model.last(x)
    foveal.insert(model, "twice")
    bias = model.last.bias[:, None, None]
    torch.testing.assert_close(model.last(x) - bias, 2 * (plain - bias))
    torch.testing.assert_close(model.last(input=x), model.last(x))  # as a convolution calls it
    with pytest.raises(UserError, match=r"'twice' cannot be put on act \(ReLU\): it is no convolution"):
        foveal.insert(model, "twice", at="act")


def test_a_kernel_that_says_nothing():
    @foveal.register_mechanism("empty")
    class Empty(Kernel):
        """Nothing."""

    with pytest.raises(UserError, match=r"last: Empty does not define for_layer"):
        foveal.insert(SmallNet(), "empty", at="last")
    with pytest.raises(TypeError, match="Empty does not define convolve"):
        Empty().convolve(nn.Conv2d(1, 1, 1), torch.zeros(1, 1, 1, 1))


@pytest.mark.parametrize("wrong", [nn.Identity, object, lambda x: x, registry.Mechanism, 3])
def test_only_gates_and_kernels_are_mechanisms(wrong):
    with pytest.raises(UserError, match=r"mechanism 'wrong': expected a class derived from .*Gate or Kernel"):
        foveal.register_mechanism("wrong")(wrong)
    assert "wrong" not in foveal.mechanisms()


@pytest.mark.parametrize("name", ["", "a.b", "double", "training"])
def test_names_fit_into_state_dict_keys(name):
    with pytest.raises(UserError, match="no dots"):
        scale_gate(name)
    assert name not in foveal.mechanisms()


def test_a_name_belongs_to_one_class():
    first = scale_gate("scale")
    assert scale_gate("scale") is not first  # the same one, as after its module was reloaded
    with pytest.raises(UserError, match=r"there is a mechanism 'aw' already, foveal\.attention\.aw\.KernelAttention"):
        foveal.register_mechanism("aw")(first)
    assert registry.mechanism("aw") is foveal.attention.KernelAttention


def test_options_of_ones_own_are_held_against_their_annotations():
    @foveal.register_mechanism("own")
    class Own(Gate):
        """Its options are odd."""

        def __init__(
            self,
            channels,
            *,
            groups: int,
            side: Literal[3, 5] = 3,
            steps: tuple[int, ...] = (),
            mode: T = None,
            start="identity",
        ):
            super().__init__()
            self.options = (groups, side, steps, mode)

        def forward(self, x):
            return x

    model = SmallNet()
    done = foveal.insert(model, "own", at="last", groups=4, side=5, steps=[1, 2, 3], mode="any")
    assert model.last.attached["own"].options == (4, 5, (1, 2, 3), "any")
    done.eject()
    for wrong, message in (
        ({"groups": "4"}, "groups: expected a whole number"),
        ({"side": 4}, "side: expected one of 3"),
        ({"steps": "123"}, "steps: expected a list, got"),
        ({"steps": [1, "2"]}, r"steps\[1\]: expected a whole number"),
    ):
        with pytest.raises(UserError, match=f"^mechanism 'own': {message}"):
            foveal.insert(model, "own", at="last", **{"groups": 1} | wrong)


class Entry:
    """An entry point of an installed package."""

    def __init__(self):
        self.loads = 0

    def load(self):
        self.loads += 1
        return scale_gate("installed")


def test_an_installed_package_offers_one(monkeypatch):
    entry, asked = Entry(), []

    def entry_points(*, group):
        asked.append(group)
        return [entry]

    monkeypatch.setattr(registry, "entry_points", entry_points)
    monkeypatch.setattr(registry, "_loaded", False)
    done = foveal.insert(SmallNet(), "installed")  # nobody has asked for the list before
    assert len(done.sites) == 5
    assert "installed" in foveal.mechanisms()
    assert foveal.sites(SmallNet(), "installed")
    assert (entry.loads, asked) == (1, ["foveal.mechanisms"])


@pytest.mark.parametrize("actual", [nn.Identity, lambda: None, warnings])
def test_an_installed_package_offers_what_is_not_registered(actual, monkeypatch):
    class Wrong:
        name, value = "plain", "package:Thing"

        def load(self):
            return actual

    monkeypatch.setattr(registry, "entry_points", lambda *, group: [Wrong(), Entry()])
    monkeypatch.setattr(registry, "_loaded", False)
    with pytest.warns(UserWarning, match=r"'plain' .*registers nothing: package:Thing is not decorated") as message:
        known = foveal.mechanisms()
    assert len(message) == 1
    assert "installed" in known
    assert "plain" not in known


@pytest.mark.parametrize("module", [foveal.attention.cbam, foveal.attention, foveal])
def test_an_entry_point_may_name_a_module(module, monkeypatch):
    class Module:
        name, value = "several", module.__name__

        def load(self):
            return module

    monkeypatch.setattr(registry, "entry_points", lambda *, group: [Module(), Entry()])
    monkeypatch.setattr(registry, "_loaded", False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "installed" in foveal.mechanisms()


def test_unknown_names():
    for call in (foveal.insert, foveal.sites):
        with pytest.raises(UnknownNameError, match="unknown mechanism 'cbamm'; did you mean 'cbam'"):
            call(SmallNet(), "cbamm")
    with pytest.raises(UnknownNameError, match=r"unknown mechanism 'squeeze'; known: aw, cbam, .*se"):
        registry.mechanism("squeeze")


def test_a_reduction_larger_than_the_layer_is_told():
    with pytest.warns(UserWarning, match="reduction=1000000000 is more than the 64 channels: the bottleneck has 1"):
        assert registry.bottleneck(64, 10**9) == 1
