"""Weight averaging: the average against one computed by hand, in checkpoints and validation, and after a resume."""

from types import SimpleNamespace

import lightning as L
import pytest
import torch
from lightning.pytorch.strategies import FSDPStrategy
from torch import nn
from torch.utils.data import DataLoader

from foveal.errors import UserError
from foveal.recipe.optim import EMA, SGD, SWA, AdamW, Last
from foveal.runs.checkpoints import SafeCheckpointIO
from foveal.tasks.averaging import averaging_callback, build_average, state_tensors
from foveal.tasks.callbacks import Checkpoint

EPOCHS, BATCHES = 5, 3
AVERAGES = [EMA(decay=0.7), SWA(epochs=3), Last(epochs=2)]


class Small(L.LightningModule):
    """A network with batch norm and a weight of two names; notes the weights after each step and in each validation."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.model = nn.Sequential(nn.Linear(2, 4, bias=False), nn.BatchNorm1d(4), nn.Linear(4, 2, bias=False))
        self.same = self.model[0]
        self.trained: list[dict[str, torch.Tensor]] = []
        self.validated: list[dict[str, torch.Tensor]] = []
        self.stop_at: int | None = None

    def weights(self):
        return {name: tensor.detach().clone() for name, tensor in self.state_dict().items()}

    def training_step(self, batch, batch_idx):
        if self.global_step == self.stop_at:
            raise RuntimeError("killed")
        return self.model(batch).square().sum()

    def optimizer_step(self, *args, **kwargs):
        super().optimizer_step(*args, **kwargs)
        self.trained.append(self.weights())

    def validation_step(self, batch, batch_idx):
        if not self.trainer.sanity_checking:
            self.validated.append(self.weights())
        # so that the best epoch is neither the first nor the last
        self.log("score", -abs(self.current_epoch - 3.0))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.02, momentum=0.9)

    def train_dataloader(self):
        random = torch.Generator().manual_seed(self.current_epoch)
        return DataLoader(torch.randn(8 * BATCHES, 2, generator=random), batch_size=8)

    def val_dataloader(self):
        return DataLoader(torch.ones(2, 2), batch_size=2)


def trainer(callbacks, **options):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    usual = {"max_epochs": EPOCHS, "accelerator": "cpu", "num_sanity_val_steps": 0}
    return L.Trainer(callbacks=callbacks, **usual | quiet | options)


def train(folder, average, *, stop_at=None, resume=False, **options):
    module = Small()
    module.stop_at = stop_at
    callbacks = [] if average is None else [build_average(average)]
    place = {"dirpath": folder, "enable_version_counter": False}
    callbacks += [
        Checkpoint(filename="best", monitor="score", mode="max", save_weights_only=True, **place),
        Checkpoint(filename="last", save_on_train_epoch_end=True, **place),
    ]
    options |= {"default_root_dir": folder, "plugins": [SafeCheckpointIO()], "reload_dataloaders_every_n_epochs": 1}
    trainer(callbacks, **options).fit(module, ckpt_path=folder / "last.ckpt" if resume else None)
    return module


def saved(folder, name):
    return torch.load(folder / name, weights_only=True)["state_dict"]


def mean(states):
    """Mean of several states, counters of the last."""
    return {
        name: torch.stack([state[name] for state in states]).mean(0) if tensor.is_floating_point() else tensor
        for name, tensor in states[-1].items()
    }


def expected(average, trained):
    """The average after the last of the weights in ``trained``, one for each step."""
    ends = trained[BATCHES - 1 :: BATCHES]
    if isinstance(average, EMA):
        weights = [average.decay ** (len(trained) - 1 - i) * (1 - average.decay) for i in range(len(trained))]
        weights[0] /= 1 - average.decay
        return {
            name: sum(w * state[name] for w, state in zip(weights, trained, strict=True))
            if tensor.is_floating_point()
            else tensor
            for name, tensor in trained[-1].items()
        }
    if isinstance(average, SWA):
        return mean(ends[EPOCHS - average.epochs :] or ends[-1:])
    return mean(ends[-average.epochs :])


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The same training without an average."""
    return train(tmp_path_factory.mktemp("plain"), None)


