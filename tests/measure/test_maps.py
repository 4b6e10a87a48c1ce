from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import foveal
from foveal.attention.records.record import AttentionRecord
from foveal.errors import UserError
from foveal.measure import attention_map


def gates(n: int = 2) -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [torch.rand(n, h, w, generator=draw) for h, w in ((5, 7), (3, 4), (1, 2))]


def record(values: Tensor, kind="spatial", site: str = "gate") -> AttentionRecord:
    return AttentionRecord(site, kind, values, False)


def bilinear(values: list[list[float]], size: tuple[int, int]) -> list[list[float]]:
    """Half-pixel bilinear interpolation with clamped borders, pixel by pixel."""
    h, w = len(values), len(values[0])

    def source(i: int, out: int, side: int) -> tuple[int, int, float]:
        at = max((i + 0.5) * side / out - 0.5, 0.0)
        low = min(int(at), side - 1)
        return low, min(low + 1, side - 1), at - low

    out = []
    for i in range(size[0]):
        y0, y1, dy = source(i, size[0], h)
        row = []
        for j in range(size[1]):
            x0, x1, dx = source(j, size[1], w)
            top = values[y0][x0] * (1 - dx) + values[y0][x1] * dx
            bottom = values[y1][x0] * (1 - dx) + values[y1][x1] * dx
            row.append(top * (1 - dy) + bottom * dy)
        out.append(row)
    return out


@given(st.integers(1, 3), st.integers(1, 12), st.integers(1, 12))
def test_product_equals_brute_force(upto: int, height: int, width: int) -> None:
    maps, size = gates(), (height, width)
    expected = torch.ones(2, *size)
    for values in maps[:upto]:
        expected *= torch.tensor([bilinear(one, size) for one in values.tolist()])
    torch.testing.assert_close(attention_map(maps, size, upto=upto), expected)


def test_last_is_the_last_gate_alone() -> None:
    maps = gates()
    assert torch.equal(attention_map(maps, (9, 9), "last"), attention_map(maps[2:], (9, 9)))
    assert torch.equal(attention_map(maps, (9, 9), "last", upto=2), attention_map(maps[1:2], (9, 9)))


def test_all_gates_by_default() -> None:
    assert torch.equal(attention_map(gates(), (9, 9)), attention_map(gates(), (9, 9), upto=3))


def test_records_mappings_and_tensors_agree() -> None:
    maps = gates()
    expected = attention_map(maps, (6, 8))
    assert torch.equal(attention_map([record(v) for v in maps], (6, 8)), expected)
    assert torch.equal(attention_map({f"gates.{i}": record(v) for i, v in enumerate(maps)}, (6, 8)), expected)
    assert torch.equal(attention_map(tuple(maps), (6, 8)), expected)


def test_uniform_gates_stay_uniform() -> None:
    actual = attention_map([torch.full((3, 4, 4), 0.5), torch.full((3, 2, 2), 0.25)], (10, 11))
    torch.testing.assert_close(actual, torch.full((3, 10, 11), 0.125))


def test_what_a_network_looked_at() -> None:
    model = foveal.create_model("hattnet").eval()
    with foveal.watch(model) as seen:
        model(torch.rand(2, 3, 100, 100), torch.tensor([3, 8]))
    actual = attention_map(seen, (100, 100))
    assert actual.shape == (2, 100, 100)
    assert (actual >= 0).all()
    expected = attention_map([seen[f"gates.{i}"].values for i in range(4)], (100, 100))
    assert torch.equal(attention_map(seen, (100, 100), placed=False), expected)


def test_gradients_reach_every_gate() -> None:
    maps = [values.requires_grad_() for values in gates()]
    attention_map(maps, (6, 8)).sum().backward()
    for values in maps:
        assert values.grad is not None
        assert (values.grad != 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_map_is_float32(dtype: torch.dtype) -> None:
    # 0.5 ** 30 is zero in float16
    actual = attention_map([torch.full((1, 2, 2), 0.5, dtype=dtype)] * 30, (3, 3))
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, torch.full((1, 3, 3), 0.5**30), rtol=1e-5, atol=0)


def test_no_samples() -> None:
    assert attention_map(gates(0), (6, 8)).shape == (0, 6, 8)


@pytest.mark.parametrize(
    ("records", "size", "options", "message"),
    [
        ([], (4, 4), {}, "no attention was recorded; run the model inside"),
        ({}, (4, 4), {}, "no attention was recorded"),
        (torch.rand(2, 4, 4), (4, 4), {}, "put it in a list"),
        (record(torch.rand(2, 4, 4)), (4, 4), {}, "put it in a list"),
        ([record(torch.rand(2, 8), "channel", "se.1")], (4, 4), {}, "se.1 is channel attention.*leave it out"),
        ([torch.rand(2, 1, 4, 4)], (4, 4), {}, r"gate 0 must be \(N, h, w\), got shape \(2, 1, 4, 4\)"),
        ([torch.rand(2, 4, 4), torch.rand(2, 0, 4)], (4, 4), {}, r"gate 1 must be \(N, h, w\), got shape"),
        ([torch.rand(2, 4, 4), torch.rand(3, 4, 4)], (4, 4), {}, r"same samples, got batches of \[2, 3\]"),
        (gates(), (4,), {}, r"size must be \(H, W\).*got \(4,\)"),
        (gates(), (0, 4), {}, r"size must be \(H, W\).*got \(0, 4\)"),
        (gates(), (4, 4), {"upto": 0}, "between 1 and 3.*got 0"),
        (gates(), (4, 4), {"upto": 4}, "between 1 and 3.*got 4"),
        (gates(), (4, 4), {"gates": "produkt"}, "unknown gates 'produkt'; did you mean 'product'"),
    ],
)
def test_bad_input_says_what_to_do(records, size, options, message: str) -> None:
    with pytest.raises(UserError, match=message):
        attention_map(records, size, **options)


def test_a_gate_that_knows_where_it_looks_is_drawn_there():
    values = torch.zeros(1, 4, 4)
    values[0, 1, 2] = 1
    record = AttentionRecord("gate", "spatial", values, True, grid=(22.5, 16.0))
    drawn = attention_map([record], (100, 100))[0]
    assert drawn.sum() == pytest.approx(256)  # a tent one step wide to each side holds the mass of one step squared
    place = torch.arange(100.0)
    centre = (drawn.sum(1) @ place / drawn.sum(), drawn.sum(0) @ place / drawn.sum())
    assert centre == (pytest.approx(38.5), pytest.approx(54.5))
    stretched = attention_map([record], (100, 100), placed=False)[0]
    assert stretched[37, 62] == stretched.max()  # 16 pixels off


def test_the_reference_networks_know_where_they_look():
    """What a gate's value depends on is centred where its grid says."""
    torch.manual_seed(0)
    model = foveal.create_model("hattnet").double().eval()
    image = torch.rand(1, 3, 100, 100, dtype=torch.double, requires_grad=True)
    with foveal.watch(model) as seen:
        model(image, torch.tensor([3]))
    first, step = seen["gates.2"].grid
    for unit in (2, 6):
        (reach,) = torch.autograd.grad(seen["gates.2"].values[0, unit, unit], image, retain_graph=True)
        touched = reach.abs().sum((0, 1, 3)).nonzero()
        middle = (touched.min() + touched.max()) / 2
        assert float(middle) == pytest.approx(first + step * unit, abs=1.5)  # max pooling may leave out an edge
