"""Train the causal LM of `tiny-speech`: a voice and the symbols of a text, then the codes of the speech.

    python -m polydraft.apps.lab.recipes.speech.target --runs runs/tiny-speech --minutes 240

A deep and narrow Llama. The position in the text is known from the renderer, and is half of the difficulty of speech:
in training a middle layer attends to the symbol being spoken (a pointer loss, dropped afterwards). Draft heads are
trained jointly, which makes it look ahead; they are saved as initial weights of a drafter.
The learning rate follows the clock. Weights are saved every few minutes, and the same command resumes an interrupted
run; `--again` trains a finished run for as long again.
On held-out text `entropy` is that of the target's distribution: nats above it are overconfidence, which dropout, weight
decay and more text lessen. Nothing is trained on the codes of a codec that has not passed its gate.
With `torchrun --nproc-per-node 2 -m` for `python -m`, two processes of one thread each are twice as fast as one.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from polydraft.apps.lab.recipes.speech.codes import NO_SYMBOL, CodedSpeech, SpeechBatch
from polydraft.apps.lab.recipes.speech.sound import gate
from polydraft.apps.lab.training import loop
from polydraft.apps.lab.training.checkpoint import Curve, load_curve, num_steps, save_pretrained
from polydraft.apps.lab.training.distributed import init_process_group
from polydraft.core.distillation.export import atomic_dir, export_state_dict
from polydraft.core.distillation.parallel_heads import multi_token_cross_entropy
from polydraft.core.drafters.heads.hydra import HydraHeads
from polydraft.core.folders.readers import read_model
from polydraft.core.folders.weight_files import read_tensors
from polydraft.core.model.precision import mixed_precision
from polydraft.modalities.speech import vocabulary

WEIGHTS = {"loss": 1.0, "pointing": 0.2, "ahead": 0.3, "entropy": 0.0}
DROPOUT, DECAY = 0.1, 0.05
LAYER = 5  # its output is the pointer's input
HIDDEN = 384  # of every draft head
ROPE: dict[str, str | float] = {"rope_type": "default", "rope_theta": 10_000.0}


class Pointer(nn.Module):
    """Pointer from codes to the symbol being spoken, by dot products of hidden states of a middle layer."""

    def __init__(self, width: int, narrow: int = 64) -> None:
        super().__init__()
        self.asks: nn.Linear = nn.Linear(width, narrow, bias=False)
        self.answers: nn.Linear = nn.Linear(width, narrow, bias=False)
        self.scale: Any = narrow**-0.5

    def forward(self, hidden: Tensor, batch: SpeechBatch) -> Tensor:
        """Return the mean nats per code that is spoken for a symbol; `hidden` is [B, L, D]."""
        scores = (self.asks(hidden) @ self.answers(hidden).transpose(1, 2)).float() * self.scale
        scores = scores.masked_fill((batch.symbol_index == NO_SYMBOL)[:, None], -torch.inf).log_softmax(-1)
        right = (batch.spoken_symbol[:, :, None] == batch.symbol_index[:, None]) & (batch.symbol_index != NO_SYMBOL)[
            :, None
        ]
        return -scores.masked_fill(~right, -torch.inf).logsumexp(-1)[batch.spoken_symbol != NO_SYMBOL].mean()


def losses(model: LlamaForCausalLM, pointer: Pointer, heads: HydraHeads, batch: SpeechBatch) -> Tensor:
    """Return [4]: mean nats per code (including the end), of the pointer, of later codes, and the target's entropy."""
    with mixed_precision():
        out = model.model(input_ids=batch.ids, output_hidden_states=True)
        logits = model.lm_head(out.last_hidden_state[:, :-1][batch.judged])
        pointing = pointer(out.hidden_states[LAYER], batch)
        judged = F.pad(batch.judged, (0, 1))
        ahead = multi_token_cross_entropy(
            heads, model, out.last_hidden_state, batch.ids, judged, batch.ids.shape[1] // 3
        )
    log_probs = logits.detach().float().log_softmax(-1)
    nats = F.cross_entropy(logits.float(), batch.ids[:, 1:][batch.judged])
    return torch.stack([nats, pointing, ahead, -(log_probs.exp() * log_probs).sum(-1).mean()])


def add_dropout(model: LlamaForCausalLM, share: float) -> None:
    """Add dropout to the outputs of attention and MLP of every layer, which Llama's configuration does not have."""

    def apply_dropout(module: nn.Module, _: object, out: Tensor) -> Tensor:
        return F.dropout(out, share, module.training)

    for layer in model.model.layers:
        for part in (layer.self_attn.o_proj, layer.mlp.down_proj):
            part.register_forward_hook(apply_dropout)


def run(
    runs: Path, minutes: float, seed: int = 0, tokens: int = 4608, width: int = 192, layers: int = 12,
    rate: float = 3e-3, dropout: float = DROPOUT, decay: float = DECAY, again: bool = False, eager: bool = False,
    anyway: bool = False,
) -> None:  # fmt: skip
    """Train for `minutes` in all and save the target to `runs/target`.

    Args:
        runs (Path): folder with `coded/`, `target/tokenizer.json` and `codec/` with the result of its gate.
        minutes (float): wall time, including earlier runs.
        seed (int): seed of batches and weights.
        tokens (int): tokens per batch, in each process.
        width (int): hidden size.
        layers (int): number of layers.
        rate (float): highest learning rate.
        dropout (float): dropout rate.
        decay (float): weight decay.
        again (bool): whether to train finished weights for `minutes` more.
        eager (bool): whether to skip compilation.
        anyway (bool): whether to train although the codec has not passed its gate.
    """
    out = runs / "target"
    curve = load_curve(out)
    rank = init_process_group()
    if rank == 0:
        gate.check_gate(runs / "codec", anyway)
    spent = 0.0 if again or not curve else curve[-1]["seconds"]
    if spent >= minutes * 60:
        print(f"{out} has had its {minutes:g} minutes", flush=True)
        return
    torch.manual_seed(seed)
    rng = np.random.default_rng([seed, num_steps(curve), rank])  # other batches in every run and process
    tokenizer = vocabulary.load_tokenizer(out)
    speech = CodedSpeech.from_runs(runs)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=width, num_hidden_layers=layers,
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
    torch.manual_seed(seed + num_steps(curve) + 10_000 * rank)  # the same initial weights, but other dropout
    add_dropout(model, dropout)
    if not eager:
        model.model.compile(dynamic=False)  # halves a step here; needs a C++ compiler
    folder.mkdir(parents=True, exist_ok=True)

    def keep(curve: Curve) -> None:
        """Save the target as it ships, and the draft heads."""
        save_pretrained(model, out, curve)
        with atomic_dir(folder) as made:
            heads.save_pretrained(made, state_dict=export_state_dict(heads))

    loop.train(
        model, [pointer, heads], partial(losses, model, pointer, heads), partial(speech.sample_batch, rng, tokens),
        speech.validation(tokens), keep, weights=WEIGHTS, minutes=minutes, rate=rate, curve=curve, rank=rank,
        decay=decay, spent=spent,
    )  # fmt: skip


if __name__ == "__main__":
    parser: argparse.ArgumentParser = argparse.ArgumentParser(description=__doc__)
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
