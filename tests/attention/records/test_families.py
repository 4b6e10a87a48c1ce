"""Models of timm, torchvision and Hugging Face, small and with random weights: a record a layer, results unchanged."""

import warnings

import pytest
import timm
import torch
import torchvision
from timm.layers import set_fused_attn

import foveal
from foveal.supervise import center_mass_loss

TINY = {"num_classes": 3, "pretrained": False}
ViT = {"img_size": 32, "embed_dim": 24, "depth": 2, "num_heads": 2}
FAMILIES = [  # name, options, side of the images, sites, shape of the first record for two images
    ("vit_tiny_patch16_224", ViT | {"patch_size": 8}, 32, 2, (2, 2, 17, 17)),
    ("deit_tiny_distilled_patch16_224", ViT | {"patch_size": 8}, 32, 2, (2, 2, 18, 18)),
    ("beit_base_patch16_224", ViT | {"patch_size": 8}, 32, 2, (2, 2, 17, 17)),
    ("eva02_tiny_patch14_224", ViT | {"patch_size": 8}, 32, 2, (2, 2, 17, 17)),
    ("cait_xxs24_224", ViT | {"patch_size": 8}, 32, 4, (2, 2, 16, 16)),
    ("convit_tiny", ViT | {"patch_size": 8, "local_up_to_layer": 1}, 32, 2, (2, 2, 16, 16)),
    ("pvt_v2_b0", {"depths": (1, 1, 1, 1), "embed_dims": (8, 16, 40, 64)}, 64, 4, (2, 1, 256, 4)),
    ("mobilevit_xxs", {}, 64, 9, (8, 4, 16, 16)),
    ("maxvit_rmlp_pico_rw_256", {"img_size": 64, "embed_dim": (32,), "depths": (1,), "stem_width": 8}, 64, 2, None),
    ("swin_tiny_patch4_window7_224", {"img_size": 28, "embed_dim": 12, "depths": (2,), "num_heads": (2,)}, 28, 2, None),
    ("levit_128s", {"img_size": 64}, 64, 11, (2, 4, 16, 16)),
]


@pytest.fixture
def seed():
    torch.manual_seed(0)


def small(name, options):
    return timm.create_model(name, **TINY, **options).eval()


@pytest.mark.usefixtures("seed")
@pytest.mark.parametrize(("name", "options", "side", "sites", "shape"), FAMILIES, ids=[f[0] for f in FAMILIES])
def test_models_of_timm(name, options, side, sites, shape):
    model, x = small(name, options), torch.rand(2, 3, side, side)
    expected = model(x)
    with foveal.watch(model) as seen:
        out = model(x)
    assert torch.equal(out, expected)
    assert len(seen) == sites
    names = dict(model.named_modules())
    for site, record in seen.items():
        assert site in names
        assert record.kind == "pairwise"
        if record.normalised:
            torch.testing.assert_close(record.values.sum(-1), torch.ones(record.shape[:-1]), atol=1e-4, rtol=0)
    first = next(iter(seen.values()))
    assert shape is None or tuple(first.shape) == shape
    (first.rows([1])[..., :2].sum()).backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


@pytest.mark.usefixtures("seed")
@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("coat_lite_tiny", {"img_size": 32}, "softmax is over dimension 2"),
        ("edgenext_xx_small", {}, "between channels"),
    ],
)
def test_models_without_attention_between_tokens(name, options, reason):
    model = small(name, options)
    with pytest.warns(UserWarning, match=reason), foveal.watch(model) as seen:
        model(torch.rand(1, 3, 32, 32))
    assert not seen


@pytest.mark.usefixtures("seed")
def test_xcit_has_attention_between_tokens_in_its_class_blocks_only():
    model = small("xcit_nano_12_p16_224", {"img_size": 64, "depth": 2})
    with foveal.watch(model) as seen:
        model(torch.rand(2, 3, 64, 64))
    assert list(seen) == ["cls_attn_blocks.0.attn", "cls_attn_blocks.1.attn"]
    with pytest.raises(KeyError, match="between channels"):
        seen["blocks.0.attn"]


