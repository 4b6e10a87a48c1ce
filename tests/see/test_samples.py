from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from foveal.errors import RunError, UserError
from foveal.see import Samples


def test_what_is_saved_is_loaded(tmp_path, samples_of):
    seen = samples_of("HAttNet")
    seen.save(tmp_path / "samples.safetensors")
    again = Samples.load(tmp_path / "samples.safetensors")
    for name in ("image", "query", "label", "prediction", "probability", "mask", "map"):
        assert torch.equal(getattr(seen, name), getattr(again, name)), name
    assert all(map(torch.equal, seen.gates, again.gates))
    assert len(again.gates) == 4
    assert (again.queries, again.answers, again.sites) == (seen.queries, seen.answers, seen.sites)


def test_optional_parts_may_be_missing(tmp_path, samples_of):
    seen = replace(samples_of("SOFT"), label=None, mask=None, probability=None, queries=(), answers=(), sites=())
    seen.save(tmp_path / "s")
    again = Samples.load(tmp_path / "s")
    assert again.label is None
    assert (again.verdict(0), again.truth(0), again.box(0), again.confidence(0)) == (None, None, None, None)
    assert (again.asked(0), again.site(0)) == (str(int(seen.query[0])), "gate 1")


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


def test_damaged_files(tmp_path, samples_of):
    path = tmp_path / "samples.safetensors"
    with pytest.raises(RunError, match="cannot be read"):
        Samples.load(path)
    samples_of("SOFT").save(path)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(RunError, match="cannot be read"):
        Samples.load(path)
    save_file({"image": torch.zeros(1, 3, 8, 8, dtype=torch.uint8)}, path)
    with pytest.raises(RunError, match="no tensor 'prediction'"):
        Samples.load(path)


def test_a_question_about_the_whole_image_to_a_model_without_gates(tmp_path, samples_of):
    seen = replace(samples_of("SOFT"), query=None, map=None, gates=(), sites=())
    seen.save(tmp_path / "samples.safetensors")
    again = Samples.load(tmp_path / "samples.safetensors")
    assert (again.query, again.map, again.gates) == (None, None, ())
    assert again.asked(0) is None
    assert torch.equal(again.label, seen.label)
