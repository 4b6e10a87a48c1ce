"""A translator beside ``torch.nn.Transformer`` in training, and its search beside Hugging Face's.

    foveal bench translate                      # this machine
    python benchmarks/translate.py --csv results/bench-translate.csv

Training: forward, loss and backward of one batch, tokens a second on the target side, with padding at the end of half
of the sentences. All have the same size (Transformer base), dropout and one embedding for source, target and output;
all are timed in turns in one run. On a GPU: bf16 autocast, eager and compiled.

Decoding: 60 tokens of 64 sentences with 4 beams, seconds of all. ``cached`` is foveal's search, ``without cache`` the
same with everything computed anew for each token, ``Hugging Face`` a Marian model of the same size with random weights
and ``generate``, if the library is installed. On a GPU: weights in bf16. On a CPU everything is tiny and float32.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foveal.bench import cleared, clock_beside, hardware, stopwatch, write_rows
from foveal.models.beam_search import BEGIN, END, PAD, beam_search
from foveal.models.transformer import Transformer

DROPOUT = {"dropout": 0.1, "attention_dropout": 0.1}  # torch.nn.Transformer drops weights of attention too
BASE = {"channels": 512, "layers": 6, "heads": 8, "hidden": 2048, **DROPOUT}
TINY = {"channels": 32, "layers": 2, "heads": 2, "hidden": 64, **DROPOUT}
ABSOLUTE = {"encoder": "1000", "decoder": "1000", "cross": "1000", "positions": "absolute"}
FORMS = {
    "plain": ABSOLUTE,
    "1111": {},
    "self 0111": {"encoder": "0111", "decoder": "0111"},
    "self 0110": {"encoder": "0110", "decoder": "0110"},
    "dynamic": {"encoder": "dynamic", "decoder": "dynamic"},
    "deformable + 1111": {"deform": True},
}


class Theirs(nn.Module):
    """``torch.nn.Transformer`` with what it leaves to its user: embedding, positions, masks and output."""

    def __init__(self, subwords: int, size: dict[str, Any]) -> None:
        super().__init__()
        self.helper = Transformer(subwords, **{**size, "layers": 1}, **ABSOLUTE)  # its embedding and positions
        self.helper.encoder = self.helper.decoder = nn.ModuleList()
        layers = size["layers"]
        self.transformer = nn.Transformer(
            size["channels"], size["heads"], layers, layers, size["hidden"], size["dropout"], batch_first=True
        )

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits of the token after each one of ``target``."""
        hidden = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device)
        padding = source == PAD
        out = self.transformer(
            self.helper.embed(source),
            self.helper.embed(target),
            tgt_mask=hidden,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return self.helper.logits(out)


def sentences(count: int, length: int, subwords: int, device: torch.device) -> Tensor:
    """Random sentences with their end; half of them are shorter and padded."""
    tokens = torch.randint(END + 1, subwords, (count, length), device=device)
    tokens[:, -1] = END
    short = length * 3 // 4
    tokens[::2, short], tokens[::2, short + 1 :] = END, PAD
    return tokens


def step(model: Callable[[Tensor, Tensor], Tensor], parameters: list[Tensor], source: Tensor, target: Tensor) -> None:
    """Forward, loss and backward."""
    gpu = source.is_cuda
    with torch.autocast("cuda", torch.bfloat16) if gpu else nullcontext():
        logits = model(source, target[:, :-1])
    loss = F.cross_entropy(logits.float().flatten(0, 1), target[:, 1:].flatten(), ignore_index=PAD, label_smoothing=0.1)
    torch.autograd.grad(loss, parameters)


def training(options: argparse.Namespace, device: torch.device) -> Iterator[dict[str, object]]:
    """Tokens a second of each form, eager and compiled."""
    gpu = device.type == "cuda"
    size, subwords, count = (BASE, 32_000, options.batch) if gpu else (TINY, 500, 8)
    source = sentences(count, options.length, subwords, device)
    target = torch.cat([torch.full_like(source[:, :1], BEGIN), sentences(count, options.length, subwords, device)], 1)
    models: dict[str, nn.Module] = {"torch.nn.Transformer": Theirs(subwords, size)}
    models |= {form: Transformer(subwords, **size, **changes) for form, changes in FORMS.items()}
    for compiled in (False, True) if gpu and not options.eager else (False,):
        runs: dict[str, Callable[[], None]] = {}
        for form, model in models.items():
            model.to(device).train()
            call = torch.compile(model) if compiled else model
            leaves = [p for p in model.parameters() if p.requires_grad]
            runs[form] = lambda call=call, leaves=leaves: step(call, leaves, source, target)  # type: ignore[misc]
            for _ in range(3):
                runs[form]()
        times = clock_beside(runs, device, options.seconds)
        cleared()
        for form, milliseconds in times.items():
            yield {
                "what": f"training, {count} × {options.length} tokens",
                "mode": "compiled" if compiled else "eager",
                "form": form,
                "measure": "tokens/s",
                "value": round(count * options.length / milliseconds * 1e3),
                "ratio": round(times["torch.nn.Transformer"] / milliseconds, 3),
            }


def hugging_face(subwords: int, size: dict[str, Any], tokens: int) -> nn.Module | None:
    """A Marian model of the same size, or None without the library."""
    try:
        from transformers import MarianConfig, MarianMTModel
    except ImportError:
        print("transformers is not installed: Hugging Face is left out")
        return None
    config = MarianConfig(
        vocab_size=subwords,
        d_model=size["channels"],
        encoder_layers=size["layers"],
        decoder_layers=size["layers"],
        encoder_attention_heads=size["heads"],
        decoder_attention_heads=size["heads"],
        encoder_ffn_dim=size["hidden"],
        decoder_ffn_dim=size["hidden"],
        max_position_embeddings=4 * tokens,
        pad_token_id=PAD,
        eos_token_id=END,
        forced_eos_token_id=None,
        decoder_start_token_id=BEGIN,
    )
    return MarianMTModel(config)


def decoding(options: argparse.Namespace, device: torch.device) -> Iterator[dict[str, object]]:
    """Seconds of the search of each form."""
    gpu = device.type == "cuda"
    size, subwords, count = (BASE, 32_000, 64) if gpu else (TINY, 500, 4)
    dtype = torch.bfloat16 if gpu else torch.float32
    tokens, beams = options.tokens, 4
    source = sentences(count, tokens, subwords, device)
    runs: dict[str, Callable[[], object]] = {}
    for form in ("1111", "plain"):
        model = Transformer(subwords, **size, **FORMS[form]).to(device, dtype).eval()
        search = {"beams": beams, "longest": tokens, "stop": False}
        runs[f"{form}, without cache"] = lambda m=model, s=search: beam_search(m, source, cached=False, **s)  # type: ignore[misc]
        runs[f"{form}, cached, no graph"] = lambda m=model, s=search: beam_search(m, source, graph=False, **s)  # type: ignore[misc]
        runs[f"{form}, cached"] = lambda m=model, s=search: beam_search(m, source, **s)  # type: ignore[misc]
    theirs = hugging_face(subwords, size, tokens)
    if theirs is not None:
        theirs.to(device, dtype).eval()
        mask = (source != PAD).long()
        runs["Hugging Face"] = lambda: theirs.generate(  # type: ignore[operator, union-attr]
            source, attention_mask=mask, num_beams=beams, min_new_tokens=tokens, max_new_tokens=tokens
        )
    taken: dict[str, float] = {}
    for form, run in runs.items():
        with torch.no_grad():
            run()
            taken[form] = min(stopwatch(run, device) for _ in range(3))
        cleared()
    for form, seconds in taken.items():
        yield {
            "what": f"decoding, {count} sentences, {tokens} tokens, {beams} beams",
            "mode": "eager",
            "form": form,
            "measure": "s",
            "value": round(seconds, 4),
            "ratio": round(taken["1111, without cache"] / seconds, 3),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("training", "decoding"), help="one half of it")
    parser.add_argument("--batch", type=int, default=128, help="sentences of a training batch")
    parser.add_argument("--length", type=int, default=32, help="tokens of its sentences")
    parser.add_argument("--tokens", type=int, default=60, help="tokens of a translation")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each form is trained")
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    parser.add_argument("--csv", type=Path, help="also write the rows to this file")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    where = {
        "hardware": hardware(device),
        "torch": torch.__version__,
        "precision": "bf16" if device.type == "cuda" else "fp32",
    }
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    rows: list[dict[str, object]] = []
    parts = {"training": training, "decoding": decoding}
    for name, part in parts.items():
        if options.only in (None, name):
            for row in part(options, device):
                print("   ".join(f"{value}" for value in row.values()), flush=True)
                rows.append({**row, **where})
    if options.csv:
        write_rows(options.csv, rows)


if __name__ == "__main__":
    main()
