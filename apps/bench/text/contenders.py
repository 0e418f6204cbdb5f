"""Methods and engines that `polydraft bench text` compares: ours, which learn and can forget, and others.

contenders = [*method_contenders(pipe, ["ar", "auto"]), generate_contender(pipe, untouched(pipe))]
run = contenders[0].decode(prompts)      # a batch
contenders[0].renew()                    # the next batch is decoded as if there had been none before
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from polydraft.apps.measure.decoding import RenewableMethod, decoded
from polydraft.apps.measure.peers import llama_cpp, openvino
from polydraft.apps.measure.peers.generate import PROMPT_LOOKUP, attempt, generate, probe
from polydraft.apps.measure.rounds import RoundContender
from polydraft.apps.measure.table import PEER, PLAIN
from polydraft.apps.measure.timing import Run
from polydraft.core.checks.extras import EXTRAS, pip_install
from polydraft.core.decode import PROMPT_END
from polydraft.core.target.causal import PromptInputs
from polydraft.modalities.pipeline import Pipeline

TRANSFORMERS_LOOKUP, TRANSFORMERS_ASSISTED = "transformers prompt lookup", "transformers assisted"
Decode = Callable[[list[PromptInputs]], Run]


@dataclass(frozen=True)
class PromptContender(RoundContender[list[PromptInputs], Run]):
    """Method or engine that decodes batches of prompts."""

    is_batched: bool = True  # whether it decodes several prompts together


class LearningMethod(RenewableMethod):
    """Decoding method of a pipeline that learns from batch to batch until it is renewed."""

    def decode(self, prompts: list[PromptInputs]) -> Run:
        """Decode a batch, from whose answers the drafter learns as from those of requests to the pipeline."""
        method = self.build()
        run = decoded(method, prompts, len(prompts))
        for prompt, output in zip(prompts, run.outputs, strict=True):
            method.drafter.finish(prompt.branch_token_ids[0][-PROMPT_END:], output.tolist())
        return run


@dataclass(frozen=True)
class Engine:
    """Another engine, not loaded yet."""

    name: str
    build: Callable[[], Decode]
    package: str = ""  # that it comes in; empty for transformers, which is always installed


def method_contenders(pipe: Pipeline, names: list[str]) -> list[PromptContender]:
    """Return a contender for every named method."""
    methods = {name: LearningMethod(pipe, name) for name in names}
    return [PromptContender(name, each.decode, each.renew, learns=name != PLAIN) for name, each in methods.items()]


def generate_contender(pipe: Pipeline, model: PreTrainedModel) -> PromptContender:
    """Return transformers' `generate` with `model`, which has the weights of the pipeline."""
    return PromptContender(PEER, lambda prompts: generate(pipe, model, prompts, len(prompts)))


def peer_contenders(
    pipe: Pipeline, model: PreTrainedModel, gguf: Path | None, prompt: PromptInputs, positions: int
) -> tuple[list[PromptContender], list[str]]:
    """Return engines that decode one prompt at a time, and why others are left out.

    Args:
        pipe (Pipeline): The model; a small language model among its drafters assists transformers.
        model (PreTrainedModel): Its weights, loaded by transformers.
        gguf (Path | None): The model as a GGUF file, for engines that read no other.
        prompt (PromptInputs): Prompt that every engine is tried on.
        positions (int): Most tokens of a prompt and its answer.
    """
    contenders, reasons = [], []
    for engine in [*transformers_engines(pipe, model), *gguf_engines(pipe, gguf, positions)]:
        if reason := missing_part(engine, gguf):
            reasons.append(reason)
        elif (decode := attempt(engine.name, partial(build_and_try, engine, prompt))) is None:
            reasons.append(f"{engine.name} fails here")
        else:
            contenders.append(PromptContender(engine.name, decode, is_batched=False))
    return contenders, reasons


def transformers_engines(pipe: Pipeline, model: PreTrainedModel) -> list[Engine]:
    """Return the ways of `generate` to draft: prompt lookup, and an assistant if there is one."""
    modes: dict[str, dict[str, Any]] = {TRANSFORMERS_LOOKUP: PROMPT_LOOKUP}
    if "lm" in pipe.card.drafters:
        modes[TRANSFORMERS_ASSISTED] = {"assistant_model": pipe.drafter("lm").model}
    return [Engine(name, partial(partial, generate, pipe, model, **mode)) for name, mode in modes.items()]


def gguf_engines(pipe: Pipeline, file: Path | None, positions: int) -> list[Engine]:
    """Return the engines that read a GGUF file."""
    path = file or Path()
    plain, lookup = (partial(build_openvino, path, pipe.eos_token_ids, lookup=is_lookup) for is_lookup in (False, True))
    return [
        Engine(llama_cpp.NAME, partial(build_llama_cpp, path, positions), llama_cpp.PACKAGE),
        Engine(openvino.NAME, plain, openvino.PACKAGE),
        Engine(openvino.LOOKUP_NAME, lookup, openvino.PACKAGE),
    ]


def build_llama_cpp(file: Path, positions: int) -> Decode:
    """Load a GGUF file with llama.cpp."""
    return llama_cpp.LlamaCpp(file, positions).decode


def build_openvino(file: Path, eos_token_ids: frozenset[int], lookup: bool) -> Decode:
    """Load a GGUF file with OpenVINO GenAI."""
    return openvino.OpenVINO(file, eos_token_ids, lookup).decode


def missing_part(engine: Engine, gguf: Path | None) -> str:
    """Return what an engine lacks here, as a reason; empty if nothing."""
    if not engine.package:
        return ""
    if find_spec(engine.package) is None:
        return f"{engine.name} is not installed: {pip_install(EXTRAS[engine.package])}"
    return f"{engine.name} needs the model as a GGUF file: --gguf" if gguf is None else ""


def build_and_try(engine: Engine, prompt: PromptInputs) -> Decode:
    """Load an engine and generate a few tokens with it, so that an error comes now."""
    decode = engine.build()
    decode(probe([prompt]))
    return decode
