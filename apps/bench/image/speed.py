"""`polydraft bench image`: every method, plain decoding and transformers' `generate`, in turns, in one process.

polydraft bench image --prompts 8 --repeats 3 -o runs/bench
polydraft bench image --model deepseek-community/Janus-Pro-1B --data coco.txt --clip openai/clip-vit-base-patch16

Two blocks, with the model's guidance and without. S is decode time a token of the faster baseline (plain decoding or
`generate`) over the method's, round by round; τ is tokens a target pass; prefill is apart, transformers' too. Where it
is asked for, `quality.py` judges the pictures, at the model's guidance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from polydraft.apps.bench.image.quality.quality import CHANCE, NOTHING, Quality, Wanted
from polydraft.apps.data.captions import image_requests, settings
from polydraft.apps.data.user_requests import BenchImage, build_image_prompts
from polydraft.apps.measure import report, table
from polydraft.apps.measure.decoding import asked_for, draw
from polydraft.apps.measure.environment import timed_on
from polydraft.apps.measure.peers import janus as janus_peer
from polydraft.apps.measure.peers import latents as latent_peer
from polydraft.apps.measure.peers.generate import attempt, generate, probe, untouched
from polydraft.apps.measure.timing import Contender, Run, take_turns
from polydraft.apps.terminal.terminal import note
from polydraft.core.errors import InvalidArgument
from polydraft.core.target.causal import PromptInputs
from polydraft.modalities.image.base import TextToImagePipeline
from polydraft.modalities.image.families.janus.family import Janus
from polydraft.modalities.image.families.tiny import TinyImage
from polydraft.modalities.image.latent.pipeline import LatentImagePipeline
from polydraft.modalities.image.pipeline import ImagePipeline
from polydraft.modalities.loading import load
from polydraft.modalities.pipeline import uses_cfg

PEER_NOTE = f"{table.PEER}: prefill is apart, its clock starts with the first token"
NO_PEER = "transformers' generate was not timed: it has no way to draw what {} draws"
NO_UNGUIDED_PEER = "transformers' generate was not timed without guidance: its loop for {} cannot do without"
PEER_FAILS = "transformers' generate was not timed: it fails on {}"
PROMPTS = 8  # that are drawn where the user gives no data and no number


def run(
    *, prompts: int | None, repeats: int, batch: int, methods: str | None, model: str, temperature: float | None,
    guidance_scale: float | None, peers: bool, world: str | None, output: Path | None, json: bool,
    device: str = "auto", dtype: str = "auto", data: str | None = None, drafter: list[str] | None = None,
    wanted: Wanted = NOTHING,
) -> None:  # fmt: skip
    """Measure, print and, given a folder, save. data: the user's own requests; wanted: of the pictures."""
    report.check_folder(output)
    wanted.check()
    pipe: Any = load(model, drafter=drafter, device=device, dtype=dtype)
    names = asked_for(methods, pipe)
    requests, among = image_requests(pipe, data, world, max(prompts or PROMPTS, wanted.count or 0))
    timed = requests[: prompts or (PROMPTS if data is None else None)]
    sampling = settings(pipe, temperature, guidance_scale)
    _, unknown = build_image_prompts(pipe, requests, sampling)
    judge = Quality(wanted, judged_texts(requests), batch, pipe.device) if wanted else None
    if unknown:
        note(f"note: {pipe.card.name} cannot draw {', '.join(unknown)}; the rest is drawn")
    taken_on = timed_on(pipe.device, pipe.dtype)
    scales, blocks = list(dict.fromkeys((sampling.guidance_scale, 1.0))), []
    peer, remarks = (peer_of(pipe) if peers else None), dict[str, None]()
    alone = None if peer is None else partial(peer, pipe, untouched(pipe))
    for scale in scales:
        asked, _ = build_image_prompts(pipe, timed, replace(sampling, guidance_scale=scale))
        contenders = [Contender(name, partial(draw, pipe, name, asked, batch)) for name in names]
        if peers:
            contender, remark = peer_contender(pipe, alone, asked, batch)
            contenders += [] if contender is None else [contender]
            remarks[remark] = None
        runs = take_turns(contenders, repeats, lambda name: note(f"timing {name}"))
        title = "no guidance" if scale == 1 else f"guidance {scale:g}"
        blocks.append(
            table.ResultBlock.from_runs(f"{title}, temperature {sampling.temperature:g}, batch {batch}", runs)
        )
    notes = list(remarks)
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
        "data": data,
        "prompts": len(timed),
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


def judged_texts(requests: list[BenchImage]) -> list[str]:
    """Return the captions that are judged; raise InvalidArgument where guidance leads away from more than nothing."""
    if any(request.negative_prompt is not None for request in requests):
        raise InvalidArgument("lines with a negative_prompt are timed and not judged; leave out the judging, or them.")
    return [request.text for request in requests]


def peer_of(pipe: TextToImagePipeline) -> Callable[..., Run] | None:
    """Return image generation by transformers alone; None where ids, guidance or latents are specific to a family."""
    if isinstance(pipe, LatentImagePipeline):
        return latent_peer.generate
    if not isinstance(pipe, ImagePipeline):
        return None
    if isinstance(pipe.family, Janus):
        return janus_peer.generate
    return generate if isinstance(pipe.family, TinyImage) else None


def peer_contender(
    pipe: TextToImagePipeline, peer: Callable[..., Run] | None, prompts: list[PromptInputs], batch: int
) -> tuple[Contender | None, str]:
    """Return transformers alone as a contender, None where it cannot draw the prompts, and a remark for the output.

    Args:
        pipe (TextToImagePipeline): The model.
        peer (Callable | None): Draws prompts, so many at a time; None where nothing does.
        prompts (list[PromptInputs]): Prompts of one sampling.
        batch (int): Images that are drawn together.
    """
    if peer is None:
        return None, NO_PEER.format(pipe.card.name)
    if isinstance(pipe, ImagePipeline) and isinstance(pipe.family, Janus) and not uses_cfg(prompts):
        return None, NO_UNGUIDED_PEER.format(pipe.card.name)
    if attempt(table.PEER, partial(peer, probe(prompts[:1]), 1)) is None:
        return None, PEER_FAILS.format(pipe.card.name)
    return Contender(table.PEER, partial(peer, prompts, batch)), PEER_NOTE
