"""Put attention into a live model, and take it out again.

A layer that receives attention stays the same object with the same parameters under the same names: only its class
becomes a subclass of what it was, and it gains a child ``attached``. So a plain checkpoint still fits, hooks and
references stay valid, and taking the attention out restores the very same module tree. No forward hooks are involved:
what is inserted before ``torch.compile`` or ``torch.export`` is compiled and exported like any other code.
"""

from __future__ import annotations

import contextlib
import fnmatch
import inspect
import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any, get_type_hints

from torch import Tensor, nn

from foveal.attention.insertion.layers import own_modules
from foveal.attention.insertion.registry import Gate, Kernel, Mechanism, Start
from foveal.attention.insertion.registry import mechanism as look_up
from foveal.errors import UserError, unknown
from foveal.typed import check_names, convert

At = str | Sequence[str] | Callable[[str, nn.Module], bool] | None


class Attended:
    """Mixin of a layer with attention attached; the other base is the layer's own class."""

    _plain: type[nn.Module]
    attached: nn.ModuleDict

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The layer's own forward, or what a kernel mechanism makes of it; then every gate in turn."""
        kernel = next((module for module in self.attached.values() if isinstance(module, Kernel)), None)
        try:
            if kernel is None:
                output = _batch(self, super().forward(*args, **kwargs))  # type: ignore
            else:
                output = kernel.convolve(self, *(_batch(self, x) for x in (*args, *kwargs.values())))  # type: ignore
            for module in self.attached.values():
                if isinstance(module, Gate):
                    output = module(output)
        except UserError as error:
            site = next((module.site for module in self.attached.values()), "")
            raise UserError(f"{site}: {error}") from error
        return output

    def __reduce__(self) -> Any:
        # The subclass is made on the fly, so copies and pickles name the layer's own class and make it anew.
        state = self.__getstate__() if hasattr(self, "__getstate__") else self.__dict__
        return _rebuild, (self._plain,), state

    def _get_name(self) -> str:
        return f"{self._plain.__name__}+{'+'.join(self.attached)}"


def _batch(layer: Any, maps: Tensor) -> Tensor:
    """What a layer takes or puts out, unless it is a single sample: these layers take it, attention does not."""
    if isinstance(layer, nn.Conv2d | nn.InstanceNorm2d) and maps.ndim == 3:
        raise UserError(f"attention needs a batch (N, C, H, W), got {tuple(maps.shape)}; add a dimension with x[None]")
    return maps


_CLASSES: dict[type, type] = {}


def _attended(plain: type) -> Any:
    if plain not in _CLASSES:
        parts = {"_plain": plain, "__module__": plain.__module__}
        _CLASSES[plain] = type(f"Attended{plain.__name__}", (Attended, plain), parts)
    return _CLASSES[plain]


def _rebuild(plain: type[nn.Module]) -> nn.Module:
    cls = _attended(plain)
    return cls.__new__(cls)


