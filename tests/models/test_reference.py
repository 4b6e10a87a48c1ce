"""Networks of the colour-reference experiments: sizes, gates, hard attention, STN, and ways of running."""

import copy

import pytest
import timm
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

import foveal
from foveal.attention import ProgressiveGate
from foveal.errors import UserError
from foveal.models.reference import AffineCrop, ReferenceNet, SpatialTransformerNet, Stage, feature_size, hard_logits

NAMES = ["soft", "hard", "hattnet", "hattnet_ctx", "stn"]
SMALL = {"channels": 6, "hidden": 5, "stages": 2}  # for 20×20 images: maps of 9 and 3


def net(name, seed=0, **options):
    """A small network in eval mode whose biases and batch norms are not trivial."""
    torch.manual_seed(seed)
    size = {"image_size": 20} if name == "stn" else {}
    model = foveal.create_model(name, **(SMALL | size | options)).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.3)
            module.running_var.uniform_(0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias)
    return model


@pytest.fixture
def batch():
    torch.manual_seed(1)
    return torch.rand(4, 3, 20, 20), torch.tensor([3, 8, 3, 0])


def parameters(model):
    return sum(p.numel() for p in model.parameters())


# Sizes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "count"), [("hattnet_ctx", 59_273), ("hattnet", 34_697), ("soft", 30_470), ("hard", 30_470)]
)
def test_parameter_counts_of_the_paper(name, count):
    assert parameters(foveal.create_model(name)) == count


def test_parameter_count_of_stn():
    cnn = 896 + 3 * 9_248 + 3 * 64
    locate = 320 + (32 * 16 + 32) * 32 + 32 + 32 * 6 + 6
    assert parameters(foveal.create_model("stn")) == 2 * cnn + locate + 64 + 165


def test_gate_resolutions_of_the_paper():
    model = foveal.create_model("hattnet_ctx").eval()
    with torch.no_grad(), foveal.watch(model) as seen:
        assert model(torch.rand(2, 3, 100, 100), torch.tensor([0, 9])).shape == (2, 5)
    assert [tuple(r.values.shape[1:]) for r in seen.values()] == [(49, 49), (23, 23), (10, 10), (4, 4)]
    assert [r.normalised for r in seen.values()] == [False, False, False, True]
    assert [feature_size(100, stages) for stages in range(5)] == [100, 49, 23, 10, 4]


@pytest.mark.parametrize("name", NAMES[:4])
def test_other_stages_and_canvases(name):
    model = foveal.create_model(name, channels=4, hidden=3, stages=3, queries=7, classes=2).eval()
    with torch.no_grad(), foveal.watch(model) as seen:
        assert model(torch.rand(2, 3, 52, 41), torch.tensor([6, 0])).shape == (2, 2)
    assert seen["gates.2"].values.shape == (2, 4, 3)


def test_stn_takes_its_image_size():
    model = foveal.create_model("stn", channels=4, stages=3, image_size=47).eval()
    assert model(torch.rand(2, 3, 47, 47), torch.tensor([6, 0])).shape == (2, 5)
    with pytest.raises(UserError, match="image_size=21 is too small for 4 stages"):
        foveal.create_model("stn", image_size=21)


@pytest.mark.parametrize("norm", [True, False])
def test_norms_can_be_left_out(norm):
    for name in ("hattnet", "stn"):
        model = foveal.create_model(name, norm=norm)
        assert any(isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d) for m in model.modules()) is norm


def test_norm_options_reach_every_batch_norm():
    for name in ("hattnet", "stn"):
        model = foveal.create_model(name, norm_momentum=0.5, norm_eps=0.01)
        norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]
        assert len(norms) == (4 if name == "hattnet" else 7)
        assert {(m.momentum, m.eps) for m in norms} == {(0.5, 0.01)}


