"""Put attention into a live model, and take it out again.

A layer that receives attention stays the same object with the same parameters under the same names: only its class
becomes a subclass of the original class, and it gains a child ``attached``. So a plain checkpoint still fits, hooks and
references stay valid, and removing the attention restores the same module tree. No forward hooks are used: what is
inserted before ``torch.compile`` or ``torch.export`` is compiled and exported like any other code.
"""

from __future__ import annotations

import contextlib
import difflib
import fnmatch
import inspect
import itertools
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, get_type_hints

import torch
from torch import nn

from foveal.attention.insertion.attached import Attended, attach, attached_modules, attended_class, detach
from foveal.attention.insertion.families import pretrained_part, remark_on_its_own, usual_sites
from foveal.attention.insertion.layers import channels_of, own_modules
from foveal.attention.insertion.registry import Gate, Kernel, Mechanism, Start
from foveal.attention.insertion.registry import mechanism as look_up
from foveal.errors import UnknownNameError, UserError
from foveal.typed import check_names, convert

At = str | Sequence[str] | Callable[[str, nn.Module], bool] | None


def check_model(model: object) -> None:
    """Raise unless it is a module that attention can be inserted into."""
    if not isinstance(model, nn.Module) or isinstance(model, torch.jit.ScriptModule):
        raise UserError(f"model must be a torch.nn.Module, not scripted or traced, got {type(model).__name__}")


def find(model: nn.Module, name: str, at: At = None) -> dict[str, nn.Module]:
    """Layers of ``model``, by name, that ``at`` selects for the mechanism ``name``.

    Raises:
        UserError: nothing matches (with near misses), or a selected layer cannot have it (with the reason).
    """
    check_model(model)
    mechanism = look_up(name)
    layers = dict(own_modules(model, every_name=True))
    if not layers:
        cls = getattr(model, "_plain", type(model)).__name__
        raise UserError(f"the model itself is one layer ({cls}); wrap it, as in torch.nn.Sequential(model)")
    selected: dict[str, nn.Module] = {}
    for site in _select(model, name, mechanism, at, layers):
        layer = layers[site]
        if any(layer is other for other in selected.values()):
            continue  # the same layer under another name
        cls = type(layer).__name__
        if getattr(layer, "has_uninitialized_params", bool)():
            raise UserError(f"{site} ({cls}) has no shape yet: run the model once before inserting")
        if "forward" in vars(layer):
            raise UserError(
                f"the forward of {site} ({cls}) has been replaced, so attention on it would never run: insert before "
                "that is done, or undo it"
            )
        if (reason := mechanism.serves(layer)) is not None:
            raise UserError(f"{name!r} cannot be put on {site} ({cls}): {reason}")
        selected[site] = layer
    return selected


def _select(model: nn.Module, name: str, mechanism: type[Mechanism], at: At, layers: dict[str, nn.Module]) -> list[str]:
    """Names of the layers that ``at`` selects."""
    if at is None:
        usual = [site for site in usual_sites(model, name, mechanism) if site in layers]
        selected = [site for site in usual if mechanism.serves(layers[site]) is None]
        if usual and not selected:
            first = layers[usual[0]]
            raise UserError(
                f"{name!r} cannot be put on {usual[0]} ({type(first).__name__}) or other default sites: "
                f"{mechanism.serves(first)}"
            )
        if not selected:
            raise _no_place(model, name, layers.values())
        return selected
    if callable(at):
        selected = [site for site, layer in layers.items() if at(site, layer)]
        if not selected:
            raise UserError(f"at: the predicate chose none of the {len(layers)} layers of {type(model).__name__}")
        return selected
    patterns = [at] if isinstance(at, str) else list(at) if isinstance(at, Sequence) else [None]
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise UserError(f"at must be a name or glob, a list of them, or a function of name and module, got {at!r}")
    if not patterns:
        raise UserError("at: the list is empty; name at least one layer, or leave it out for the usual ones")
    selected = []
    for pattern in patterns:
        matches = [pattern] if pattern in layers else [site for site in layers if fnmatch.fnmatchcase(site, pattern)]
        if not matches:
            raise _no_layer(pattern, layers)
        selected += [site for site in matches if site not in selected]
    return selected


