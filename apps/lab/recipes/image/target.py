"""Train the causal LM of `tiny-image` on rendered scenes: captions and VQ codes in one sequence.

    python -m polydraft.apps.lab.recipes.image.target --tokenizer runs/tiny-image/tokenizer --out runs/tiny-image/target
    torchrun --nproc-per-node 2 -m polydraft.apps.lab.recipes.image.target --rows 8 \\
        --tokenizer runs/tiny-image/tokenizer --out runs/tiny-image/target \\
        --world settings --shards runs/tiny-image/shards --minutes 180 --begin assets/models/tiny-image

A deep and narrow Llama. It learns to write the plan of a scene (`modalities/image/scene_plan.py`) and then its codes;
the distribution of plans is learned from many more scenes than codes are. The learning rate follows the clock. Existing
weights in `--out` are trained on; they are saved every few minutes, and so is the curve. Shards are written by
`textured.py`, also while this runs; without them scenes are rendered in between (a tenth of the time). Printed are nats
per code and the KL of plans from their exact distribution; of held-out scenes the mean, then nats of flat and of
textured codes.
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

from polydraft.apps.lab.recipes.image import placement_embeddings
from polydraft.apps.lab.recipes.image.data import ImageBatch, PlanBatch, SceneBatches, load_vq_tokenizer
from polydraft.apps.lab.recipes.image.gradient_sharing import share_gradients
from polydraft.apps.lab.recipes.image.inherit import init_from_flat_model
from polydraft.apps.lab.recipes.image.textured import LiveScenes, SceneSource, ShardedScenes
from polydraft.apps.lab.training import loop
from polydraft.apps.lab.training.checkpoint import load_curve, num_steps, save_pretrained
from polydraft.apps.lab.training.distributed import init_process_group
from polydraft.core.folders.readers import read_model
from polydraft.core.model.precision import mixed_precision
from polydraft.modalities.image import vocabulary
from polydraft.modalities.output import write_text
from polydraft.modalities.world.scene import GRID_SIDE
from polydraft.modalities.world.worlds import WORLDS

THINGS = 3.0  # weight of a cell of an object; other cells have 1
FIRST = 3.0  # weight of its first cell, which shows whether the plan is followed
WEIGHTS = {"code": 1.0, "plan": 0.3}
PLANS = 3  # scenes of which only the plan is learned, per image


def losses(model: LlamaForCausalLM, pictures: ImageBatch, plans: PlanBatch) -> Tensor:
    """Return [2]: weighted mean nats per code, and mean KL in nats of a plan's token from its exact distribution."""
    return torch.stack([code_loss(model, pictures), plan_kl(model, plans)])


def code_loss(model: LlamaForCausalLM, batch: ImageBatch) -> Tensor:
    """Return the weighted mean nats per code."""
    weight = batch.weight[:, 1:]
    here = weight > 0
    found = F.cross_entropy(logits_at(model, batch.ids, here), batch.ids[:, 1:][here], reduction="none")
    return (found * weight[here]).sum() / weight.sum()


def plan_kl(model: LlamaForCausalLM, plans: PlanBatch) -> Tensor:
    """Return the mean KL of a plan's token."""
    probs = plans.probs.flatten(0, 1)
    log_probs = logits_at(model, plans.ids, plans.planned[:, 1:]).log_softmax(-1)[:, : probs.shape[1]]
    return -(probs * log_probs + torch.special.entr(probs)).sum(-1).mean()


def logits_at(model: LlamaForCausalLM, ids: Tensor, here: Tensor) -> Tensor:
    """Return fp32 logits [N, V] after the positions `here` [B, L - 1] bool of ids [B, L]."""
    with mixed_precision():
        logits: Tensor = model.lm_head(model.model(input_ids=ids).last_hidden_state[:, :-1][here])
    return logits.float()


def rope_base(row: int, head: int, pair: int = 3) -> float:
    """Return the rotary base at which one channel pair has the period of a row of codes, which encodes the column."""
    return (row / (2 * math.pi)) ** (head / 2 / pair)


def run(
    tokenizer: Path, out: Path, minutes: float, seed: int = 0, rows: int = 16, width: int = 256, layers: int = 12,
    rate: float = 3e-3, eager: bool = False, world: str = "flat", shards: Path | None = None,
    textured: float = 0.75, things: float = THINGS, first: float = FIRST, begin: Path | None = None,
) -> None:  # fmt: skip
    """Train for `minutes` and save the target to `out`; existing weights there are trained on."""
    curve, rank = load_curve(out), init_process_group()
    torch.manual_seed(seed)  # the same initial weights in all processes
    data_seed = seed + num_steps(curve) + 10_000 * rank  # other scenes than in earlier runs and other processes
    world_of_scenes, vq = WORLDS[world], load_vq_tokenizer(tokenizer)
    source: SceneSource | None = None
    if world_of_scenes.settings:
        source = ShardedScenes(shards, data_seed) if shards else LiveScenes(vq, data_seed)
    data = SceneBatches(
        tokenizer, data_seed, world=world_of_scenes, source=source, textured=textured, things=things, first=first
    )
    held_out_data = [SceneBatches(tokenizer, 99, held_out=True, drop=0.0, world=world_of_scenes)]
    if world_of_scenes.settings:
        textures = LiveScenes(vq, 99, held_out=True)
        held_out_data.append(SceneBatches(tokenizer, 99, True, 0.0, world_of_scenes, textures, textured=1.0))
    valid = [(batch.next_batch(64), batch.next_plans(64)) for batch in held_out_data]
    config = LlamaConfig(
        vocab_size=data.vocab_size, hidden_size=width, num_hidden_layers=layers,
        intermediate_size=width * 11 // 4, num_attention_heads=width // 64,
        num_key_value_heads=width // 64, max_position_embeddings=512, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": rope_base(GRID_SIDE, 64)},
        bos_token_id=vocabulary.BOS, eos_token_id=None, pad_token_id=vocabulary.PAD,
    )  # fmt: skip
    if curve:
        model = read_model("model", LlamaForCausalLM, out, dtype=torch.float32)
    else:
        model = LlamaForCausalLM(config)
        tables = [model.model.embed_tokens.weight, model.lm_head.weight]
        placement_embeddings.init_placement_embeddings(tables, data.text, model.model.rotary_emb.inv_freq)
        if begin:
            init_from_flat_model(model, begin, tokenizer, data.text)
    share_gradients([model.model.embed_tokens.weight, model.lm_head.weight], vq.codebook)
    model.set_attn_implementation("eager")  # flash attention's backward pass is slow on CPUs
    if rank == 0:
        print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f}M parameters", flush=True)
    if not eager:
        model.model.compile(dynamic=False)  # halves a step here; two shapes; needs a C++ compiler
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "world.json", json.dumps({"world": world}) + "\n")  # read by `recipes/assemble.py`

    def next_batch() -> tuple[ImageBatch, PlanBatch]:
        return data.next_batch(rows), data.next_plans(PLANS * rows)

    loop.train(
        model, [], lambda batch: losses(model, *batch), next_batch, valid, partial(save_pretrained, model, out),
        weights=WEIGHTS, minutes=minutes, rate=rate, curve=curve, rank=rank,
    )  # fmt: skip


if __name__ == "__main__":
    parser: argparse.ArgumentParser = argparse.ArgumentParser(description=__doc__)
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
