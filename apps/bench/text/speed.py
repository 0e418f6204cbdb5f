"""`polydraft bench text`: a language model's methods and other engines, in turns, on requests of six kinds.

polydraft bench text --model ./smollm2 --methods auto,history,pld --kinds chat,summary
polydraft bench text --model ./smollm2 --data questions.jsonl --drafter runs/eagle
polydraft bench text --model ./smollm2 --peers --gguf SmolLM2-135M-Instruct.Q4_1.gguf -o runs/bench

Prompt by prompt, all decode it before any sees the next. Methods that learn do so from prompt to prompt of a kind; each
round begins with methods that know nothing, which first see prompts that do not count, and no prompt comes twice in a
round. So figures are of a model that has answered a few requests of the kind; with `--cold`, of one that has answered
none. Speeds of drafters that earlier processes have kept in the cache folder are not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

from polydraft.apps.bench.text.contenders import (
    PromptContender,
    generate_contender,
    method_contenders,
    peer_contenders,
)
from polydraft.apps.bench.text.plan import Plan
from polydraft.apps.bench.text.result import TextBlock, TextSetting, bars, sheets
from polydraft.apps.data.text_prompts import NUM_PROMPTS, check_kinds, text_prompts
from polydraft.apps.data.user_requests import BenchQuestion, build_question_prompts, read_questions
from polydraft.apps.measure import report
from polydraft.apps.measure.decoding import asked_for
from polydraft.apps.measure.environment import timed_on
from polydraft.apps.measure.lists import numbers, whole_numbers, words
from polydraft.apps.measure.peers.generate import untouched
from polydraft.apps.measure.rounds import no_cache_folder, time_rounds
from polydraft.apps.terminal.terminal import note
from polydraft.core.errors import DataUnavailable
from polydraft.core.sampling.params import SamplingParams
from polydraft.core.target.causal import PromptInputs
from polydraft.modalities.loading import load
from polydraft.modalities.pipeline import Pipeline
from polydraft.modalities.vlm.conversation import build_conversation
from polydraft.modalities.vlm.pipeline import ChatPipeline

USER_DATA = "data"  # kind of the user's own prompts
METHODS = ("auto", "history", "suffix", "recycling", "pld")  # that need no trained drafter
PREFILL = "prefill is apart, of other engines too: their clocks start with the first token"
ALONE = (
    "engines other than transformers' generate decode one prompt at a time, so they are in tables of 1 row alone; "
    "those that read a GGUF file have its weights, of 4 bits for instance, and not those of the model's folder"
)


def run(
    *, model: str, drafter: list[str] | None, methods: str | None, kinds: str, temperatures: str, rows: str, plan: Plan,
    peers: bool, gguf: Path | None, device: str, dtype: str, output: Path | None, json: bool, data: str | None = None,
) -> None:  # fmt: skip
    """Measure, print and, given a folder, save. data: the user's own questions, in place of all kinds."""
    report.check_folder(output)
    requests = [] if data is None else read_questions(data, "text", plan.prompts and plan.prompts + plan.warm_ups)
    settings = all_settings(kinds, temperatures, rows)
    if data is not None:
        settings = list(dict.fromkeys(replace(setting, kind=USER_DATA) for setting in settings))
    for setting in settings:
        plan.batches(setting.rows, len(requests) or NUM_PROMPTS)
    if gguf is not None and not gguf.is_file():
        raise DataUnavailable(f"{gguf} is no file; give the model's GGUF file, or leave --gguf out.")
    pipe: ChatPipeline = load(model, drafter=drafter, modality="vlm", device=device, dtype=dtype)
    names = asked_for(methods or default_methods(pipe), pipe)
    taken_on = timed_on(pipe.device, pipe.dtype)
    batches = {setting: split_prompts(pipe, setting, plan, requests) for setting in settings}
    ours, engines, left_out = contenders_of(pipe, names, batches, peers, gguf)
    blocks = []
    for setting, (counting, warming) in batches.items():
        chosen = [*ours, *(engine for engine in engines if engine.is_batched or setting.rows == 1)]
        note(f"timing {setting.kind}, {setting.title}")
        with no_cache_folder():
            rounds = time_rounds(chosen, counting, warming, plan.repeats, plan.cold)
        blocks.append(TextBlock.from_rounds(setting, rounds, [engine.name for engine in engines]))
    value: dict[str, Any] = {
        "model": pipe.card.name, "data": data, **asdict(plan),
        "sampling": asdict(open_sampling(pipe, 0)) | {"temperature": None},
        "left_out": left_out, "environment": taken_on, "blocks": [block.to_dict() for block in blocks],
    }  # fmt: skip
    notes = [PREFILL, state_note(plan), *([ALONE] if peers else []), *left_out]
    report.tell_titled("text", value, sheets(blocks), notes, lambda: bars(blocks), output, json)
    report.check_promises(
        (name for block in blocks for name in block.results.broken),
        (name for block in blocks for name in block.results.faulty),
    )


