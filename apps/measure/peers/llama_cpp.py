"""llama.cpp on a GGUF file, as a contender, through the package xllamacpp.

peer = LlamaCpp(Path("SmolLM2-135M-Instruct.Q4_1.gguf"), positions=2048)
run = peer.decode(prompts)

It reads our token ids, one prompt at a time. Its clock starts when the first token is there, which is not counted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from polydraft.apps.measure.peers.generate import TICK
from polydraft.apps.measure.peers.gguf_export import tokens_of
from polydraft.apps.measure.timing import Run
from polydraft.core.target.causal import PromptInputs

PACKAGE, NAME = "xllamacpp", "llama.cpp"
SEEDS = 2**32  # how many there are
FLOAT32 = 0  # number of the type in llama.cpp


class LlamaCpp:
    """Model of a GGUF file in llama.cpp, on CPUs with as many threads as torch has.

    Args:
        file (Path): the GGUF file.
        positions (int): most tokens of a prompt and its answer.
        exported (bool): whether `gguf_export` has written the file: then answers do not end early, and ids are known.
        is_float32 (bool): whether keys and values are kept in float32, else in float16.
    """

    def __init__(self, file: Path, positions: int, exported: bool = False, is_float32: bool = False) -> None:
        from xllamacpp import CommonParams, Server

        params = CommonParams()
        params.model.path, params.n_ctx, params.verbosity = str(file), positions, -1
        params.n_gpu_layers = 0
        for threads in (params.cpuparams, params.cpuparams_batch):
            threads.n_threads = torch.get_num_threads()
            threads.poll = 0  # waiting threads sleep, or they would slow whoever decodes next
        if is_float32:
            params.cache_type_k = params.cache_type_v = FLOAT32
        self.server: Any = Server(params)
        self.exported: bool = exported

    def decode(self, prompts: list[PromptInputs]) -> Run:
        """Decode all prompts, one after the other."""
        seconds, tokens, outputs = 0.0, 0, []
        for prompt in prompts:
            answer = self.server.handle_completions(request_of(prompt) | {"ignore_eos": self.exported})
            timings = answer["timings"]
            seconds += max(timings["predicted_ms"] / 1000, TICK)
            tokens += timings["predicted_n"] - 1
            if self.exported:
                outputs.append(torch.tensor(tokens_of(answer["choices"][0]["text"])))
        return Run(seconds, tokens, outputs)


def request_of(prompt: PromptInputs) -> dict[str, object]:
    """Return the request for a completion: the ids of the prompt, its sampling, and nothing kept from earlier ones."""
    sampling = prompt.sampling_params
    return {
        "prompt": list(prompt.branch_token_ids[0]), "max_tokens": prompt.max_new_tokens, "cache_prompt": False,
        "temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p, "min_p": sampling.min_p,
        "seed": prompt.seed % SEEDS,
    }  # fmt: skip
