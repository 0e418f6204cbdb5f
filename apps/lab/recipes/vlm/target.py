"""Train `tiny-vlm`, a small LLaVA, to describe emoji scenes and to answer questions about them.

    run=runs/tiny-vlm
    torchrun --nproc-per-node 2 -m polydraft.apps.lab.recipes.vlm.target --processor $run/processor --out $run/target

A CLIP-like tower, one projector, a deep and narrow Llama, all trained from random weights at once. In training the
tower also predicts what covers each of its patches, its position and its relations to the rest, which the renderer
knows; that head is dropped afterwards. The learning rate follows the clock. Existing weights in `--out` are trained on;
they are saved every few minutes.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import (
    CLIPVisionConfig,
    GenerationConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
)

from polydraft.apps.lab.recipes.vlm.data import (
    END,
    ID,
    IGNORED,
    IMAGE,
    PAD,
    PATCH,
    PATCHES,
    ConversationBatch,
    Conversations,
)
from polydraft.apps.lab.training import loop
from polydraft.apps.lab.training.checkpoint import load_curve, num_steps, save_pretrained
from polydraft.apps.lab.training.distributed import init_process_group
from polydraft.core.folders.readers import read_model, read_pretrained, read_tokenizer
from polydraft.core.model.precision import mixed_precision
from polydraft.modalities.world.glyphs import GLYPH_SIZES, KINDS
from polydraft.modalities.world.scene import CANVAS, RELATIONS
from polydraft.modalities.world.words.parsing import RELATION_OF

# naming: what covers a patch. placing: position of an object's patch; a tower that only names forgets it. standing:
# relations to the other kind. relation words: those in the answers, which are few and learned last.
WEIGHTS = {"loss": 1.0, "naming": 0.5, "placing": 0.3, "standing": 0.5, "relation words": 0.3}
SIDE = CANVAS // PATCH  # patches per row
LABEL_SIZES = (1 + len(KINDS) * len(GLYPH_SIZES), len(RELATIONS), SIDE, SIDE)  # numbers of logits per patch
WIDTH, LAYERS, TOWER_LAYERS, HEAD = 160, 12, 5, 32


def build_config(tokenizer: Tokenizer) -> LlavaConfig:
    text = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=WIDTH, num_hidden_layers=LAYERS,
        intermediate_size=WIDTH * 8 // 3, num_attention_heads=WIDTH // HEAD, num_key_value_heads=WIDTH // HEAD,
        max_position_embeddings=2048, tie_word_embeddings=True, bos_token_id=None,
        eos_token_id=ID[END], pad_token_id=ID[PAD],
    )  # fmt: skip
    tower = CLIPVisionConfig(
        hidden_size=WIDTH, num_hidden_layers=TOWER_LAYERS, num_attention_heads=WIDTH // HEAD,
        intermediate_size=WIDTH * 3, image_size=CANVAS, patch_size=PATCH,
    )  # fmt: skip
    return LlavaConfig(
        text_config=text, vision_config=tower, image_token_index=ID[IMAGE], vision_feature_layer=-1,
        image_seq_length=PATCHES, tie_word_embeddings=True,
    )  # fmt: skip


def relation_token_mask(tokenizer: Tokenizer) -> Tensor:
    """Return a mask [V] bool of ids of relation words, such as left and above."""
    return torch.tensor([
        tokenizer.decode([token]).strip().lower() in RELATION_OF for token in range(tokenizer.get_vocab_size())
    ])  # fmt: skip


def losses(
    model: LlavaForConditionalGeneration, patch_head: nn.Linear, relation_mask: Tensor, batch: ConversationBatch
) -> Tensor:
    """Return [5]: mean nats per token, of a patch's kind, position and relations, and of tokens of relation words."""
    parts = model.model
    with mixed_precision():
        patches = parts.vision_tower(pixel_values=batch.pixels).last_hidden_state[:, 1:]
        named, relation_logits, row, column = patch_head(patches).float().split(LABEL_SIZES, -1)
        embeddings = parts.get_input_embeddings()(batch.ids)
        pictures = parts.multi_modal_projector(patches[batch.is_shown]).to(embeddings.dtype)
        embeddings = embeddings.masked_scatter(batch.ids.eq(model.config.image_token_id)[..., None], pictures)
        hidden = parts.language_model(inputs_embeds=embeddings).last_hidden_state[:, :-1]
        counted = batch.labels[:, 1:] != IGNORED
        logits = model.lm_head(hidden[counted])
    targets, things, has_relations = batch.labels[:, 1:][counted], batch.kinds > 0, batch.relations.any(-1)
    place = torch.arange(PATCHES).expand_as(things)[things]
    nats = F.cross_entropy(logits.float(), targets, reduction="none")
    is_relation_word = relation_mask[targets]
    rows_and_columns = F.cross_entropy(row[things], place // SIDE) + F.cross_entropy(column[things], place % SIDE)
    standing = F.binary_cross_entropy_with_logits(
        relation_logits[has_relations], batch.relations[has_relations], reduction="sum"
    )
    return torch.stack([
        nats.mean(), F.cross_entropy(named.flatten(0, 1), batch.kinds.flatten()), rows_and_columns,
        standing / has_relations.sum().mul(len(RELATIONS)).clamp(min=1),
        (nats * is_relation_word).sum() / is_relation_word.sum().clamp(min=1),
    ])  # fmt: skip


def run(
    processor: Path,
    out: Path,
    minutes: float,
    seed: int = 0,
    rows: int = 16,
    rate: float = 3e-3,
    eager: bool = False,
    frozen_tower: bool = False,
) -> None:
    """Train for `minutes` and save the target to `out`; existing weights there are trained on.

    With `frozen_tower` the tower is not trained, for existing weights that only learn another form of prompts.
    """
    curve = load_curve(out)
    torch.manual_seed(seed)
    rank = init_process_group()
    tokenizer = read_tokenizer(processor / "tokenizer.json")
    kind = LlavaForConditionalGeneration
    model = read_model("model", kind, out, dtype=torch.float32) if curve else kind(build_config(tokenizer))
    model.generation_config = read_pretrained("generation config", GenerationConfig, processor)
    model.set_attn_implementation("eager")  # flash attention's backward pass is slow on CPUs
    model.model.vision_tower.requires_grad_(not frozen_tower)
    patch_head = nn.Linear(WIDTH, sum(LABEL_SIZES))
    data = Conversations(tokenizer, [seed, num_steps(curve), rank])
    held_out = Conversations(tokenizer, 99, held_out=True)
    if rank == 0:
        print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f}M parameters", flush=True)
    if not eager:
        model.model.language_model.compile(dynamic=False)  # halves a step here; needs a C++ compiler
        model.model.vision_tower.compile(dynamic=True)  # the number of images varies
    out.mkdir(parents=True, exist_ok=True)
    loop.train(
        model, [patch_head], partial(losses, model, patch_head, relation_token_mask(tokenizer)),
        partial(data.next_batch, rows), [held_out.next_batch(rows) for _ in range(4)],
        partial(save_pretrained, model, out), weights=WEIGHTS, minutes=minutes, rate=rate, curve=curve, rank=rank,
    )  # fmt: skip


if __name__ == "__main__":
    parser: argparse.ArgumentParser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processor", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=int, default=16, help="conversations of a batch, in each process")
    parser.add_argument("--rate", type=float, default=3e-3, help="highest learning rate; 1e-3 to train on")
    parser.add_argument("--frozen-tower", action="store_true", help="train the projector and the language model alone")
    parser.add_argument("--eager", action="store_true", help="do not compile")
    run(**vars(parser.parse_args()))
