"""Recipes: what to train, on what, how, as typed and validated YAML.

A recipe is a file in ``foveal/recipes`` (``hattnet/mref-soft``) or anywhere else (``./mine.yaml``). ``extends`` names a
recipe to start from, by its name or as a file beside this one; ``key=value`` overrides come last. Everything is checked
before anything is built: an unknown key, a wrong type or a missing dataset is one clear message that names the key.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import yaml

from foveal.errors import UserError, unknown
from foveal.typed import check_names, convert, join, parse

VERSION = 1


@dataclass
class Optim:
    """How weights are updated.

    Attributes:
        name: ``rmsprop``, ``adam``, ``adamw`` or ``sgd``.
        lr: learning rate, the highest one of a ``onecycle`` schedule.
        weight_decay: decoupled for ``adamw``, L2 otherwise.
        decay: what it acts on: ``weights`` spares biases, norms and everything else of one dimension; or ``all``.
        momentum: of ``sgd``.
        nesterov: look ahead along the momentum of ``sgd``.
        alpha: decay of ``rmsprop``'s average of squares.
        eps: added to the denominator of ``rmsprop``, ``adam`` and ``adamw``.
        schedule: ``constant``; ``stairs``: divided by ``factor`` after epoch ``after`` and then every ``every`` epochs;
            ``onecycle`` and ``cosine``: over all steps of the run.
        clip: greatest total gradient norm, or null.
    """

    name: Literal["rmsprop", "adam", "adamw", "sgd"] = "adamw"
    lr: float = 1e-3
    weight_decay: float = 0.0
    decay: Literal["weights", "all"] = "weights"
    momentum: float = 0.9
    nesterov: bool = False
    alpha: float = 0.9
    eps: float = 1e-8
    schedule: Literal["constant", "stairs", "onecycle", "cosine"] = "constant"
    after: int = 30
    every: int = 11
    factor: float = 1.5
    clip: float | None = None

    def __post_init__(self) -> None:
        _check_least(self, "optim", lr=0, weight_decay=0, momentum=0, alpha=0, eps=0, after=0, every=1)
        for name in ("factor", "clip"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UserError(f"optim.{name}: expected a number above 0, got {value:g}")
        if self.nesterov and not (self.name == "sgd" and self.momentum > 0):
            raise UserError("optim.nesterov=true needs optim.name=sgd with a momentum above 0")


@dataclass
class Train:
    """How long and on what hardware.

    Attributes:
        epochs: at most this many.
        patience: stop after so many epochs without a better validation score, or null.
        batch: samples a step and process.
        eval_batch: samples a step in validation and test.
        select: which epoch is tested: the ``best`` by its validation score, or the ``last``.
        precision: ``32`` (matrix products in TF32 on a GPU), or ``bf16`` or ``16`` (automatic mixed precision).
        compile: compile the training step with torch.compile.
        accelerator, devices, nodes, strategy: as in Lightning's Trainer; every process takes its own batch.
        sync_batchnorm: batch norm statistics over all processes (GPU only).
        tensorboard: also write TensorBoard logs (needs the ``tensorboard`` extra).
    """

    epochs: int = 60
    patience: int | None = None
    batch: int = 200
    eval_batch: int = 1000
    select: Literal["best", "last"] = "best"
    precision: Literal["32", "bf16", "16"] = "32"
    compile: bool = False
    accelerator: str = "auto"
    devices: int = 1
    nodes: int = 1
    strategy: str = "auto"
    sync_batchnorm: bool = False
    tensorboard: bool = False

    def __post_init__(self) -> None:
        _check_least(self, "train", epochs=1, patience=0, batch=1, eval_batch=1)


@dataclass
class Relation:
    """The center-mass loss on attention between words, for models that ask for it.

    Attributes:
        weight: what it is multiplied by.
        target: the pairs of words that attention should rest on, see :func:`foveal.supervise.word_pairs`.
        over: one softmax over the whole ``matrix`` of pairs, or one for each ``row``.
        shape: ``focal``, ``l2`` or ``smooth_l1``.
        r: exponent of ``focal``.
    """

    weight: float = 0.1
    target: Literal["semantic", "different_category", "same_category", "different_word"] = "semantic"
    over: Literal["matrix", "row"] = "matrix"
    shape: Literal["focal", "l2", "smooth_l1"] = "focal"
    r: float = 2.0

    def __post_init__(self) -> None:
        _check_least(self, "loss.relation", weight=0, r=0)


@dataclass
class Sharpening:
    """Separability and consistency of class attention, see :class:`foveal.supervise.Sharpen`.

    Attributes:
        inner: name of the inner layer, or null for the last one alone.
        last: name of the last layer.
        weight_dict: weight of each term: ``classification``, ``separability_inner``, ``separability_last`` and
            ``consistency_inner``; 1 for what is left out. Where all but the first are 0, training is plain, and
            the test measures attention all the same.
        kind: ``channel`` for A_ch, ``gradcam`` for Grad-CAM.
        order: 1: the losses act through the features; 2: through the gradients as well.
        theta: the share of inner attention inside the mask that consistency asks for.
        sigma: threshold of masks, as a fraction of a map's maximum.
        omega: sharpness of masks.
        mask: whose mask consistency uses.
        mask_gradient: let gradients through masks.
        normalise: divide maps by their own maxima before they are compared.
        hinge: no reward for a consistency better than ``theta``.
        batch_norm: whether samples of a batch see each other in the maps' gradients, or ``frozen`` statistics.
        pairs: with several labels: ``every`` true class against the best other one, or ``one`` pair.
        positives: with ``every``: most true classes of an image in a step.
        warmup: epochs without the attention losses.
    """

    inner: str | None = "layer3"
    last: str = "layer4"
    weight_dict: dict[str, float] = field(default_factory=dict)
    kind: Literal["channel", "gradcam"] = "channel"
    order: int = 1
    theta: float = 0.8
    sigma: float = 0.55
    omega: float = 100.0
    mask: Literal["last", "inner"] = "last"
    mask_gradient: bool = False
    normalise: bool = False
    hinge: bool = False
    batch_norm: Literal["coupled", "frozen"] = "coupled"
    pairs: Literal["every", "one"] = "every"
    positives: int = 3
    warmup: int = 0

    def __post_init__(self) -> None:
        _check_least(self, "loss.sharpen", order=1, theta=0, positives=1, warmup=0)
        if not self.omega > 0:
            raise UserError(f"loss.sharpen.omega: expected a number above 0, got {self.omega:g}")
        if self.inner == self.last:
            raise UserError(
                f"loss.sharpen: inner and last are both {self.last}; name an earlier layer as inner, or inner=null"
            )
        known = ("classification", "separability_inner", "separability_last", "consistency_inner")
        check_names(self.weight_dict, known, "loss.sharpen.weight_dict")
        for name, weight in self.weight_dict.items():
            where = f"loss.sharpen.weight_dict.{name}"
            self.weight_dict[name] = convert(float, weight, where)
            if not self.weight_dict[name] >= 0:
                raise UserError(f"{where}: expected at least 0, got {self.weight_dict[name]:g}")


@dataclass
class Loss:
    """What is minimised.

    Attributes:
        label_smoothing: of the cross entropy.
        floor: added to the probability of the right answer before the logarithm (1e-5 in the authors' code); not
            together with ``label_smoothing``.
        relation: how attention between words is supervised; the paper's way if null.
        sharpen: how class attention is supervised; not at all if null.
    """

    label_smoothing: float = 0.0
    floor: float = 0.0
    relation: Relation | None = None
    sharpen: Sharpening | None = None

    def __post_init__(self) -> None:
        _check_least(self, "loss", label_smoothing=0, floor=0)
        if self.label_smoothing > 1:
            raise UserError(f"loss.label_smoothing: expected at most 1, got {self.label_smoothing:g}")
        if self.label_smoothing and self.floor:
            raise UserError("loss.label_smoothing and loss.floor exclude each other; set one of them to 0")


@dataclass
class Published:
    """The cell of a paper's table that the recipe reproduces; numbers are fractions.

    Attributes:
        table: what ``foveal reproduce`` takes.
        row: the model, as the table calls it.
        column: the dataset, as the table calls it.
        accuracy: as published, or null.
        true_positive_strength: the same.
        weighted_average_precision: the same.
        mean_average_precision: the same.
        top5_accuracy: the same.
    """

    table: str = ""
    row: str = ""
    column: str = ""
    accuracy: float | None = None
    true_positive_strength: float | None = None
    weighted_average_precision: float | None = None
    mean_average_precision: float | None = None
    top5_accuracy: float | None = None


@dataclass
class Recipe:
    """A whole training run.

    Attributes:
        version: of this format.
        name: how it was asked for.
        title: the model's name in tables and pictures.
        task: ``refer``: an image and a query; ``classify``: an image alone; ``document``: a text.
        seed: of weights, order and dropout.
        data: ``name`` of a dataset and its options.
        model: ``name`` of a model and its options.
    """

    version: int = VERSION
    name: str = ""
    title: str = ""
    task: Literal["refer", "classify", "document"] = "refer"
    seed: int = 0
    data: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    loss: Loss = field(default_factory=Loss)
    optim: Optim = field(default_factory=Optim)
    train: Train = field(default_factory=Train)
    published: Published | None = None

    def __post_init__(self) -> None:
        _check_least(self, "", seed=0)
        if self.loss.sharpen is not None and self.task != "classify":
            raise UserError(f"loss.sharpen is for task classify; leave it out with task {self.task}")

    def dump(self) -> str:
        """The resolved recipe as YAML that :func:`load` reads back."""
        return yaml.safe_dump(_plain(dataclasses.asdict(self)), sort_keys=False, allow_unicode=True)


def available() -> list[str]:
    """Names of the recipes that come with foveal; files that start with an underscore are only building blocks."""
    root = Path(str(resources.files("foveal") / "recipes"))
    found = (p.relative_to(root).with_suffix("") for p in root.rglob("*.yaml") if not p.name.startswith("_"))
    return sorted(p.as_posix() for p in found)


def load(name: str | Path, overrides: Iterable[str] = ()) -> Recipe:
    """Read, override and validate a recipe.

    Args:
        name: a recipe that comes with foveal, or a path to a YAML file.
        overrides: ``key=value`` strings with dotted keys; values are YAML.

    >>> load("hattnet/mref-soft", ["train.epochs=3", "data.digits=embedded"]).train.epochs
    3
    """
    raw = _read(name)
    raw.setdefault("name", str(name))
    for override in overrides:
        _override(raw, override)
    version = raw.get("version", VERSION)
    if isinstance(version, int) and version > VERSION:
        raise UserError(
            f"recipe {name} has format version {version}, this foveal reads up to {VERSION}; upgrade foveal"
        )
    recipe = parse(Recipe, raw, "")
    for section in ("data", "model"):
        if not isinstance(getattr(recipe, section).get("name"), str):
            raise UserError(f"recipe {name}: {section}.name is missing")
        setattr(recipe, section, _plain(getattr(recipe, section)))  # null takes an option away
    recipe.title = recipe.title or recipe.model["name"]
    return recipe


def _read(name: str | Path, extended: tuple[Path, ...] = ()) -> dict[str, Any]:
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        path = Path(str(resources.files("foveal") / "recipes" / f"{name}.yaml"))
        if not path.is_file():
            raise unknown("recipe", str(name), available())
    if path in extended:
        raise UserError(f"{path} extends itself")
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such recipe file") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{path} cannot be read as YAML: {' '.join(str(error).split())}") from error
    if not isinstance(raw, dict):
        raise UserError(f"{path}: expected a mapping of sections, found {type(raw).__name__}")
    base = raw.pop("extends", None)
    if base is None:
        return raw
    if not isinstance(base, str):
        raise UserError(f"{path}: extends names one recipe, or one recipe file beside it, got {base!r}")
    beside = base.endswith((".yaml", ".yml"))
    return _merge(_read(path.parent / base if beside else base, (*extended, path)), raw)


def _merge(base: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _override(raw: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise UserError(f"override {override!r}: expected key=value, for example train.epochs=3")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"override {override!r}: {text!r} is not a YAML value") from error
    *path, last = key.split(".")
    at = raw
    for part in path:
        if at.get(part) is None:
            at[part] = {}
        at = at[part]
        if not isinstance(at, dict):
            raise UserError(f"override {override!r}: {part!r} is a value, not a section")
    at[last] = value


def _check_least(section: Any, where: str, **least: int) -> None:
    """Complain of a number below the least that makes sense; None is no number."""
    for name, bound in least.items():
        value = getattr(section, name)
        if value is not None and not value >= bound:
            raise UserError(f"{join(where, name)}: expected at least {bound}, got {value:g}")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items() if v is not None}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value
