"""`polydraft bench vlm`: every method, plain decoding and transformers' own ways to generate, in turns, in one process.

polydraft bench vlm --prompts 8 --repeats 3 -o runs/bench
polydraft bench vlm --data photos.jsonl --model ./my-vlm --drafter runs/eagle

Descriptions of emoji scenes that no model was trained on, or the user's questions, a block a temperature. S is decode
time a token of the faster baseline (plain decoding or `generate`) over the method's, round by round; τ is tokens a
target pass; prefill and encoding the picture are apart, transformers' too. Where the data has answers, a table says how
many each method gives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from polydraft.apps.bench.vlm.tasks import ocrbench
from polydraft.apps.bench.vlm.tasks.emoji_qa import DESCRIBE, Rows
from polydraft.apps.data.built_in_prompts import prompt_kind
from polydraft.apps.data.user_requests import BenchQuestion, build_question_prompts, read_questions
from polydraft.apps.measure import report, table
from polydraft.apps.measure.decoding import asked_for, draw
from polydraft.apps.measure.environment import timed_on
from polydraft.apps.measure.lists import numbers
from polydraft.apps.measure.peers.generate import PROMPT_LOOKUP, attempt, generate, probe, untouched
from polydraft.apps.measure.report import Sheet
from polydraft.apps.measure.timing import Contender, Run, take_turns
from polydraft.apps.terminal.terminal import note
from polydraft.core.target.causal import PromptInputs
from polydraft.modalities.loading import load
from polydraft.modalities.model_card import load_card
from polydraft.modalities.vlm.conversation import build_conversation
from polydraft.modalities.vlm.pipeline import ChatPipeline

PROMPTS = 8  # scenes, where the user gives no data and no number
PEER_NOTE = "transformers' prefill (encoding the picture included) is apart: their clock starts with the first token"


def run(
    *, data: str | None = None, prompts: int | None, repeats: int, methods: str | None, model: str,
    drafter: list[str] | None, temperatures: str, max_new_tokens: int, peers: bool, output: Path | None, json: bool,
    device: str = "auto", dtype: str = "auto",
) -> None:  # fmt: skip
    """Measure, print and, given a folder, save. data: the user's own questions, in place of scenes."""
    report.check_folder(output)
    heats = numbers(temperatures, "--temperatures")
    requests = [] if data is None else read_questions(data, prompt_kind(load_card(model, modality="vlm")), prompts)
    pipe: ChatPipeline = load(model, drafter=drafter, modality="vlm", device=device, dtype=dtype)
    names = asked_for(methods, pipe)
    if data is None:
        shown = scenes(pipe, prompts or PROMPTS, max_new_tokens)
    else:
        shown = build_question_prompts(pipe, requests, max_new_tokens)
    taken_on = timed_on(pipe.device, pipe.dtype)
    if cut := [prompt.max_new_tokens for prompt in shown if prompt.max_new_tokens < max_new_tokens]:
        note(f"note: {len(cut)} of {len(shown)} answers have room for {min(cut)} tokens and not for {max_new_tokens}")
    engines, left_out = theirs(pipe, shown) if peers else ({}, [])
    blocks, right = list[table.ResultBlock](), list[dict[str, float]]()
    for heat in heats:
        sampling = replace(pipe.sampling_params(temperature=heat), top_k=0, top_p=1.0)
        asked = [replace(prompt, sampling_params=sampling) for prompt in shown]
        contenders = [Contender(name, partial(draw, pipe, name, asked, 1)) for name in names]
        contenders += [Contender(name, partial(work, asked)) for name, work in engines.items()]
        runs = take_turns(contenders, repeats, lambda name: note(f"timing {name}"))
        blocks.append(table.ResultBlock.from_runs(f"temperature {heat:g}", runs))
        right.append({name: share for name, turns in runs.items()
                      if (share := right_answers(pipe, requests, turns[0])) is not None})  # fmt: skip
    notes = [*([PEER_NOTE] if engines else []), *left_out]
    value: dict[str, Any] = {
        "model": pipe.card.name, "data": data, "cut": len(cut), "prompts": len(shown), "repeats": repeats,
        "environment": taken_on, "notes": notes,
        "sampling": asdict(replace(sampling, temperature=0.0)) | {"temperature": heats},
        "blocks": [
            {"temperature": heat, "rows": [row.to_dict() for row in block.rows], "right_answers": shares}
            for heat, block, shares in zip(heats, blocks, right, strict=True)
        ],
    }  # fmt: skip
    sheets = {
        f"{block.title}, answers": answer_sheet(shares) for block, shares in zip(blocks, right, strict=True) if shares
    }
    report.tell_blocks("vlm", value, blocks, notes, output, json, sheets)


def scenes(pipe: ChatPipeline, count: int, most: int) -> list[PromptInputs]:
    """Build requests for descriptions of held-out scenes."""
    rows = Rows()
    asked = [build_conversation(rows[place]["image"], DESCRIBE, ()) for place in range(count)]
    return pipe.build_prompts(asked, list(range(count)), most)


def theirs(pipe: ChatPipeline, prompts: list[PromptInputs]) -> tuple[dict[str, Callable[..., Run]], list[str]]:
    """Return transformers' `generate` and its two ways to draft by name, and why some are left out.

    Args:
        pipe (ChatPipeline): The model.
        prompts (list[PromptInputs]): What it is asked; a few tokens of each answer are tried.
    """
    model, left_out = untouched(pipe), []
    modes: dict[str, dict[str, Any]] = {table.PEER: {}, "transformers prompt lookup": PROMPT_LOOKUP}
    if "lm" in pipe.card.drafters:
        modes["transformers assisted"] = {"assistant_model": pipe.drafter("lm").model}
    engines: dict[str, Callable[..., Run]] = {}
    for name, mode in modes.items():
        work = partial(generate, pipe, model, **mode)
        if attempt(name, partial(work, probe(prompts))) is None:
            left_out.append(f"{name} was not timed: it fails on {pipe.card.name}")
        else:
            engines[name] = work
    return engines, left_out


def right_answers(pipe: ChatPipeline, requests: Sequence[BenchQuestion], run: Run) -> float | None:
    """Return the share of questions with known answers whose answer contains one of these; None without any.

    Case and line breaks do not count, as in OCRBench.
    """
    scores = [
        ocrbench.score(
            ocrbench.OCRBenchGold(list(request.answers), formula=False),
            pipe.tokenizer.decode(output.tolist(), skip_special_tokens=True),
        )
        for request, output in zip(requests, run.outputs, strict=False) if request.answers
    ]  # fmt: skip
    return sum(scores) / len(scores) if scores else None


def answer_sheet(shares: dict[str, float]) -> Sheet:
    """Return the table of answers that contain the ones in the data."""
    return ["method", "right answers"], [[name, f"{100 * share:.0f} %"] for name, share in shares.items()]