def all_settings(kinds: str, temperatures: str, rows: str) -> list[TextSetting]:
    """Return every temperature with every number of rows and kind of prompts, kinds fastest."""
    chosen = words(kinds)
    check_kinds(chosen)
    heats, widths = numbers(temperatures, "--temperatures"), whole_numbers(rows, "--rows")
    return [TextSetting(kind, heat, width) for heat, width, kind in product(heats, widths, chosen)]


def default_methods(pipe: Pipeline) -> str:
    """Return drafters without training, and those of trained networks that the model has."""
    trained = [name for kind in pipe.card.drafters for name in pipe.registry.tuned_methods(kind)]
    return ",".join([*METHODS, *trained])


def split_prompts(
    pipe: ChatPipeline, setting: TextSetting, plan: Plan, requests: Sequence[BenchQuestion] = ()
) -> tuple[list[list[PromptInputs]], list[list[PromptInputs]]]:
    """Return batches of prompts that count, and batches that come before them, without a prompt in common.

    Args:
        pipe (ChatPipeline): The model.
        setting (TextSetting): Conditions.
        plan (Plan): How many prompts.
        requests (Sequence[BenchQuestion]): The user's questions, the first of them before; empty for built-in ones.
    """
    counting, warming = (number * setting.rows for number in plan.batches(setting.rows, len(requests) or NUM_PROMPTS))
    sampling = open_sampling(pipe, setting.temperature)
    if requests:
        chosen = [*requests[warming : warming + counting], *requests[:warming]]
        asked = build_question_prompts(pipe, chosen, plan.tokens)
        built = [replace(prompt, sampling_params=sampling) for prompt in asked]
    else:
        prompts = text_prompts(setting.kind, NUM_PROMPTS)
        texts = prompts[:counting] + prompts[NUM_PROMPTS - warming :]
        conversations = [build_conversation(None, text, ()) for text in texts]
        built = pipe.build_prompts(conversations, list(range(len(texts))), plan.tokens, sampling)
    batches = [built[first : first + setting.rows] for first in range(0, len(built), setting.rows)]
    return batches[: counting // setting.rows], batches[counting // setting.rows :]


def open_sampling(pipe: ChatPipeline, temperature: float) -> SamplingParams:
    """Return the model's sampling at a temperature, without top-k and top-p."""
    return replace(pipe.sampling_params(temperature=temperature), top_k=0, top_p=1.0)


def contenders_of(
    pipe: ChatPipeline, names: list[str], batches: dict[TextSetting, tuple[list[list[PromptInputs]], Any]], peers: bool,
    gguf: Path | None,
) -> tuple[list[PromptContender], list[PromptContender], list[str]]:  # fmt: skip
    """Return our methods, other engines, and why further engines are left out."""
    model = untouched(pipe)
    engines, left_out = [generate_contender(pipe, model)], list[str]()
    if peers and any(setting.rows == 1 for setting in batches):
        prompts = [prompt for counting, warming in batches.values() for batch in counting + warming for prompt in batch]
        longest = max(len(prompt.branch_token_ids[0]) + prompt.max_new_tokens for prompt in prompts)
        others, left_out = peer_contenders(pipe, model, gguf, prompts[0], longest)
        engines += others
    return method_contenders(pipe, names), engines, left_out


def state_note(plan: Plan) -> str:
    """Return what methods that learn have seen before a prompt, as a note."""
    if plan.cold:
        return "methods that learn forgot everything before each batch: this is a first request (--cold)"
    return (
        f"methods that learn had answered other prompts of a kind before (--warm-ups {plan.warm_ups}), and kept what "
        "they learned from prompt to prompt; --cold measures a first request"
    )
