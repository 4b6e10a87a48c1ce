"""Grad-CAM++, LayerCAM and EigenCAM: equal to pytorch-grad-cam, up to its scale."""

import pytest
import timm
import torch
import torchvision
from small_net import images, randomise

import foveal
from foveal.attention.class_maps.choose import last_map
from foveal.errors import UserError

CLASSES = {"gradcam++": "GradCAMPlusPlus", "layercam": "LayerCAM", "eigencam": "EigenCAM"}


def scaled(maps):
    maps = maps - maps.amin((1, 2), keepdim=True)
    return maps / (maps.amax((1, 2), keepdim=True) + 1e-7)


@pytest.mark.parametrize("kind", CLASSES)
def test_equals_pytorch_grad_cam(kind):
    theirs = pytest.importorskip("pytorch_grad_cam")
    torch.manual_seed(0)
    model, x = randomise(timm.create_model("resnet10t", num_classes=6)).eval(), images(2, (96, 96))
    targets = [theirs.utils.model_targets.ClassifierOutputTarget(c) for c in (1, 5)]
    with getattr(theirs, CLASSES[kind])(model, [model.layer4]) as other:
        other.forward(x, targets)
        kept = other.activations_and_grads
        features, gradients = kept.activations[0].numpy(), kept.gradients[0].numpy() if kept.gradients else None
        expected = torch.as_tensor(other.get_cam_image(x, model.layer4, targets, features, gradients, False))
    maps = foveal.cam(model, x, torch.tensor([1, 5]), kind=kind).detach()
    if kind == "eigencam":  # whose sign is open
        peaks = expected.flatten(1).gather(1, expected.flatten(1).abs().argmax(1, keepdim=True)).sign()
        expected = expected * peaks[..., None]
    torch.testing.assert_close(scaled(maps), scaled(expected.relu().float()), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", CLASSES)
def test_several_classes_and_gradients(kind):
    model, x = timm.create_model("resnet10t", num_classes=6).eval(), images(2, (64, 64))
    both = foveal.cam(model, x, torch.tensor([[1, 5], [2, 0]]), kind=kind)
    assert both.shape == (2, 2, 2, 2)
    torch.testing.assert_close(both[:, 0], foveal.cam(model, x, torch.tensor([1, 2]), kind=kind))
    both.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_an_unknown_kind():
    with pytest.raises(UserError, match=r"did you mean 'layercam'"):
        foveal.cam(timm.create_model("resnet10t"), images(1, (64, 64)), 0, kind="layrcam")


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"at": 4}, "such as at='layer4'; got 4"),
        ({"at": [4]}, "such as at='layer4'; got"),
        ({"score": "logits"}, "score must be a function"),
        ({"target": True}, r"such as torch\.tensor\(\[3, 7\]\)"),
    ],
)
def test_wrong_arguments(options, advice):
    with pytest.raises(UserError, match=advice):
        foveal.cam(timm.create_model("resnet10t"), images(1, (64, 64)), **{"target": 0, **options})


def test_a_module_is_told_its_name():
    model = timm.create_model("resnet10t")
    with pytest.raises(UserError, match=r"at='layer3'; got the module Sequential$"):
        foveal.cam(model, images(1, (64, 64)), 0, at=model.layer3)


def test_the_layer_of_a_detector_is_in_its_backbone():
    """Not one of the heads, on which class scores may not depend."""
    detector = torchvision.models.get_model(
        "fasterrcnn_mobilenet_v3_large_320_fpn", weights_backbone=None, num_classes=3, box_score_thresh=0.0
    ).eval()
    x = torch.rand(1, 3, 64, 64)
    assert last_map(detector, (x,)).startswith("backbone.body.")

    def score(found):
        return torch.stack([torch.stack([f["scores"][f["labels"] == c].sum() for c in range(3)]) for f in found])

    assert foveal.cam(detector, x, torch.tensor([1]), score=score).ndim == 3
    with pytest.raises(UserError, match=r"x is a list; give images as one tensor \(N, C, H, W\)"):
        foveal.cam(detector, list(x), torch.tensor([1]), score=score)