@pytest.mark.parametrize("average", AVERAGES, ids=lambda a: a.kind)
def test_the_average_is_validated_and_saved(tmp_path, average, plain):
    module = train(tmp_path, average)
    torch.testing.assert_close(module.trained, plain.trained, rtol=0, atol=0)  # training itself does not change
    averages = [expected(average, module.trained[: (epoch + 1) * BATCHES]) for epoch in range(EPOCHS)]
    torch.testing.assert_close(module.validated, averages)
    assert not torch.equal(averages[-1]["model.0.weight"], module.trained[-1]["model.0.weight"])
    torch.testing.assert_close(saved(tmp_path, "best.ckpt"), averages[3])
    torch.testing.assert_close(saved(tmp_path, "last.ckpt"), averages[-1])
    torch.testing.assert_close(module.weights(), averages[-1])
    assert module.weights()["model.1.num_batches_tracked"] == EPOCHS * BATCHES


@pytest.mark.parametrize("average", AVERAGES, ids=lambda a: a.kind)
@pytest.mark.parametrize("step", [4, 7, 11])
def test_a_resumed_run_continues_exactly(tmp_path, average, step):
    whole = train(tmp_path / "whole", average)
    with pytest.raises(RuntimeError, match="killed"):
        train(tmp_path / "cut", average, stop_at=step)
    resumed = train(tmp_path / "cut", average, resume=True)
    epochs = step // BATCHES  # done before
    torch.testing.assert_close(resumed.trained, whole.trained[epochs * BATCHES :], rtol=0, atol=0)
    torch.testing.assert_close(resumed.validated, whole.validated[epochs:], rtol=0, atol=0)
    for name in ("best.ckpt", "last.ckpt"):
        torch.testing.assert_close(saved(tmp_path / "cut", name), saved(tmp_path / "whole", name), rtol=0, atol=0)


def test_a_finished_run_that_is_resumed_keeps_the_average(tmp_path):
    whole = train(tmp_path, EMA(decay=0.7))
    again = train(tmp_path, EMA(decay=0.7), resume=True)
    assert again.trained == []
    torch.testing.assert_close(again.weights(), whole.weights(), rtol=0, atol=0)


def test_a_run_that_stops_before_the_last_epochs_has_nothing_averaged(tmp_path):
    module = train(tmp_path, SWA(epochs=2), limit_train_batches=BATCHES, max_steps=2 * BATCHES)
    torch.testing.assert_close(module.weights(), module.trained[-1], rtol=0, atol=0)


def test_without_validation_the_average_is_saved_too(tmp_path):
    module = train(tmp_path, EMA(decay=0.7), limit_val_batches=0)
    assert module.validated == []
    torch.testing.assert_close(saved(tmp_path, "last.ckpt"), expected(EMA(decay=0.7), module.trained))


def test_validations_within_an_epoch_and_before_training(tmp_path, plain):
    module = Small()
    callback = build_average(EMA(decay=0.7))
    several = {"num_sanity_val_steps": 1, "val_check_interval": 1, "enable_checkpointing": False}
    used = trainer([callback], max_epochs=2, **several)
    used.fit(module)
    torch.testing.assert_close(module.trained[:BATCHES], plain.trained[:BATCHES], rtol=0, atol=0)
    averages = [expected(EMA(decay=0.7), module.trained[: step + 1]) for step in range(2 * BATCHES)]
    torch.testing.assert_close(module.validated, averages)
    used.validate(module, verbose=False)  # the module keeps the average
    torch.testing.assert_close(module.validated[-1], averages[-1])


def test_steps_are_averaged_and_not_the_batches_whose_gradients_they_add_up(tmp_path):
    module = train(tmp_path, EMA(decay=0.7), accumulate_grad_batches=2)
    assert len(module.trained) == 2 * EPOCHS
    torch.testing.assert_close(module.weights(), expected(EMA(decay=0.7), module.trained))


def test_one_callback_trains_a_second_module(tmp_path):
    callback = build_average(EMA(decay=0.7))
    results = []
    for _ in range(2):
        module = Small()
        trainer([callback], max_epochs=3, enable_checkpointing=False).fit(module)
        results.append(module.weights())
    torch.testing.assert_close(*results, rtol=0, atol=0)


def test_a_strategy_that_splits_the_weights_is_refused():
    sharded = SimpleNamespace(strategy=FSDPStrategy())
    with pytest.raises(UserError, match=r"FSDPStrategy.*train\.strategy=ddp or optim\.average=null"):
        build_average(EMA()).setup(sharded, Small(), "fit")


def test_the_callback_of_a_recipe():
    assert averaging_callback(AdamW()) is None
    assert averaging_callback(SGD(average=Last(epochs=7))).epochs == 7


def test_a_weight_of_two_names_is_averaged_once():
    names = list(state_tensors(Small()))
    assert names == ["model.0.weight", *[f"model.1.{n}" for n in NORM], "model.2.weight"]


NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
