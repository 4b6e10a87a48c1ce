"""Weights from files: what is read, what fits, and what keeps its values."""

import pytest
import torch
from safetensors.torch import save_file

from foveal.errors import UserError
from foveal.models import create_model
from foveal.models.weights import fit_problems, read_weights, start_from

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
    checkpoint = wrap(WEIGHTS)
    if as_file:
        torch.save(checkpoint, tmp_path / "w.pth")
        checkpoint = tmp_path / "w.pth"
    read = read_weights(checkpoint)
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


# Starting from a checkpoint -------------------------------------------------------------------------------------------


def small(name="cifar_resnet20", **options):
    return create_model(name, depth=8, width=4, **options)


def test_all_that_fits_is_loaded(tmp_path):
    plain, attended = small(), small("aw_cbam_cifar_resnet20", num_classes=7)
    torch.save({"state_dict": {k: v.half() for k, v in plain.state_dict().items()}}, tmp_path / "w.pth")
    kept = start_from(attended, tmp_path / "w.pth")
    assert {name for name in kept if ".attached." not in name} == {"fc.weight", "fc.bias"}
    for name, value in attended.state_dict().items():
        assert value.dtype != torch.half
        if name not in kept:
            torch.testing.assert_close(value, plain.state_dict()[name], rtol=1e-3, atol=1e-3)


def test_a_classifier_for_as_many_classes_and_attention_are_loaded_too():
    trained, fresh = small("se_cifar_resnet20"), small("se_cifar_resnet20")
    assert start_from(fresh, trained.state_dict()) == []
    assert all(torch.equal(value, trained.state_dict()[name]) for name, value in fresh.state_dict().items())


@pytest.mark.parametrize("spoil", [lambda name: "layer3" in name, lambda name: name.endswith("amount")])
def test_attention_is_all_there_or_not_at_all(spoil):
    weights = small("aw_se_cifar_resnet20", start="identity").state_dict()
    missing = [name for name in weights if ".attached.aw." in name and spoil(name)]
    model = small("aw_se_cifar_resnet20", start="identity")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(UserError, match=rf"does not fit the model \(missing: {missing[0]}, {missing[1]}"):
        start_from(model, {name: value for name, value in weights.items() if name not in missing})
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    kept = start_from(model, {name: value for name, value in weights.items() if ".attached.aw." not in name})
    assert kept == [name for name in weights if ".attached.aw." in name]


def test_counters_of_norms_may_be_missing():
    weights = {name: value for name, value in small().state_dict().items() if "tracked" not in name}
    assert all(name.endswith("num_batches_tracked") for name in start_from(small(), weights))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda w: w | {"conv1.weight": torch.zeros(4, 3, 5, 5)}, r"of another shape: conv1\.weight"),
        (lambda w: {k: v for k, v in w.items() if k != "layer1.0.conv1.weight"}, r"missing: layer1\.0\.conv1\.weight"),
        (lambda w: w | {"head.weight": torch.zeros(3)}, r"unexpected: head\.weight"),
        (
            lambda w: w | {"fc.weight": torch.zeros(3, 99)},
            r"of another shape: fc\.weight \(3, 99\) instead of \(10, 16\)",
        ),
        (lambda w: small("se_cifar_resnet20").state_dict(), r"unexpected: layer1\.0\.bn2\.attached\.se"),
    ],
)
def test_what_does_not_fit_is_named_and_nothing_is_loaded(spoil, message):
    model = small()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(UserError, match=rf"the checkpoint does not fit the model \(.*{message}"):
        start_from(model, spoil(small().state_dict()))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
