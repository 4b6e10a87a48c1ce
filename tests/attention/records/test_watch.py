import copy
import gc
import pickle
import weakref

import pytest
import torch
from torch import nn

import foveal
from foveal.attention import Attends, AttentionRecord, ProgressiveGate
from foveal.errors import UnknownNameError, UserError
from foveal.models.reference import AffineCrop

SMALL = {"channels": 4, "hidden": 4}
TWO = {"stages": 2, **SMALL}  # for 20×20 images: maps of 9 and 3
SITES = {  # side of the map, whether a softmax
    "soft": {"gates.1": (3, True)},
    "hard": {"gates.1": (3, True)},
    "hattnet": {"gates.0": (9, False), "gates.1": (3, True)},
    "hattnet_ctx": {"gates.0": (9, False), "gates.1": (3, True)},
    "stn": {"crop": (20, False)},
}


def net(name, seed=0):
    torch.manual_seed(seed)
    size = {"image_size": 20} if name == "stn" else {}
    return foveal.create_model(name, **TWO, **size).eval()


@pytest.fixture
def batch():
    torch.manual_seed(1)
    return torch.rand(3, 3, 20, 20), torch.tensor([3, 8, 3])


@pytest.mark.parametrize("name", SITES)
def test_every_model_can_be_watched(name, batch):
    model = net(name)
    plain = model(*batch)
    with foveal.watch(model) as seen:
        watched = model(*batch)
    torch.testing.assert_close(watched, plain, rtol=0, atol=0)
    assert list(seen) == list(SITES[name])
    for site, (side, normalised) in SITES[name].items():
        record = seen[site]
        assert isinstance(record, AttentionRecord)
        assert (record.site, record.kind, record.normalised) == (site, "spatial", normalised)
        assert record.values.shape == (3, side, side)
        assert ((record.values >= 0) & (record.values <= 1)).all()
        if normalised:
            torch.testing.assert_close(record.values.sum((1, 2)), torch.ones(3))


def test_the_record_is_the_attention(batch):
    model = net("hattnet")
    with foveal.watch(model) as seen:
        model(*batch)
    features = model.stages[0](batch[0])
    expected = model.gates["0"].attend(features, batch[1])
    torch.testing.assert_close(seen["gates.0"].values, expected.squeeze(1))


@pytest.mark.parametrize(
    ("name", "site", "weight"),
    [
        ("soft", "gates.1", "gates.1.features.weight"),
        ("hard", "gates.1", "gates.1.features.weight"),
        ("hattnet", "gates.0", "gates.0.query.weight"),
        ("hattnet_ctx", "gates.1", "gates.0.score.weight"),
        ("stn", "crop", "theta.bias"),
    ],
)
def test_gradients_flow_from_a_record(name, site, weight, batch):
    model = net(name)
    with foveal.watch(model) as seen:
        model(*batch)
    seen[site].values.square().sum().backward()
    gradient = dict(model.named_parameters())[weight].grad
    assert gradient is not None
    assert gradient.abs().sum() > 0


def test_the_latest_forward_is_shown(batch):
    model = net("hattnet")
    with foveal.watch(model) as seen:
        assert len(seen) == 0
        model(*batch)
        assert seen["gates.0"].values.shape[0] == 3
        model(batch[0][:1], batch[1][:1])
        assert seen["gates.0"].values.shape[0] == 1
    assert seen["gates.0"].values.shape[0] == 1
    model(*batch)
    assert seen["gates.0"].values.shape[0] == 1


def test_a_watch_can_be_entered_again(batch):
    model = net("soft")
    seen = foveal.watch(model)
    with seen:
        model(*batch)
    with seen:
        model(batch[0][:2], batch[1][:2])
    assert seen["gates.1"].values.shape[0] == 2


