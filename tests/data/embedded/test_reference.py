"""MREF, MDIST and MBG: batches, fixed and fresh sets, sources, mistakes."""

import gzip
import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from small_files import assert_same_scenes, write_mnist

from foveal.data import dataset, datasets
from foveal.data.batches import Batches, EpochBatches
from foveal.data.embedded import reference as reference_module
from foveal.data.embedded.reference import ReferenceData, ReferenceOptions, Triples
from foveal.data.embedded.scenes import COLOURS, Scenes, digit_counts
from foveal.errors import DataError, UserError

CPU = torch.device("cpu")
SMALL = ReferenceOptions(
    digits="embedded", sources="split", triples=(60, 20, 30), canvas=36, count=(2, 3), scale=(0.4, 0.6)
)

pytestmark = pytest.mark.usefixtures("cache")


def make(name="mref", root=None, **options):
    return ReferenceData(name, replace(SMALL, **options), root)


def plain_scenes(counts, canvas=2):
    """Scenes with ``counts`` digits; images and owners tell which they are."""
    n, slots = len(counts), max(counts)
    used = torch.arange(slots) < torch.tensor(counts)[:, None]
    number = torch.arange(n * slots).view(n, slots)
    return Scenes(
        images=torch.arange(n, dtype=torch.uint8)[:, None, None, None].expand(n, 3, canvas, canvas),
        owner=torch.ones(n, canvas, canvas, dtype=torch.uint8),
        digit=torch.where(used, number % 10, -1),
        colour=torch.where(used, number % 5, -1),
        scale=number.float(),
        box=torch.zeros(n, slots, 3, dtype=torch.int64),
    )


def triples(scenes, limit, batch, shuffle, masks, rank=0, world=1):
    gather = Triples(scenes, limit, masks)
    return Batches(EpochBatches(len(gather), batch, shuffle, rank, world), gather, CPU)


def indices(loader):
    return [batch["index"].tolist() for batch in loader]


def flat(loader):
    return [i for batch in indices(loader) for i in batch]


def test_a_batch_holds_what_the_scenes_hold():
    scenes = plain_scenes([3, 1, 2])
    (batch,) = triples(scenes, 100, 10, None, True)
    assert batch["index"].tolist() == [0, 1, 2, 3, 4, 5]
    assert batch["image"][:, 0, 0, 0].tolist() == [0, 0, 0, 1, 2, 2]
    assert batch["query"].tolist() == [0, 1, 2, 3, 6, 7]
    assert batch["label"].tolist() == [0, 1, 2, 3, 1, 2]
    assert batch["scale"].tolist() == [0, 1, 2, 3, 6, 7]
    assert batch["mask"].all((1, 2)).tolist() == [True, False, False, True, True, False]


def test_masks_only_if_asked_for():
    (batch,) = triples(plain_scenes([3]), 100, 10, None, False)
    assert set(batch) == {"image", "query", "label", "scale", "index"}


def test_only_the_first_triples_up_to_the_limit():
    assert indices(triples(plain_scenes([3, 3, 3]), 5, 2, None, False)) == [[0, 1], [2, 3], [4]]


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(1, 4), min_size=1, max_size=12),
    limit=st.integers(1, 40),
    batch=st.integers(1, 9),
    world=st.integers(1, 5),
)
def test_evaluation_covers_every_triple_exactly_once(counts, limit, batch, world):
    scenes = plain_scenes(counts)
    seen = []
    for rank in range(world):
        loader = triples(scenes, limit, batch, None, True, rank, world)
        batches = indices(loader)
        assert len(loader) == len(batches)
        assert all(0 < len(b) <= batch for b in batches)
        seen += [i for b in batches for i in b]
    assert sorted(seen) == list(range(min(limit, sum(counts))))


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(1, 4), min_size=6, max_size=12),
    batch=st.integers(1, 2),
    world=st.integers(1, 3),
    shuffle=st.integers(0, 1000),
)
def test_processes_together_see_what_one_with_a_larger_batch_sees(counts, batch, world, shuffle):
    scenes = plain_scenes(counts)
    alone = indices(triples(scenes, 100, batch * world, shuffle, False))
    pieces = [indices(triples(scenes, 100, batch, shuffle, False, rank, world)) for rank in range(world)]
    together = [[i for piece in step for i in piece] for step in zip(*pieces, strict=True)]
    assert together == alone
    seen = [i for step in alone for i in step]
    assert len(alone) == sum(counts) // (batch * world)
    assert len(set(seen)) == len(seen)


