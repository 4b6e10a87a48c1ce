"""VGG-16 with attention to attributes: backbone, gates, hard attention and the prior."""

import pytest
import timm
import torch
import torchvision
from safetensors.torch import save_file
from torch import nn

import foveal
from foveal.errors import UnknownNameError, UserError
from foveal.models.attribute import AttributeNet, marginal_logits, vgg16_features

SMALL = {"queries": 5, "classes": 4, "hidden": 8}
NAMES = ["soft_vgg16", "hard_vgg16", "hattnet_vgg16", "hattnet_ctx_vgg16"]


def on_meta(build):
    """A network's names and shapes without its memory."""
    with torch.device("meta"):
        return build()


@pytest.fixture(scope="module")
def weights():
    torch.manual_seed(0)
    return vgg16_features().state_dict(prefix="features.")


@pytest.fixture(scope="module")
def net(weights):
    """HAttNet-CTX in eval mode; tests that change a network take a fresh one."""
    torch.manual_seed(1)
    return AttributeNet(**SMALL, gates="all", checkpoint=weights).eval()


@pytest.fixture(scope="module")
def batch():
    torch.manual_seed(2)
    return torch.rand(3, 3, 32, 64), torch.tensor([4, 0, 4])


def fresh(weights, **options):
    torch.manual_seed(1)
    return AttributeNet(**{**SMALL, "checkpoint": weights, **options}).eval()


# The backbone -----------------------------------------------------------------------------------------------


def shapes(state):
    return {name: tuple(value.shape) for name, value in state.items() if name.startswith("features.")}


@pytest.mark.parametrize("build", [torchvision.models.vgg16, lambda: timm.create_model("vgg16")])
def test_backbone_has_the_names_of_torchvision_and_timm(build, weights):
    assert shapes(weights) == shapes(on_meta(build).state_dict())


def test_parameter_counts():
    def gate(channels, kernel):
        return channels * 512 * kernel**2 + 512 + 488 * 512 + 512 + 1

    backbone = sum(p.numel() for p in on_meta(torchvision.models.vgg16).features.parameters())
    soft = backbone + gate(512, 1) + 512 * 274 + 274
    expected = [soft, soft, soft + gate(256, 1) + gate(512, 1), soft + gate(256, 3) + gate(512, 3)]
    counts = [sum(p.numel() for p in on_meta(lambda n=n: foveal.create_model(n)).parameters()) for n in NAMES]
    assert counts == expected
    assert counts[3] == 19_408_981


def test_initialisation_is_torchvisions(weights):
    last = weights["features.28.weight"]
    assert last.std().item() == pytest.approx((2 / (512 * 9)) ** 0.5, rel=0.01)
    assert weights["features.28.bias"].count_nonzero() == 0


@pytest.mark.parametrize("form", ["pth", "safetensors", "parallel", "timm", "dict"])
def test_checkpoints_of_whole_classifiers_load(form, net, weights, tmp_path):
    state = {**weights, "classifier.0.weight": torch.zeros(2, 3)}
    if form == "parallel":
        state = {f"module.{name}": value for name, value in state.items()}
    elif form == "timm":
        state = {**weights, "pre_logits.fc1.weight": torch.zeros(2, 2, 7, 7), "head.fc.bias": torch.zeros(2)}
    if form == "dict":
        source = state
    elif form == "safetensors":
        source = tmp_path / "vgg16.safetensors"
        save_file(state, source)
    else:
        source = tmp_path / "vgg16.pth"
        torch.save(state, source)
    loaded = net.state_dict()
    for name in weights:
        loaded[name].zero_()
    net.load_backbone(source)
    assert all(torch.equal(loaded[name], value) for name, value in weights.items())


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (torchvision.models.vgg19, r"missing: features\.17\.weight.*unexpected: features\.16\.weight"),
        (torchvision.models.vgg16_bn, r"missing: features\.2\.weight.*unexpected: features\.1\.weight"),
        (
            torchvision.models.alexnet,
            r"of another shape: features\.0\.weight \(64, 3, 11, 11\) instead of \(64, 3, 3, 3\)",
        ),
        (
            torchvision.models.resnet18,
            r"missing: features\.0\.weight, features\.0\.bias, features\.2\.weight and 23 more",
        ),
    ],
)
def test_checkpoints_of_other_networks_are_refused(build, message, net):
    with pytest.raises(UserError, match=message):
        net.load_backbone(on_meta(build).state_dict())


@torch.no_grad()
def test_open_gates_leave_vgg16_as_it_was(weights, batch):
    """Gates of one and a uniform top: the head sees the mean of torchvision's own features of normalised images."""
    model = fresh(weights, gates="all")
    for name, gate in model.gates.items():
        nn.init.zeros_(gate.score.weight)
        nn.init.constant_(gate.score.bias, 0.0 if name == "pool5" else 50.0)
    features = on_meta(torchvision.models.vgg16).features.to_empty(device="cpu").eval()
    features.load_state_dict({name.removeprefix("features."): value for name, value in weights.items()})
    images, query = batch
    normal = torchvision.transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])(images)
    expected = model.head(features(normal).mean((2, 3)))
    torch.testing.assert_close(model(images, query), expected, rtol=1e-4, atol=1e-5)
    assert expected.std(0).min() > 1e-4  # the images differ, so the comparison means something