def test_nested_watches(batch):
    model = net("hattnet")
    with foveal.watch(model) as outer:
        model(*batch)
        with foveal.watch(model, at="gates.1") as inner:
            model(batch[0][:2], batch[1][:2])
        assert list(inner) == ["gates.1"]
        assert len(inner["gates.1"].values) == 2
        assert len(outer["gates.1"].values) == 2
        model(batch[0][:1], batch[1][:1])
    assert {site: len(record.values) for site, record in outer.items()} == {"gates.0": 1, "gates.1": 1}
    assert len(inner["gates.1"].values) == 2
    assert all(m.watchers == 0 and m.noted is None for m in model.modules() if isinstance(m, Attends))


def test_an_error_inside_ends_the_watch(batch):
    model = net("soft")

    def fail():
        with foveal.watch(model):
            model(*batch)
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert model.gates["1"].watchers == 0
    assert model.gates["1"].noted is None


@pytest.mark.parametrize(
    ("at", "sites"),
    [
        ("gates.*", ["gates.0", "gates.1"]),
        ("*.1", ["gates.1"]),
        (["gates.1"], ["gates.1"]),
        (["gates.1", "*.0"], ["gates.0", "gates.1"]),
        (None, ["gates.0", "gates.1"]),
    ],
)
def test_choosing_sites(at, sites, batch):
    model = net("hattnet")
    with foveal.watch(model, at=at) as seen:
        model(*batch)
    assert list(seen) == sites
    assert [n for n, m in model.named_modules() if isinstance(m, Attends)] == ["gates.0", "gates.1"]


@pytest.mark.parametrize("at", ["gate.1", ["gates.0", "gate.1"]])
def test_unknown_sites_name_near_misses(at):
    with pytest.raises(UnknownNameError, match=r"unknown attention site 'gate\.1'; did you mean 'gates\.1'"):
        foveal.watch(net("hattnet"), at=at)


def test_asking_for_a_site_that_was_not_recorded(batch):
    model = net("hattnet")
    with foveal.watch(model, at="gates.1") as seen:
        model(*batch)
    assert "gates.0" not in seen
    with pytest.raises(KeyError, match=r"did you mean 'gates\.1'"):
        seen["gates.0"]


def test_a_model_without_attention():
    with pytest.raises(UserError, match="nothing to watch: Sequential holds no attention module"):
        foveal.watch(nn.Sequential(nn.Conv2d(3, 3, 1)))


def test_a_lone_gate_is_its_own_site():
    gate = ProgressiveGate(4, queries=3)
    with foveal.watch(gate) as seen:
        gate(torch.rand(1, 4, 5, 6), torch.tensor([2]))
    assert {site: tuple(r.values.shape) for site, r in seen.items()} == {"": (1, 5, 6)}


@pytest.mark.parametrize("name", ["hattnet", pytest.param("stn", marks=pytest.mark.slow)])
def test_a_compiled_model_that_ran_before(name, batch):
    torch.compiler.reset()
    model = net(name)
    with foveal.watch(model) as expected:
        logits = model(*batch)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*batch), logits)
    for watched in (compiled, model):  # whichever of the two is named
        with foveal.watch(watched) as seen:
            torch.testing.assert_close(compiled(*batch), logits)
        assert list(seen) == list(expected)
        for site in expected:
            torch.testing.assert_close(seen[site].values, expected[site].values)
    assert all(m.noted is None for m in model.modules() if isinstance(m, Attends))


def test_gradients_through_a_compiled_model(batch):
    torch.compiler.reset()
    model = net("hattnet")
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    gradients = []
    for call in (model, compiled):
        model.zero_grad()
        with foveal.watch(call) as seen:
            call(*batch)
        seen["gates.0"].values.square().sum().backward()
        gradients.append(model.gates["0"].features.weight.grad.clone())
    assert gradients[0].abs().sum() > 0
    torch.testing.assert_close(gradients[1], gradients[0])


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_of_a_watched_model_is_not_watched(clone, batch):
    model = net("hattnet")
    with foveal.watch(model) as seen:
        logits = model(*batch)
        twin = clone(model)
        assert len(seen) == 2
        assert all(m.watchers == 0 and m.noted is None for m in twin.modules() if isinstance(m, Attends))
        torch.testing.assert_close(twin(*batch), logits)
        assert all(m.noted is None for m in twin.modules() if isinstance(m, Attends))
    with foveal.watch(twin) as again:
        twin(*batch)
    torch.testing.assert_close(again["gates.0"].values, seen["gates.0"].values)


