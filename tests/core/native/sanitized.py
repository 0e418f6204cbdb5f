"""Random products and passes over a library with sanitizers, in a process that has their runtime preloaded.

    python -m tests.core.native.sanitized LIBRARY PASSES INSTRUCTION_SET...
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

from polydraft.core.native import decoder, weights
from polydraft.core.native import library as native
from polydraft.core.native.weights import InPlaceWeight, PanelWeight
from polydraft.core.target.conformance import PROBE_LENGTHS, probe_drafts, probe_prompts
from polydraft.core.target.encoder_decoder import EncoderDecoderTarget

from .passes import CONFIGS, build_backbone, filled_cache, prepare, random_pass, run_pass, threads


class ExactMemory(native.Memory):
    """Memory without a byte more than was asked for, so that the sanitizer sees every step beyond it."""

    def address(self, num_bytes: int) -> int:
        """Return the aligned address of `num_bytes` bytes."""
        self.buffer = torch.empty(num_bytes, dtype=torch.uint8)
        assert self.buffer.data_ptr() % native.ALIGNMENT == 0
        return self.buffer.data_ptr()


def run_product(library: native.Library, choice: random.Random) -> None:
    """Multiply random shapes."""
    dtype, inputs = choice.choice([torch.float32, torch.bfloat16]), choice.randint(1, 150)
    outputs = [choice.randint(1, 200) for _ in range(choice.randint(1, 3))]
    biases = [torch.randn(size).to(dtype) for size in outputs] if choice.random() < 0.5 else []
    layout = choice.choice([PanelWeight, InPlaceWeight])
    weight = layout(library, [torch.randn(size, inputs).to(dtype) for size in outputs], biases)
    assert weight.product(torch.randn(choice.randint(0, 70), inputs)).isfinite().all()


def run_cross_attention(name: str, choice: random.Random) -> None:
    """Decode with a decoder that attends to fixed keys, of random sizes."""
    heads = choice.randint(1, 4)
    config = WhisperConfig(
        vocab_size=50, d_model=heads * 2 * choice.randint(2, 20), encoder_layers=1, decoder_layers=2,
        encoder_attention_heads=heads, decoder_attention_heads=heads, decoder_ffn_dim=choice.randint(1, 130),
        encoder_ffn_dim=8, num_mel_bins=4, max_source_positions=choice.randint(1, 70), max_target_positions=90,
        pad_token_id=1, bos_token_id=1, eos_token_id=1, decoder_start_token_id=2,
    )  # fmt: skip
    native.supported_instruction_sets = lambda: (name,)
    dtype = choice.choice([torch.float32, torch.bfloat16])
    target = EncoderDecoderTarget(WhisperForConditionalGeneration(config).eval().to(dtype))
    assert target.network.is_native
    for draft in probe_drafts(target, len(PROBE_LENGTHS)):
        state = target.empty_state()
        with torch.inference_mode(), threads(choice.randint(1, 2)):
            target.prefill(state, probe_prompts(target, range(len(PROBE_LENGTHS))))
            assert target.score(state, draft).outputs.isfinite().all()


def main() -> None:
    """Run what the command line tells."""
    native.LIBRARY, native.SMALL_WORK, count = Path(sys.argv[1]), 0, int(sys.argv[2])
    assert not (reason := native.why_unusable()), reason
    decoder.memory = weights.memory = ExactMemory()
    torch.manual_seed(0)
    choice = random.Random(0)
    for name in sys.argv[3:]:
        for _ in range(4 * count):
            with threads(choice.randint(1, 2)):
                run_product(native.load(native.LIBRARY, name), choice)
        for model in list(CONFIGS)[:: 1 if count > 4 else 3]:
            dtype = choice.choice([torch.float32, torch.bfloat16])
            network = prepare(build_backbone(model, dtype), name)
            for kind in choice.choices(("chain", "tree", "scattered"), k=count):
                num_new, rows = choice.choice((1, 2, choice.randint(3, 40), 64)), choice.randint(1, 4)
                view_len = (num_new + choice.randint(0, 80) + 15) // 16 * 16
                given = random_pass(kind, choice.randint(0, 2), rows, num_new, view_len)
                # without spare slots after the last row's
                cache = filled_cache(network, given.rows.stop, given.visible.shape[2], dtype)
                with threads(choice.randint(1, 2)):
                    assert run_pass(network, cache, given).isfinite().all()
        for _ in range(count):
            run_cross_attention(name, choice)


if __name__ == "__main__":
    main()