def _no_place(model: nn.Module, name: str, layers: Iterable[nn.Module]) -> UserError:
    """The error for a network without a default site; one without any 2-D layer is not told to choose one."""
    if any(channels_of(layer) is not None for layer in layers):
        return UserError(
            f"{type(model).__name__} has no default site for {name!r}: its blocks have no layer of the kind that it "
            "suits; choose layers with at="
        )
    return UserError(
        f"{type(model).__name__} has no layer with 2-D feature maps (N, C, H, W), the only ones that {name!r} serves; "
        "build a module of foveal.attention into it by hand, such as FocusedAttention for tokens"
    )


def _no_layer(pattern: str, layers: Iterable[str]) -> UnknownNameError:
    """The error for a name or glob that matches no layer, with the three nearest names, or globs of them."""
    names = [re.sub(r"\d+(?=.*\.)", "*", name) if set("*?[") & set(pattern) else name for name in layers]
    near = difflib.get_close_matches(pattern, dict.fromkeys(names), n=3, cutoff=0.0)
    return UnknownNameError(f"unknown layer {pattern!r}; did you mean {' or '.join(map(repr, near))}?")


class Insertion:
    """What :func:`insert` did, and how to undo it.

    Attributes:
        mechanism: its name.
        sites: names of the layers it was put on.
        keys: site to its key in the layer's ``attached``.
    """

    def __init__(
        self,
        name: str,
        model: nn.Module,
        layers: dict[str, nn.Module],
        keys: dict[str, str],
        modules: Collection[nn.Module],
    ) -> None:
        self.mechanism = name
        self.sites = list(layers)
        self.keys = keys
        self._model, self._layers, self._inserted = model, layers, modules

    def eject(self) -> None:
        """Take it out again: the module tree is as before, with the weights as they are now."""
        # Also from layers other than those it was put on: they may have been replaced and lost their children.
        inserted = set(self._inserted)
        everywhere = dict.fromkeys([*self._layers.values(), *self._model.modules()])
        holders = [layer for layer in everywhere if inserted.intersection(attached_modules(layer).values())]
        for layer in holders:
            if isinstance(layer, Attended) and type(layer) is not attended_class(layer._plain):
                site = next(module.site for module in layer.attached.values() if module in inserted)
                raise UserError(
                    f"{site} has become a {type(layer).__name__} since attention was inserted; undo that first (for "
                    "parametrisations with torch.nn.utils.parametrize.remove_parametrizations)"
                )
        for layer in holders:
            detach(layer, inserted)
        self._layers, self._inserted = {}, ()

    def parameters(self) -> list[nn.Parameter]:
        """The inserted parameters, for an optimiser of their own."""
        return [parameter for module in self._inserted for parameter in module.parameters()]

    def __repr__(self) -> str:
        return f"Insertion({self.mechanism!r} at {len(self.sites)} sites)"