def test_nothing_is_kept_after_the_watch(batch):
    model = net("hattnet")
    model(*batch)
    assert model.gates["0"].noted is None
    with foveal.watch(model) as seen:
        model(*batch)
    values = weakref.ref(seen["gates.0"].values)
    assert values() is not None
    del seen
    gc.collect()
    assert values() is None


def test_watching_leaves_the_state_dict_alone(batch):
    model = net("hattnet")
    keys = list(model.state_dict())
    with foveal.watch(model):
        model(*batch)
        assert list(model.state_dict()) == keys


def test_repr_shows_sites_and_shapes(batch):
    model = net("soft")
    with foveal.watch(model) as seen:
        model(*batch)
    assert repr(seen) == "watch(gates.1: spatial (3, 3, 3))"


def centres(height, width):
    """Image coordinates of the pixel centres in [−1, 1]: y (H, 1), x (1, W)."""
    y = (2 * torch.arange(height) + 1) / height - 1
    x = (2 * torch.arange(width) + 1) / width - 1
    return y[:, None], x[None]


@pytest.mark.parametrize("size", [(60, 60), (40, 75)])
def test_the_window_of_a_known_crop(size):
    theta = torch.tensor([[[0.5, 0.0, 0.2], [0.0, 0.25, -0.3]]])
    crop = AffineCrop()
    with foveal.watch(crop) as seen:
        crop(torch.rand(1, 3, *size), theta)
    values = seen[""].values[0]
    y, x = centres(*size)
    u, v = (x - 0.2) / 0.5, (y + 0.3) / 0.25  # where each pixel lies in the crop
    inside = (u.abs() < 0.7) & (v.abs() < 0.7)
    outside = (u.abs() > 1.3) | (v.abs() > 1.3)
    assert inside.any()
    assert outside.any()
    assert values[inside].min() > 0.99
    assert values[outside].max() < 0.01


def test_the_window_of_a_turned_crop():
    """Every image position that the inner part of the crop reads lies inside the window."""
    theta = torch.tensor([[[0.3, -0.4, 0.1], [0.4, 0.3, -0.2]]])
    window = AffineCrop.window(theta, (200, 200))[0]
    v, u = centres(40, 40)
    u, v = (0.7 * t.expand(40, 40) for t in (u, v))
    x, y = 0.3 * u - 0.4 * v + 0.1, 0.4 * u + 0.3 * v - 0.2
    column, row = (((t + 1) * 100).long() for t in (x, y))
    assert window[row, column].min() > 0.99
    corner = window[:20, :20]
    assert corner.max() < 0.01


def test_a_degenerate_crop_is_finite():
    theta = torch.zeros(1, 2, 3, requires_grad=True)
    window = AffineCrop.window(theta, (8, 8))
    window.sum().backward()
    assert window.isfinite().all()
    assert theta.grad.isfinite().all()


def test_a_crop_shifts_by_whole_pixels():
    image = torch.rand(1, 3, 10, 20)
    theta = torch.tensor([[[1.0, 0, 2 * 3 / 20], [0, 1.0, -2 * 2 / 10]]])
    out = AffineCrop()(image, theta)
    torch.testing.assert_close(out[..., 2:, :17], image[..., :8, 3:], atol=1e-5, rtol=1e-5)
    assert out[..., :1, :].abs().max() < 1e-5


@pytest.mark.parametrize("model", [None, torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2))])
def test_what_is_no_plain_module(model):
    for use in (foveal.watch, lambda m: foveal.insert(m, "se"), lambda m: foveal.cam(m, torch.zeros(1, 3, 8, 8), 0)):
        with pytest.raises(UserError, match=r"torch\.nn\.Module, not scripted or traced, got"):
            use(model)
