"""Train `tiny-vlm`, a small LLaVA, to describe emoji scenes and to answer questions about them.

    torchrun --nproc-per-node 2 -m polydraft.apps.train.vlm_target --out runs/tiny-vlm/target --minutes 60

A CLIP-like tower, one projector, a deep and narrow Llama, all from random weights at once. While training, the tower
also says what covers each of its patches, which the renderer knows; that head is dropped afterwards. The learning rate
follows the clock. Weights already in `--out` are trained on; they are saved every few minutes.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import (
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    GenerationConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    PreTrainedTokenizerFast,
)

from polydraft.apps.train.optimise import apply, descent, muon_and_adamw, save, set_rate
from polydraft.apps.train.together import average, join
from polydraft.apps.train.vlm_data import (
    END,
    ID,
    IMAGE,
    NOTHING,
    PAD,
    PATCH,
    PATCHES,
    Batch,
    Conversations,
    learn_words,
)
from polydraft.modalities.world.glyphs import KINDS, SIZES
from polydraft.modalities.world.scene import CANVAS

COVERED = 0.5  # weight of saying what covers a patch
SAVE_EVERY = 240  # seconds
WIDTH, LAYERS, TOWER_LAYERS, HEAD = 160, 12, 5, 32
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{% for part in message['content'] %}"
    "{{ '<image>' if part['type'] == 'image' else part['text'] }}{% endfor %}"
    "{{ '<|end|>' if message['role'] == 'assistant' else '' }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


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


def write_processor(tokenizer: Tokenizer, folder: Path) -> None:
    """Everything a processor reads; of a picture that is not square it sees the middle."""
    folder.mkdir(parents=True, exist_ok=True)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PAD, extra_special_tokens={"image_token": IMAGE}
    ).save_pretrained(folder)
    side, half = {"height": CANVAS, "width": CANVAS}, [0.5] * 3
    CLIPImageProcessorPil(
        size={"shortest_edge": CANVAS}, crop_size=side, image_mean=half, image_std=half
    ).save_pretrained(folder)
    said = {
        "processor_class": "LlavaProcessor", "patch_size": PATCH, "vision_feature_select_strategy": "default",
        "num_additional_image_tokens": 1,
    }  # fmt: skip
    (folder / "processor_config.json").write_text(json.dumps(said, indent=2) + "\n")
    (folder / "chat_template.jinja").write_text(TEMPLATE + "\n")
    GenerationConfig(eos_token_id=ID[END], pad_token_id=ID[PAD], do_sample=False).save_pretrained(folder)


def losses(model: LlavaForConditionalGeneration, naming: nn.Linear, batch: Batch) -> tuple[Tensor, Tensor]:
    """Mean nats a token of the answers, and of naming what covers a patch."""
    parts, first = model.model, batch.ids.eq(model.config.image_token_id).int().argmax(1)[0]
    with torch.autocast("cpu", torch.bfloat16):
        seen = parts.vision_tower(pixel_values=batch.pixels).last_hidden_state[:, 1:]
        named = naming(seen)
        read = parts.get_input_embeddings()(batch.ids)
        # every conversation begins alike: its picture stands in the same place
        read = torch.cat([read[:, :first], parts.multi_modal_projector(seen), read[:, first + PATCHES :]], 1)
        hidden = parts.language_model(inputs_embeds=read).last_hidden_state[:, :-1]
        counted = batch.labels[:, 1:] != NOTHING
        logits = model.lm_head(hidden[counted])
    loss = F.cross_entropy(logits.float(), batch.labels[:, 1:][counted])
    return loss, F.cross_entropy(named.float().flatten(0, 1), batch.kinds.flatten())


def run(out: Path, minutes: float, seed: int = 0, rows: int = 16, rate: float = 3e-3, eager: bool = False) -> None:
    """Train for `minutes` and leave the target and its processor in `out`; weights found there are trained on."""
    before = json.loads((out / "curve.json").read_text()) if (out / "curve.json").exists() else []
    past = before[-1] if before else {"seconds": 0, "step": 0}
    torch.manual_seed(seed)
    rank = join()
    if before:
        tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
        model = LlavaForConditionalGeneration.from_pretrained(out, dtype=torch.float32)
    else:
        tokenizer = learn_words(seed)
        model = LlavaForConditionalGeneration(configuration(tokenizer))
    if rank == 0 and not before:
        write_processor(tokenizer, out)
    model.set_attn_implementation("eager")  # flash attention's backward pass is slow on CPUs
    naming = nn.Linear(WIDTH, 1 + len(KINDS) * len(SIZES))
    data = Conversations(tokenizer, [seed, past["step"], rank])
    valid = Conversations(tokenizer, 99, held_out=True).next(4 * rows)
    if rank == 0:
        print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f}M parameters", flush=True)
    if not eager:
        model.model.language_model.compile(dynamic=False)  # halves a step here; needs a C++ compiler
        model.model.vision_tower.compile(dynamic=False)
    optimisers = [*muon_and_adamw(model), torch.optim.AdamW(naming.parameters(), lr=1.0, betas=(0.9, 0.95))]
    curve, begun, step, budget = before, time.monotonic(), 0, minutes * 60
    elapsed = saved = 0.0
    while elapsed < budget:
        set_rate(optimisers, rate * descent(elapsed / budget, step))
        loss, naming_loss = losses(model, naming, data.next(rows))
        (loss + COVERED * naming_loss).backward()
        elapsed = average([*model.parameters(), *naming.parameters()], time.monotonic() - begun)
        apply(optimisers, model)
        step += 1
        if rank:
            continue
        if step % 50 == 0:
            print(f"{elapsed:6.0f}s step {step} loss {loss:.4f} naming {naming_loss:.4f}", flush=True)
        if step % 500 == 0:
            with torch.no_grad():
                parts = [
                    Batch(*(field[at : at + rows] for field in vars(valid).values())) for at in range(0, 4 * rows, rows)
                ]
                held_out = torch.stack([losses(model, naming, part)[0] for part in parts]).mean().item()
            seconds, steps = past["seconds"] + round(elapsed), past["step"] + step
            curve.append({"seconds": seconds, "step": steps, "train": loss.item(), "held_out": held_out})
            print(f"{elapsed:6.0f}s step {step} held-out loss {held_out:.4f}", flush=True)
        if elapsed - saved > SAVE_EVERY:
            save(model, out, curve)
            saved = elapsed
    if rank == 0:
        save(model, out, curve)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=int, default=16, help="conversations of a batch, in each process")
    parser.add_argument("--rate", type=float, default=3e-3, help="highest learning rate; 1e-3 to train on")
    parser.add_argument("--eager", action="store_true", help="do not compile")
    run(**vars(parser.parse_args()))