def test_two_processes_over_real_scenes():
    data = make()
    alone = list(data.loader("train", 20, epoch=1, seed=4, device=CPU))
    pieces = [list(data.loader("train", 10, epoch=1, seed=4, rank=r, world=2, device=CPU)) for r in range(2)]
    assert len(alone) == len(pieces[0]) == len(pieces[1]) == 3
    for whole, *parts in zip(alone, *pieces, strict=True):
        for key in whole:
            assert torch.equal(torch.cat([part[key] for part in parts]), whole[key])


def test_the_order_depends_on_seed_and_epoch_only():
    data = make()

    def order(**options):
        return flat(data.loader("train", 10, device=CPU, **options))

    torch.manual_seed(1)
    first = order(epoch=2, seed=3)
    torch.manual_seed(2)
    assert order(epoch=2, seed=3) == first
    assert flat(make().loader("train", 20, device=CPU, epoch=2, seed=3)) == first  # another batch size
    others = [order(epoch=1, seed=3), order(epoch=2, seed=4), order(epoch=3, seed=2)]
    assert len({tuple(o) for o in [first, *others]}) == 4
    assert all(sorted(o) == list(range(60)) for o in [first, *others])


def test_only_training_is_shuffled_and_only_tests_have_masks():
    data = make()
    for split, count in (("val", 20), ("test", 30)):
        batches = list(data.loader(split, 7, epoch=5, seed=9, device=CPU))
        assert flat(batches) == list(range(count))
        assert all("mask" in b for b in batches)
    assert all("mask" not in b for b in data.loader("train", 7, device=CPU))


def test_too_few_triples_for_a_batch():
    data = make()
    message = r"60 training samples do not fill one batch of 40 × 2 process\(es\); use a smaller train\.batch"
    with pytest.raises(UserError, match=message):
        data.loader("train", 40, world=2, device=CPU)
    assert len(data.loader("train", 60, device=CPU)) == 1
    assert len(data.loader("val", 1000, device=CPU)) == 1


def test_batches_fit_the_scenes():
    """The colour that is asked for is the colour that is painted under the mask."""
    data = make()
    table = torch.tensor(list(COLOURS.values())).float()
    for batch in data.loader("test", 10, device=CPU):
        for image, mask, label in zip(batch["image"], batch["mask"], batch["label"], strict=True):
            painted = image[:, mask].float()
            brightest = painted[:, painted.sum(0).argmax()]
            shifts = (brightest - table).sub((brightest - table).mean(1, keepdim=True)).norm(dim=1)
            assert shifts.argmin() == label
        assert ((batch["query"] >= 0) & (batch["query"] < 10)).all()
        assert ((batch["scale"] >= 0.4) & (batch["scale"] <= 0.6)).all()


def test_a_fixed_set_is_the_same_every_epoch_and_every_time():
    data = make()
    assert_same_scenes(data.scenes("train", epoch=0), data.scenes("train", epoch=5))
    assert_same_scenes(make().scenes("train"), data.scenes("train"))


def test_splits_are_streams_of_their_own():
    data = make(sources="pooled")
    images = [{tuple(i.flatten().tolist()) for i in data.scenes(s).images} for s in ("train", "val", "test")]
    assert all(images)
    assert not images[0] & images[1]
    assert not images[0] & images[2]
    assert not images[1] & images[2]


def test_the_data_seed_chooses_the_dataset():
    assert not torch.equal(make(seed=1).scenes("test").images[:5], make(seed=0).scenes("test").images[:5])


def test_there_are_as_many_images_as_the_triples_need():
    data = make()
    for split, triples in zip(("train", "val", "test"), (60, 20, 30), strict=True):
        counts = (data.scenes(split).digit >= 0).sum(1)
        assert counts.sum() >= triples
        assert counts[:-1].sum() < triples


def test_fresh_training_images_never_repeat():
    data = make(fresh=True)
    seen, total = set(), 0
    for epoch in range(4):
        scenes = data.scenes("train", epoch=epoch)
        seen |= {tuple(image.flatten().tolist()) for image in scenes.images}
        total += len(scenes)
        assert len(data.loader("train", 20, epoch=epoch, device=CPU)) == 3
    assert len(seen) == total
    assert_same_scenes(make(fresh=True).scenes("train", epoch=2), make(fresh=True).scenes("train", epoch=2))


