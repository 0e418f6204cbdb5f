"""OpenVINO GenAI on a GGUF file, as a contender, with or without its prompt lookup.

peer = OpenVINO(Path("SmolLM2-135M-Instruct.Q4_1.gguf"), eos_token_ids={2})
run = peer.decode(prompts)

It reads our token ids, one prompt at a time. Its clock starts when the first token is there, which is not counted.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch

from polydraft.apps.measure.peers.generate import TICK
from polydraft.apps.measure.timing import Run
from polydraft.core.target.causal import PromptInputs

PACKAGE, NAME, LOOKUP_NAME = "openvino_genai", "OpenVINO GenAI", "OpenVINO GenAI prompt lookup"
DRAFT_TOKENS, NGRAM = 5, 3  # of prompt lookup, as in the documentation of OpenVINO GenAI
MILLISECONDS = 1000


class OpenVINO:
    """Model of a GGUF file in OpenVINO GenAI, on CPUs with as many threads as torch has.

    Args:
        file (Path): the GGUF file.
        eos_token_ids (Collection[int]): ids that end an answer; without any, answers do not end early.
        lookup (bool): whether to draft by prompt lookup.
        is_float32 (bool): whether to compute, and keep keys and values, in float32; else the engine chooses.
    """

    def __init__(
        self, file: Path, eos_token_ids: Collection[int], lookup: bool = False, is_float32: bool = False
    ) -> None:
        from openvino_genai import LLMPipeline

        options: dict[str, Any] = {"INFERENCE_NUM_THREADS": torch.get_num_threads()}
        if lookup:
            options["prompt_lookup"] = True
        if is_float32:
            options |= {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
        self.pipeline: Any = LLMPipeline(str(file), "CPU", **options)
        self.eos_token_ids: set[int] = set(eos_token_ids)
        self.lookup: bool = lookup

    def decode(self, prompts: list[PromptInputs]) -> Run:
        """Decode all prompts, one after the other."""
        from openvino import Tensor

        seconds, tokens, outputs = 0.0, 0, []
        for prompt in prompts:
            ids = torch.tensor([prompt.branch_token_ids[0]])
            result = self.pipeline.generate(Tensor(ids.numpy()), self.config(prompt))
            measured = result.perf_metrics.raw_metrics
            times, num_tokens = measured.m_new_token_times, measured.m_batch_sizes  # by pass, prefill's first
            seconds += max((times[-1] - times[0]) / MILLISECONDS, TICK) if times else TICK
            tokens += sum(num_tokens[1:])
            outputs.append(torch.tensor(result.tokens[0]))
        return Run(seconds, tokens, outputs)

    def config(self, prompt: PromptInputs) -> Any:
        """Return the generation config of a prompt."""
        from openvino_genai import GenerationConfig

        sampling, config = prompt.sampling_params, GenerationConfig()
        config.max_new_tokens, config.stop_token_ids = prompt.max_new_tokens, self.eos_token_ids
        config.ignore_eos = not self.eos_token_ids
        config.do_sample, config.apply_chat_template = not sampling.greedy, False
        if not sampling.greedy:
            config.temperature, config.top_p, config.min_p = sampling.temperature, sampling.top_p, sampling.min_p
            config.rng_seed = prompt.seed
            if sampling.top_k:
                config.top_k = sampling.top_k
        if self.lookup:
            config.num_assistant_tokens, config.max_ngram_size = DRAFT_TOKENS, NGRAM
        return config
