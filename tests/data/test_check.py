"""A check lists everything that is wrong with a dataset, not only the first thing."""

import gzip
import json

import numpy as np
import pytest
import torch
from small_files import save, write, write_all, write_mnist
from small_genome import write as write_genome

from foveal.data import Entry, dataset
from foveal.data.batches import Batches, EpochBatches
from foveal.data.check import check
from foveal.data.formats.voc import VOC_CLASSES
from foveal.data.images.classification import ImageOptions
from foveal.data.problems import Problem, collected, collecting, note
from foveal.errors import DataError, UserError


def messages(name, root, **options):
    return [problem.message for problem in check(name, options, root)]


def assert_listed(messages, *parts):
    """Every part is in a message of its own, and there are no others."""
    assert len(messages) == len(parts), messages
    for part in parts:
        assert sum(part in message for message in messages) == 1, (part, messages)


@pytest.fixture
def folder(tmp_path):
    """An image folder without faults."""
    for name in ("ant", "bee"):
        for n in range(3):
            save(tmp_path / "imagefolder" / "train" / name / f"{n}.jpg")
        save(tmp_path / "imagefolder" / "test" / name / "0.jpg")
    return tmp_path


def test_nothing_is_wrong(folder):
    assert messages("imagefolder", folder) == []
    assert messages("digits", None) == messages("confusion", None) == []
    assert messages("mref", None, digits="embedded") == messages("visual-genome", None, source="embedded") == []