def test_fresh_epochs_do_not_overlap_at_full_size(monkeypatch):
    """The images of each epoch at the paper's size, without painting them."""
    asked = []

    def note(spec, sources, seed, count, *, start, **_):
        asked.append((start, start + count, digit_counts(spec, seed, torch.arange(start, start + count)).sum()))
        return plain_scenes([1])

    monkeypatch.setattr(reference_module, "generate", note)
    data = make(fresh=True, triples=(30_000, 10, 10), count=(5, 9), canvas=100)
    for epoch in range(30):
        data.scenes("train", epoch=epoch)
    assert all(total >= 30_000 for _, _, total in asked)
    assert all(stop <= start for (_, stop, _), (start, _, _) in itertools.pairwise(asked))


def test_fresh_leaves_validation_and_test_alone():
    fixed, fresh = make(), make(fresh=True)
    for split in ("val", "test"):
        assert_same_scenes(fresh.scenes(split, epoch=3), fixed.scenes(split, epoch=0))


def test_the_first_fresh_epoch_is_the_fixed_set():
    assert_same_scenes(make(fresh=True).scenes("train", epoch=0), make().scenes("train"))


def test_one_epoch_is_held_at_a_time():
    data = make(fresh=True)
    for epoch in range(3):
        data.scenes("train", epoch=epoch)
    data.scenes("test")
    assert {key[:2] for key in data._scenes} == {("train", 2), ("test", 0)}
    assert data.scenes("test") is data.scenes("test")


def test_scenes_are_painted_once_for_all_runs(cache, monkeypatch):
    painted = make().scenes("val")
    (path,) = cache.glob("mref-val-*.safetensors")
    monkeypatch.setattr(reference_module, "generate", lambda *a, **k: pytest.fail("painted again"))
    assert_same_scenes(make().scenes("val"), painted)
    assert path.stat().st_size > 0


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"triples": (60, 21, 30)},
        {"canvas": 37},
        {"count": (2, 4)},
        {"scale": (0.4, 0.7)},
        {"sources": "pooled"},
    ],
)
def test_other_options_are_another_cache_file(change, cache):
    make().scenes("val")
    make(**change).scenes("val")
    assert len(list(cache.glob("mref-val-*.safetensors"))) == 2


def test_options_of_other_splits_share_the_cache_file(cache):
    make().scenes("val")
    make(triples=(90, 20, 99)).scenes("val")
    assert len(list(cache.glob("mref-val-*.safetensors"))) == 1


def test_fresh_images_are_not_stored(cache):
    make(fresh=True).scenes("train", epoch=0)
    assert not list(cache.glob("*.safetensors"))


def test_split_sources_keep_the_test_digits_apart():
    data = make(sources="split")
    assert len(data.sources("train").digits) == len(data.sources("val").digits) == 1400
    assert len(data.sources("test").digits) == 397
    assert len(make(sources="pooled").sources("train").digits) == 1797
    assert len(make(sources="pooled").sources("test").digits) == 1797


@pytest.mark.parametrize("name", ["mref", "mdist", "mbg"])
def test_the_three_datasets(name):
    data = make(name)
    assert data.name == name
    assert data.embedded
    assert not data.multilabel
    assert data.queries == [str(i) for i in range(10)]
    assert data.answers == ["green", "yellow", "white", "red", "blue"]
    scenes = data.scenes("val")
    behind = (scenes.images.sum(1) > 0) & (scenes.owner == 0)
    share = behind.float().mean().item()
    assert behind.flatten(1).any(1).all() or name == "mref"
    assert share == 0 if name == "mref" else share > (0.02 if name == "mdist" else 0.5)
    assert data.spec.distractors == (17 if name == "mdist" else 0)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mref", ["scikit-learn's 8×8 digits (embedded stand-in for MNIST) on black", "36×36", "2–3 digits an image"]),
        ("mdist", ["17 coloured fragments", "60 fixed training triples"]),
        ("mbg", ["generated textures"]),
    ],
)
def test_description(name, words):
    text = make(name).describe()
    assert all(word in text for word in words)


def test_description_of_fresh_images():
    assert "new training images every epoch" in make(fresh=True).describe()


def test_the_official_files(tmp_path):
    data = make("mref", write_mnist(tmp_path), digits="mnist")
    assert not data.embedded
    assert data.sources("test").digits.shape == (200, 10, 10)
    assert "MNIST digits on black" in data.describe()
    assert len(data.scenes("test")) >= 10


