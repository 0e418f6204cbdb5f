"""`polydraft bench image`: every method, plain decoding and transformers' `generate`, in turns, in one process.

polydraft bench image --prompts 8 --repeats 3 -o runs/bench

Two blocks, with the model's guidance and without. S is plain decode time over the method's, round by round; τ is tokens
a target pass; prefill is apart (transformers' seconds include theirs, one short pass).
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from polydraft.apps.bench.image.prompts import held_out
from polydraft.apps.bench.measure import report, table
from polydraft.apps.bench.measure.blocks import tell
from polydraft.apps.bench.measure.environment import environment, warning
from polydraft.apps.bench.measure.peers import generate, untouched
from polydraft.apps.bench.measure.timing import Contender, Run, take_turns
from polydraft.apps.commands.terminal import note
from polydraft.core.decode import Method, decode, start
from polydraft.core.methods import parse
from polydraft.core.registry import DRAFTERS
from polydraft.core.sampling import Sampling
from polydraft.core.stats import DecodeStats
from polydraft.core.target import Prompt
from polydraft.modalities.image.pipeline import ImagePipeline
from polydraft.modalities.loading import load
from polydraft.modalities.pipeline import Pipeline

PEER_NOTE = f"{table.PEER}: seconds of the whole call, prefill (one short pass) included"


def run(
    *, prompts: int, repeats: int, batch: int, methods: str | None, model: str, temperature: float | None,
    guidance_scale: float | None, peers: bool, output: Path | None, json: bool,
) -> None:  # fmt: skip
    """Measure, print and, given a folder, save."""
    output = None if output is None else report.check_folder(output)
    pipe = load(model)
    names = [table.PLAIN, *(name for name in split(methods) or drafting(pipe) if name != table.PLAIN)]
    for name in names:
        pipe.checked(name)
    captions = held_out(prompts)[0]
    sampling, guided = settings(pipe, temperature, guidance_scale)
    asked = pipe.prompts_to_ids(captions)
    taken_on = environment(str(pipe.device), str(pipe.dtype).removeprefix("torch."))
    if told := warning():
        note(told)
    peer, scales, blocks = untouched(pipe), list(dict.fromkeys((guided, 1.0))), []
    for scale in scales:
        contenders = [Contender(name, partial(draw, pipe, name, sampling, scale, asked, batch)) for name in names]
        if peers:
            contenders.append(Contender(table.PEER, partial(generate, pipe, peer, asked, sampling, scale, batch)))
        runs = take_turns(contenders, repeats, lambda name: note(f"timing {name}"))
        title = "no guidance" if scale == 1 else f"guidance {scale:g}"
        blocks.append(table.Block.of(f"{title}, temperature {sampling.temperature:g}, batch {batch}", runs))
    notes = [PEER_NOTE] if peers else []
    value = {
        "model": pipe.card.name,
        "prompts": prompts,
        "repeats": repeats,
        "batch": batch,
        "sampling": asdict(sampling),
        "notes": notes,
        "environment": taken_on,
        "blocks": [
            {"guidance_scale": scale, "rows": [row.to_dict() for row in block.rows]}
            for scale, block in zip(scales, blocks, strict=True)
        ],
    }
    tell("image", value, blocks, notes, output, json)


def drafting(pipe: Pipeline) -> list[str]:
    """The model's ways to draft, each with its own judge; rules are asked for by name."""
    return [name for name in pipe.available_methods() if name in DRAFTERS]


def split(methods: str | None) -> list[str]:
    """Names between commas that stand outside parentheses: `jacobi(window=8,init=left),pld` is two."""
    names, depth = [""], 0
    for character in methods or "":
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            names.append("")
        else:
            names[-1] += character
    return [name.strip() for name in names if name.strip()]


def settings(
    pipe: ImagePipeline, temperature: float | None = None, guidance_scale: float | None = None, top_k: int | None = None
) -> tuple[Sampling, float]:
    """The model's own sampling and guidance, or others where given; refuses what drawing refuses, by the same rules."""
    asked: dict[str, Any] = {"temperature": temperature, "top_k": top_k}
    pipe.stream("a cat", method=table.PLAIN, guidance_scale=guidance_scale, **asked).close()
    sampling = pipe.sampling(top_p=None, **asked)
    return sampling, pipe.defaults["guidance_scale"] if guidance_scale is None else guidance_scale


def draw(pipe: Pipeline, name: str, sampling: Sampling, scale: float, prompts: list[Prompt], batch: int) -> Run:
    """All prompts with the method of that name, `batch` at a time."""
    return decoded(pipe.method(parse(name), sampling, scale), prompts, batch)


def decoded(method: Method, prompts: list[Prompt], batch: int = 1) -> Run:
    """All prompts, `batch` at a time."""
    outputs, parts, passes = [], [], 0
    for first in range(0, len(prompts), batch):
        rows = start(method, prompts[first : first + batch])
        passes += sum(1 for _ in decode(method, rows))
        parts.append(DecodeStats.total([rows.stats[request] for request in sorted(rows.stats)]))
        parts[-1].time(rows.watch)
        outputs += rows.outputs()
    stats = DecodeStats.in_sequence(parts)
    return Run(stats.decode_seconds, stats.tokens, outputs, stats, passes)
