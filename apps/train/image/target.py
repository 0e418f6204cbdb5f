"""Train the causal LM of `tiny-image` on rendered scenes: captions and VQ codes in one sequence.

    python -m polydraft.apps.train.image.target --tokenizer runs/tiny-image/tokenizer --out runs/tiny-image/target
    torchrun --nproc-per-node 2 -m polydraft.apps.train.image.target --rows 8 \\
        --tokenizer runs/tiny-image/tokenizer --out runs/tiny-image/target \\
        --world settings --shards runs/tiny-image/shards --minutes 180 --begin assets/models/tiny-image

A deep and narrow Llama. It learns to write the plan of a scene (`modalities/image/plan.py`) and to draw it; what plans
may be is learned from many more scenes than are drawn. The learning rate follows the clock. Weights already in `--out`
are trained on; they are saved every few minutes, and so is the curve. Shards are written by `textured.py`, also while
this runs; without them scenes are rendered in between (a tenth of the time). Told are nats a code and how far plans are
from their law; of held-out scenes the mean, then nats of flat and of textured codes.
"""

from __future__ import annotations

import argparse
import json
import math
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from polydraft.apps.train import course
from polydraft.apps.train.checkpoint import known, save_pretrained, steps
from polydraft.apps.train.image import places
from polydraft.apps.train.image.alike import share
from polydraft.apps.train.image.data import Batch, Batches, Plans, open_tokenizer
from polydraft.apps.train.image.inherit import inherit
from polydraft.apps.train.image.textured import Live, Shards, Source
from polydraft.apps.train.together import join
from polydraft.core.folders.door import read_model
from polydraft.core.model.precision import mixed
from polydraft.modalities.image import vocabulary
from polydraft.modalities.output import write_text
from polydraft.modalities.world.scene import SIDE
from polydraft.modalities.world.worlds import WORLDS

THINGS = 3.0  # what a cell of a thing counts, beside 1
FIRST = 3.0  # and the one where it begins: there the plan is followed or not
WEIGHTS = {"code": 1.0, "plan": 0.3}
PLANS = 3  # scenes of which only the plan is written, for every picture


def losses(model: LlamaForCausalLM, pictures: Batch, plans: Plans) -> Tensor:
    """`[2]`: mean nats of a code, weighed as the batch says, and mean KL in nats from the law of a plan's token."""
    return torch.stack([nats(model, pictures), divergence(model, plans)])


def nats(model: LlamaForCausalLM, batch: Batch) -> Tensor:
    """Mean nats of a code."""
    weight = batch.weight[:, 1:]
    here = weight > 0
    found = F.cross_entropy(said(model, batch.ids, here), batch.ids[:, 1:][here], reduction="none")
    return (found * weight[here]).sum() / weight.sum()


def divergence(model: LlamaForCausalLM, plans: Plans) -> Tensor:
    """Mean KL of a plan's token."""
    chances = plans.chances.flatten(0, 1)
    told = said(model, plans.ids, plans.planned[:, 1:]).log_softmax(-1)[:, : chances.shape[1]]
    return -(chances * told + torch.special.entr(chances)).sum(-1).mean()


def said(model: LlamaForCausalLM, ids: Tensor, here: Tensor) -> Tensor:
    """fp32 logits `[N, V]` behind places `here` `[B, L - 1]` of ids `[B, L]`."""
    with mixed():
        logits: Tensor = model.lm_head(model.model(input_ids=ids).last_hidden_state[:, :-1][here])
    return logits.float()


def rope_base(row: int, head: int, pair: int = 3) -> float:
    """The rotary base at which one pair of channels turns once a row of codes: heads can then tell columns apart."""
    return (row / (2 * math.pi)) ** (head / 2 / pair)


def run(
    tokenizer: Path, out: Path, minutes: float, seed: int = 0, rows: int = 16, width: int = 256, layers: int = 12,
    rate: float = 3e-3, eager: bool = False, world: str = "flat", shards: Path | None = None,
    textured: float = 0.75, things: float = THINGS, first: float = FIRST, begin: Path | None = None,
) -> None:  # fmt: skip
    """Train for `minutes` and leave the target in `out`; weights found there are trained on."""
    curve, rank = known(out), join()
    torch.manual_seed(seed)  # all begin alike
    new = seed + steps(curve) + 10_000 * rank  # other scenes than before and elsewhere
    among, vq = WORLDS[world], open_tokenizer(tokenizer)
    source: Source | None = None
    if among.settings:
        source = Shards(shards, new) if shards else Live(vq, new)
    data = Batches(tokenizer, new, world=among, source=source, textured=textured, things=things, first=first)
    apart = [Batches(tokenizer, 99, held_out=True, drop=0.0, world=among)]
    if among.settings:
        textures = Live(vq, 99, held_out=True)
        apart.append(Batches(tokenizer, 99, True, 0.0, among, textures, textured=1.0))
    valid = [(some.next(64), some.plans(64)) for some in apart]
    config = LlamaConfig(
        vocab_size=data.vocab_size, hidden_size=width, num_hidden_layers=layers,
        intermediate_size=width * 11 // 4, num_attention_heads=width // 64,
        num_key_value_heads=width // 64, max_position_embeddings=512, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": rope_base(SIDE, 64)},
        bos_token_id=vocabulary.BOS, eos_token_id=None, pad_token_id=vocabulary.PAD,
    )  # fmt: skip
    if curve:
        model = read_model("model", LlamaForCausalLM, out, dtype=torch.float32)
    else:
        model = LlamaForCausalLM(config)
        tables = [model.model.embed_tokens.weight, model.lm_head.weight]
        places.begin(tables, data.text, model.model.rotary_emb.inv_freq)
        if begin:
            inherit(model, begin, tokenizer, data.text)
    share([model.model.embed_tokens.weight, model.lm_head.weight], vq.codebook)
    model.set_attn_implementation("eager")  # flash attention's backward pass is slow on CPUs
    if rank == 0:
        print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f}M parameters", flush=True)
    if not eager:
        model.model.compile(dynamic=False)  # halves a step here; two shapes; needs a C++ compiler
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "world.json", json.dumps({"world": world}) + "\n")  # for whoever assembles the model

    def next_batch() -> tuple[Batch, Plans]:
        return data.next(rows), data.plans(PLANS * rows)

    course.run(
        model, [], lambda some: losses(model, *some), next_batch, valid, partial(save_pretrained, model, out),
        weights=WEIGHTS, minutes=minutes, rate=rate, curve=curve, rank=rank,
    )  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=90.0)
    parser.add_argument("--rows", type=int, default=16, help="of a batch, in each process")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, default=3e-3, help="highest learning rate; 1e-3 to train on")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--world", choices=WORLDS, default="flat")
    parser.add_argument("--shards", type=Path, help="folder of textured scenes; default: they are rendered in between")
    parser.add_argument("--textured", type=float, default=0.75, help="share of textured scenes, in such a world")
    parser.add_argument("--things", type=float, default=THINGS, help="weight of cells of things")
    parser.add_argument(
        "--first", type=float, default=FIRST, help="weight of cells where things begin; 8 to begin with"
    )
    parser.add_argument("--begin", type=Path, help="model folder of the flat world, whose target this one begins as")
    parser.add_argument("--eager", action="store_true", help="do not compile")
    run(**vars(parser.parse_args()))
