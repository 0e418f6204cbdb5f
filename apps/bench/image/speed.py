"""`polydraft bench image`: every method, plain decoding and transformers' `generate`, in turns, in one process.

polydraft bench image --prompts 8 --repeats 3 -o runs/bench

Two blocks, with the model's guidance and without. S is decode time a token of the faster baseline (plain decoding or
`generate`) over the method's, round by round; τ is tokens a target pass; prefill is apart, transformers' too.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from polydraft.apps.bench.image.prompts import held_out, settings, world_of
from polydraft.apps.bench.measure import latent_peer, report, table
from polydraft.apps.bench.measure.decoding import asked_for, draw
from polydraft.apps.bench.measure.environment import timed_on
from polydraft.apps.bench.measure.peers import generate, untouched
from polydraft.apps.bench.measure.timing import Contender, take_turns
from polydraft.apps.commands.terminal import note
from polydraft.modalities.loading import load

PEER_NOTE = f"{table.PEER}: prefill is apart, its clock starts with the first token"


def run(
    *, prompts: int, repeats: int, batch: int, methods: str | None, model: str, temperature: float | None,
    guidance_scale: float | None, peers: bool, world: str | None, output: Path | None, json: bool,
    device: str = "auto", dtype: str = "auto",
) -> None:  # fmt: skip
    """Measure, print and, given a folder, save."""
    report.check_folder(output)
    pipe = load(model, device=device, dtype=dtype)
    names = asked_for(methods, pipe)
    among = world_of(pipe, world)
    captions = held_out(prompts, among)[0]
    sampling = settings(pipe, temperature, guidance_scale)
    taken_on = timed_on(pipe.device, pipe.dtype)
    peer, scales, blocks = untouched(pipe), list(dict.fromkeys((sampling.guidance_scale, 1.0))), []
    for scale in scales:
        asked = pipe.prompts_to_ids(captions, sampling=replace(sampling, guidance_scale=scale))
        contenders = [Contender(name, partial(draw, pipe, name, asked, batch)) for name in names]
        if peers:
            alone = latent_peer.generate if pipe.card.latent else generate
            contenders.append(Contender(table.PEER, partial(alone, pipe, peer, asked, batch)))
        runs = take_turns(contenders, repeats, lambda name: note(f"timing {name}"))
        title = "no guidance" if scale == 1 else f"guidance {scale:g}"
        blocks.append(table.Block.of(f"{title}, temperature {sampling.temperature:g}, batch {batch}", runs))
    notes = [PEER_NOTE] if peers else []
    value = {
        "model": pipe.card.name,
        "world": among.name,
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
    report.tell_blocks("image", value, blocks, notes, output, json)
