"""`polydraft bench image`: every method, plain decoding and transformers' `generate`, in turns, in one process.

polydraft bench image --prompts 8 --repeats 3 -o runs/bench
polydraft bench image --model deepseek-community/Janus-Pro-1B --captions coco.txt --clip openai/clip-vit-base-patch16

Two blocks, with the model's guidance and without. S is decode time a token of the faster baseline (plain decoding or
`generate`) over the method's, round by round; τ is tokens a target pass; prefill is apart, transformers' too. Where it
is asked for, `quality.py` judges the pictures, at the model's guidance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from polydraft.apps.bench.image.quality.quality import CHANCE, NOTHING, Quality, Wanted
from polydraft.apps.data.captions import settings, texts_of
from polydraft.apps.measure import report, table
from polydraft.apps.measure.decoding import asked_for, draw
from polydraft.apps.measure.environment import timed_on
from polydraft.apps.measure.peers import latents as latent_peer
from polydraft.apps.measure.peers.generate import generate, untouched
from polydraft.apps.measure.timing import Contender, Run, take_turns
from polydraft.apps.terminal.terminal import note
from polydraft.modalities.image.base import TextToImagePipeline
from polydraft.modalities.image.families.tiny import TinyImage
from polydraft.modalities.image.latent.pipeline import LatentImagePipeline
from polydraft.modalities.image.pipeline import ImagePipeline
from polydraft.modalities.loading import load

PEER_NOTE = f"{table.PEER}: prefill is apart, its clock starts with the first token"
NO_PEER = "transformers' generate was not timed: it has no way to draw what {} draws"


def run(
    *, prompts: int, repeats: int, batch: int, methods: str | None, model: str, temperature: float | None,
    guidance_scale: float | None, peers: bool, world: str | None, output: Path | None, json: bool,
    device: str = "auto", dtype: str = "auto", data: str | None = None, drafter: list[str] | None = None,
    wanted: Wanted = NOTHING,
) -> None:  # fmt: skip
    """Measure, print and, given a folder, save. data: captions of the user's own; wanted: of the pictures."""
    report.check_folder(output)
    wanted.check()
    pipe: Any = load(model, drafter=drafter, device=device, dtype=dtype)
    names = asked_for(methods, pipe)
    texts, among = texts_of(pipe, data, world, max(prompts, wanted.count or 0))
    read, unknown = pipe.parse_captions(texts)
    captions = list(islice(cycle(read), prompts))
    judge = Quality(wanted, texts, batch, pipe.device) if wanted else None
    sampling = settings(pipe, temperature, guidance_scale)
    if unknown:
        note(f"note: {pipe.card.name} cannot draw {', '.join(unknown)}; the rest is drawn")
    taken_on = timed_on(pipe.device, pipe.dtype)
    alone = peer_of(pipe) if peers else None
    peer = None if alone is None else partial(alone, pipe, untouched(pipe))
    scales, blocks = list(dict.fromkeys((sampling.guidance_scale, 1.0))), []
    for scale in scales:
        asked = pipe.build_prompts(captions, sampling=replace(sampling, guidance_scale=scale))
        contenders = [Contender(name, partial(draw, pipe, name, asked, batch)) for name in names]
        if peer is not None:
            contenders.append(Contender(table.PEER, partial(peer, asked, batch)))
        runs = take_turns(contenders, repeats, lambda name: note(f"timing {name}"))
        title = "no guidance" if scale == 1 else f"guidance {scale:g}"
        blocks.append(
            table.ResultBlock.from_runs(f"{title}, temperature {sampling.temperature:g}, batch {batch}", runs)
        )
    notes = [PEER_NOTE if peer is not None else NO_PEER.format(pipe.card.name)] if peers else []
    found, about, judged = {}, None, None
    if judge is not None:
        found = judge.measure(pipe, names, temperature=temperature, guidance_scale=guidance_scale)
        about = judge.about() | {"other_seeds": found.get(CHANCE)}
        judged = {f"{blocks[0].title}, {judge.title}": judge.sheet(found)}
        notes += judge.notes()
    value: dict[str, Any] = {
        "model": pipe.card.name,
        "world": among,
        "captions": data,
        "prompts": prompts,
        "repeats": repeats,
        "batch": batch,
        "sampling": asdict(sampling),
        "notes": notes,
        "environment": taken_on,
        "quality": about,
        "blocks": [
            {"guidance_scale": scale, "rows": [row.to_dict() for row in block.rows]}
            for scale, block in zip(scales, blocks, strict=True)
        ],
    }
    for row in value["blocks"][0]["rows"]:
        row["quality"] = found.get(row["method"])
    report.tell_blocks("image", value, blocks, notes, output, json, judged)


def peer_of(pipe: TextToImagePipeline) -> Callable[..., Run] | None:
    """Return image generation by transformers alone; None where ids, guidance or latents are specific to a family."""
    if isinstance(pipe, LatentImagePipeline):
        return latent_peer.generate
    return generate if isinstance(pipe, ImagePipeline) and isinstance(pipe.family, TinyImage) else None
