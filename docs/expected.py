"""What the pages show of results: tables in order, what is left out, and which cells are compared.

Rows, columns and titles of a table come from its recipes (``foveal.recipe.grids``), titles and units of metrics from
``foveal.metric_info``.
"""

from __future__ import annotations

import itertools

TABLES = {  # results/NAME.csv: tables in the order of the page, measured or not
    "hattnet": (
        "hattnet/table1",
        "hattnet/table1-ours",
        "hattnet/baselines",
        "hattnet/soft-rate",
        "hattnet/paper-variants",
    ),
    "aw": ("aw/cifar10", "aw/cifar10-long", "aw/finetune-resnet50", "aw/finetune-lite0", "aw/table1"),
    "detect": ("detect/rate", "aw/table2-lite", "aw/table2", "spatial/detection-lite", "spatial/detection"),
    "icasc": (
        "icasc/confusion",
        "icasc/confusion-ablation",
        "icasc/voc2012",
        "icasc/voc2012-lite",
        "icasc/ablation",
        "icasc/gentle",
        "icasc/voc2012-resnet50",
        "icasc/cub100-lite",
        "icasc/cub200-resnet50",
        "icasc/cifar100",
        "icasc/caltech256",
        "icasc/imagenet",
        "icasc/cub200",
    ),
    "fan-documents": (
        "fan/table6",
        "fan/table6-ours",
        "fan/table6-stripped",
        "fan/table8",
        "fan/controls",
        "fan/ablations",
        "fan/table6-yahoo",
    ),
    "detect-demo": ("demo/detect",),
    "fan-vision": (
        "fan/table1-lite",
        "fan/vcoco-lite",
        "fan/table3-lite",
        "fan/table7-lite",
        "fan/table9-lite",
        "fan/table5-lite",
        "fan/table1",
        "fan/table3",
        "fan/table4",
        "fan/table7",
        "fan/table9",
        "fan/table5",
    ),
    "spatial": (
        "spatial/segmentation",
        "spatial/camvid",
        "spatial/cityscapes-small",
        "spatial/rate",
        "spatial/atlas",
        "spatial/cityscapes",
    ),
    "signals": ("spatial/signals",),
    "translate-demo": ("demo/translate",),
    "translation": ("spatial/translation-lite", "spatial/translation"),
    "zoo": ("zoo/digits",),
}
AGAIN = {  # the model of another row, measured in another way: not in README.md
    "icasc/voc2012-lite/baseline-gradcam",
    "icasc/cub100-lite/baseline-gradcam",
}


def _pairs(metric: str, table: str, first: str, *others: str) -> tuple[tuple[str, str, str], ...]:
    return tuple((metric, f"{table}/{first}", f"{table}/{other}") for other in others)


def _from(metric: str, first: str, table: str, *others: str) -> tuple[tuple[str, str, str], ...]:
    return tuple((metric, first, f"{table}/{other}") for other in others)


