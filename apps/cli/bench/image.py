"""`polydraft bench image`: speed and quality of image methods.

polydraft bench image --prompts 8 --repeats 3 --methods jacobi,draft
polydraft bench image --model FOLDER --data prompts.jsonl --drafter runs/eagle --methods eagle2,jacobi
polydraft bench image --model FOLDER --data coco.txt --clip openai/clip-vit-base-patch16 --fid-features clip
polydraft bench image --shape emu3 --scale 16 --tokens 64
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from polydraft.apps.terminal.application import Application
from polydraft.apps.terminal.bench_options import Guidance, Methods, Output, Peers, Prompts, Repeats, WorldName
from polydraft.apps.terminal.options import Device, Drafters, Dtype, Model, Results, Temperature

app: Application = Application()

DEPTH = 5  # of the chains that are drafted at a published shape


@app.command("image")
def image(
    data: Annotated[
        str | None,
        typer.Option(
            "--data", "--captions",
            help='Your own prompts: one on every line (.txt), or {"prompt": …}, optionally with "seed" and '
            '"negative_prompt" (.jsonl, .json, .parquet, hub set).',
        ),
    ] = None,
    prompts: Prompts = None,
    repeats: Repeats = 3,
    batch: Annotated[int, typer.Option(min=1, help="Prompts drawn together.")] = 1,
    methods: Methods = None,
    model: Model = "tiny-image",
    drafter: Drafters = None,
    temperature: Temperature = None,
    guidance_scale: Guidance = None,
    peers: Peers = True,
    shapes: Annotated[
        list[str] | None,
        typer.Option("--shape", help="Instead: what a pass costs at a published model's sizes; may be repeated."),
    ] = None,
    scale: Annotated[int, typer.Option(min=1, help="With --shape: divide its sizes.")] = 1,
    tau: Annotated[float, typer.Option(min=1, help="With --shape: tokens a pass, prescribed.")] = 4.0,
    tokens: Annotated[int | None, typer.Option(min=8, help="With --shape: of a picture. Default: all.")] = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    world: WorldName = None,
    pictures: Annotated[
        int | None, typer.Option(min=2, help="Drawn by every method and judged. Default: one a caption.")
    ] = None,
    clip: Annotated[str | None, typer.Option(help="CLIP scores by this CLIP: folder or repository.")] = None,
    fid: Annotated[str | None, typer.Option(help="Folder of pictures to measure the Fréchet distance to.")] = None,
    fid_features: Annotated[
        Literal["inception", "clip"] | None,
        typer.Option(help="Distances, also to plain decoding, in features of inception (default with --fid) or clip."),
    ] = None,
    inception: Annotated[
        Path | None, typer.Option(help="Its weights: file or folder. Default: where torch-fidelity keeps them.")
    ] = None,
    few: Annotated[
        bool, typer.Option("--few", help="Distances of fewer pictures than features, too: far too large.")
    ] = False,
    output: Output = None,
    as_json: Results = False,
) -> None:
    """Speed of image methods: S, τ, and whether the tokens are identical. Run it on an otherwise idle machine.

    With --clip, --fid or --fid-features every method's pictures are judged, too (needs the extra bench).
    With --shape weights are random: janus-pro-1b, janus-pro-7b, emu3, glm-image, lumina-mgpt-7b or llamagen-xl.
    """
    if shapes:
        from polydraft.apps.bench.image import shapes as published

        return published.run(
            shapes=shapes, scale=scale, tau=tau, depth=DEPTH, width=1, total=DEPTH, words=None, tokens=tokens,
            prompt=None, repeats=repeats, device=device, dtype=dtype, output=output, json=as_json,
        )  # fmt: skip
    from polydraft.apps.bench.image.quality.quality import Wanted
    from polydraft.apps.bench.image.speed import run

    run(
        prompts=prompts, repeats=repeats, batch=batch, methods=methods, model=model, temperature=temperature,
        guidance_scale=guidance_scale, peers=peers, world=world, output=output, json=as_json, device=device,
        dtype=dtype, data=data, drafter=drafter, wanted=Wanted(pictures, clip, fid, fid_features, inception, few),
    )  # fmt: skip
