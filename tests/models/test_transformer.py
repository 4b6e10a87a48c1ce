"""The translator against PyTorch's own, and its search against loops."""

import math

import pytest
import torch
from torch import nn

import foveal
from foveal.errors import UserError
from foveal.models.beam_search import END, PAD, Beams, beam_search, longest_for
from foveal.models.transformer import Transformer

KINDS = {
    "all": {},
    "plain": {"encoder": "1000", "decoder": "1000", "cross": "1000", "positions": "absolute"},
    "no query": {"encoder": "0010", "decoder": "0001", "cross": "0011"},
    "dynamic": {"encoder": "dynamic", "decoder": "dynamic", "cross": "0111"},
    "deformable": {"deform": True, "encoder": "0110", "decoder": "0110", "pre_norm": True},
    "long": {"position_channels": 4},
}
SIZES = {"channels": 16, "layers": 2, "heads": 2, "hidden": 32, "kernels": (3, 5)}


def make(kind="all", subwords=20, **options):
    torch.manual_seed(0)
    model = Transformer(subwords, **SIZES, **KINDS[kind], **options).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.3)
    with torch.no_grad():
        model.embedding.weight[PAD] = 0
        model.embedding.weight[END] *= 2.5  # so that some sentences end
    return model


def sentences():
    source = torch.randint(4, 20, (5, 9), generator=torch.Generator().manual_seed(3))
    source[:, -1] = END
    source[2, 5], source[2, 6:] = END, PAD
    return source


def test_it_is_the_transformer_of_pytorch():
    """With content alone and absolute positions, weight by weight."""
    model = make("plain").double()
    theirs = nn.Transformer(16, 2, 2, 2, 32, 0.0, batch_first=True).double().eval()
    theirs.encoder.norm = theirs.decoder.norm = nn.Identity()  # a second one after the last layer
    with torch.no_grad():
        both = ([*model.encoder, *model.decoder], [*theirs.encoder.layers, *theirs.decoder.layers])
        for ours, other in zip(*both, strict=True):
            other.self_attn.in_proj_weight.copy_(ours.attention.inputs.weight)
            other.self_attn.in_proj_bias.zero_()
            other.self_attn.out_proj.load_state_dict(ours.attention.proj.state_dict())
            if ours.cross is not None:
                packed = torch.cat([ours.cross.query.weight, ours.cross.inputs.weight])
                other.multihead_attn.in_proj_weight.copy_(packed)
                other.multihead_attn.in_proj_bias.zero_()
                other.multihead_attn.out_proj.load_state_dict(ours.cross.proj.state_dict())
            for linear, mine in ((other.linear1, ours.widen), (other.linear2, ours.narrow)):
                linear.load_state_dict(mine.state_dict())
    source, target = sentences(), torch.randint(4, 20, (5, 6))
    hidden = torch.ones(6, 6, dtype=torch.bool).triu(1)
    padding = source == PAD
    out = theirs(
        model.embed(source),
        model.embed(target),
        tgt_mask=hidden,
        src_key_padding_mask=padding,
        memory_key_padding_mask=padding,
    )
    torch.testing.assert_close(model(source, target), model.logits(out))


@pytest.mark.parametrize("kind", KINDS)
def test_the_future_and_padding_are_not_seen(kind):
    model, source = make(kind).double(), sentences()
    target = torch.randint(4, 20, (5, 7))
    other = target.clone()
    other[:, 4:] = 5
    logits = model(source, target)
    torch.testing.assert_close(model(source, other)[:, :4], logits[:, :4])
    assert not torch.allclose(model(source, other)[:, 4:], logits[:, 4:])
    torch.testing.assert_close(model(source[2:3, :6], target[2:3]), logits[2:3])
    changed = source.clone()
    changed[:, 0] = 4
    assert not torch.allclose(model(changed, target), logits)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("beams", [1, 3])
def test_the_cache_changes_nothing(kind, beams):
    model, source = make(kind), sentences()
    best = beam_search(model, source, beams=beams)
    assert torch.equal(best, beam_search(model, source, beams=beams, cached=False))
    assert best.shape == (5, longest_for(9))
    alone = beam_search(model, source[2:3, :6], beams=beams, longest=best.shape[1])
    assert torch.equal(alone[0], best[2])


