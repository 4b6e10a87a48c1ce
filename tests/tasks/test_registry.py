"""What is wrong with a task's class is said when it is registered."""

from dataclasses import dataclass

import pytest

from foveal import registry
from foveal.errors import UserError
from foveal.recipe import LossOptions, MeasureOptions
from foveal.tasks import Task, register_task


@pytest.fixture(autouse=True)
def _forget():
    known = registry.tasks.items()
    yield
    registry.tasks._things.clear()
    registry.tasks._things.update(known)


class Whole(Task):
    def losses(self, batch):
        return {}

    def validation_step(self, batch, batch_idx): ...

    def test_step(self, batch, batch_idx): ...

    def about(self):
        return {}

    @classmethod
    def rebuild(cls, recipe, about): ...


@dataclass
class OwnLoss(LossOptions):
    sharp: bool = False


@dataclass
class Search:
    beam: int = 5


def test_sections_that_a_task_leaves_out_are_the_usual_ones():
    class Mine(Whole):
        sections = {"loss": OwnLoss, "search": Search}  # noqa: RUF012

    assert register_task("mine")(Mine) is Mine is registry.tasks.get("mine")
    assert Mine.name == "mine"
    assert Mine.sections == {"loss": OwnLoss, "measure": MeasureOptions, "search": Search}
    assert Task.sections == {"loss": LossOptions, "measure": MeasureOptions}


def test_a_task_derived_from_another_has_its_sections_and_a_name_of_its_own():
    class Mine(Whole):
        sections = {"loss": OwnLoss}  # noqa: RUF012

    class More(Mine):
        pass

    register_task("mine")(Mine)
    register_task("more")(More)
    assert (Mine.name, More.name) == ("mine", "more")
    assert More.sections["loss"] is OwnLoss


def test_methods_that_are_missing_are_named():
    class Half(Task):
        def losses(self, batch):
            return {}

    with pytest.raises(UserError, match="Half must define validation_step, test_step, rebuild"):
        register_task("half")(Half)
    assert "half" not in registry.tasks


def test_what_is_no_task_is_refused():
    with pytest.raises(UserError, match=r"derived from foveal\.tasks\.Task"):
        register_task("no")(Search)


def test_a_loss_section_must_have_the_keys_of_every_task():
    class Mine(Whole):
        sections = {"loss": Search}  # noqa: RUF012

    with pytest.raises(UserError, match="LossOptions"):
        register_task("mine")(Mine)
