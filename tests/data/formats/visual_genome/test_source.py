"""Visual Genome as a dataset of recipes."""

import pickle
from itertools import chain

import pytest
import torch
from small_genome import write

from foveal.data import dataset, datasets
from foveal.data.embedded.shapes import SHAPES
from foveal.data.formats.visual_genome.source import VisualGenomeData, VisualGenomeOptions
from foveal.errors import DataError, UnknownNameError, UserError
from foveal.typed import parse

CPU = torch.device("cpu")


SMALL = {"image_size": 32, "min_count": 3, "workers": 0}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write(folder / "visual_genome")
    return folder


@pytest.fixture(scope="module")
def source(root):
    return VisualGenomeData(VisualGenomeOptions(**SMALL), root)


def indices(loader):
    return [batch["index"].tolist() for batch in loader]


def test_registered_with_expected_files(root, tmp_path):
    entry = dataset("visual-genome")
    assert entry is datasets()["visual-genome"]
    assert entry.status(root).there
    assert entry.status(tmp_path).missing == [str(tmp_path / path) for path in entry.place.expected]
    assert "images2.zip" in entry.status(tmp_path).how


def test_names_and_description(source):
    assert (source.name, source.multilabel, source.embedded) == ("visual-genome", True, False)
    assert source.queries == ["ball", "box"]
    assert source.answers == ["round", "red", "blue", "green", "big"]
    description = source.describe()
    assert "Visual Genome, 2 object classes, 5 attributes, 17 + 7 + 6 images" in description
    assert "embedded" not in description
    assert "32×32" in description


def test_batches(source):
    batch = next(iter(source.loader("test", 5, device=CPU)))
    assert {k: (tuple(v.shape), v.dtype) for k, v in batch.items()} == {
        "image": ((5, 3, 32, 32), torch.uint8),
        "query": ((5,), torch.int64),
        "label": ((5, 5), torch.float32),
        "mask": ((5, 32, 32), torch.bool),
        "index": ((5,), torch.int64),
    }


def test_prior_is_that_of_the_training_split(source):
    counts = torch.zeros(2, 5, 2)
    for batch in source.loader("train", 1, device=CPU):
        for query, label in zip(batch["query"], batch["label"], strict=True):
            counts[query, :, 1] += label
            counts[query, :, 0] += 1 - label
    torch.testing.assert_close(source.prior(), ((counts[..., 1] + 1) / (counts[..., 0] + 1)).log())


def test_training_order_depends_on_seed_and_epoch_alone(source):
    def order(**where):
        return indices(source.loader("train", 4, device=CPU, **where))

    first = order(seed=1, epoch=2)
    assert order(seed=1, epoch=2) == first
    assert order(seed=1, epoch=3) != first
    assert order(seed=2, epoch=2) != first
    # The 34 samples make 8 whole batches; what is left over is dropped, and nothing is seen twice.
    flat = list(chain(*first))
    assert [len(batch) for batch in first] == [4] * 8
    assert len(set(flat)) == 32
    assert set(flat) < set(range(34))


def test_evaluation_is_in_order_whatever_the_seed(source):
    assert list(chain(*indices(source.loader("val", 4, device=CPU, seed=5, epoch=7)))) == list(range(14))


def test_training_does_not_touch_the_global_random_numbers(source):
    before = torch.get_rng_state()
    indices(source.loader("train", 4, device=CPU))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_processes_share_each_global_batch(source, world):
    """Step by step, the processes together see what one process with a larger batch would see."""
    whole = indices(source.loader("train", 3 * world, device=CPU, epoch=4))
    parts = [indices(source.loader("train", 3, device=CPU, epoch=4, rank=r, world=world)) for r in range(world)]
    assert [list(chain(*pieces)) for pieces in zip(*parts, strict=True)] == whole


def test_too_few_for_one_batch(source):
    with pytest.raises(UserError, match="34 training samples do not fill one batch of 20 × 2"):
        source.loader("train", 20, world=2, device=CPU)


def test_workers_deliver_the_same(root, source):
    several = VisualGenomeData(VisualGenomeOptions(**SMALL | {"workers": 2}), root).loader("test", 5, device=CPU)
    assert several.workers == 2
    for batch, expected in zip(several, source.loader("test", 5, device=CPU), strict=True):
        assert all(torch.equal(batch[key], expected[key]) for key in expected)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_damaged_image_is_one_line(tmp_path, workers):
    write(tmp_path / "visual_genome")
    source = VisualGenomeData(VisualGenomeOptions(**SMALL | {"workers": workers}), tmp_path)
    path = source.splits["val"].files[source.splits["val"].samples[0].image]
    path.write_bytes(b"<html>")
    with pytest.raises(DataError, match=rf"^cannot read the image .*{path.name} .*unpack it again.*") as caught:
        indices(source.loader("val", 14, device=CPU))
    assert "\n" not in str(caught.value)


def test_memory_is_pinned_for_a_gpu_only(source):
    assert source.loader("val", 4, device=torch.device("cuda")).dataloader(0).pin_memory
    assert not source.loader("val", 4, device=CPU).dataloader(0).pin_memory


def embedded(**options):
    settings = {"source": "embedded", "sizes": (40, 10, 10), "image_size": 64, "workers": 0}
    return VisualGenomeData(VisualGenomeOptions(**settings | options), None)


def test_embedded_says_so_and_reads_nothing():
    source = embedded()
    assert source.embedded
    assert "embedded stand-in for Visual Genome" in source.describe()
    assert source.queries == list(SHAPES)
    assert source.prior().shape == (4, 6)
    assert len(indices(source.loader("val", 8, device=CPU))) > 1
    pickle.dumps(source.splits["train"])


def test_embedded_has_the_paper_s_fractions_by_default():
    assert [len(split.image_sizes) for split in embedded(sizes=None).splits.values()] == [1119, 441, 440]


def test_embedded_prior_knows_the_favourite_colours():
    prior = embedded(sizes=(800, 10, 10)).prior()
    assert prior[:, :4].argmax(1).tolist() == [0, 1, 2, 3]


def test_no_data_folder():
    with pytest.raises(DataError, match=r"FOVEAL_DATA .*visual_genome.*data\.source=embedded"):
        VisualGenomeData(VisualGenomeOptions(), None)


def test_an_absolute_folder_needs_no_data_folder(root):
    options = VisualGenomeOptions(**SMALL, folder=str(root / "visual_genome"))
    assert VisualGenomeData(options, None).queries == ["ball", "box"]


def test_missing_files_stop_before_training(tmp_path):
    with pytest.raises(DataError, match=r"no folder .*visual_genome, or use data\.source=embedded"):
        VisualGenomeData(VisualGenomeOptions(), tmp_path)


def test_wrong_options(root, source):
    with pytest.raises(UserError, match=r"data\.workers=-1: expected 0 or more"):
        VisualGenomeData(VisualGenomeOptions(**SMALL | {"workers": -1}), root)
    with pytest.raises(UnknownNameError, match="unknown split 'validation'; known: test, train, val"):
        source.loader("validation", 4, device=CPU)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sizes": [1, 2]}, r"data\.sizes: expected a list of 3 values, got \[1, 2\]"),
        ({"image_sise": 64}, "data: unknown key 'image_sise'; did you mean 'image_size'"),
        ({"source": "fake"}, "data.source: expected one of real, embedded, got 'fake'"),
    ],
)
def test_wrong_recipes(options, message):
    with pytest.raises(UserError, match=message):
        parse(VisualGenomeOptions, options, "data")