def find(model: nn.Module, name: str, at: At = None) -> dict[str, nn.Module]:
    """Layers of ``model`` that ``at`` means for the mechanism ``name``.

    Raises:
        UserError: nothing matches (with near misses), or a layer that was named cannot be served (with the reason).
    """
    if not isinstance(model, nn.Module):
        raise UserError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    names = at if isinstance(at, Sequence) else []
    if not (at is None or callable(at) or isinstance(at, Sequence)) or not all(isinstance(each, str) for each in names):
        raise UserError(f"at must be a name or glob, a list of them, or a function of name and module, got {at!r}")
    cls = look_up(name)
    layers = dict(own_modules(model, every_name=True))
    if not layers:
        kind = getattr(model, "_plain", type(model)).__name__
        raise UserError(f"the model itself is one layer ({kind}); wrap it, as in torch.nn.Sequential(model)")
    if at is None:
        usual = [n for n in cls.usual(model) if n in layers]
        chosen = [n for n in usual if cls.serves(layers[n]) is None]
        if usual and not chosen:
            first, reason = layers[usual[0]], cls.serves(layers[usual[0]])
            raise UserError(
                f"{name!r} cannot be put on {usual[0]} ({type(first).__name__}) or other usual places: {reason}"
            )
        if not chosen:
            raise UserError(f"{type(model).__name__} has no usual place for {name!r}; say where with at=")
    elif callable(at):
        chosen = [n for n, m in layers.items() if at(n, m)]
        if not chosen:
            raise UserError(f"at: the predicate chose none of the {len(layers)} layers of {type(model).__name__}")
    else:
        chosen = []
        patterns = [at] if isinstance(at, str) else list(at)
        if not patterns:
            raise UserError("at: the list is empty; name at least one layer, or leave it out for the usual ones")
        for pattern in patterns:
            matches = [pattern] if pattern in layers else [n for n in layers if fnmatch.fnmatchcase(n, pattern)]
            if not matches:
                raise unknown("layer", pattern, layers)
            chosen += [n for n in matches if n not in chosen]
    found: dict[str, nn.Module] = {}
    for n in chosen:
        if any(layers[n] is layer for layer in found.values()):
            continue  # the same layer under another name
        if getattr(layers[n], "has_uninitialized_params", bool)():
            raise UserError(f"{n} ({type(layers[n]).__name__}) has no shape yet: run the model once before inserting")
        if "forward" in vars(layers[n]):
            raise UserError(
                f"{n} ({type(layers[n]).__name__}) has had its forward replaced, so attention on it would never run: "
                "insert before that is done, or undo it"
            )
        if (reason := cls.serves(layers[n])) is not None:
            raise UserError(f"{name!r} cannot be put on {n} ({type(layers[n]).__name__}): {reason}")
        found[n] = layers[n]
    return found


class Insertion:
    """What :func:`insert` did, and the way back.

    Attributes:
        mechanism: its name.
        sites: names of the layers it was put on.
        keys: for each site, under which key of the layer's ``attached`` it lies.
    """

    def __init__(
        self,
        name: str,
        model: nn.Module,
        layers: dict[str, nn.Module],
        keys: dict[str, str],
        made: dict[str, Mechanism],
    ) -> None:
        self.mechanism = name
        self.sites = list(layers)
        self.keys = keys
        self._model, self._layers, self._made = model, layers, made

    def eject(self) -> None:
        """Take it out again: the module tree is as before, with the weights as they are now."""
        # Not only from the layers it was put on: others may have taken their place and their children (see reattach).
        made = set(self._made.values())
        everywhere = dict.fromkeys([*self._layers.values(), *self._model.modules()])
        holders = [layer for layer in everywhere if made.intersection(_attached(layer).values())]
        for layer in holders:
            if isinstance(layer, Attended) and type(layer) is not _attended(layer._plain):
                site = next(module.site for module in layer.attached.values() if module in made)
                raise UserError(
                    f"{site} has become a {type(layer).__name__} since attention was inserted; undo that first (for "
                    "parametrisations with torch.nn.utils.parametrize.remove_parametrizations)"
                )
        for layer in holders:
            _detach(layer, made)
        self._layers, self._made = {}, {}

    def parameters(self) -> list[nn.Parameter]:
        """The parameters that came with the insertion, for an optimiser of their own."""
        return [parameter for module in self._made.values() for parameter in module.parameters()]

    def __repr__(self) -> str:
        return f"Insertion({self.mechanism!r} at {len(self.sites)} sites)"


def _attached(layer: nn.Module) -> dict[str, nn.Module]:
    """What is attached to a layer, whether it runs or not (see :func:`reattach`)."""
    attached = getattr(layer, "attached", None)
    return dict(attached) if isinstance(attached, nn.ModuleDict) else {}


def _attach(layer: nn.Module, site: str, key: str, module: Mechanism) -> None:
    module.site = site
    if isinstance(layer, Attended):
        layer.attached[key] = module
        return
    if hasattr(layer, "attached"):
        kind = type(layer).__name__
        raise UserError(f"{site}: {kind} has an attribute 'attached' of its own, which insertion needs")
    attached = nn.ModuleDict({key: module})
    layer.__class__ = _attended(type(layer))
    layer.attached = attached


