"""Which tiles and forms are candidates, and in which order."""

import pytest
import torch

from foveal.kernels.aw import depthwise, launch
from foveal.kernels.aw.estimate import Work, cycles
from foveal.kernels.aw.geometry import Geometry
from foveal.kernels.aw.tiles import PRODUCT_TILES, TILES, Launch, box_within_sample


def geometry(n, c1, side, c2=None, kernel=3, stride=1, groups=1, dtype=torch.bfloat16):
    pad, cpu = kernel // 2, torch.device("cpu")
    exact = dtype == torch.float32
    return Geometry(n, c1, side, side, c2 or c1, kernel, kernel, stride, (pad, pad), (1, 1), groups, dtype, cpu, exact)


def test_a_box_covers_the_map_with_least_waste():
    assert box_within_sample(64, 56, 56) == (1, 8, 8)
    assert box_within_sample(128, 7, 7)[1:] in {(8, 16), (16, 8)}
    assert box_within_sample(128, 28, 28) == (1, 4, 32)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("channels", [8, 24, 64])
def test_multipliers_of_few_channels_lie_where_a_descriptor_can_put_them(dtype, channels):
    plan = launch.Plan(geometry(3, channels, 3, dtype=dtype))
    for tiles, side in ((plan.forward_tiles(), "columns"), (plan.input_tiles(), "depth")):
        assert all(getattr(tile, side) * dtype.itemsize >= 128 for tile in tiles)


@pytest.mark.parametrize("channels", [8, 24, 96, 640])
@pytest.mark.parametrize("side", [1, 7, 33, 224])
@pytest.mark.parametrize("n", [1, 64, 1000])
def test_every_shape_has_a_tile(n, side, channels):
    within = launch.launches_within(side, side, channels, channels)
    across = [launch.launches_across(tiles, n, side, side, channels, channels) for tiles in (TILES, PRODUCT_TILES)]
    assert within
    for actual in across:
        assert bool(actual) == (n >= 64 and side < 33)
    assert all(tile.columns <= 2 * max(8, channels) for tiles in (within, *across) for tile in tiles)


@pytest.mark.parametrize(
    ("n", "side", "expected"),
    [(64, 14, {"within", "flat", "across"}), (8, 14, {"within", "flat"}), (64, 56, {"within"})],
)
def test_forms_of_the_weight_gradient(n, side, expected):
    assert set(launch.Plan(geometry(n, 8, side)).weights.forms()) == expected


def test_pairs_of_output_and_kernel_positions_inside_the_map():
    assert geometry(1, 8, 7).inside == (3 * 7 - 2) ** 2
    assert geometry(1, 8, 1).inside == 1
    assert geometry(1, 8, 6, stride=2).inside == (3 * 3 - 1) ** 2


# The model of the shape ------------------------------------------------------------------------------------------


def test_what_does_not_fit_comes_last():
    shape = geometry(64, 512, 28, dtype=torch.float32)
    tiles = launch.Plan(shape).forward_tiles()
    needs = [tile.stages * (tile.box[0] * tile.box[1] * tile.box[2] + tile.columns) * tile.depth * 4 for tile in tiles]
    fits = [need <= 232448 for need in needs]
    assert fits == sorted(fits, reverse=True)
    assert not all(fits)


def test_a_tile_should_not_be_larger_than_the_map_nor_leave_the_gpu_idle():
    def first(*shape, **options):
        tile = launch.Plan(geometry(*shape, **options)).forward_tiles()[0]
        return tile.box[0] * tile.box[1] * tile.box[2], tile.columns

    rows, columns = first(256, 256, 56)
    assert rows * columns >= 128 * 128  # much work: what is read is used often
    rows, columns = first(1, 256, 14)
    assert rows * columns <= 64 * 128  # little work: many small tiles
    rows, _ = first(2, 64, 7)
    assert rows == 64


def test_more_work_takes_longer():
    shape, tile = geometry(64, 64, 28), Launch((1, 8, 8), 64, 64, 4, 3)
    base = cycles(Work(1000, 64, 64, 576, 64), tile, shape)
    for more in (Work(2000, 64, 64, 576, 64), Work(1000, 64, 64, 1152, 64), Work(1000, 64, 64, 576, 64, finishes=100)):
        assert cycles(more, tile, shape) > base


@pytest.mark.parametrize("side", [7, 14, 28, 56])
@pytest.mark.parametrize("channels", [32, 96, 144, 768])
def test_depthwise_tiles_waste_little(channels, side):
    tile = depthwise.Plan(geometry(64, channels, side, kernel=7, groups=channels)).map_tiles(side, side)[0]
    positions = tile.tiles(1, side, side) * tile.box[1] * tile.box[2]
    computed = positions * -(-channels // tile.columns) * tile.columns
    assert computed <= 1.5 * side**2 * channels  # 64 positions for the 49 of a 7×7 map are 1.3 already


def test_depthwise_weight_gradients_keep_the_gpu_busy():
    for n, channels in ((64, 96), (256, 768), (8, 32)):
        plan = depthwise.Plan(geometry(n, channels, 14, kernel=7, groups=channels))
        tile = plan.sum_tiles()[0]
        programs = tile.splits * 7 * -(-channels // tile.columns)
        assert tile.splits == n or 132 <= programs <= 4 * 132