# The gates --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "maps"),
    [((224, 224), [(28, 28), (14, 14), (7, 7)]), ((70, 101), [(8, 12), (4, 6), (2, 3)]), ((32, 32), None)],
)
def test_gate_shapes_and_ranges(size, maps, net):
    with foveal.watch(net) as seen, torch.no_grad():
        logits = net(torch.rand(1, 3, *size), torch.tensor([2]))
    assert logits.shape == (1, 4)
    assert list(seen) == ["gates.pool3", "gates.pool4", "gates.pool5"]
    assert [tuple(r.values.shape[1:]) for r in seen.values()] == (maps or [(4, 4), (2, 2), (1, 1)])
    for record in seen.values():
        assert record.values.min() >= 0
        assert record.values.max() <= 1
    assert [r.normalised for r in seen.values()] == [False, False, True]
    assert seen["gates.pool5"].values.sum().item() == pytest.approx(1)


@pytest.mark.parametrize(
    ("name", "kernels"),
    [("soft_vgg16", [1]), ("hard_vgg16", [1]), ("hattnet_vgg16", [1, 1, 1]), ("hattnet_ctx_vgg16", [3, 3, 1])],
)
def test_registered_networks(name, kernels):
    model = on_meta(lambda: timm.create_model(name, **SMALL))
    assert [gate.features.kernel_size[0] for gate in model.gates.values()] == kernels
    assert model.attend == ("hard" if name == "hard_vgg16" else "soft")
    assert name in foveal.list_models("*_vgg16")


@torch.no_grad()
def test_each_gate_weakens_what_the_next_stage_sees(weights, batch):
    """A closed first gate makes every image look the same; only its own gate can do that."""
    model = fresh(weights, gates="all")
    nn.init.zeros_(model.gates["pool3"].score.weight)
    nn.init.constant_(model.gates["pool3"].score.bias, -200.0)
    images, _ = batch
    logits = model(images, torch.zeros(3, dtype=torch.long))
    torch.testing.assert_close(logits, logits[:1].expand(3, -1))


@torch.no_grad()
def test_the_query_matters(net, batch):
    images, _ = batch
    one, other = (net(images, torch.full((3,), q)) for q in (0, 1))
    assert not torch.allclose(one, other)


@pytest.mark.parametrize("attend", ["soft", "hard"])
def test_gradients_reach_everything(attend, weights):
    model = fresh(weights, gates="all", attend=attend, prior="trainable", head_hidden=16).train()
    torch.manual_seed(4)
    model(torch.rand(1, 3, 64, 64), torch.tensor([1])).square().sum().backward()
    still = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    # A softmax does not notice a constant added to every score.
    assert still in ([], ["gates.pool5.score.bias"])


# Hard attention ---------------------------------------------------------------------------------------------


def test_marginal_logits_enumerate_positions():
    torch.manual_seed(0)
    log_attention, logits = torch.randn(2, 6).double().log_softmax(1), 3 * torch.randn(2, 6, 4).double()
    out = marginal_logits(log_attention, logits)
    for n in range(2):
        for a in range(4):
            p = sum(log_attention[n, i].exp() / (1 + (-logits[n, i, a]).exp()) for i in range(6))
            assert out[n, a].item() == pytest.approx((p / (1 - p)).log().item(), rel=1e-9)
            assert all(p >= log_attention[n, i].exp() * logits[n, i, a].sigmoid() for i in range(6))


def test_marginal_logits_are_stable_where_probabilities_are_not():
    """p rounds to 0 or 1 in float32 here, the logit does not, and its gradient lives."""
    logits = torch.tensor([[[200.0, -200.0, 200.0]] * 3], requires_grad=True)
    log_attention = torch.zeros(1, 3).log_softmax(1)
    out = marginal_logits(log_attention, logits)
    torch.testing.assert_close(out, torch.tensor([[200.0, -200.0, 200.0]]))
    out.sum().backward()
    torch.testing.assert_close(logits.grad, torch.full((1, 3, 3), 1 / 3))


def test_marginal_logits_gradient():
    torch.manual_seed(0)
    scores, logits = torch.randn(2, 5).double().requires_grad_(), torch.randn(2, 5, 3).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda s, z: marginal_logits(s.log_softmax(1), z), (scores, logits))


