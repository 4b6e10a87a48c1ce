import pytest
import torch

from foveal.attention import AttentionRecord, DotProduct
from foveal.errors import UserError
from foveal.measure import word_importance
from foveal.see import all_pairs, pairs, words


def test_a_record_is_drawn_as_the_mean_of_its_heads():
    q = torch.randn(2, 3, 2, 4)
    attention = AttentionRecord("attn", "pairwise", DotProduct(q[:1], q[:1], heads=True), True)
    weights = attention.values[0].mean(0)
    assert pairs(["fast", "cars"], attention).tobytes() == pairs(["fast", "cars"], weights).tobytes()
    assert all_pairs(["a", "b"], {"x": attention}).tobytes() == all_pairs(["a", "b"], {"x": weights}).tobytes()
    several = AttentionRecord("attn", "pairwise", DotProduct(q, q, heads=True), True)
    with pytest.raises(UserError, match=r"recorded 2 samples; choose one with record\.matrix"):
        pairs(["fast", "cars"], several)
    torch.testing.assert_close(several.matrix(1), several.values[1].mean(0))
    with pytest.raises(UserError, match="sample=2"):
        several.matrix(2)
    with pytest.raises(UserError, match=r"use \.values"):
        AttentionRecord("attn", "pairwise", torch.ones(1, 2, 3, 4, 4), True).matrix()
    importance = word_importance(several)
    torch.testing.assert_close(importance, several.values.mean(1).sum(1))
    drawn = [words(["a", "b"], importance[0], weights=given).tobytes() for given in (attention, weights)]
    assert drawn[0] == drawn[1]