def reattach(model: nn.Module) -> None:
    """Make attention work again on layers that another library has replaced by layers of another class.

    ``convert_sync_batchnorm`` of torch and timm makes a new norm for every norm and hands on its children, but not its
    class; what was attached to it would never run.
    """
    for module in model.modules():
        if not isinstance(module, Attended) and isinstance(getattr(module, "attached", None), nn.ModuleDict):
            module.__class__ = _attended(type(module))


def _detach(layer: Any, made: set[Mechanism]) -> None:
    for key, module in _attached(layer).items():
        if module in made:
            del layer.attached[key]
    if not len(layer.attached):
        del layer.attached
        layer.__class__ = getattr(layer, "_plain", type(layer))


def insert(
    model: nn.Module, mechanism: str, at: At = None, *, start: Start = "identity", stack: bool = False, **options: Any
) -> Insertion:
    """Put attention on layers of ``model``, in place.

    Args:
        model: any module.
        mechanism: one of :func:`foveal.mechanisms`.
        at: None for the mechanism's usual layers, a glob on module names, a list of them, or a predicate
            ``(name, module) -> bool``.
        start: ``identity``: the model computes what it computed before, to float tolerance, and learns from there;
            ``paper``: the paper's initialisation.
        stack: allow a layer that has this mechanism already to get it once more.
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
    made: dict[str, Mechanism] = {}
    keys: dict[str, str] = {}
    for site, layer in layers.items():
        there = dict(layer.attached) if isinstance(layer, Attended) else {}
        kernel = issubclass(cls, Kernel)
        if any(re.fullmatch(rf"{re.escape(mechanism)}(-\d+)?", key) for key in there) and not stack:
            another = "" if kernel else ", or pass stack=True to add another"
            raise UserError(f"{site} has {mechanism!r} already; eject it first{another}")
        if kernel and any(isinstance(module, Kernel) for module in there.values()):
            raise UserError(
                f"{site} has a kernel mechanism already ({', '.join(there)}); only one can compute a convolution"
            )
        numbered = (f"{mechanism}-{i}" for i in itertools.count(2))
        keys[site] = next(key for key in itertools.chain([mechanism], numbered) if key not in there)
        made[site] = _build(cls, layer, site, start, options)
    reference = next(model.parameters(), None)
    done = Insertion(mechanism, model, layers, keys, made)
    try:
        for site, layer in layers.items():
            own = next(layer.parameters(), reference)
            if own is not None:
                made[site].to(device=own.device, dtype=own.dtype)
            made[site].train(layer.training)
            _attach(layer, site, keys[site], made[site])
    except BaseException:
        done.eject()
        raise
    return done


def _build(cls: type[Mechanism], layer: nn.Module, site: str, start: Start, options: dict[str, Any]) -> Mechanism:
    try:
        return cls.for_layer(layer, start=start, **options)
    except UserError as error:
        raise UserError(f"{site}: {error}") from error
    except (TypeError, ValueError) as error:
        raise UserError(f"{site}: {' '.join(str(error).split())}") from error


def _check_options(cls: type[Mechanism], name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Name the first option that the mechanism does not have, and near misses, or whose type its annotation forbids."""
    where = f"mechanism {name!r}"
    own, more = (list(inspect.signature(call).parameters.values()) for call in (cls.__init__, cls.for_layer))
    if not any(each.kind is each.VAR_KEYWORD for each in own):
        optional = [p.name for p in (*own, *more) if p.kind is p.KEYWORD_ONLY or p.default is not p.empty]
        check_names(options, {*optional, "at", "start", "stack"}.difference(cls.filled), where)
    hints: dict[str, Any] = {}
    with contextlib.suppress(Exception):  # someone else's annotations may name what cannot be found
        hints = get_type_hints(cls.for_layer) | get_type_hints(cls.__init__)
    checked = dict(options)
    for key, value in options.items():
        with contextlib.suppress(TypeError):  # an annotation that values cannot be held against
            checked[key] = convert(hints.get(key, Any), value, f"{where}: {key}")
    return checked
