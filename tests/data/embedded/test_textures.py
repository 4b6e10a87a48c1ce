"""Generated textures."""

import torch

from foveal.data.embedded.textures import textures

SPLITS = ("train", "val", "test")


def test_textures_differ_between_splits_and_repeat():
    by_split = {split: textures(24, split, count=6) for split in SPLITS}
    for split, tiles in by_split.items():
        assert tiles.shape == (6, 3, 24, 24)
        assert tiles.dtype == torch.uint8
        assert torch.equal(textures(24, split, count=6), tiles)
        assert tiles.float().flatten(1).std(1).min() > 2  # none is plain
    rows = torch.cat(list(by_split.values())).flatten(1)
    assert len({tuple(row.tolist()) for row in rows}) == 18