@pytest.mark.parametrize("gates", ["last", "all"])
@torch.no_grad()
def test_hard_network_enumerates_positions(gates, weights, batch):
    model = fresh(weights, gates=gates, attend="hard", head_hidden=16)
    maps = []
    model.features[-1].register_forward_hook(lambda _, __, out: maps.append(out))
    images, query = batch
    with foveal.watch(model) as seen:
        logits = model(images, query)
    attention, features = seen["gates.pool5"].values, maps[0]
    p = torch.zeros(3, 4)
    for i in range(features.shape[2]):
        for j in range(features.shape[3]):
            p += attention[:, i, j, None] * model.head(features[:, :, i, j]).sigmoid()
    torch.testing.assert_close(logits.sigmoid(), p)


@torch.no_grad()
def test_one_hot_attention_makes_soft_and_hard_agree(weights, batch):
    soft, hard = (fresh(weights, gates="all", attend=attend) for attend in ("soft", "hard"))
    for model in (soft, hard):
        model.gates["pool5"].score.weight.data *= 1e6
    with foveal.watch(soft) as seen:
        logits = soft(*batch)
    assert torch.equal(seen["gates.pool5"].values.amax((1, 2)), torch.ones(3))
    torch.testing.assert_close(hard(*batch), logits, rtol=1e-4, atol=1e-5)
    hard.predict = "argmax"
    torch.testing.assert_close(hard(*batch), logits, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_argmax_is_for_evaluation_only(weights, batch):
    model = fresh(weights, attend="hard", predict="argmax")
    best, marginal = model(*batch), model.train()(*batch)
    assert not torch.allclose(best, marginal)
    model.predict = "marginal"
    torch.testing.assert_close(model.eval()(*batch), marginal)


@torch.no_grad()
def test_bfloat16_autocast(weights, batch):
    model = fresh(weights, gates="all", attend="hard")
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        half = model(*batch)
    assert half.isfinite().all()
    torch.testing.assert_close(half.float(), model(*batch), rtol=0.1, atol=0.1)


# The prior --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("prior", "attend"), [("fixed", "soft"), ("fixed", "hard"), ("trainable", "soft")])
@torch.no_grad()
def test_prior_is_added_per_query(prior, attend, weights, batch):
    torch.manual_seed(3)
    table = torch.randn(5, 4)
    model = fresh(weights, attend=attend, prior=prior)
    images, query = batch
    assert not model.prior.any()  # nothing is added until it is set
    without = model(images, query)
    model.set_prior(table)
    logits = model(images, query)
    for n, q in enumerate(query.tolist()):
        for a in range(4):
            assert logits[n, a].item() == pytest.approx(without[n, a].item() + table[q, a].item(), abs=1e-6)
    assert ("prior" in dict(model.named_parameters())) == (prior == "trainable")
    assert torch.equal(model.state_dict()["prior"], table)


def test_a_fixed_prior_can_be_trained_further(weights, batch):
    fixed, trainable = (fresh(weights, prior=prior).requires_grad_(False) for prior in ("fixed", "trainable"))
    trainable.prior.requires_grad_()
    fixed.set_prior(torch.randn(5, 4))
    trainable.load_state_dict(fixed.state_dict())
    images, query = batch
    logits = trainable(images, query)
    assert torch.equal(logits, fixed(images, query))
    logits.sum().backward()
    expected = torch.bincount(query, minlength=5).float()[:, None].expand(5, 4)
    assert torch.equal(trainable.prior.grad, expected)


def test_wrong_priors(weights):
    with pytest.raises(UserError, match="no prior; build it with"):
        fresh(weights).set_prior(torch.zeros(5, 4))
    model = fresh(weights, prior="fixed")
    with pytest.raises(UserError, match=r"\(5, 4\), got \(4, 5\)"):
        model.set_prior(torch.zeros(4, 5))
    with pytest.raises(UserError, match="infinite"):
        model.set_prior(torch.full((5, 4), float("-inf")))


# Options and mistakes ---------------------------------------------------------------------------------------


def test_head():
    linear, deep = (on_meta(lambda h=h: AttributeNet(**SMALL, head_hidden=h)).head for h in (None, 4096))
    assert [type(layer) for layer in linear] == [nn.Linear]
    sizes = [(layer.in_features, layer.out_features) for layer in deep if isinstance(layer, nn.Linear)]
    assert sizes == [(512, 4096), (4096, 4096), (4096, 4)]


def test_normalisation_is_not_in_the_checkpoint(net):
    assert {name.split(".")[0] for name in net.state_dict()} == {"features", "gates", "head"}


@pytest.mark.parametrize("option", ["gates", "attend", "prior", "predict"])
def test_unknown_choices(option):
    with pytest.raises(UnknownNameError, match=f"unknown choice of {option} 'softt'"):
        AttributeNet(**SMALL, **{option: "softt"})


def test_wrong_images(net):
    query = torch.tensor([0])
    with pytest.raises(UserError, match=r"floats in \[0, 1\], got torch.uint8"):
        net(torch.zeros(1, 3, 64, 64, dtype=torch.uint8), query)
    with pytest.raises(UserError, match=r"at least 32×32 .* got 64×31"):
        net(torch.rand(1, 3, 64, 31), query)
