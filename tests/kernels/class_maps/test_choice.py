"""The fused choice of classes equals the plain one."""

import pytest
import torch

from foveal.kernels.class_maps import choice
from foveal.supervise import confusing_class

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def available(monkeypatch):
    monkeypatch.setattr(choice, "fused_available", lambda device: True)


def assert_same(logits, target):
    classes, known = choice.fused_choice(logits, target)
    confuser, exists = confusing_class(logits, target)
    assert classes.dtype == torch.int64
    assert torch.equal(classes[:, 1], confuser)
    assert torch.equal(classes[:, 0], target.clamp_min(0).long())
    assert torch.equal(known, target[:, None] >= 0)
    assert torch.equal(known[:, 0], exists)


@pytest.mark.parametrize("labels", [torch.int64, torch.int32])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("classes", [2, 7, 100])
def test_equals_the_plain_form(classes, dtype, labels):
    torch.manual_seed(0)
    logits = torch.randn(9, classes, device=DEVICE).to(dtype)
    target = logits.argmax(1).to(labels)
    target[4:] = torch.randint(-1, classes, (5,), device=DEVICE)
    assert_same(logits, target)


def test_scores_that_are_not_finite_and_ties():
    nan, inf = torch.nan, torch.inf
    rows = [nan, -1.0, -2], [inf, 5, inf], [-inf, -inf, -inf], [1, 1, 1], [nan, nan, nan], [0, nan, -1]
    logits = torch.tensor(rows, device=DEVICE)
    for label in (0, 1, 2, -1):
        assert_same(logits, torch.full((6,), label, device=DEVICE))


def test_rows_that_are_part_of_a_table():
    table = torch.randn(5, 12, device=DEVICE)
    assert_same(table[:, 2:9], torch.arange(5, device=DEVICE))


def test_what_needs_plain_operators():
    logits, target = torch.randn(4, 6, device=DEVICE), torch.zeros(4, dtype=torch.int64, device=DEVICE)
    assert choice.fused_choice(logits.double(), target) is None
    assert choice.fused_choice(torch.randn(6, 4, device=DEVICE).T, target) is None
    assert choice.fused_choice(logits, target.repeat(2)[::2]) is None
