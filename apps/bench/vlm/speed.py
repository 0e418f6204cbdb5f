"""`polydraft bench vlm`: every method, plain decoding and transformers' own ways to generate, in turns, in one process.

polydraft bench vlm --prompts 8 --repeats 3 -o runs/bench

Descriptions of emoji scenes that no model was trained on, a block a temperature. S is decode time a token of the faster
baseline (plain decoding or `generate`) over the method's, round by round; τ is tokens a target pass; prefill and
encoding the picture are apart, transformers' too.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from polydraft.apps.bench.vlm.tasks.emoji_qa import DESCRIBE, Rows
from polydraft.apps.measure import report, table
from polydraft.apps.measure.decoding import asked_for, draw
from polydraft.apps.measure.environment import timed_on
from polydraft.apps.measure.lists import numbers
from polydraft.apps.measure.peers.generate import PROMPT_LOOKUP, attempt, generate, untouched
from polydraft.apps.measure.timing import Contender, take_turns
from polydraft.apps.terminal.terminal import note
from polydraft.core.target.causal import PromptInputs
from polydraft.modalities.loading import load
from polydraft.modalities.vlm.conversation import build_conversation
from polydraft.modalities.vlm.pipeline import VLMPipeline

PEER_NOTE = "transformers' prefill (encoding the picture included) is apart: their clock starts with the first token"


def run(
    *, prompts: int, repeats: int, methods: str | None, model: str, drafter: list[str] | None, temperatures: str,
    max_new_tokens: int, peers: bool, output: Path | None, json: bool,
) -> None:  # fmt: skip
    """Measure, print and, given a folder, save."""
    report.check_folder(output)
    heats = numbers(temperatures, "--temperatures")
    pipe = cast(VLMPipeline, load(model, drafter=drafter, modality="vlm"))
    names = asked_for(methods, pipe)
    taken_on = timed_on(pipe.device, pipe.dtype)
    shown, blocks = scenes(pipe, prompts, max_new_tokens), []
    if cut := [prompt.max_new_tokens for prompt in shown if prompt.max_new_tokens < max_new_tokens]:
        note(f"note: {len(cut)} of {prompts} answers have room for {min(cut)} tokens and not for {max_new_tokens}")
    for heat in heats:
        sampling = replace(pipe.sampling_params(temperature=heat), top_k=0, top_p=1.0)
        asked = [replace(prompt, sampling_params=sampling) for prompt in shown]
        contenders = [Contender(name, partial(draw, pipe, name, asked, 1)) for name in names]
        if peers:
            contenders += theirs(pipe, asked)
        runs = take_turns(contenders, repeats, lambda name: note(f"timing {name}"))
        blocks.append(
            table.ResultBlock.from_runs(f"temperature {heat:g}", {name: turns for name, turns in runs.items() if turns})
        )
    value: dict[str, Any] = {
        "model": pipe.card.name, "cut": len(cut), "prompts": prompts, "repeats": repeats, "environment": taken_on,
        "sampling": asdict(replace(sampling, temperature=0.0)) | {"temperature": heats},
        "blocks": [
            {"temperature": heat, "rows": [row.to_dict() for row in block.rows]}
            for heat, block in zip(heats, blocks, strict=True)
        ],
    }  # fmt: skip
    report.tell_blocks("vlm", value, blocks, [PEER_NOTE] if peers else [], output, json)


def scenes(pipe: VLMPipeline, count: int, most: int) -> list[PromptInputs]:
    """Build requests for descriptions of held-out scenes."""
    rows = Rows()
    asked = [build_conversation(rows[place]["image"], DESCRIBE, ()) for place in range(count)]
    return pipe.build_prompts(asked, list(range(count)), most)


def theirs(pipe: VLMPipeline, prompts: list[PromptInputs]) -> list[Contender]:
    """transformers' `generate`, and its two ways to draft; what it refuses is reported and left out."""
    model = untouched(pipe)
    modes: dict[str, dict[str, Any]] = {table.PEER: {}, "transformers prompt lookup": PROMPT_LOOKUP}
    if "lm" in pipe.card.drafters:
        modes["transformers assisted"] = {"assistant_model": pipe.drafter("lm").model}
    contenders = []
    for name, mode in modes.items():
        work = partial(generate, pipe, model, prompts, **mode)
        if name == table.PEER or attempt(name, work) is not None:
            contenders.append(Contender(name, work))
    return contenders
