"""Segmentation: any backbone of timm with dilated stages, a reduction, a classifier and an auxiliary head.

The base of CCNet (Huang et al., https://arxiv.org/abs/1811.11721), which "An Empirical Study of Spatial Attention
Mechanisms" (Zhu et al., https://arxiv.org/abs/1904.05873) puts its attention into: ResNet-50 with output stride 8, a
3×3 convolution to 512 channels, and an auxiliary head on conv4. Logits are resized bilinearly to the image's size.

The output is a dict with ``out`` and, in training, ``aux``, as that of torchvision's segmentation networks. Attention
is inserted into the backbone (``model.insert`` of a recipe without ``at``), whose layers are called ``backbone.…``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import timm
import torch.nn.functional as F
from torch import Tensor, nn

from foveal.errors import UserError, unknown
from foveal.models.registry import register
from foveal.models.weights import fit_problems, read_weights

DILATED = 8  # output stride of a backbone that can have one


class Segmenter(nn.Module):
    """A class for every pixel.

    Args:
        backbone: a model of timm that has ``features_only``.
        num_classes: number of classes, K.
        width: channels after the reduction.
        output_stride: of the backbone's last map, for those that can be dilated; None for 8 where that is possible and
            the backbone's own otherwise.
        features: which of timm's feature maps go into the auxiliary head and into the reduction; -1 is the last.
        auxiliary: whether there is an auxiliary head in training.
        dropout: before the classifiers.
        caffe: the stride of a stage is in its first 1×1 convolution rather than in the 3×3, as in weights from Caffe
            and Keras.
        options: further arguments of the backbone, such as ``layers``.
        pretrained: start from the backbone's weights that timm downloads.
        checkpoint: weights of a classifier, or of another segmenter, for the backbone; see :meth:`load_backbone`.

    >>> import torch
    >>> model = Segmenter("resnet18", num_classes=5, width=16).eval()
    >>> model(torch.zeros(1, 3, 33, 65))["out"].shape
    torch.Size([1, 5, 33, 65])
    """

    def __init__(
        self,
        backbone: str = "resnet50",
        *,
        num_classes: int = 21,
        width: int = 512,
        output_stride: int | None = None,
        features: tuple[int, int] = (-2, -1),
        auxiliary: bool = True,
        dropout: float = 0.1,
        caffe: bool = False,
        options: dict[str, Any] | None = None,
        pretrained: bool = False,
        checkpoint: str | Path | Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.name = backbone
        self.backbone = build_backbone(backbone, output_stride, features, {**(options or {}), "pretrained": pretrained})
        if caffe:
            stride_first(self.backbone, backbone)
        if checkpoint is not None:
            self.load_backbone(checkpoint)
        self.channels_last = getattr(self.backbone, "output_fmt", "NCHW") == "NHWC"  # as those of Swin
        inner, last = cast(Any, self.backbone).feature_info.channels()
        self.head = _head(last, width, num_classes, dropout)
        self.auxiliary = _head(inner, width, num_classes, dropout) if auxiliary else None

    def load_backbone(self, checkpoint: str | Path | Mapping[str, Any]) -> None:
        """Load the weights of a classifier, or of another segmenter, into the backbone; other layers are ignored.

        Args:
            checkpoint: as in :func:`~foveal.models.weights.read_weights`, with timm's names.
        """
        weights = read_weights(checkpoint)
        # timm joins some names of nested layers with "_" when it takes a network apart into its feature maps.
        joined = {_joined(name): name for name in weights}
        expected = {n: v for n, v in self.backbone.state_dict().items() if not n.endswith("num_batches_tracked")}
        chosen = {name: weights[joined[_joined(name)]] for name in expected if _joined(name) in joined}
        if problems := fit_problems(expected, chosen):
            source = checkpoint if isinstance(checkpoint, str | Path) else "the state dict"
            raise UserError(f"{source} does not hold weights of timm's {self.name}: {'; '.join(problems)}")
        self.backbone.load_state_dict(chosen, strict=False)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Logits of every pixel.

        Args:
            images: (N, 3, H, W), normalised as the backbone's weights ask for; any size.

        Returns:
            ``out`` and, in training mode with an auxiliary head, ``aux``: float32 (N, K, H, W) each.
        """
        inner, last = self.backbone(images)
        if self.channels_last:
            inner, last = inner.permute(0, 3, 1, 2), last.permute(0, 3, 1, 2)
        size = images.shape[-2:]
        logits = {"out": _enlarged(self.head(last), size)}
        if self.training and self.auxiliary is not None:
            logits["aux"] = _enlarged(self.auxiliary(inner), size)
        return logits


def build_backbone(
    name: str, output_stride: int | None, features: tuple[int, int], options: Mapping[str, Any]
) -> nn.Module:
    """A network of timm that puts out two of its feature maps; its output stride is 8 where None is asked for."""
    if not timm.is_model(name):
        raise unknown("backbone of timm", name, timm.list_models())
    arguments = {"features_only": True, "out_indices": tuple(features), **options}
    wanted = DILATED if output_stride is None else output_stride
    try:
        backbone = timm.create_model(name, output_stride=wanted, **arguments)
    except (TypeError, AssertionError, NotImplementedError) as error:
        if output_stride is not None:
            raise UserError(
                f"model.output_stride={output_stride}: the backbone {name} cannot be dilated; leave it out"
            ) from error
        backbone = _undilated(name, arguments)
    except (RuntimeError, ValueError, IndexError) as error:
        raise _no_features(name, error) from error
    strides = cast(Any, backbone).feature_info.reduction()
    if output_stride is not None and strides[-1] != output_stride:
        raise UserError(
            f"model.output_stride={output_stride}: the last map of {name} has stride {strides[-1]}; leave it out, or "
            "use a backbone that can be dilated, such as resnet50"
        )
    return backbone


def _undilated(name: str, arguments: Mapping[str, Any]) -> nn.Module:
    try:
        return timm.create_model(name, **arguments)
    except (TypeError, AssertionError, NotImplementedError, RuntimeError, ValueError, IndexError) as error:
        raise _no_features(name, error) from error


def _no_features(name: str, error: Exception) -> UserError:
    reason = " ".join(str(error).split())
    return UserError(f"model.backbone={name} cannot return feature maps ({reason}); use another one, such as resnet50")


def stride_first(model: nn.Module, name: str) -> None:
    """Move the strides of bottleneck blocks from the 3×3 convolution to the 1×1 before it, in place."""
    names = ("conv1", "conv2", "conv3")
    candidates: list[list[Any]] = [[getattr(module, conv, None) for conv in names] for module in model.modules()]
    blocks = [convs for convs in candidates if all(isinstance(conv, nn.Conv2d) for conv in convs)]
    if not blocks:
        raise UserError(f"model.caffe=true is for ResNets with bottleneck blocks, such as resnet50, not for {name}")
    for first, second, _ in blocks:
        if second.stride != (1, 1):
            first.stride, second.stride = second.stride, (1, 1)


def _head(channels: int, width: int, classes: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.Dropout2d(dropout),
        nn.Conv2d(width, classes, 1),
    )


def _enlarged(logits: Tensor, size: tuple[int, ...]) -> Tensor:
    return F.interpolate(logits.float(), size, mode="bilinear", align_corners=False)


def _joined(name: str) -> str:
    return name.removeprefix("model.").removeprefix("backbone.").replace(".", "_")


@register(Segmenter)
def segmenter(**options: Any) -> nn.Module:
    """A class for every pixel: a backbone of timm, dilated where it can be, a reduction and an auxiliary head."""
    return Segmenter(**options)