def insert(
    model: nn.Module,
    mechanism: str,
    at: At = None,
    *,
    start: Start = "identity",
    stack: bool = False,
    before: bool | None = None,
    **options: Any,
) -> Insertion:
    """Put attention on layers of ``model``, in place.

    Args:
        model: any module.
        mechanism: one of :func:`foveal.mechanisms`.
        at: None for the mechanism's default sites, a glob on module names, a list of them, or a predicate
            ``(name, module) -> bool``.
        start: ``identity``: the model computes what it computed before, to float tolerance, and learns from there;
            ``paper``: the paper's initialisation.
        stack: allow a layer that already has this mechanism to get it once more.
        before: put a gate on the input of the layers, which must be convolutions, instead of their output; None for
            the mechanism's default at its default sites, and the output of others.
        **options: of the mechanism.

    Returns:
        What was done; ``eject()`` undoes it. If anything fails, the model is left as it was.

    >>> import timm, foveal
    >>> model = timm.create_model("resnet18")
    >>> done = foveal.insert(model, "se", reduction=8)
    >>> done
    Insertion('se' at 8 sites)
    >>> done.eject()
    """
    cls = look_up(mechanism)
    options = _check_options(cls, mechanism, options)
    layers = find(model, mechanism, at)
    if at is None:
        remark_on_its_own(model, mechanism)
    keys = {site: _free_key(mechanism, cls, site, layer, stack) for site, layer in layers.items()}
    inputs = _inputs(cls, mechanism, model, layers, at, before)
    modules = {
        site: _build(cls, layer, site, start, options | ({"before": True} if site in inputs else {}))
        for site, layer in layers.items()
    }
    taps = {name: (keys[site], tap) for site in layers for name, tap in modules[site].beside(model, site).items()}
    reference = next(model.parameters(), None)
    done = Insertion(mechanism, model, layers, keys, [*modules.values(), *(tap for _, tap in taps.values())])
    try:
        for site, layer in layers.items():
            parameter = next(layer.parameters(), reference)
            if parameter is not None:
                modules[site].to(device=parameter.device, dtype=parameter.dtype)
            modules[site].train(layer.training)
            modules[site].before = site in inputs
            attach(layer, site, keys[site], modules[site])
        for name, (key, tap) in taps.items():
            attach(model.get_submodule(name), name, key, tap)
    except BaseException:
        done.eject()
        raise
    return done


def _inputs(
    cls: type[Mechanism], name: str, model: nn.Module, layers: dict[str, nn.Module], at: At, before: bool | None
) -> set[str]:
    """Names of the layers whose input the mechanism attends to."""
    if before and not issubclass(cls, Gate):
        raise UserError(f"before: {name!r} replaces a convolution and is not put before or after it; leave before out")
    if before is None:
        part, prefix = pretrained_part(model)
        return {prefix + site for site in cls.usual_before(part)} if at is None else set()
    return set(layers) if before else set()


def _free_key(mechanism: str, cls: type[Mechanism], site: str, layer: nn.Module, stack: bool) -> str:
    """The key under which the layer at ``site`` gets the mechanism; raises if it may not have it."""
    attached = dict(layer.attached) if isinstance(layer, Attended) else {}
    kernel = issubclass(cls, Kernel)
    if any(re.fullmatch(rf"{re.escape(mechanism)}(-\d+)?", key) for key in attached) and not stack:
        hint = "" if kernel else ", or pass stack=True to add another"
        raise UserError(f"{site} has {mechanism!r} already; eject it first{hint}")
    if kernel and any(isinstance(module, Kernel) for module in attached.values()):
        raise UserError(
            f"{site} has a kernel mechanism already ({', '.join(attached)}); only one can compute a convolution"
        )
    numbered = (f"{mechanism}-{i}" for i in itertools.count(2))
    return next(key for key in itertools.chain([mechanism], numbered) if key not in attached)


def _build(cls: type[Mechanism], layer: nn.Module, site: str, start: Start, options: dict[str, Any]) -> Mechanism:
    try:
        built = cls.for_layer(layer, start=start, **options)
        built.settings = {"start": start, **options}
        return built
    except UserError as error:
        raise UserError(f"{site}: {error}") from error
    except (TypeError, ValueError) as error:
        raise UserError(f"{site}: {' '.join(str(error).split())}") from error


def _check_options(cls: type[Mechanism], name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Raise for an option that the mechanism does not have, or whose value its annotation forbids; else converted."""
    context = f"mechanism {name!r}"
    init, for_layer = (list(inspect.signature(call).parameters.values()) for call in (cls.__init__, cls.for_layer))
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in init):
        optional = [p.name for p in (*init, *for_layer) if p.kind is p.KEYWORD_ONLY or p.default is not p.empty]
        check_names(options, {*optional, "at", "start", "stack"}.difference(cls.filled), context)
    hints: dict[str, Any] = {}
    with contextlib.suppress(Exception):  # third-party annotations may have names that cannot be resolved
        hints = get_type_hints(cls.for_layer) | get_type_hints(cls.__init__)
    checked = dict(options)
    for key, value in options.items():
        with contextlib.suppress(TypeError):  # an annotation that values cannot be checked against
            checked[key] = convert(hints.get(key, Any), value, f"{context}: {key}")
    return checked