def greedy(model, source, longest):
    tokens = [2]
    while len(tokens) <= longest and tokens[-1] != END:
        logits = model(source[None], torch.tensor([tokens]))[0, -1]
        tokens.append(END + int(logits[END:].argmax()))
    return tokens[1:]


def test_one_beam_is_greedy_search():
    model, source = make(), sentences()[:2]
    best = beam_search(model, source, beams=1)
    for row, sentence in zip(best, source, strict=True):
        assert row[row != PAD].tolist() == greedy(model, sentence, longest_for(9))


def test_many_beams_find_the_best_of_all():
    """Of six subwords and up to three tokens, all translations can be scored."""
    model, source = make(subwords=6), torch.tensor([[4, 5, 5, END]])
    scores = {}

    def follow(tokens, score):
        chances = model(source, torch.tensor([tokens]))[0, -1].log_softmax(-1)
        for token in range(END, 6):
            total, longer = score + float(chances[token]), [*tokens, token]
            if token == END:
                scores[tuple(longer[1:])] = total / ((5 + len(longer) - 1) / 6) ** 0.6
            elif len(longer) < 4:
                follow(longer, total)

    with torch.no_grad():
        follow([2], 0.0)
    best = beam_search(model, source, beams=20, longest=3)[0]
    assert tuple(best[best != PAD].tolist()) == max(scores, key=scores.get)


def test_a_better_translation_that_ends_later_is_found():
    """Beams that end early with poor scores do not stop the search."""
    search = Beams(1, 2, 4, 0.6, torch.device("cpu"))
    chances = torch.full((1, 2, 6), -20.0)
    chances[..., 4], chances[..., END] = 0.0, -3.0
    for t in range(3):
        search.advance(chances.log_softmax(-1), torch.tensor([t]))
        assert not search.finished
    chances[..., END] = 5.0
    search.advance(chances.log_softmax(-1), torch.tensor([3]))
    assert search.finished
    assert search.result().tolist() == [[4, 4, 4, END]]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("half", [False, True])
def test_replayed_steps_change_nothing(kind, half):
    model, source = make(kind).cuda(), sentences().cuda()
    with torch.autocast("cuda", torch.bfloat16, enabled=half):
        best = [beam_search(model, source, beams=3, graph=graph, stop=False) for graph in (False, True)]
    assert torch.equal(*best)


def test_what_never_ends_is_cut():
    model = make()
    with torch.no_grad():
        model.embedding.weight[END] = 0
        model.embedding.weight[END, 0] = -100
    best = beam_search(model, sentences(), longest=5)
    assert best.shape == (5, 5)


def test_it_is_watched():
    model = make("deformable")
    with foveal.watch(model) as seen:
        model(sentences(), torch.randint(4, 20, (5, 4)))
    assert seen["decoder.1.cross"].shape == (5, 2, 4, 9)
    assert list(seen["encoder.0.attention"].parts) == ["E2", "E3"]
    assert seen["decoder.0.deform"].kind == "points"


def test_by_name():
    model = foveal.create_model("transformer", subwords=9, channels=8, layers=1, heads=2, hidden=8)
    assert model(torch.tensor([[4, 3]]), torch.tensor([[2]])).shape == (1, 1, 9)
    loss = model(torch.tensor([[4, 3]]), torch.tensor([[2]])).logsumexp(-1).sum()
    loss.backward()
    assert all(p.grad is not None and math.isfinite(p.grad.sum()) for p in model.parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cross": "dynamic"}, "four digits"),
        ({"encoder": "11"}, "four digits"),
        ({"encoder": 10}, "quotes"),  # what YAML makes of 0010
        ({"positions": "none"}, "relative or absolute"),
        ({"heads": 7}, "does not divide"),
        ({"layers": 0}, "at least one layer"),
        ({"kernels": ()}, "kernels"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(UserError, match=message):
        Transformer(20, **SIZES | options)
