"""Train `tiny-vlm`, a small LLaVA, to describe emoji scenes and to answer questions about them.

    run=runs/tiny-vlm
    torchrun --nproc-per-node 2 -m polydraft.apps.train.vlm.target --processor $run/processor --out $run/target

A CLIP-like tower, one projector, a deep and narrow Llama, all from random weights at once. While training, the tower
also says what covers each of its patches, where that lies and how it stands to the rest, which the renderer knows;
that head is dropped afterwards. The learning rate follows the clock. Weights already in `--out` are trained on; they
are saved every few minutes.
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

from polydraft.apps.train import course
from polydraft.apps.train.checkpoint import known, save_pretrained, steps
from polydraft.apps.train.together import join
from polydraft.apps.train.vlm.data import (
    END,
    ID,
    IMAGE,
    NOTHING,
    PAD,
    PATCH,
    PATCHES,
    Batch,
    Conversations,
)
from polydraft.core.folders.door import read_model, read_pretrained, read_tokenizer
from polydraft.core.model.precision import mixed
from polydraft.modalities.world.glyphs import KINDS, SIZES
from polydraft.modalities.world.scene import CANVAS, RELATIONS
from polydraft.modalities.world.words.parsing import RELATION_OF

# naming: what covers a patch. placing: where a thing's patch lies; a tower that only names forgets it. standing: how it
# stands to the other kind. told: words of that in the answers, few and the last that are learnt.
WEIGHTS = {"loss": 1.0, "naming": 0.5, "placing": 0.3, "standing": 0.5, "told": 0.3}
SIDE = CANVAS // PATCH  # patches of a row
SEEN = (1 + len(KINDS) * len(SIZES), len(RELATIONS), SIDE, SIDE)  # what is read off a patch
WIDTH, LAYERS, TOWER_LAYERS, HEAD = 160, 12, 5, 32


def configuration(tokenizer: Tokenizer) -> LlavaConfig:
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


def relation_words(tokenizer: Tokenizer) -> Tensor:
    """`[V]` bool: ids that say left, above and the like."""
    return torch.tensor([
        tokenizer.decode([token]).strip().lower() in RELATION_OF for token in range(tokenizer.get_vocab_size())
    ])  # fmt: skip


def losses(model: LlavaForConditionalGeneration, naming: nn.Linear, telling: Tensor, batch: Batch) -> Tensor:
    """`[5]`: mean nats of a token, of what covers a patch, where it lies, how it stands, and of words in `telling`."""
    parts = model.model
    with mixed():
        seen = parts.vision_tower(pixel_values=batch.pixels).last_hidden_state[:, 1:]
        named, stands, row, column = naming(seen).float().split(SEEN, -1)
        read = parts.get_input_embeddings()(batch.ids)
        pictures = parts.multi_modal_projector(seen[batch.shown]).to(read.dtype)
        read = read.masked_scatter(batch.ids.eq(model.config.image_token_id)[..., None], pictures)
        hidden = parts.language_model(inputs_embeds=read).last_hidden_state[:, :-1]
        counted = batch.labels[:, 1:] != NOTHING
        logits = model.lm_head(hidden[counted])
    wanted, things, both = batch.labels[:, 1:][counted], batch.kinds > 0, batch.stands.any(-1)
    place = torch.arange(PATCHES).expand_as(things)[things]
    nats = F.cross_entropy(logits.float(), wanted, reduction="none")
    told = telling[wanted]
    rows_and_columns = F.cross_entropy(row[things], place // SIDE) + F.cross_entropy(column[things], place % SIDE)
    standing = F.binary_cross_entropy_with_logits(stands[both], batch.stands[both], reduction="sum")
    return torch.stack([
        nats.mean(), F.cross_entropy(named.flatten(0, 1), batch.kinds.flatten()), rows_and_columns,
        standing / both.sum().mul(len(RELATIONS)).clamp(min=1), (nats * told).sum() / told.sum().clamp(min=1),
    ])  # fmt: skip


def run(
    processor: Path, out: Path, minutes: float, seed: int = 0, rows: int = 16, rate: float = 3e-3, eager: bool = False,
    frozen_tower: bool = False,
) -> None:
    """Train for `minutes` and leave the target in `out`; weights found there are trained on.

    frozen_tower: the tower stays as it is, which is for weights that see well and learn another way to be asked.
    """
    curve = known(out)
    torch.manual_seed(seed)
    rank = join()
    tokenizer = read_tokenizer(processor / "tokenizer.json")
    kind = LlavaForConditionalGeneration
    model = read_model("model", kind, out, dtype=torch.float32) if curve else kind(configuration(tokenizer))
    model.generation_config = read_pretrained("generation config", GenerationConfig, processor)
    model.set_attn_implementation("eager")  # flash attention's backward pass is slow on CPUs
    model.model.vision_tower.requires_grad_(not frozen_tower)
    naming = nn.Linear(WIDTH, sum(SEEN))
    data = Conversations(tokenizer, [seed, steps(curve), rank])
    held_out = Conversations(tokenizer, 99, held_out=True)
    if rank == 0:
        print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f}M parameters", flush=True)
    if not eager:
        model.model.language_model.compile(dynamic=False)  # halves a step here; needs a C++ compiler
        model.model.vision_tower.compile(dynamic=True)  # batches have more or fewer pictures
    out.mkdir(parents=True, exist_ok=True)
    course.run(
        model, [naming], partial(losses, model, naming, relation_words(tokenizer)), partial(data.next, rows),
        [held_out.next(rows) for _ in range(4)], partial(save_pretrained, model, out), weights=WEIGHTS,
        minutes=minutes, rate=rate, curve=curve, rank=rank,
    )  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processor", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=int, default=16, help="conversations of a batch, in each process")
    parser.add_argument("--rate", type=float, default=3e-3, help="highest learning rate; 1e-3 to train on")
    parser.add_argument("--frozen-tower", action="store_true", help="train the projector and the language model alone")
    parser.add_argument("--eager", action="store_true", help="do not compile")
    run(**vars(parser.parse_args()))
