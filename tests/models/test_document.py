"""Document networks: sizes, padding, and a slow version written from the equations."""

import math

import pytest
import torch
from torch_lstm import torch_lstm

import foveal
from foveal.errors import UserError
from foveal.measure import word_importance
from foveal.models.document import DocumentNet, SequenceAttention

NAMES = ("hatt", "fan_hatt_unsup", "fan_hatt_sup")
SMALL = {"channels": 6, "vocabulary": 12, "classes": 3, "embedding": 5, "key_channels": 4}


def documents(batch=4, sentences=5, words=7, seed=0):
    """Random documents of several lengths, the last one empty, sentences without gaps."""
    g = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, 12, (batch, sentences, words), generator=g)
    length = torch.randint(1, words + 1, (batch, sentences, 1), generator=g)
    count = torch.randint(1, sentences + 1, (batch, 1, 1), generator=g)
    count[0], count[-1] = sentences, 0
    return tokens * (torch.arange(words) < length) * (torch.arange(sentences)[:, None] < count)


def test_parameters_are_those_of_the_paper():
    expected = {
        "words": 60_400,
        "word_attention": 10_200,
        "sentences": 60_400,
        "sentence_attention": 10_200,
        "classifier": 2_020,
    }
    for name in NAMES:
        model = foveal.create_model(name)
        sizes = {part: sum(p.numel() for p in child.parameters()) for part, child in model.named_children()}
        wanted = expected if name == "hatt" else expected | {"sentences": 100_400, "focus": 20_000}
        assert {part: sizes[part] for part in wanted} == wanted
        assert sum(sizes.values()) - sizes["embedding"] == sum(wanted.values())
        assert all(p.requires_grad for p in model.parameters())


def test_only_the_supervised_network_asks_for_supervision():
    assert [foveal.create_model(name).supervised for name in NAMES] == [False, False, True]


def test_zero_logits_make_the_branch_a_mean_of_words():
    torch.manual_seed(0)
    model = foveal.create_model("fan_hatt_unsup", **SMALL, focus_logits="zero").double()
    words = documents()
    reading = model.read(words)
    mask = reading.mask
    vectors, _ = model._sentences(words.flatten(0, 1)[reading.place], mask)
    states = model.words(model.embedding(words.flatten(0, 1)[reading.place]), mask)
    means = torch.stack([state[real].mean(0) for state, real in zip(states, mask, strict=True)])
    torch.testing.assert_close(vectors[:, 6:], means)
    both = mask[:, :, None] & mask[:, None, :]
    assert (reading.pairs[both] == 0).all()
    assert (reading.pairs[~both] == -torch.inf).all()


def test_zero_logits_stay_and_leave_the_other_weights_as_they_start():
    states = {}
    for focus_logits in ("learnt", "zero"):
        torch.manual_seed(0)
        model = foveal.create_model("fan_hatt_unsup", **SMALL, focus_logits=focus_logits)
        states[focus_logits] = model.state_dict()
    differ = {name for name, value in states["zero"].items() if not torch.equal(value, states["learnt"][name])}
    assert differ == {"focus.key.weight", "focus.query.weight"}
    assert {name for name, p in model.named_parameters() if not p.requires_grad} == differ
    optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(documents()).logsumexp(1).sum().backward()
    optimiser.step()
    reading = model.read(documents())
    assert (reading.pairs[reading.pairs.isfinite()] == 0).all()


# The networks ----------------------------------------------------------------


def slow(model, document):
    """Logits of one document, sentence by sentence, without any padding."""

    def attend(attention, states):
        scores = torch.tanh(states @ attention.hidden.weight.T + attention.hidden.bias) @ attention.context
        return (scores.softmax(0)[:, None] * states).sum(0)

    word_lstm, sentence_lstm = torch_lstm(model.words), torch_lstm(model.sentences)
    vectors = []
    for sentence in document:
        words = sentence[sentence > 0]
        if not len(words):
            continue
        states = word_lstm(model.embedding(words)[None])[0][0]
        parts = [attend(model.word_attention, states)]
        if model.focus is not None:
            key, query = states @ model.focus.key.weight.T, states @ model.focus.query.weight.T
            weights = (key @ query.T / math.sqrt(model.focus.key_channels)).softmax(1)
            pooled = (weights @ states).sum(0)
            parts.append(pooled / len(words) if model.pool == "mean" else pooled)
        vectors.append(torch.cat(parts))
    if not vectors:
        return model.classifier.bias
    states = sentence_lstm(torch.stack(vectors)[None])[0][0]
    return model.classifier(attend(model.sentence_attention, states))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("pool", ["mean", "sum"])
def test_equal_to_the_equations(name, pool):
    torch.manual_seed(0)
    model = foveal.create_model(name, **SMALL, pool=pool).double()
    torch.nn.init.normal_(model.classifier.bias)
    words = documents()
    logits = model(words)
    for i in range(len(words)):
        torch.testing.assert_close(logits[i], slow(model, words[i]))


@pytest.mark.parametrize("name", NAMES)
def test_padding_changes_nothing(name):
    torch.manual_seed(0)
    model = foveal.create_model(name, **SMALL).double()
    words = documents()
    wide = torch.zeros(4, 8, 11, dtype=torch.int64)
    wide[:, :5, :7] = words
    torch.testing.assert_close(model(wide), model(words))


