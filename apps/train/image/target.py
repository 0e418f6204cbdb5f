"""Train the causal LM of `tiny-image` on rendered scenes: captions and VQ codes in one sequence.

    python -m polydraft.apps.train.image.target --tokenizer runs/tiny-image/tokenizer --out runs/tiny-image/target
    torchrun --nproc-per-node 2 -m polydraft.apps.train.image.target --rows 8 \\
        --tokenizer runs/tiny-image/tokenizer --out runs/tiny-image/target \\
        --world settings --shards runs/tiny-image/shards --minutes 180 --begin assets/models/tiny-image

A deep and narrow Llama. On flat colours it learns the law of every code (`posterior.py`), not the code a scene happened
to have; in settings there is no counting, and it learns codes. Packed scenes come first and give way to the grammar's.
The learning rate follows the clock. Weights already in `--out` are trained on; they are saved every few minutes, and so
is the curve. Shards are written by `textured.py`, also while this runs; without them scenes are rendered in between (a
tenth of the time). Told of held-out scenes is the mean, then each: flat divergence and textured cross-entropy, in nats
a code.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from polydraft.apps.train import course
from polydraft.apps.train.checkpoint import Curve, known, save_pretrained, steps
from polydraft.apps.train.image.alike import share
from polydraft.apps.train.image.beginnings import first_codes
from polydraft.apps.train.image.data import Batch, Batches, encoded, open_tokenizer
from polydraft.apps.train.image.inherit import inherit
from polydraft.apps.train.image.ledger import LAYER, Ledger
from polydraft.apps.train.image.textured import Live, Shards, Source
from polydraft.apps.train.together import join
from polydraft.core.model.precision import mixed
from polydraft.modalities.image import vocabulary
from polydraft.modalities.world.scene import CANVAS, GRID
from polydraft.modalities.world.worlds import WORLDS

THINGS = 3.0  # what a cell of a thing that has begun counts in settings, beside 1
WEIGHTS = {"loss": 1.0, "begun": 0.1}  # of what begins, beside whether something does
BESIDE = {"owing": 0.3, "beginning": 10.0}  # of what `ledger.py` tells, and of whether something begins


def divergence(model: LlamaForCausalLM, batch: Batch) -> Tensor:
    """`[2]`: mean KL in nats a code from the scenes' law to the model's, each weighed as the batch says; and that of
    what begins where something may.
    """
    with mixed():
        logits = said(model, model.model(input_ids=batch.ids).last_hidden_state, batch)
    return judged(logits, batch)


def lessons(model: LlamaForCausalLM, ledger: Ledger, firsts: Tensor, batch: Batch) -> Tensor:
    """`[4]`: `divergence`, what the ledger is wrong by, and the mean KL of whether a code is among `firsts` `[F]`."""
    with mixed():
        out = model.model(input_ids=batch.ids, output_hidden_states=True)
        logits = said(model, out.last_hidden_state, batch)
        owing = ledger(out.hidden_states[LAYER], batch)
    here = taught(batch)
    beginning = divergence_among(logits, batch.chances[:, 1:][here], batch.choices[:, 1:][here], firsts)
    return torch.cat([judged(logits, batch), torch.stack([owing, beginning.mean()])])


def taught(batch: Batch) -> Tensor:
    """`[B, L - 1]` bool: behind which places there is something to learn."""
    return batch.chances[:, 1:].any(-1)


def said(model: LlamaForCausalLM, hidden: Tensor, batch: Batch) -> Tensor:
    """`[N, V]` fp32 logits where something is taught; hidden `[B, L, D]`."""
    logits: Tensor = model.lm_head(hidden[:, :-1][taught(batch)]).float()
    return logits


def judged(logits: Tensor, batch: Batch) -> Tensor:
    """`[2]`, see `divergence`.

    Objects are few: at most cells the law says "nothing yet" and what would begin has next to no weight. Given that
    something does begin, the law of what it is can be taught at each of them; and whether it does, without the noise of
    what else could be there. All have the same optimum.
    """
    here = taught(batch)
    chances, choices = batch.chances[:, 1:][here], batch.choices[:, 1:][here]
    whole, starts = divergence_of(logits, chances, choices), batch.starts[:, 1:][here]
    what = divergence_begun(logits[starts], chances[starts], choices[starts])
    weight = batch.weight[:, 1:][here]
    return torch.stack([(whole * weight).sum() / weight.sum(), what.sum() / len(whole)])


def divergence_of(logits: Tensor, chances: Tensor, choices: Tensor) -> Tensor:
    """KL in nats of every row: logits `[N, V]`; chances and choices `[N, K]`."""
    said = logits.log_softmax(-1).gather(1, choices)
    return -(torch.where(chances > 0, chances * said, 0) + torch.special.entr(chances)).sum(-1)


def divergence_begun(logits: Tensor, chances: Tensor, choices: Tensor) -> Tensor:
    """`divergence_of` given that something begins: the first choice, for nothing, is left out."""
    begun = logits.scatter(1, choices[:, :1], -torch.inf)
    return divergence_of(begun, chances[:, 1:] / chances[:, 1:].sum(1, keepdim=True), choices[:, 1:])


def divergence_among(logits: Tensor, chances: Tensor, choices: Tensor, some: Tensor) -> Tensor:
    """`divergence_of` whether an id is among `some` `[F]`."""
    chance = (chances * torch.isin(choices, some)).sum(1).clamp(max=1)
    said = (logits[:, some].logsumexp(-1) - logits.logsumexp(-1)).exp().clamp(1e-7, 1 - 1e-6)
    noise = torch.special.entr(chance) + torch.special.entr(1 - chance)
    return F.binary_cross_entropy(said, chance, reduction="none") - noise


def rope_base(row: int, head: int, pair: int = 3) -> float:
    """The rotary base at which one pair of channels turns once a row of codes: heads can then tell columns apart."""
    return (row / (2 * math.pi)) ** (head / 2 / pair)


def run(
    tokenizer: Path, out: Path, minutes: float, seed: int = 0, rows: int = 16, width: int = 256, layers: int = 12,
    rate: float = 3e-3, packed: float = 0.6, eager: bool = False, world: str = "flat", shards: Path | None = None,
    textured: float = 0.75, things: float = THINGS, begin: Path | None = None,
) -> None:  # fmt: skip
    """Train for `minutes` and leave the target in `out`; weights found there are trained on."""
    curve, rank = known(out), join()
    torch.manual_seed(seed)  # all begin alike
    new = seed + steps(curve) + 10_000 * rank  # other scenes than before and elsewhere
    among, vq = WORLDS[world], open_tokenizer(tokenizer)
    source: Source | None = None
    if among.settings:
        source = Shards(shards, new) if shards else Live(vq, new)
    data = Batches(tokenizer, new, world=among, source=source, textured=textured, things=things)
    firsts = data.offset + first_codes(partial(encoded, vq), among, np.random.default_rng(98))
    valid = [Batches(tokenizer, 99, held_out=True, drop=0.0, world=among).next(64)]
    if among.settings:
        apart = Live(vq, 99, held_out=True)
        valid += [Batches(tokenizer, 99, True, 0.0, among, apart, textured=1.0).next(64)]
    config = LlamaConfig(
        vocab_size=data.vocab_size, hidden_size=width, num_hidden_layers=layers,
        intermediate_size=width * 11 // 4, num_attention_heads=width // 64,
        num_key_value_heads=width // 64, max_position_embeddings=512, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": rope_base(CANVAS // GRID, 64)},
        bos_token_id=vocabulary.BOS, eos_token_id=None, pad_token_id=vocabulary.PAD,
    )  # fmt: skip
    if curve:
        model = LlamaForCausalLM.from_pretrained(out, dtype=torch.float32)
    else:
        model = inherit(config, begin, tokenizer, among) if begin else LlamaForCausalLM(config)
    share([model.model.embed_tokens.weight, model.lm_head.weight], vq.codebook)
    ledger = Ledger(width)
    if (out / "ledger.safetensors").exists():
        ledger.load_state_dict(load_file(out / "ledger.safetensors"))
    model.set_attn_implementation("eager")  # flash attention's backward pass is slow on CPUs
    if rank == 0:
        print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f}M parameters", flush=True)
    if not eager:
        model.model.compile()  # halves a step here; needs a C++ compiler
    out.mkdir(parents=True, exist_ok=True)
    (out / "world.json").write_text(json.dumps({"world": world}) + "\n")  # for whoever assembles the model
    begun = time.monotonic()

    def next_batch() -> Batch:
        spent = (time.monotonic() - begun) / (minutes * 60)
        return data.next(rows, max(0.0, packed - spent))

    def keep(curve: Curve) -> None:
        """The target as it ships, and the ledger beside it."""
        save_pretrained(model, out, curve)
        save_file(ledger.state_dict(), out / "ledger.safetensors")

    course.run(
        model, [ledger], partial(lessons, model, ledger, firsts), next_batch, valid, keep,
        weights=WEIGHTS | BESIDE, minutes=minutes, rate=rate, curve=curve, rank=rank,
    )  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=90.0)
    parser.add_argument("--rows", type=int, default=16, help="of a batch, in each process")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, default=3e-3, help="highest learning rate; 1e-3 to train on")
    parser.add_argument(
        "--packed", type=float, default=0.6, help="share of packed scenes at first; as much of the budget later, none"
    )
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--world", choices=WORLDS, default="flat")
    parser.add_argument("--shards", type=Path, help="folder of textured scenes; default: they are rendered in between")
    parser.add_argument("--textured", type=float, default=0.75, help="share of textured scenes, in such a world")
    parser.add_argument("--things", type=float, default=THINGS, help="weight of cells of things that have begun")
    parser.add_argument("--begin", type=Path, help="model folder of the flat world, whose target this one begins as")
    parser.add_argument("--eager", action="store_true", help="do not compile")
    run(**vars(parser.parse_args()))
