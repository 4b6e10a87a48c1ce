from dataclasses import replace

import pytest
import torch

from foveal.errors import RunError, UserError
from foveal.see import Samples
from foveal.see.draw.samples import shared_samples


def kept(samples):
    """The samples as a run keeps them: tensors, and what else there is to know."""
    names = ("image", "query", "prediction", "map", "label", "probability", "mask")
    tensors = {name: tensor for name in names if (tensor := getattr(samples, name)) is not None}
    tensors |= {f"gate.{i}": gate for i, gate in enumerate(samples.gates)}
    about = ("queries", "answers", "sites", "question", "colours", "total_gates")
    return tensors, {name: value for name in about if (value := getattr(samples, name))}


def test_samples_from_what_a_run_keeps(samples_of):
    seen = replace(samples_of("HAttNet"), total_gates=7)
    tensors, about = kept(seen)
    again = Samples.from_tensors(tensors | {"top.maps": torch.zeros(1)}, about | {"vocabulary": ["x"]})
    for name in ("image", "query", "label", "prediction", "probability", "mask", "map"):
        assert getattr(seen, name) is getattr(again, name), name
    assert len(again.gates) == 4
    assert all(map(torch.equal, seen.gates, again.gates))
    for name in ("queries", "answers", "sites", "question", "colours", "total_gates"):
        assert getattr(again, name) == getattr(seen, name), name


def test_optional_parts_may_be_missing(samples_of):
    seen = samples_of("SOFT")
    tensors, _ = kept(replace(seen, label=None, mask=None, probability=None))
    again = Samples.from_tensors(tensors, {})
    assert again.label is None
    assert (again.verdict(0), again.truth(0), again.box(0), again.confidence(0)) == (None, None, None, None)
    assert (again.asked(0), again.site(0)) == (str(int(seen.query[0])), "gate 1")
    assert again.colour(again.guess(0)) is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda tensors: tensors.pop("prediction"), "'prediction'.*foveal test"),
        (lambda tensors: tensors.update({"gate.5": tensors["gate.0"]}), "'gate.1'"),
        (lambda tensors: tensors.update(map=torch.zeros(6)), "map is.*foveal test"),
    ],
)
def test_samples_that_do_not_fit_together(samples_of, change, says):
    tensors, about = kept(samples_of("SOFT"))
    change(tensors)
    with pytest.raises(RunError, match=says):
        Samples.from_tensors(tensors, about)


def test_questions_come_from_the_data(samples_of):
    seen = samples_of("SOFT")
    asked = seen.asked(0)
    assert seen.asks(0) == f"What colour is the {asked}?"
    assert replace(seen, question="").asks(0) == f"Asked: {asked}"
    assert replace(seen, question="{query.__class__} {0}").asks(0) == "{query.__class__} {0}"
    assert replace(seen, query=None, question="What does this show?").asks(0) == "What does this show?"
    assert replace(seen, query=None, question="").asks(0) == ""


def test_colours_come_from_the_data_and_are_nothing_else(samples_of):
    seen = samples_of("SOFT")
    assert [seen.colour([i]) for i in range(2)] == ["#10a651", "#fff14e"]
    assert replace(seen, colours={}).colour([0]) is None
    assert replace(seen, colours={"green": "red;background:url(http://x)"}).colour([0]) is None


def test_several_answers_at_once(samples_of):
    seen = replace(
        samples_of("SOFT", 3),
        label=torch.tensor([[1, 1, 0, 0, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]]),
        prediction=torch.tensor([[1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 0, 0, 0]]),
    )
    assert [seen.verdict(k) for k in range(3)] == ["partly", "wrong", "right"]
    assert [seen.names(seen.truth(k)) for k in range(3)] == ["green, yellow", "green", "none"]
    assert seen.names([0, 1, 2, 3, 4]) == "green, yellow, white and 2 more"


def test_box_is_the_frame_of_the_mask(samples_of):
    mask = torch.zeros(1, 100, 100, dtype=torch.uint8)
    mask[0, 20:40, 50:51] = 1
    assert replace(samples_of("SOFT", 1), mask=mask).box(0) == (0.5, 0.2, 0.51, 0.4)
    assert replace(samples_of("SOFT", 1), mask=mask * 0).box(0) is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"image": torch.zeros(6, 3, 8, 8)}, "image is torch.float32"),
        ({"query": torch.zeros(5)}, r"query is \(5,\); expected 1 dimensions, the first 6 long"),
        ({"map": torch.zeros(6, 8)}, "map is"),
        ({"label": torch.zeros(6, 5)}, "label is"),
        ({"gates": (torch.zeros(6, 4, 4), torch.zeros(6, 4))}, "gate.1 is"),
    ],
)
def test_wrong_shapes(samples_of, change, says):
    with pytest.raises(UserError, match=says):
        replace(samples_of("SOFT"), **change)


def test_a_question_about_the_whole_image_to_a_model_without_gates(samples_of):
    seen = replace(samples_of("SOFT"), query=None, map=None, gates=(), sites=())
    again = Samples.from_tensors(*kept(seen))
    assert (again.query, again.map, again.gates) == (None, None, ())
    assert again.asked(0) is None


def test_samples_are_matched_by_image_and_query(samples_of):
    first = samples_of("SOFT", 4)
    order = torch.tensor([2, 0])
    names = ("image", "query", "label", "prediction", "probability", "mask", "map")
    second = replace(first, **{n: getattr(first, n)[order] for n in names}, gates=(first.gates[0][order],))
    assert shared_samples({"a": first, "b": second}) == [{"a": 0, "b": 1}, {"a": 2, "b": 0}, {"a": 1}, {"a": 3}]
    with pytest.raises(UserError, match="at least one title"):
        shared_samples({})