def test_what_only_the_test_needs_is_missed_before_training(tmp_path):
    root = write_mnist(tmp_path)
    (root / "mnist" / "t10k-images-idx3-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"t10k-images-idx3-ubyte\.gz is missing"):
        make("mref", root, digits="mnist", sources="split")


def test_one_scale_for_all_digits():
    data = make(scale=(0.5, 0.5))
    assert data.scale_edges[0] == 0.5 < data.scale_edges[1]
    assert (data.scenes("val").scale[data.scenes("val").digit >= 0] == 0.5).all()


def test_photographs_behind_the_official_files(tmp_path):
    root = write_mnist(tmp_path)
    with pytest.raises(DataError, match=r"no folder .*backgrounds, or use data\.digits=embedded"):
        make("mbg", root, digits="mnist")
    (root / "photos").mkdir()
    for i in range(5):
        Image.new("RGB", (50, 50), (40 * i + 20,) * 3).save(root / "photos" / f"{i}.png")
    data = make("mbg", root, digits="mnist", pictures="photos")
    greys = {}
    for split in ("train", "val", "test"):
        scenes = data.scenes(split)
        greys[split] = set(scenes.images[:, 0][scenes.owner == 0].tolist())
    assert greys == {"train": {20, 60, 100}, "val": {140}, "test": {180}}
    assert "photographs" in data.describe()


def test_other_photographs_are_other_images(tmp_path):
    root = write_mnist(tmp_path)
    seen = []
    for folder, grey in (("day", 200), ("night", 30)):
        (root / folder).mkdir()
        for i in range(5):
            Image.new("RGB", (50, 50), (grey,) * 3).save(root / folder / f"{i}.png")
        scenes = make("mbg", root, digits="mnist", pictures=folder).scenes("val")
        seen.append(set(scenes.images[:, 0][scenes.owner == 0].tolist()))
    assert seen == [{200}, {30}]


def test_a_change_of_the_files_changes_the_images(tmp_path, cache):
    root = write_mnist(tmp_path)
    before = make("mref", root, digits="mnist").scenes("val")
    path = root / "mnist" / "train-images-idx3-ubyte.gz"
    raw = bytearray(gzip.decompress(path.read_bytes()))
    raw[16:] = bytes(255 - b for b in raw[16:])
    path.write_bytes(gzip.compress(bytes(raw)))
    assert not torch.equal(make("mref", root, digits="mnist").scenes("val").owner, before.owner)
    assert len(list(cache.glob("mref-val-*.safetensors"))) == 2


@pytest.mark.parametrize("name", ["mref", "mdist", "mbg"])
def test_without_a_data_folder(name):
    message = rf"{name}: set FOVEAL_DATA \(or --data\) to a folder that holds mnist.*data\.digits=embedded"
    with pytest.raises(DataError, match=message):
        ReferenceData(name, ReferenceOptions(), None)


def test_missing_files_stop_before_training(tmp_path):
    with pytest.raises(DataError, match=r"no folder .*mnist, or use data\.digits=embedded .*official idx files"):
        ReferenceData("mref", ReferenceOptions(), tmp_path)
    (tmp_path / "mnist").mkdir()
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz is missing"):
        ReferenceData("mref", ReferenceOptions(), tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"triples": (0, 10, 10)}, r"data\.triples=\[0, 10, 10\]: expected three positive numbers"),
        ({"count": (0, 3)}, r"data\.count=\[0, 3\]"),
        ({"scale": (0.4, 2.0)}, r"data\.canvas=36: expected at least 56"),
    ],
)
def test_impossible_options(options, message):
    with pytest.raises(UserError, match=message):
        make(**options)


def test_an_unknown_split():
    with pytest.raises(UserError, match="unknown split 'dev'; known: test, train, val"):
        make().scenes("dev")


def test_datasets_by_name(tmp_path):
    assert {"mref", "mdist", "mbg"} <= set(datasets())
    entry = dataset("mbg")
    assert entry.build(replace(SMALL), None).name == "mbg"
    assert entry.options is ReferenceOptions
    assert len(entry.status(None).missing) == len(entry.status(tmp_path).missing) == 5
    status = entry.status(write_mnist(tmp_path))
    assert (status.missing, status.there) == ([str(tmp_path / "backgrounds" / "*")], False)
    assert "official idx files" in status.how
    assert "photographs" in status.how
    assert dataset("mref").status(tmp_path).there
