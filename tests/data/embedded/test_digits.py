"""scikit-learn's digits."""

import torch

from foveal.data import dataset
from foveal.data.embedded.digits import read_digits, sklearn_digits


def test_embedded_digits_need_nothing(tmp_path):
    entry = dataset("digits")
    assert entry.status(None).there
    image_set = read_digits(tmp_path)
    assert {split: len(samples) for split, samples in image_set.splits.items()} == {"train": 1400, "test": 397}
    pixels = image_set.splits["test"].images
    assert (pixels.shape[1:], pixels.dtype) == ((3, 32, 32), torch.uint8)
    assert pixels.max() > 240
    assert torch.equal(pixels[:, 0], pixels[:, 2])


def test_embedded_digits():
    (train, train_labels), (test, test_labels) = sklearn_digits("train"), sklearn_digits("test")
    assert train.shape == (1400, 10, 10)
    assert test.shape == (397, 10, 10)
    for images, labels in ((train, train_labels), (test, test_labels)):
        assert images.dtype == torch.uint8
        assert images.max() == 255
        assert (images[:, [0, -1]] == 0).all()
        assert (images[:, :, [0, -1]] == 0).all()
        assert labels.bincount().shape == (10,)
        assert labels.bincount().min() > 30