def test_several_faults_of_an_image_folder(folder):
    (folder / "imagefolder" / "train" / "ant" / "1.jpg").write_bytes(b"<html>")
    whole = (folder / "imagefolder" / "test" / "bee" / "0.jpg").read_bytes()
    (folder / "imagefolder" / "test" / "bee" / "0.jpg").write_bytes(whole[: len(whole) // 2])
    (folder / "imagefolder" / "train" / "cat").mkdir()
    save(folder / "imagefolder" / "test" / "anf" / "0.jpg")
    listed = messages("imagefolder", folder)
    assert_listed(
        listed, "ant/1.jpg cannot be read", "bee/0.jpg cannot be read", "cat holds no image", "did you mean 'ant'"
    )
    with pytest.raises(DataError, match=r"unknown class 'anf'"):  # training stops at the first
        dataset("imagefolder").build(ImageOptions(), folder)


def test_what_is_not_there_at_all_is_one_problem(tmp_path):
    assert_listed(messages("imagefolder", tmp_path), "no folder")
    assert_listed(messages("cub200", None), "FOVEAL_DATA")
    (tmp_path / "VOCdevkit" / "VOC2012").mkdir(parents=True)
    assert_listed(messages("voc2012", tmp_path), "Main is missing")


def test_wrong_options_are_not_problems_of_the_data(folder):
    with pytest.raises(UserError, match="unknown key 'sise'"):
        messages("imagefolder", folder, sise=3)
    with pytest.raises(UserError, match="unknown dataset 'imagefoldr'"):
        messages("imagefoldr", folder)


def test_another_folder_and_a_recipe_s_data_section(folder):
    (folder / "imagefolder").rename(folder / "mine")
    (folder / "mine" / "train" / "ant" / "1.jpg").write_bytes(b"")
    section = {"name": "imagefolder", "folder": "mine", "size": 64}
    assert_listed([str(problem) for problem in check("imagefolder", section, folder)], "ant/1.jpg")
    assert len(list(check(dataset("imagefolder"), ImageOptions(folder="mine"), folder))) == 1


def test_progress_sees_every_file(folder):
    steps = []

    def progress(items, description, total):
        for item in items:
            steps.append((description, total))
            yield item

    assert not list(check("imagefolder", None, folder, progress))
    assert steps == [("reading train images", 6)] * 6 + [("reading test images", 2)] * 2


def test_rich_shows_the_progress(folder):
    from rich.progress import Progress

    (folder / "imagefolder" / "train" / "ant" / "1.jpg").write_bytes(b"")
    with Progress(disable=True) as bar:
        assert len(list(check("imagefolder", None, folder, bar.track))) == 1


def test_several_faults_of_voc(tmp_path):
    root = tmp_path / "VOCdevkit" / "VOC2012"
    main = root / "ImageSets" / "Main"
    for split, images in (("train", ("1", "2")), ("val", ("3", "4"))):
        write(main / f"{split}.txt", "\n".join(images))
        for name in VOC_CLASSES:
            write(main / f"{name}_{split}.txt", "".join(f"{image} -1\n" for image in images))
        for image in images:
            save(root / "JPEGImages" / f"{image}.jpg")
            write(root / "Annotations" / f"{image}.xml", "<a><size><width>9</width><height>9</height></size></a>")
    assert messages("voc2012", tmp_path) == []
    (main / "cat_train.txt").unlink()
    write(main / "dog_train.txt", "1 -1\n")
    write(main / "cow_val.txt", "3 7\n4 1\n")
    (root / "JPEGImages" / "2.jpg").unlink()
    (root / "Annotations" / "3.xml").unlink()
    write(root / "Annotations" / "4.xml", "<a><size>")
    listed = messages("voc2012", tmp_path)
    assert_listed(
        listed, "cat_train.txt is missing", "dog_train.txt has no line for image 2", "got '3 7'", "2.jpg: no such",
        "3.xml cannot be read", "4.xml cannot be read",
    )  # fmt: skip


def test_several_faults_of_cub(tmp_path):
    folder = tmp_path / "CUB_200_2011"
    for n in range(1, 7):
        save(folder / "images" / f"{n}.jpg")
    write(folder / "classes.txt", "1 001.A_bird\n2 002.B_bird\n")
    write(folder / "images.txt", "".join(f"{n} {n}.jpg\n" for n in range(1, 7)))
    write(folder / "image_class_labels.txt", "1 1\n2 2\n3 1\n4 2\n5 9\n6 1\n")
    write(folder / "train_test_split.txt", "1 1\n2 1\n3 0\n4 0\n5 1\n6 maybe\n")
    write(folder / "bounding_boxes.txt", "1 0 0 1 1\n2 0 0 1 1\n3 0 0 1 1\n")
    (folder / "images" / "2.jpg").unlink()
    (folder / "images" / "3.jpg").write_bytes(b"")
    listed = messages("cub200", tmp_path)
    assert_listed(listed, "image 5 (5.jpg)", "image 6 (6.jpg)", "2.jpg: no such", "3.jpg cannot be read", "of 4.jpg")


def test_several_faults_of_cifar(tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    write(folder / "batches.meta.txt", "cat\n")
    for name in ("data_batch_1", "data_batch_2", "data_batch_4", "data_batch_5", "test_batch"):
        (folder / f"{name}.bin").write_bytes(bytes(3073))
    (folder / "data_batch_2.bin").write_bytes(bytes(3000))
    (folder / "data_batch_4.bin").write_bytes(b"\x0b" + bytes(3072))
    listed = messages("cifar10", tmp_path)
    assert_listed(listed, "names 1 classes", "data_batch_2.bin is damaged", "data_batch_3.bin is missing", "a label 11")


def test_several_faults_of_tiny_imagenet(tmp_path):
    folder = tmp_path / "tiny-imagenet-200"
    for wnid in ("n01", "n02"):
        save(folder / "train" / wnid / "images" / "1.JPEG")
    save(folder / "val" / "images" / "a.JPEG")
    write(folder / "val" / "val_annotations.txt", "a.JPEG n01\nb.JPEG n02\nc.JPEG n09\n")
    assert_listed(messages("tiny-imagenet", tmp_path), "b.JPEG is missing", "c.JPEG is of class n09")


def test_several_faults_of_texts(tmp_path):
    folder = tmp_path / "textfolder"
    for split in ("train", "test"):
        write_all(folder, {f"{split}/{name}/{n}.txt": "Some words." for name in "ab" for n in range(3)})
    write_all(folder, {"test/c/1.txt": "Unknown.", "train/a/1.txt": "caf\xe9", "train/b/2.txt": "?"})
    (folder / "train" / "d").mkdir()
    (folder / "train" / "b" / "0.txt").unlink()
    (folder / "train" / "b" / "0.txt").symlink_to(tmp_path / "nowhere")
    (folder / "test" / "b" / "2.txt").write_bytes(b"\xff")
    problems = list(check("textfolder", None, tmp_path))
    stops = [str(problem) for problem in problems if problem.stops]
    assert_listed(stops, "unknown class 'c'", "d holds no text files", "b/0.txt cannot be read")
    suspicious = [str(problem) for problem in problems if not problem.stops]
    assert_listed(
        suspicious, "1.txt is not valid utf-8 at byte 3", "b/2.txt is not valid", "1 of 5 train", "1 of 6 test"
    )


def test_several_faults_of_tables(tmp_path):
    rows = "text,label\na,x\nb,y\nc\nd,\ne,x\n"
    write(tmp_path / "textcsv" / "train.csv", rows)
    (tmp_path / "textcsv" / "test.csv").write_bytes(b"text,label\na,z\ncaf\xe9,x\n")
    listed = messages("textcsv", tmp_path)
    assert_listed(
        listed, "row 4: 1 columns", "row 5: the column 'label'", "unknown class 'z'", "row 3: not valid utf-8"
    )
    write_all(tmp_path / "ag_news_csv", {"train.csv": '"1","a","b"\n"3","a","b"\n"1","a"\n', "classes.txt": "x\ny\n"})
    assert_listed(messages("ag-news", tmp_path), "row 2: class '3'", "row 3: 2 columns", "test.csv is missing")


def test_several_faults_of_digits_and_photographs(tmp_path):
    write_mnist(tmp_path)
    for n in range(6):
        save(tmp_path / "backgrounds" / f"{n}.jpg", size=(40, 40))
    assert messages("mbg", tmp_path) == []
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    images = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
    images.write_bytes(gzip.compress(gzip.decompress(images.read_bytes())[:-5]))
    (tmp_path / "backgrounds" / "2.jpg").write_bytes(b"")
    save(tmp_path / "backgrounds" / "4.jpg", size=(300, 5))
    assert_listed(
        messages("mref", tmp_path), "t10k-labels-idx1-ubyte.gz is missing", "train-images-idx3-ubyte.gz is damaged"
    )
    assert len(messages("mbg", tmp_path)) == 4


def test_several_faults_of_visual_genome(tmp_path):
    folder = tmp_path / "visual_genome"
    write_genome(folder)
    assert messages("visual-genome", tmp_path, min_count=3) == []
    pictures = sorted(folder.glob("VG_100K*/*.jpg"))
    pictures[0].unlink()
    pictures[1].write_bytes(b"<html>")
    entries = json.loads((folder / "attributes.json").read_text())
    entries[2] |= {"attributes": ["not an object"]}
    entries[3]["attributes"][0] |= {"x": 1000}
    (folder / "attributes.json").write_text(json.dumps([*entries, {"image_id": "none"}]))
    listed = messages("visual-genome", tmp_path, min_count=3)
    assert_listed(
        listed, f"image {pictures[0].name} is annotated", f"{pictures[1].name} (", "lists 'not an object'",
        "has no 'image_id'",
        "lies outside of image",
    )  # fmt: skip


# Sources of the user's own ------------------------------------------------------------------------------------------


class Numbers:
    """A source that reads files of numbers."""

    name = title = "numbers"
    embedded = False
    root = None

    def __init__(self, files):
        self.files = files

    def gather(self, index):
        rows = []
        for n in index.tolist():
            try:
                rows.append(float(self.files[n].read_text()))
            except ValueError as error:
                raise DataError(f"{self.files[n]} holds no number") from error
        return {"x": torch.tensor(rows)}

    def loader(self, split, batch, *, device, **_):
        return Batches(EpochBatches(len(self.files), batch), self.gather, device)


class Plain(Numbers):
    def loader(self, split, batch, *, device, **_):
        return [self.gather(torch.tensor([n])) for n in range(len(self.files))]


class Own(Numbers):
    def check(self, progress):
        yield from (Problem(f"{file} is big", stops=False) for file in progress(self.files, description="", total=4))


@pytest.mark.parametrize(("kind", "count"), [(Numbers, 2), (Plain, 1), (Own, 4)])
def test_sources_without_a_check_are_read_batch_by_batch(tmp_path, kind, count):
    files = [tmp_path / f"{n}.txt" for n in range(4)]
    for n, file in enumerate(files):
        file.write_text("three" if n % 2 else "3")
    entry = Entry("numbers", "", dict, lambda options, root: kind(files))
    assert len(list(check(entry, {}, None))) == count


def test_reading_stops_unless_problems_are_collected():
    def read():
        for n in range(3):
            with collected():
                raise DataError(f"{n}")
        note("done")
        return np.arange(3)

    with pytest.raises(DataError, match="0"):
        read()
    with collecting() as problems:
        assert len(read()) == 3
    assert [(str(problem), problem.stops) for problem in problems] == [
        ("0", True),
        ("1", True),
        ("2", True),
        ("done", False),
    ]
    with pytest.raises(DataError, match="0"):
        read()
