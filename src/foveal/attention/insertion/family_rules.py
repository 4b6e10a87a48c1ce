"""Rules for families of networks (timm, torchvision): what their blocks and the ends of blocks are called.

The general rules (:mod:`foveal.attention.insertion.layers`) recognise blocks by their layers and suit residual
networks. A family below has blocks that they do not recognise, or no place at all.
``tests/attention/insertion/families.csv`` has the sites of every family.
"""

from __future__ import annotations

import fnmatch
import re

from torch import nn

LAST = "*"  # the last layer of a block, whatever its name
INVERTED = ("blocks.*.*", ("bn3", "bn2", "pw_proj.bn", "conv_pwl", "pw_proj.conv"))
INCEPTION = (
    "Mixed_*.branch1x1 Mixed_*.branch_pool Mixed_5?.branch5x5_2 Mixed_[56]?.branch3x3dbl_3 Mixed_6a.branch3x3 "
    "Mixed_6?.branch7x7_3 Mixed_6?.branch7x7dbl_5 Mixed_7a.branch3x3_2 Mixed_7a.branch7x7x3_4 "
    "Mixed_7?.branch3x3*_[23][ab]",
    ("bn",),
)
# Family: globs on the names of blocks, and the layer in a block that a gate is put on, the first that there is; names
# in one string belong together. Blocks that end in a concatenation of branches have a gate on each branch.
ENDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "byobnet": ("stages.*.*", ("conv3_1x1.bn", "conv2_kxk.bn", "conv3_1x1.conv")),
    "convmixer": ("blocks.*", ("3",)),
    "convnext": ("stages.*.blocks.*", ("mlp.fc2", "conv_dw")),  # the former is a convolution in some only
    "cpubone": ("stages.*.* stages.*.*.total.1 stages.*.*.total.0.1", ("main.point_conv.norm", "main.3")),
    "csatv2": ("stages.*.*", ("dwconv",)),
    "dpn": ("features.conv?_*", ("c1x1_c.conv", "c1x1_c1 c1x1_c2")),
    "edgenext": ("stages.*.blocks.*", ("conv_dw",)),
    "efficientnet": INVERTED,
    "efficientvit_mit": (
        "stages.*.blocks.*",
        ("main.point_conv.norm", "main.conv2.norm", "local_module.main.point_conv.norm"),
    ),
    "efficientvit_msra": ("stages.*.blocks.*", ("ffn1.m.pw2.bn",)),
    "efficientformer": ("stages.*.blocks.*", ("mlp.norm2",)),
    "fasternet": ("stages.*.blocks.*", ("mlp.3",)),
    "fastvit": ("stages.*.blocks.*", ("mlp.fc2",)),
    "focalnet": ("layers.*.blocks.*", ("mlp.fc2",)),
    "ghostnet": ("blocks.*.*.ghost2.primary_conv blocks.*.*.ghost2.cheap_operation", (LAST,)),
    "hardcorenas": INVERTED,
    "hgnet": ("stages.*.blocks.*", ("aggregation.1.bn", "aggregation.0.bn")),
    "iformer": ("stages.*.blocks.*", ("mixer.module.3.bn", "mixer.module.2.bn", "mixer.module.proj.bn")),
    "inception_resnet_v2": ("repeat*.* block8", ("conv2d",)),
    "inception_v3": INCEPTION,
    "inception_v4": (
        "features.[6-9].branch? features.1?.branch? features.2?.branch[03] features.*.branch?_?[ab]",
        (LAST,),
    ),
    "inception_next": ("stages.*.blocks.*", ("mlp.fc2",)),
    "lcnetv2": ("stages.*.*.pw_conv", (LAST,)),
    "lowformer": ("stages.*.*", ("main.point_conv.norm", "local.main.point_conv.norm")),
    "mambaout": ("stages.*.blocks.*", ("conv",)),
    "maxxvit": ("stages.*.blocks.* stages.*.blocks.*.conv stages.*.blocks.*.conv.*", ("conv3_1x1", "mlp.fc2")),
    "metaformer": ("stages.*.blocks.*", ("mlp.fc2", "token_mixer.dwconv")),
    "mobilenetv3": INVERTED,
    "mobilenetv5": INVERTED,
    "nfnet": ("stages.*.*", ("conv3",)),
    "pvt_v2": ("stages.*.blocks.*", ("mlp.dwconv",)),
    "rdnet": ("dense_stages.*.*.dense_block*", ("layers.layers.4",)),
    "repghost": ("blocks.*.*", ("ghost2.cheap_operation.1", "ghost2.cheap_operation")),
    "repvit": ("stages.*.blocks.*", ("channel_mixer.conv2.bn", "channel_mixer.conv2")),
    "resnet": ("layer[1-4].*", ("bn3", "conv3.bn", "bn2", "conv2.bn")),
    "rexnet": ("features.*", ("conv_pwl.bn",)),
    "selecsls": ("features.*", ("conv6.1",)),
    "senet": ("layer[1-4].*", ("bn3", "bn2")),
    "shvit": ("stages.*.blocks.*", ("ffn.m.pw2.bn",)),
    "visformer": ("stage[1-3].*", ("mlp.conv3",)),
    "vitamin": ("patch_embed.backbone.stages.*.*", ("conv3_1x1",)),
    "vovnet": ("stages.*.blocks.*", ("conv_concat.bn",)),
    "xception": ("block*.rep", (LAST,)),
    "xception_aligned": ("blocks.*.stack", (LAST,)),
    "torchvision.convnext": ("features.[1357].*", ("block.0",)),
    "torchvision.efficientnet": ("features.*.*.block", (LAST,)),
    "torchvision.googlenet": ("inception??.branch?", ("1.bn", "bn")),
    "torchvision.inception": INCEPTION,
    "torchvision.mobilenetv2": ("features.*.conv", (LAST,)),
    "torchvision.mobilenetv3": ("*.block *.*.block", (LAST,)),  # also without ``features``, as a backbone
    "torchvision.squeezenet": ("features.*", ("expand1x1 expand3x3",)),
}
BLOCKS = {  # of mechanisms that go inside blocks, where the general rule does not find these
    "byobnet": "stages.*.*",
    "csatv2": "stages.*.*",
    "cspnet": "stages.*.blocks.*",
    "fasternet": "stages.*.blocks.*",
    "fastvit": "stages.*.blocks.*",
    "rdnet": "dense_stages.*.*.dense_block*",
    "xception": "block*",
    "xception_aligned": "blocks.*",
}
CELLS = ("nasnet", "pnasnet")  # a cell joins sums of layers: no layer is its end
BRANCHES = {  # blocks join or sum parallel branches: names of layers that tell
    "efficientnet": "blocks.*.*.conv_dw.1",  # MixNet
    "ghostnet": "*",
    "inception_v3": "*",
    "inception_v4": "*",
    "nasnet": "*",
    "pnasnet": "*",
    "repghost": "*",
    "torchvision.googlenet": "*",
    "torchvision.inception": "*",
}
UNFUSED = {  # layers that are there until branches are fused
    "byobnet": "stages.*.*.conv_1x1.bn stages.*.*.conv_kxk.0",  # RepVGG, MobileOne
    "ghostnet": "blocks.*.*.ghost2.primary_rpr_conv",  # v3
    "lcnetv2": "stages.*.*.dw_conv_list",
    "repvit": "stages.*.blocks.*.token_mixer.conv1",
}
FUSED_ENDS = ("lcnetv2", "repvit")  # only the spatial convolutions are branched
TOKENS = re.compile(
    "beit|cait|coat|convit|crossvit|davit|deepseek_vit|deit|eva|gcvit|gemma4_vit|hiera|hieradet_sam2|levit|mlp_mixer|"
    "mvitv2|naflexvit|nest|pit|qwen3_vit|sequencer|(torchvision.)?swin_transformer(_v2|_v2_cr)?|tiny_vit|tnt|"
    "twins|(torchvision.)?vision_transformer(_relpos|_sam)?|volo|xcit"
)
BETWEEN = re.compile(  # what is no part of a block
    r"(^|\.)(stem\w*|downsample|conv_down|patch_embed\w*|pos_emb(e?d)?|cpe|aux\d|AuxLogits|pre_logits|conv_head|[Cc]onv2d_\d\w*|"
    r"transition\d|fuse_layers|downsamp_modules|final_layer|shortcut|"
    r"attn|q|k|v|key|query|value|sr|short_conv|talking_head\d)(\.|$)"  # in attention of the network's own
)
DOWN = {  # what else is no part of a block: stems, and what reduces the resolution, where the name does not tell
    "csatv2": "stages.*.0",
    "edgenext": "stages.*.blocks.*.convs.*",  # on some of the channels
    "inception_v4": "features.[0-5].* features.[0-5].*.* features.[0-5].*.*.*",
    "rdnet": "dense_stages.*.1",
    "resnet": "conv1.*",
    "selecsls": "head.*.*",
    "starnet": "stages.*.0.conv",
    "vitamin": "patch_embed.backbone.pool.proj",
    "torchvision.convnext": "features.[0246].*",
    "torchvision.googlenet": "conv?.conv",
}
COMPOSED = ("torchvision.detection", "torchvision.segmentation")  # networks with a backbone and heads
BACKBONES = ("backbone.body", "backbone.features", "backbone")  # of these: the rest is not what was pretrained