# Stages -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(12, 12), (13, 8), (9, 15)])
def test_a_stage_is_convolution_relu_and_max_pooling(size):
    torch.manual_seed(0)
    stage = Stage(3, 5).double()
    nn.init.normal_(stage.conv.bias)
    plain = nn.Sequential(copy.deepcopy(stage.conv), nn.ReLU(), nn.MaxPool2d(2))
    images = torch.randn(2, 3, *size, dtype=torch.float64)
    results = []
    for call, conv in ((stage, stage.conv), (plain, plain[0])):
        x = images.clone().requires_grad_()
        out = call(x)
        out.square().sum().backward()
        results.append([out.detach(), x.grad, conv.weight.grad, conv.bias.grad])
    assert results[0][0].shape == (2, 5, (size[0] - 2) // 2, (size[1] - 2) // 2)
    assert (results[0][0] == 0).any()
    torch.testing.assert_close(results[0], results[1])


# Gates in the network ---------------------------------------------------------------------------------------


class Open(nn.Module):
    """A gate of ones."""

    def forward(self, features, query):
        return features


def ungated(model, images):
    """The CNN of the paper without attention, by plain operations."""
    features = images
    for i, stage in enumerate(model.stages):
        features = F.max_pool2d(F.relu(stage.conv(features)), 2)
        if i < len(model.stages) - 1:
            features = model.norms[i](features)
    return model.head(features.sum((2, 3)))


@torch.no_grad()
def test_gates_of_ones_reproduce_the_ungated_cnn(batch):
    model = net("hattnet_ctx")
    gated = model(*batch)
    for name in model.gates:
        model.gates[name] = Open()
    expected = ungated(model, batch[0])
    torch.testing.assert_close(model(*batch), expected, atol=1e-5, rtol=1e-5)
    assert (gated - expected).abs().max() > 0.01


@torch.no_grad()
def test_each_gate_reads_and_multiplies_the_pooled_map(batch):
    """Stage, gate, norm, next stage, in that order; the attended vector is a sum."""
    model = net("hattnet_ctx")
    images, query = batch
    first = F.max_pool2d(F.relu(model.stages[0].conv(images)), 2)
    first = model.norms[0](first * model.gates["0"].attend(first, query))
    second = F.max_pool2d(F.relu(model.stages[1].conv(first)), 2)
    attended = (second * model.gates["1"].attend(second, query)).sum((2, 3))
    normed = (attended - model.head[0].running_mean) / (model.head[0].running_var + 1e-5).sqrt()
    normed = normed * model.head[0].weight + model.head[0].bias
    torch.testing.assert_close(model(images, query), model.head[2](normed), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("name", "kernels"), [("hattnet", [1, 1, 1, 1]), ("hattnet_ctx", [3, 3, 3, 1])])
def test_context_everywhere_but_in_the_last_gate(name, kernels):
    gates = foveal.create_model(name).gates.values()
    assert [gate.features.kernel_size[0] for gate in gates] == kernels
    assert [gate.last for gate in gates] == [False, False, False, True]


def test_every_gate_has_its_own_embedding():
    gates = foveal.create_model("hattnet").gates.values()
    assert len({gate.query.weight.data_ptr() for gate in gates}) == 4
    assert all(gate.query.weight.shape == (10, 32) for gate in gates)


@pytest.mark.parametrize("name", NAMES)
def test_every_weight_learns(name, batch):
    model = net(name).train()
    if name == "stn":  # at the start the window does not depend on anything
        nn.init.normal_(model.theta.weight, std=0.1)
    F.cross_entropy(model(*batch), torch.tensor([0, 1, 2, 3])).backward()
    without = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert set(without) <= {"gates.1.score.bias"}  # a softmax does not see a constant added to its scores


# HARD -------------------------------------------------------------------------------------------------------


@torch.no_grad()
def enumerate_hard(model, images, query):
    """p(y) = Σ α_ij p(y | f_ij), with α and every position's class probabilities: (N, K), (N, P), (N, P, K)."""
    with foveal.watch(model) as seen:
        model(images, query)
    alpha = seen["gates.1"].values.flatten(1)
    features = model.stages[1](model.norms[0](model.stages[0](images)))
    n, _, height, width = features.shape
    classes = torch.zeros(n, height * width, 5)
    total = torch.zeros(n, 5)
    for b in range(n):
        for i in range(height):
            for j in range(width):
                p = model.head(features[b, :, i, j][None]).softmax(1)[0]
                classes[b, i * width + j] = p
                total[b] += alpha[b, i * width + j] * p
    return total, alpha, classes


@torch.no_grad()
def test_hard_equals_enumeration(batch):
    model = net("hard")
    total, _, _ = enumerate_hard(model, *batch)
    out = model(*batch)
    torch.testing.assert_close(out, total.log(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(out.exp().sum(1), torch.ones(4))
    label = torch.tensor([0, 2, 4, 1])
    torch.testing.assert_close(F.cross_entropy(out, label), -total[range(4), label].log().mean())


@torch.no_grad()
def test_hard_loss_never_exceeds_that_of_a_single_position(batch):
    model = net("hard")
    _, alpha, classes = enumerate_hard(model, *batch)
    for label in range(5):
        loss = F.cross_entropy(model(*batch), torch.full((4,), label), reduction="none")
        single = -(alpha * classes[:, :, label]).log()
        assert (loss[:, None] <= single + 1e-5).all()


def test_hard_logits_survive_certainty():
    log_attention = torch.tensor([[0.0, -1e4]], requires_grad=True)
    logits = torch.tensor([[[1e4, 0.0], [0.0, 1e4]]], requires_grad=True)
    out = hard_logits(log_attention, logits)
    assert out[0, 0] == 0
    out[0, 1].backward()
    assert log_attention.grad.isfinite().all()
    assert logits.grad.isfinite().all()


@torch.no_grad()
def test_one_hot_attention_makes_soft_and_hard_the_same(batch):
    hard, soft = net("hard"), net("soft")
    soft.load_state_dict(hard.state_dict())
    assert (soft(*batch).log_softmax(1) - hard(*batch)).abs().max() > 1e-3
    for model in (hard, soft):
        model.gates["1"].score.weight.mul_(1e6)
    with foveal.watch(soft) as seen:
        out = soft(*batch)
    assert seen["gates.1"].values.amax((1, 2)).min() == 1
    torch.testing.assert_close(out.log_softmax(1), hard(*batch), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_predict_argmax_classifies_the_best_position_in_eval_mode(batch):
    marginal, best = net("hard"), net("hard", predict="argmax")
    best.load_state_dict(marginal.state_dict())
    total, alpha, classes = enumerate_hard(marginal, *batch)
    expected = classes[range(4), alpha.argmax(1)].log()
    torch.testing.assert_close(best(*batch), expected, atol=1e-5, rtol=1e-5)
    assert (expected - total.log()).abs().max() > 1e-3
    torch.manual_seed(0)
    trained = best.train()(*batch)
    torch.manual_seed(0)
    torch.testing.assert_close(trained, marginal.train()(*batch))


def test_hard_is_deterministic_in_eval_mode(batch):
    """Never sample."""
    model = net("hard")
    torch.testing.assert_close(model(*batch), model(*batch), rtol=0, atol=0)


# STN --------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_stn_starts_with_the_whole_image(batch):
    model = net("stn")
    features = model.recognise(batch[0]).mean((2, 3))
    torch.testing.assert_close(model(*batch), model.classify(model.norm(features)), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_the_query_moves_the_window_of_stn(batch):
    model = net("stn")
    nn.init.normal_(model.theta.weight)
    images = batch[0][:1].expand(2, -1, -1, -1)
    with foveal.watch(model) as seen:
        model(images, torch.tensor([1, 7]))
    one, other = seen["crop"].values
    assert (one - other).abs().max() > 0.01


# Ways of running --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_state_dict_round_trip(name, batch, tmp_path):
    model, other = net(name), net(name, seed=5)
    assert (model(*batch) - other(*batch)).abs().max() > 1e-3
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    other.load_state_dict(load_file(tmp_path / "weights.safetensors"))
    torch.testing.assert_close(other(*batch), model(*batch), rtol=0, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_export(name, batch):
    model = net(name)
    exported = torch.export.export(model, batch).module()
    torch.testing.assert_close(exported(*batch), model(*batch))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hard", "hattnet_ctx", "stn"])
def test_compiled_training_step_equals_eager(name, batch):
    torch.compiler.reset()
    model = net(name, dropout=0.0).train()
    label, results = torch.tensor([0, 1, 2, 3]), []
    for call in (model, torch.compile(copy.deepcopy(model), fullgraph=True, backend="aot_eager")):
        loss = F.cross_entropy(call(*batch), label)
        loss.backward()
        results.append([loss.detach(), *(p.grad for p in call.parameters())])
    torch.testing.assert_close(results[1], results[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_autocast_and_channels_last(name, batch):
    model = net(name)
    exact = model(*batch)
    images = batch[0].contiguous(memory_format=torch.channels_last)
    last = model.to(memory_format=torch.channels_last)(images, batch[1])
    torch.testing.assert_close(last, exact, atol=1e-5, rtol=1e-4)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = model(images, batch[1])
    torch.testing.assert_close(mixed.float(), exact, atol=0.2, rtol=0.1)


@pytest.mark.parametrize("name", NAMES)
def test_timm_builds_the_same_network(name):
    torch.manual_seed(0)
    ours = foveal.create_model(name, classes=3)
    torch.manual_seed(0)
    theirs = timm.create_model(name, classes=3)
    assert type(theirs) is type(ours) is (SpatialTransformerNet if name == "stn" else ReferenceNet)
    torch.testing.assert_close(dict(theirs.state_dict()), dict(ours.state_dict()), rtol=0, atol=0)


def test_only_the_top_has_a_gate_in_soft_and_hard():
    for name in ("soft", "hard"):
        gates = foveal.create_model(name).gates
        assert list(gates) == ["3"]
        assert isinstance(gates["3"], ProgressiveGate)


# Where STN's window goes ----------------------------------------------------------------------------------------


def stn_outside(padding):
    """What a window beside the image sees, in which brightness rises to the right, and its gradient."""
    ramp = torch.linspace(0, 1, 20).expand(1, 3, 20, 20)
    theta = torch.tensor([[[1.0, 0, 2.5], [0, 1, 0]]], requires_grad=True)
    out = AffineCrop(padding)(ramp, theta)
    out.square().sum().backward()
    return out, theta.grad


def test_a_window_outside_sees_zeros_or_the_border():
    out, gradient = stn_outside("zeros")
    assert out.abs().max() == 0
    assert gradient.abs().max() == 0
    out, _ = stn_outside("border")
    torch.testing.assert_close(out, torch.ones(1, 3, 20, 20))


def test_the_window_is_float32_in_mixed_precision(batch):
    model, seen = net("stn"), {}
    model.theta.weight.data.normal_(0, 0.02)
    model.crop.register_forward_hook(lambda module, args, out: seen.update(theta=args[1]))
    images, query = batch
    with torch.autocast("cpu", torch.bfloat16):
        model(images, query)
    assert seen["theta"].dtype == torch.float32
    assert not torch.equal(seen["theta"], seen["theta"].bfloat16().float())


@pytest.mark.parametrize("rates", [True, False])
def test_the_window_of_the_shipped_recipe_stays_in_the_image(rates):
    """With one rate for all parameters its centre is outside the image within twenty steps."""
    from foveal.recipe import load
    from foveal.tasks.optim import optimiser

    recipe, seen = load("hattnet/table1-ours/mref-stn"), {}
    if not rates:
        recipe.optim.rates = {}
    torch.manual_seed(0)
    model = foveal.create_model("stn", stages=3, image_size=40, padding=recipe.model["padding"], dropout=0.0)
    model.theta.register_forward_hook(lambda module, args, out: seen.update(theta=out.detach().view(-1, 2, 3)))
    step = optimiser(recipe.optim, model.named_parameters())
    for _ in range(20):
        images, query = torch.rand(16, 3, 40, 40), torch.randint(10, (16,))
        step.zero_grad()
        F.cross_entropy(model(images, query), torch.randint(5, (16,))).backward()
        step.step()
    assert (seen["theta"][:, :, 2].abs().max() < 0.1) == rates
    assert not rates or (seen["theta"][:, :, :2] - torch.eye(2)).abs().max() < 0.1


def test_padding_is_checked():
    with pytest.raises(UserError, match="zeros"):
        foveal.create_model("stn", padding="mirror")
