"""ImageNet."""

import pytest
from small_files import build, listed, save, write

from foveal.data.formats.imagenet import read_imagenet
from foveal.errors import DataError


def test_imagenet(tmp_path):
    folder = tmp_path / "imagenet"
    for wnid in ("n03", "n01", "n02"):
        save(folder / "train" / wnid / f"{wnid}_1.JPEG")
        save(folder / "val" / wnid / "ILSVRC2012_val_1.JPEG")
    assert read_imagenet(folder).answers == ["n01", "n02", "n03"]
    write(folder / "LOC_synset_mapping.txt", "n01 crane\nn02 tench, Tinca tinca\nn03 crane, lifting device\n")
    image_set = read_imagenet(folder)
    assert image_set.answers == ["crane (n01)", "tench", "crane (n03)"]
    assert listed(image_set.splits["train"]) == [("n01_1.JPEG", 0), ("n02_1.JPEG", 1), ("n03_1.JPEG", 2)]
    source = build("imagenet", tmp_path, val_fraction=0.0)
    assert [len(samples) for samples in source.splits.values()] == [3, 3, 3]
    (folder / "LOC_synset_mapping.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match=r"LOC_synset_mapping\.txt cannot be read"):
        read_imagenet(folder)


def test_imagenet_that_is_not_sorted_yet(tmp_path):
    with pytest.raises(DataError, match=r"train is missing; .*ILSVRC2012_img_train\.tar"):
        read_imagenet(tmp_path)
    save(tmp_path / "train" / "n01" / "1.JPEG")
    save(tmp_path / "val" / "ILSVRC2012_val_00000001.JPEG")
    with pytest.raises(DataError, match="has no class folders; the official archive is flat"):
        read_imagenet(tmp_path)