def family_of(model: nn.Module) -> str:
    """The file of timm or torchvision that defines the network; empty for others.

    >>> import timm
    >>> family_of(timm.create_model("resnet10t"))
    'resnet'
    """
    # A hybrid is of the family of its convolutions, a backbone cut out of a network of that of its first block.
    model = getattr(getattr(model, "patch_embed", None), "backbone", model)
    for module in model.modules():
        for cls in type(module).__mro__:
            if match := re.match(r"(timm|torchvision)\.models\.(?:quantization\.)?(?!_utils)([\w.]+)", cls.__module__):
                return match[2] if match[1] == "timm" else f"torchvision.{match[2]}"
        if type(module).__module__.partition(".")[0] not in ("timm", "torchvision", "torch"):
            break  # a network of someone's own
    return ""


def matches(name: str, globs: str) -> bool:
    """Whether a name matches one of several globs, in which ``*`` stands for one part; ``*`` alone for any name.

    >>> matches("stages.0.1", "stages.*.* layer?"), matches("stages.0.1.conv", "stages.*.*")
    (True, False)
    """
    return globs == "*" or any(
        name.count(".") == glob.count(".") and fnmatch.fnmatchcase(name, glob) for glob in globs.split()
    )


def between(name: str, family: str) -> bool:
    """Whether a layer is no part of a block."""
    named = BETWEEN.search(name.removeprefix("patch_embed.backbone.")) is not None
    return bool(family) and (named or matches(name, DOWN.get(family, "")))