@pytest.mark.parametrize("name", NAMES)
def test_watching_changes_nothing(name):
    torch.manual_seed(0)
    model = foveal.create_model(name, **SMALL).double()
    words = documents()
    plain = model.read(words)
    with foveal.watch(model) as seen:
        whole = model.read(words)
    torch.testing.assert_close(whole.logits, plain.logits)
    shapes = {site: (record.kind, tuple(record.values.shape)) for site, record in seen.items()}
    expected = {"word_attention": ("spatial", (4, 5, 7)), "sentence_attention": ("spatial", (4, 1, 5))}
    if name != "hatt":
        expected["focus"] = ("pairwise", (4, 5, 7, 7))
        torch.testing.assert_close(whole.pairs.flatten(0, 1)[plain.place], plain.pairs)
        beta = word_importance(seen["focus"].values, words > 0)
        torch.testing.assert_close(beta.sum(-1), (words > 0).sum(-1).double())
    assert shapes == expected
    assert whole.place is None
    alpha = seen["word_attention"].values
    torch.testing.assert_close(alpha.sum(-1), (words > 0).any(2).to(alpha.dtype))
    assert (alpha[words == 0] == 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_empty_documents_have_finite_gradients(name):
    model = foveal.create_model(name, **SMALL)
    for words in (documents(), torch.zeros(2, 3, 4, dtype=torch.int64), torch.ones(1, 1, 1, dtype=torch.int64)):
        model.zero_grad()
        reading = model.read(words)
        loss = reading.logits.logsumexp(1).sum()
        if reading.pairs is not None and reading.pairs.numel():
            target = torch.ones(reading.pairs.shape, dtype=torch.bool)
            loss = loss + foveal.supervise.center_mass_loss(reading.pairs, target, reading.mask)
        loss.backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    assert model.embedding.weight.grad[0].abs().sum() == 0


@pytest.mark.slow
def test_compiled():
    model = foveal.create_model("fan_hatt_sup", **SMALL)
    words = documents()
    compiled = torch.compile(model.read, backend="aot_eager", fullgraph=True)
    whole, plain = compiled(words), model.read(words)
    torch.testing.assert_close(whole.logits, plain.logits)
    torch.testing.assert_close(whole.pairs.flatten(0, 1)[plain.place], plain.pairs)
    weights = [model.embedding.weight, *model.words.input, *model.sentences.state]  # through the LSTM in its other form
    gradients = (torch.autograd.grad(r.logits.square().sum(), weights) for r in (whole, plain))
    torch.testing.assert_close(*gradients)


def test_mixed_precision():
    torch.manual_seed(0)
    model = foveal.create_model("fan_hatt_sup", **SMALL)
    words = documents()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        reading = model.read(words)
    assert reading.pairs.dtype == torch.float32
    torch.testing.assert_close(reading.logits.float(), model(words), atol=0.05, rtol=0.05)


def test_word_dropout_replaces_words_by_the_unknown_one():
    torch.manual_seed(0)
    model = foveal.create_model("hatt", **SMALL, word_dropout=0.5)
    words = documents(batch=50)
    kept = model._dropped(words, words > 0)
    assert torch.equal(kept > 0, words > 0)
    changed = (kept != words).sum() / (words > 1).sum()
    assert 0.4 < changed < 0.6
    assert (kept[kept != words] == 1).all()
    model.eval()
    assert model._dropped(words, words > 0) is words


def test_vectors_to_start_from():
    model = foveal.create_model("hatt", **SMALL)
    vectors = torch.randn(12, 5)
    model.set_vectors(vectors)
    torch.testing.assert_close(model.embedding.weight[1:], vectors[1:])
    assert model.embedding.weight[0].abs().sum() == 0
    with pytest.raises(UserError, match=r"set model.embedding=50"):
        model.set_vectors(torch.randn(12, 50))


def test_attention_to_nothing_is_nothing():
    attention = SequenceAttention(4)
    out = attention(torch.randn(2, 3, 4), torch.tensor([[False] * 3, [True, False, False]]))
    assert out[0].abs().sum() == 0
    assert out[1].abs().sum() > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"channels": 7}, "channels even"),
        ({"classes": 0}, "at least 1"),
        ({"word_dropout": 1.0}, "below 1"),
        ({"dropout": 2.0}, "dropout"),
        ({"heads": 4}, "heads that divide"),
        ({"pool": "max"}, "expected one of mean, sum"),
        ({"focus_logits": "mean"}, "expected one of learnt, zero"),
        ({"focus_logits": "zero"}, "use the model fan_hatt_unsup"),
    ],
)
def test_options_that_cannot_be_used(options, message):
    with pytest.raises(UserError, match=message):
        foveal.create_model("fan_hatt_sup", **SMALL | options)


def test_zero_logits_of_no_attention():
    with pytest.raises(UserError, match="use the model fan_hatt_unsup"):
        foveal.create_model("hatt", **SMALL, focus_logits="zero")


def test_words_that_cannot_be_used():
    model = DocumentNet(**SMALL)
    with pytest.raises(UserError, match=r"integers \(N, S, W\)"):
        model(torch.zeros(2, 3, 4))
    with pytest.raises(UserError, match=r"integers \(N, S, W\)"):
        model(torch.zeros(3, 4, dtype=torch.int64))
