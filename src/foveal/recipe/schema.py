"""The sections of a recipe that every task has; a task brings the dataclasses of its own ``loss`` and ``measure``."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

import yaml

from foveal.errors import UserError
from foveal.recipe.optim import AdamW, Optim
from foveal.typed import check_least

VERSION = 2


@dataclass
class Train:
    """How long and on what hardware.

    Attributes:
        epochs: the greatest number of epochs.
        patience: stop after this many epochs without a better validation score; null: never.
        batch: samples per step and process.
        eval_batch: samples per step in validation and test.
        accumulate: batches whose gradients are added up before each update of the weights.
        check_every: epochs from one validation and checkpoint to the next; a divisor of ``epochs``.
        select: which epoch is tested: the ``best`` by its validation score, or the ``last``.
        precision: ``32`` (matrix products in TF32 on a GPU), or ``bf16`` or ``16`` (automatic mixed precision).
        compile: compile the training step with torch.compile.
        repeatable: make the same seed give the same weights on a GPU too: cuDNN does not search for the fastest
            convolutions, and PyTorch uses deterministic algorithms and warns where it has none. May be slower.
        threads_backward: let PyTorch run the backward pass in its own threads; ``false`` runs it in the thread of the
            step, which may be faster for small models on a GPU.
        accelerator, devices, nodes, strategy: as in Lightning's Trainer; every process takes its own batch. The
            strategy ``fsdp2`` splits the weights over all processes.
        sync_batchnorm: batch norm statistics over all processes (GPU only).
        tensorboard: also write TensorBoard logs (needs the ``tensorboard`` extra).
        callbacks: further callbacks for Lightning's Trainer: ``module:Class`` and the arguments of each.
        loggers: further loggers, written in the same way.
    """

    epochs: int = 60
    patience: int | None = None
    batch: int = 200
    eval_batch: int = 1000
    accumulate: int = 1
    check_every: int = 1
    select: Literal["best", "last"] = "best"
    precision: Literal["32", "bf16", "16"] = "32"
    compile: bool = False
    repeatable: bool = False
    threads_backward: bool = True
    accelerator: str = "auto"
    devices: int = 1
    nodes: int = 1
    strategy: str = "auto"
    sync_batchnorm: bool = False
    tensorboard: bool = False
    callbacks: dict[str, dict[str, Any]] = field(default_factory=dict)
    loggers: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_least(self, "train", epochs=1, patience=0, batch=1, eval_batch=1, accumulate=1, check_every=1)
        if self.epochs % self.check_every:
            raise UserError(
                f"train.check_every={self.check_every} does not divide train.epochs={self.epochs}: the last epoch "
                "would not be validated; change one of them"
            )


@dataclass
class AttentionLoss:
    """A loss on what attention does, a function ``(record, batch, **options) -> scalar``.

    Attributes:
        loss: a registered one, such as ``mask``, or ``module:function`` of your own.
        on: ``records`` of the model's own attention, or ``class_maps`` of the true class (:func:`foveal.cam`).
        at: which attention: a glob on site names, or a list of globs; null: all. For class maps, the layer.
        kind: the kind of class maps.
        options: further arguments of the function.
    """

    loss: str
    on: Literal["records", "class_maps"] = "records"
    at: str | list[str] | None = None
    kind: Literal["channel", "gradcam"] = "channel"
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.options = plain(self.options)


@dataclass
class LossOptions:
    """What is minimised: named losses, each times its weight.

    Attributes:
        weights: weight of each loss, by name; a loss that is not named has the task's default weight. Losses on
            attention with weight 0 are not computed.
        attention: further losses on attention, by a name of your choice.
    """

    weights: dict[str, float] = field(default_factory=dict)
    attention: dict[str, AttentionLoss] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, weight in self.weights.items():
            if not weight >= 0:
                raise UserError(f"loss.weights.{name}: expected at least 0, got {weight:g}")


@dataclass
class MeasureOptions:
    """What the test measures beyond the task's usual metrics, whatever is trained."""


@dataclass
class Cell:
    """The place of a recipe in a table.

    Attributes:
        table: what ``foveal reproduce`` takes.
        row: the model, as the table calls it.
        column: the dataset, as the table calls it.
        place: number of the row and of the column.
    """

    table: str = ""
    row: str = ""
    column: str = ""
    place: tuple[int, int] = (0, 0)


@dataclass
class Recipe:
    """A whole training run.

    Attributes:
        version: version of this format.
        name: the name or file that the recipe was loaded by.
        title: the model's name in tables and pictures.
        task: what is trained and tested; ``foveal list tasks`` names them.
        seed: seed of initial weights, order of samples and dropout.
        data: ``name`` of a dataset and its options.
        model: ``name`` of a model and its options.
        loss: what is minimised; the keys depend on the task.
        measure: what the test measures beyond the task's usual metrics; the keys depend on the task.
        published: what a paper reports, by metric; percentages as fractions.
        cell: the place in a table, if the recipe is a cell of one.
        sections: further sections that the task declares; in YAML they stand beside the others.
    """

    version: int = VERSION
    name: str = ""
    title: str = ""
    task: str = ""
    seed: int = 0
    data: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    loss: Any = field(default_factory=LossOptions)
    measure: Any = field(default_factory=MeasureOptions)
    optim: Optim = field(default_factory=AdamW)
    train: Train = field(default_factory=Train)
    published: dict[str, float] = field(default_factory=dict)
    cell: Cell | None = None
    sections: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_least(self, "", seed=0)

    def dump(self) -> str:
        """The resolved recipe as YAML that :func:`load` reads back."""
        mapping = dataclasses.asdict(self)
        mapping |= mapping.pop("sections")
        return yaml.safe_dump(plain(mapping), sort_keys=False, allow_unicode=True)


def plain(value: Any) -> Any:
    """Plain lists and mappings without what is null, which takes an option away."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items() if v is not None}
    return [plain(v) for v in value] if isinstance(value, list | tuple) else value