@pytest.mark.usefixtures("seed")
@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "eva02_tiny_patch14_224"])
def test_timm_without_fused_attention(name):
    options, x = ViT | {"patch_size": 8}, torch.rand(2, 3, 32, 32)
    fused = small(name, options)
    set_fused_attn(False)
    try:
        plain = small(name, options)
    finally:
        set_fused_attn(True)
    plain.load_state_dict(fused.state_dict())
    target = torch.rand(17, 17) > 0.5
    results = []
    for model in (fused, plain):
        with foveal.watch(model) as seen:
            model(x)
        record = seen["blocks.1.attn"]
        loss = center_mass_loss(record, target)
        results.append((record.values, loss, *torch.autograd.grad(loss, list(model.blocks[0].parameters()))))
        assert type(record.noted).__name__ == ("DotProduct" if model is fused else "LogitMatrix")
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


@pytest.mark.usefixtures("seed")
def test_models_of_torchvision():
    vit = torchvision.models.VisionTransformer(32, 8, 2, 2, 8, 16, num_classes=3).eval()
    swin = torchvision.models.SwinTransformer([2, 2], 8, [2], [2], [4, 4], num_classes=3).eval()
    x = torch.rand(2, 3, 32, 32)
    for model, first, shape in (
        (vit, "encoder.layers.encoder_layer_0.self_attention", (2, 2, 17, 17)),
        (swin, "features.1.0.attn", (32, 2, 16, 16)),  # 16 windows of each image
    ):
        expected = model(x)
        with foveal.watch(model) as seen:
            torch.testing.assert_close(model(x), expected)
        assert len(seen) == 2
        assert tuple(seen[first].shape) == shape


# Hugging Face -----------------------------------------------------------------------------------------------------

SIZES = {"vocab_size": 50, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
LLAMA = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 32}
MODELS = [
    ("DistilBert", {"n_layers": 2, "n_heads": 2, "dim": 16, "hidden_dim": 32}, "transformer.layer.{}.attention"),
    ("GPT2", {"n_layer": 2, "n_head": 2, "n_embd": 16}, "h.{}.attn"),
    ("Llama", LLAMA | {"hidden_size": 16}, "layers.{}.self_attn"),
    (
        "T5",
        {"num_layers": 2, "num_heads": 2, "d_model": 16, "d_kv": 8, "d_ff": 32},
        "encoder.block.{}.layer.0.SelfAttention",
    ),
]


@pytest.mark.usefixtures("seed")
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("name", "options", "site"), MODELS, ids=[m[0] for m in MODELS])
def test_models_of_hugging_face(name, options, site, masked):
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{name}Config")(**SIZES, **options)
    model = getattr(transformers, f"{name}Model")(config).eval()
    words = {"input_ids": torch.randint(3, 50, (2, 7))}
    if masked:
        words["attention_mask"] = torch.tensor([[1] * 7, [1] * 5 + [0] * 2])
    if name == "T5":
        words["decoder_input_ids"] = torch.randint(3, 50, (2, 4))
    model.set_attn_implementation("eager")
    with foveal.watch(model) as eager:
        output = model(**words, output_attentions=True)
    expected = output["encoder_attentions" if name == "T5" else "attentions"]
    model.set_attn_implementation("sdpa")
    plain = model(**words)[0]
    with foveal.watch(model) as seen:
        assert torch.equal(model(**words)[0], plain)
    assert list(seen) == list(eager)
    assert len(seen) == (6 if name == "T5" else 2)  # T5: two layers, each encoder, decoder and cross attention
    for i, weights in enumerate(expected):
        torch.testing.assert_close(seen[site.format(i)].values, weights, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(eager[site.format(i)].values, weights)
    if name == "T5":
        assert tuple(seen["decoder.block.1.layer.1.EncDecAttention"].shape) == (2, 2, 4, 7)


def test_a_convolutional_network_says_so():
    model = small("resnet18", {})
    with pytest.warns(UserWarning, match="nothing to watch: ResNet"), foveal.watch(model):
        model(torch.rand(1, 3, 32, 32))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        foveal.insert(model, "se", at="layer4.*.bn2")
        with foveal.watch(model) as seen:
            model(torch.rand(1, 3, 32, 32))
    assert {record.kind for record in seen.values()} == {"channel"}
