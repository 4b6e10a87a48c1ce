"""Which tables are to be measured, how their metrics are called, and which recipes are compared."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Expected:
    """A table that is to be measured: what it is, and its metrics, rows and columns in order.

    Times of steps are not shown where runs had very different company on their GPU. A model that is there ``again`` is
    another one measured in another way: its scores are shown on the paper's page alone.
    """

    about: str
    metrics: tuple[str, ...]
    models: tuple[str, ...]
    datasets: tuple[str, ...]
    timed: bool = True
    again: tuple[str, ...] = ()

    @property
    def once(self) -> tuple[str, ...]:
        """Each model once."""
        return tuple(model for model in self.models if model not in self.again)


_HATTNET = (
    ("accuracy", "true_positive_strength", "true_positive_strength_last", "true_positive_strength_resized"),
    ("STN", "SOFT", "HARD", "HAttNet", "HAttNet-CTX"),
    ("MREF", "MDIST", "MBG"),
)
_RESNETS = tuple(
    f"{before}ResNet{depth}{after}"
    for depth in (50, 101)
    for before, after in (
        ("", ""),
        ("AW-", ""),
        ("SE-", ""),
        ("AW-SE-", ""),
        ("AW-CBAM-", " (MaxPool)"),
        ("AW-CBAM-", " (Spatial)"),
    )
)
_MOBILENETS = ("MobileNet", "SE-MobileNet", "AW-SE-MobileNet", "CBAM-MobileNet", "AW-CBAM-MobileNet (Spatial)")
_SMALL = tuple(f"{before}ResNet-20" for before in ("", "AW-", "SE-", "AW-SE-", "CBAM-", "AW-CBAM-"))
_TOP = ("accuracy", "top5_accuracy")
_FAN = (("accuracy", "center_mass"), ("Hatt", "FAN-hatt-unsup", "FAN-hatt-sup"))
_TARGETS = ("different word", "same category", "different category", "semantic")
_LOSSES = ("row", "mat (r = 0)", "r = 1", "mat-focal (r = 2)", "r = 3", "r = 4", "L2", "smooth L1")

_VARIED = (
    "Grad-CAM, second order",
    "A_ch, second order",
    "L_AS",
    "L_AC",
    "sharpened, first order",
    "sharpened, maps as they are",
    "sharpened, A_ch",
    "sharpened, both layers",
)
_MAP = ("mean_average_precision",)
_SHARPENED = (
    "L_AS of the last layer",
    "L_AS of both layers",
    "L_AC",
    "both, second order",
    "L_AS of the last layer, second order",
    "Grad-CAM, second order",
    "Grad-CAM, L_AS of the last layer, second order",
    "mask of the inner layer",
    "gradients through the mask",
    "maps divided by their maxima",
    "no reward beyond θ",
    "frozen batch norm",
    "one pair an image",
    "after five epochs",
    "weights of 0.3",
    "layers a stage earlier",
)


def _rows(*networks: str) -> tuple[str, ...]:
    return tuple(f"{network}{more}" for network in networks for more in ("", " + ICASC Grad-CAM", " + ICASC A_ch"))


_AGAIN = "Lite0, measured by Grad-CAM"
_LITE = ("Lite0", _AGAIN, *_rows("Lite0")[1:])
TABLES = {  # the tables that are expected, whatever the file holds
    "hattnet": {
        "hattnet/table1": Expected("the authors' data sizes, optimiser and schedule", *_HATTNET),
        "hattnet/table1-ours": Expected("the same networks with more data and our schedule", *_HATTNET),
    },
    "aw": {
        "aw/cifar10": Expected(
            "one small network and schedule, every mechanism", _TOP[:1], _SMALL, ("CIFAR-10",), timed=False
        ),
        "aw/table1": Expected("the paper's table", _TOP, _RESNETS + _MOBILENETS, ("ImageNet",)),
    },
    "icasc": {
        "icasc/confusion": Expected(
            "a generated set on which classes are confused",
            _TOP[:1],
            ("baseline", "ICASC Grad-CAM", "ICASC A_ch", "sharpened"),
            ("two objects",),
            timed=False,
        ),
        "icasc/confusion-ablation": Expected(
            "the same set; Grad-CAM and all losses in first order unless said",
            _TOP[:1],
            _VARIED,
            ("two objects",),
            timed=False,
        ),
        "icasc/voc2012": Expected("the supplement's settings", _MAP, _rows("ResNet-18"), ("VOC 2012",)),
        "icasc/voc2012-lite": Expected(
            "a small pretrained network", _MAP, _LITE, ("VOC 2012",), timed=False, again=(_AGAIN,)
        ),
        "icasc/ablation": Expected(
            "VOC 2012, the small network, A_ch unless said", _MAP, _SHARPENED, ("VOC 2012",), timed=False
        ),
        "icasc/cub100-lite": Expected(
            "a small pretrained network", _TOP[:1], _LITE, ("CUB-100",), timed=False, again=(_AGAIN,)
        ),
        "icasc/cifar100": Expected("the supplement's settings", _TOP[:1], _rows("ResNet-110"), ("CIFAR-100",)),
        "icasc/caltech256": Expected(
            "the supplement's settings", _TOP[:1], _rows("ResNet-18", "VGG-19"), ("Caltech-256",)
        ),
        "icasc/imagenet": Expected("the supplement's settings", _TOP[:1], _rows("ResNet-18"), ("ImageNet",)),
        "icasc/cub200": Expected(
            "the supplement's settings", _TOP[:1], _rows("ResNet-50", "ResNet-101"), ("CUB-200-2011",)
        ),
    },
    "fan-documents": {
        "fan/table6": Expected("the paper's optimiser and schedule", *_FAN, ("20 News",)),
        "fan/table6-ours": Expected("the same networks, trained better", *_FAN, ("20 News",)),
        "fan/table6-stripped": Expected("messages without headers, footers and quotes", *_FAN, ("20 News",)),
        "fan/table8": Expected("what attention is drawn to", _FAN[0], _TARGETS, ("20 News",)),
        "fan/ablations": Expected("how it is drawn there", _FAN[0], _LOSSES, ("20 News",)),
        "fan/table6-yahoo": Expected("Yahoo Answers", *_FAN, ("Yahoo-mini", "Yahoo-half")),
    },
}
METRICS = {
    "accuracy": "Accuracy",
    "top5_accuracy": "Top-5 accuracy",
    "mean_average_precision": "Mean average precision",
    "center_mass": "Center-mass",
    "overlap_inner": "Overlap, inner layer",
    "overlap_last": "Overlap, last layer",
    "inner_in_last": "Inner in last",
    "pointing_game": "Pointing game",
    "energy_in_box": "Energy in box",
    "true_positive_strength": "True-positive strength, product of all gates",
    "true_positive_strength_last": "True-positive strength, last gate alone",
    "true_positive_strength_resized": "True-positive strength, product of gates stretched over the image",
}
COMPARED = {  # pairs of recipes of which the second might be better
    "aw": tuple(
        ("accuracy", f"aw/cifar10-{first}resnet20", f"aw/cifar10-{second}resnet20")
        for first, second in (("", "aw-"), ("", "se-"), ("", "cbam-"), ("se-", "aw-se-"), ("cbam-", "aw-cbam-"))
    ),
    "icasc": tuple(
        (metric, f"{recipe}-baseline", f"{recipe}-{other}")
        for metric, recipe, others in (
            ("mean_average_precision", "icasc/voc2012-lite", ("gradcam", "ach")),
            ("accuracy", "icasc/cub100-lite", ("gradcam", "ach")),
            ("accuracy", "demo/confusion", ("gradcam", "ach", "sharpened")),
        )
        for other in others
    )
    + tuple(
        ("accuracy", "demo/confusion-baseline", f"icasc/confusion-{other}")
        for other in ("last-order1", "consistency", "separability", "last-ach", "ach-order2", "gradcam-order2")
    )
    + (
        ("accuracy", "icasc/confusion-last-order1", "demo/confusion-sharpened"),
        ("mean_average_precision", "icasc/voc2012-lite-ach", "icasc/ablation-order2"),
        ("mean_average_precision", "icasc/voc2012-lite-gradcam", "icasc/ablation-gradcam-order2"),
        ("mean_average_precision", "icasc/voc2012-lite-baseline", "icasc/ablation-gradcam-order2-separability-last"),
        ("pointing_game", "icasc/voc2012-lite-baseline", "icasc/voc2012-lite-ach"),
        ("pointing_game", "icasc/voc2012-lite-baseline-gradcam", "icasc/voc2012-lite-gradcam"),
        ("pointing_game", "demo/confusion-baseline", "demo/confusion-sharpened"),
    ),
    "fan-documents": (
        ("accuracy", "fan/news-hatt", "fan/news-fan-unsup"),
        ("accuracy", "fan/news-fan-unsup", "fan/news-fan-sup"),
        ("accuracy", "fan/news-hatt", "fan/news-fan-sup"),
        ("accuracy", "fan/news-target-different-word", "fan/news-target-semantic"),
        ("accuracy", "fan/news-hatt-ours", "fan/news-fan-unsup-ours"),
        ("accuracy", "fan/news-fan-unsup-ours", "fan/news-fan-sup-ours"),
        ("accuracy", "fan/news-hatt-stripped", "fan/news-fan-unsup-stripped"),
        ("accuracy", "fan/news-fan-unsup-stripped", "fan/news-fan-sup-stripped"),
    ),
}
