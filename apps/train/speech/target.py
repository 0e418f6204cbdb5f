"""Train the causal LM of `tiny-speech`: a voice and the symbols of a text, then the codes of the speech.

    python -m polydraft.apps.train.speech.target --runs runs/tiny-speech --minutes 240

A deep and narrow Llama. Where in the text the voice is, is known from the renderer, and half of what is hard about
speech: while training, a middle layer points at the symbol being spoken (a loss of its own, dropped afterwards). Draft
heads learn with it, which makes it look ahead; they are kept beside it for a drafter to start from.
The learning rate follows the clock. Weights are saved every few minutes, and the same command goes on with a run that
was stopped; `--again` trains those of a run that is done for as long again.
Whenever held-out text is judged, `entropy` is that of the target's own law: nats above it are overconfidence, which
dropout, weight decay and more text lessen. Nothing is trained on the codes of a codec that has not passed its gate.
With `torchrun --nproc-per-node 2 -m` for `python -m`, two processes of one thread each are twice as quick as one.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from polydraft.apps.train import course
from polydraft.apps.train.checkpoint import Curve, known, save_pretrained, steps
from polydraft.apps.train.speech.codes import NOTHING, Batch, Coded
from polydraft.apps.train.speech.sound import gate
from polydraft.apps.train.together import join
from polydraft.core.drafters.heads.hydra import HydraHeads
from polydraft.core.folders.door import read_model
from polydraft.core.folders.weight_files import read_tensors
from polydraft.core.model.precision import mixed
from polydraft.core.training.parallel import foresight
from polydraft.core.training.shipping import aside, shipped
from polydraft.modalities.speech import vocabulary

WEIGHTS = {"loss": 1.0, "pointing": 0.2, "ahead": 0.3, "entropy": 0.0}
DROPOUT, DECAY = 0.1, 0.05
LAYER = 5  # whose output points
HIDDEN = 384  # of every draft head
ROPE = {"rope_type": "default", "rope_theta": 10_000.0}


class Pointer(nn.Module):
    """Which symbol is being spoken, by dot products between what codes and symbols look like after a middle layer."""

    def __init__(self, width: int, narrow: int = 64) -> None:
        super().__init__()
        self.asks, self.answers = nn.Linear(width, narrow, bias=False), nn.Linear(width, narrow, bias=False)
        self.scale = narrow**-0.5

    def forward(self, hidden: Tensor, batch: Batch) -> Tensor:
        """Mean nats a code that is said for a symbol; hidden `[B, L, D]`."""
        scores = (self.asks(hidden) @ self.answers(hidden).transpose(1, 2)).float() * self.scale
        scores = scores.masked_fill((batch.part == NOTHING)[:, None], -torch.inf).log_softmax(-1)
        right = (batch.spoken[:, :, None] == batch.part[:, None]) & (batch.part != NOTHING)[:, None]
        return -scores.masked_fill(~right, -torch.inf).logsumexp(-1)[batch.spoken != NOTHING].mean()


def losses(model: LlamaForCausalLM, pointer: Pointer, heads: HydraHeads, batch: Batch) -> Tensor:
    """`[4]`: mean nats a code (the end included), of the pointer, of codes further ahead, and of the law itself."""
    with mixed():
        out = model.model(input_ids=batch.ids, output_hidden_states=True)
        logits = model.lm_head(out.last_hidden_state[:, :-1][batch.judged])
        pointing = pointer(out.hidden_states[LAYER], batch)
        judged = F.pad(batch.judged, (0, 1))
        ahead = foresight(heads, model, out.last_hidden_state, batch.ids, judged, batch.ids.shape[1] // 3)
    law = logits.detach().float().log_softmax(-1)
    nats = F.cross_entropy(logits.float(), batch.ids[:, 1:][batch.judged])
    return torch.stack([nats, pointing, ahead, -(law.exp() * law).sum(-1).mean()])


def drop(model: LlamaForCausalLM, share: float) -> None:
    """Leave out a share of what attention and MLP of every layer add, while training; Llama has no such setting."""

    def dropped(module: nn.Module, _: object, out: Tensor) -> Tensor:
        return F.dropout(out, share, module.training)

    for layer in model.model.layers:
        for part in (layer.self_attn.o_proj, layer.mlp.down_proj):
            part.register_forward_hook(dropped)


def run(
    runs: Path, minutes: float, seed: int = 0, tokens: int = 4608, width: int = 192, layers: int = 12,
    rate: float = 3e-3, dropout: float = DROPOUT, decay: float = DECAY, again: bool = False, eager: bool = False,
    anyway: bool = False,
) -> None:  # fmt: skip
    """Train for `minutes` in all and leave the target in `runs/target`.

    runs: holds `coded/`, `target/tokenizer.json` and, with what its gate found, `codec/`; anyway: whatever that is.
    again: in minutes of its own, beginning with the weights there.
    """
    out = runs / "target"
    curve = known(out)
    rank = join()
    if rank == 0:
        gate.check(runs / "codec", anyway)
    spent = 0.0 if again or not curve else curve[-1]["seconds"]
    if spent >= minutes * 60:
        print(f"{out} has had its {minutes:g} minutes", flush=True)
        return
    torch.manual_seed(seed)
    rng = np.random.default_rng([seed, steps(curve), rank])  # other batches than before and elsewhere
    words = vocabulary.load(out)
    speech = Coded.of(runs)
    config = LlamaConfig(
        vocab_size=words.get_vocab_size(), hidden_size=width, num_hidden_layers=layers,
        intermediate_size=width * 8 // 3, num_attention_heads=width // 32, num_key_value_heads=width // 32,
        max_position_embeddings=2048, tie_word_embeddings=True, rope_parameters=ROPE, bos_token_id=None,
        eos_token_id=vocabulary.END, pad_token_id=vocabulary.PAD,
    )  # fmt: skip
    model = read_model("model", LlamaForCausalLM, out, dtype=torch.float32) if curve else LlamaForCausalLM(config)
    model.set_attn_implementation("eager")  # flash attention's backward pass is slow on CPUs
    pointer, folder = Pointer(width), out / "heads"
    heads = HydraHeads(config, hidden=HIDDEN)
    if (folder / "model.safetensors").exists():
        heads.load_state_dict(read_tensors(folder / "model.safetensors"))
    size = sum(p.numel() for p in model.parameters()) / 1e6
    if rank == 0:
        print(f"{size:.2f}M parameters, {len(speech.train)} utterances", flush=True)
    torch.manual_seed(seed + steps(curve) + 10_000 * rank)  # all begin alike, and leave out something else
    drop(model, dropout)
    if not eager:
        model.model.compile(dynamic=False)  # halves a step here; needs a C++ compiler
    folder.mkdir(parents=True, exist_ok=True)

    def keep(curve: Curve) -> None:
        """The target as it ships, and the heads beside it."""
        save_pretrained(model, out, curve)
        with aside(folder) as made:
            heads.save_pretrained(made, state_dict=shipped(heads))

    course.run(
        model, [pointer, heads], partial(losses, model, pointer, heads), partial(speech.batch, rng, tokens),
        speech.validation(tokens), keep, weights=WEIGHTS, minutes=minutes, rate=rate, curve=curve, rank=rank,
        decay=decay, spent=spent,
    )  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, required=True, help="holds coded/, target/tokenizer.json and codec/")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, default=3e-3, help="highest learning rate; 1e-3 with --again")
    parser.add_argument("--tokens", type=int, default=4608, help="of a batch, in each process")
    parser.add_argument("--dropout", type=float, default=DROPOUT)
    parser.add_argument("--decay", type=float, default=DECAY, help="of weights, at the highest learning rate")
    parser.add_argument("--again", action="store_true", help="train on what is done")
    parser.add_argument("--anyway", action="store_true", help="on codes of a codec that has not passed its gate")
    parser.add_argument("--eager", action="store_true", help="do not compile")
    run(**vars(parser.parse_args()))