UNPAIRED = {"icasc/cub100-lite"}  # runs of the same seed differ as those of others, so they are not pairs
COMPARED = {  # pairs of cells of which the second might be better
    "hattnet": (
        *(
            ("accuracy", f"{table}/{data}-{first}", f"{table}/{data}-{second}")
            for table in ("hattnet/table1", "hattnet/table1-ours")
            for data in ("mref", "mdist", "mbg")
            for first, second in itertools.pairwise(("stn", "soft", "hard", "hattnet", "hattnet-ctx"))
        ),
        *(
            ("accuracy", f"hattnet/table1/{data}-{row.partition('-')[0]}", f"hattnet/baselines/{data}-{row}")
            for data in ("mref", "mdist", "mbg")
            for row in ("soft-adam", "soft-slow", "stn-window", "stn-adam")
        ),
        *(
            ("accuracy", f"hattnet/soft-rate/{data}-rate-2", f"hattnet/soft-rate/{data}-rate-1")
            for data in ("mref", "mbg")
        ),
        *(
            pair
            for data in ("mref", "mdist", "mbg")
            for pair in _from(
                "accuracy",
                f"hattnet/table1/{data}-hattnet-ctx",
                "hattnet/paper-variants",
                *(f"{data}-{row}" for row in ("float32", "last", "patience-150", "decay-60")),
            )
        ),
    ),
    "aw": (
        *(
            pair
            for table in ("aw/cifar10", "aw/cifar10-long")
            for first, others in (
                ("resnet20", ("aw-resnet20", "se-resnet20", "cbam-resnet20")),
                ("se-resnet20", ("aw-se-resnet20",)),
                ("cbam-resnet20", ("aw-cbam-resnet20",)),
            )
            for pair in _pairs("accuracy", table, first, *others)
        ),
        *(
            pair
            for table in ("aw/finetune-resnet50", "aw/finetune-lite0")
            for data, metric in (("voc2012", "label_map"), ("cub200", "accuracy"))
            for pair in _pairs(
                metric,
                table,
                f"{data}-none",
                *(f"{data}-{row}" for row in ("se", "se-paper", "cbam", "cbam-paper", "aw", "aw-paper")),
            )
        ),
    ),
    "icasc": (
        *_pairs("label_map", "icasc/voc2012-lite", "baseline", "gradcam", "ach"),
        *_from(
            "label_map",
            "icasc/voc2012-lite/baseline",
            "icasc/ablation",
            *("separability-last", "separability", "consistency", "order2", "order2-separability-last"),
            *("gradcam-order2", "gradcam-order2-separability-last", "mask-inner", "mask-gradient", "normalise"),
            *("hinge", "frozen-norm", "one-pair", "warmup", "weight-03", "layers-earlier"),
        ),
        ("label_map", "icasc/voc2012-lite/ach", "icasc/ablation/order2"),
        ("label_map", "icasc/voc2012-lite/gradcam", "icasc/ablation/gradcam-order2"),
        *_from(
            "label_map",
            "icasc/voc2012-lite/baseline",
            "icasc/gentle",
            *("true-constant", "sum-constant", "both-constant", "weight-01", "weight-003", "weight-01-both-constant"),
            "gradcam-weight-01",
        ),
        *_pairs(
            "label_map",
            "icasc/gentle",
            "keep-baseline",
            *("keep-ach", "keep-gradcam", "keep-weight-01-both-constant"),
        ),
        *(
            pair
            for metric, table in (("label_map", "icasc/voc2012-resnet50"), ("accuracy", "icasc/cub200-resnet50"))
            for pair in _pairs(metric, table, "baseline", "gradcam", "ach", "ach-weight-01", "gradcam-last-order2")
        ),
        *_pairs("accuracy", "icasc/cub100-lite", "baseline", "gradcam", "ach"),
        *_pairs("top5_accuracy", "icasc/cub100-lite", "baseline", "gradcam", "ach"),
        *_pairs("accuracy", "icasc/confusion", "baseline", "gradcam", "ach", "sharpened"),
        *_from(
            "accuracy",
            "icasc/confusion/baseline",
            "icasc/confusion-ablation",
            *("last-order1", "consistency", "separability", "last-ach", "ach-order2", "gradcam-order2"),
        ),
        ("accuracy", "icasc/confusion-ablation/last-order1", "icasc/confusion/sharpened"),
        ("pointing_game", "icasc/voc2012-lite/baseline", "icasc/voc2012-lite/ach"),
        ("pointing_game", "icasc/voc2012-lite/baseline-gradcam", "icasc/voc2012-lite/gradcam"),
        ("pointing_game", "icasc/confusion/baseline", "icasc/confusion/sharpened"),
    ),
    "spatial": tuple(
        ("mean_iou", f"{table}/none", f"{table}/{row}")
        for table in ("spatial/segmentation", "spatial/camvid")
        for row in ("1111", "1000", "0100", "0010", "0001", "0110", "0011", "deform", "deform-0010", "dynamic")
    ),
    "signals": (
        *_pairs("mean_iou", "spatial/signals", "none", "1111", "deform", "dynamic", "se", "cbam"),
        *_pairs("mean_iou", "spatial/signals", "1111", "0111", "1000", "0100", "0010", "0001"),
    ),
    "translate-demo": _pairs("bleu", "demo/translate", "all", "self-0111", "cross-0111"),
    "translation": tuple(
        pair
        for data in ("multi30k", "tatoeba")
        for pair in _pairs(
            "bleu",
            "spatial/translation-lite",
            f"{data}-1111",
            *(f"{data}-{row}" for row in ("self-0111", "self-1000", "self-0110", "dynamic", "cross-0111")),
        )
        + _pairs("bleu", "spatial/translation-lite", f"{data}-deform-0010", f"{data}-self-0110")
    ),
    "fan-documents": (
        *_pairs("accuracy", "fan/table8", "different-word", "semantic"),
        *(
            pair
            for table in ("fan/table6", "fan/table6-ours", "fan/table6-stripped")
            for first, others in (("hatt", ("fan-mean", "fan-unsup")), ("fan-mean", ("fan-unsup", "fan-sup")))
            for pair in _pairs("accuracy", table, first, *others)
        ),
        *(
            pair
            for table in ("fan/table6", "fan/table6-ours", "fan/table6-stripped")
            for pair in _pairs("accuracy", table, "fan-unsup", "fan-sup")
        ),
        *_from("accuracy", "fan/table6/fan-unsup", "fan/controls", "weight-1", "mixed"),
        *_from(  # mat-focal is fan-sup of fan/table6
            "accuracy", "fan/table6/fan-unsup", "fan/ablations", "row", "mat", "r1", "r3", "r4", "l2", "smooth-l1"
        ),
    ),
}
