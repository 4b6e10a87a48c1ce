import pytest
import torch
from safetensors.torch import save_file

from foveal.errors import UserError
from foveal.models.weights import fit_problems, read_weights

WEIGHTS = {"features.0.weight": torch.arange(6.0).view(2, 3), "features.0.bias": torch.ones(2)}


@pytest.mark.parametrize(
    "wrap",
    [
        lambda w: w,
        lambda w: {"state_dict": w, "epoch": 3},
        lambda w: {"model": {"state_dict": w}},
        lambda w: {f"module.{name}": value for name, value in w.items()},
    ],
)
@pytest.mark.parametrize("as_file", [True, False])
def test_state_dicts_are_unwrapped(wrap, as_file, tmp_path):
    given = wrap(WEIGHTS)
    if as_file:
        torch.save(given, tmp_path / "w.pth")
        given = tmp_path / "w.pth"
    read = read_weights(given)
    assert list(read) == list(WEIGHTS)
    for name, value in WEIGHTS.items():
        assert torch.equal(read[name], value)


def test_safetensors(tmp_path):
    save_file(WEIGHTS, tmp_path / "w.safetensors")
    read = read_weights(str(tmp_path / "w.safetensors"))
    assert read.keys() == WEIGHTS.keys()
    assert torch.equal(read["features.0.weight"], WEIGHTS["features.0.weight"])


class Payload:
    ran = False

    def __reduce__(self):
        return setattr, (Payload, "ran", True)


def test_a_pickle_is_never_executed(tmp_path):
    torch.save({"features.0.bias": Payload()}, tmp_path / "w.pth")
    with pytest.raises(UserError, match=r"w\.pth .*state dict alone"):
        read_weights(tmp_path / "w.pth")
    assert not Payload.ran


@pytest.mark.parametrize("name", ["w.pth", "w.safetensors"])
@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"\x80\x02"])
def test_damaged_files(name, content, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=rf"checkpoint .*{name}.*again"):
        read_weights(tmp_path / name)


def test_missing_file_and_wrong_content(tmp_path):
    with pytest.raises(UserError, match=r"no checkpoint file .*none\.pth"):
        read_weights(tmp_path / "none.pth")
    torch.save(torch.zeros(3), tmp_path / "tensor.pth")
    with pytest.raises(UserError, match=r"state dict .*got Tensor"):
        read_weights(tmp_path / "tensor.pth")


def test_fit_problems_shows_the_first_names_of_many():
    expected = {str(i): torch.zeros(1) for i in range(5)}
    assert fit_problems(expected, dict(expected)) == []
    assert fit_problems(expected, {}) == ["missing: 0, 1, 2 and 2 more"]
