"""`polydraft bench`: speed, fidelity, understanding and costs, each measured in one process.

polydraft bench image --prompts 8 --repeats 3 --methods jacobi,draft
polydraft bench image --model FOLDER --captions coco.txt --clip openai/clip-vit-base-patch16 --fid-features clip
polydraft bench image --shape emu3 --scale 16 --tokens 64
polydraft bench fidelity --n 200
polydraft bench speech --sentences 100 -o runs/bench
polydraft bench vlm --prompts 8
polydraft bench descriptions --n 200
polydraft bench costs
polydraft bench frontier --n 100 --temperature 1
polydraft bench depth --prompts 8
polydraft bench drift --model tiny-speech --methods "hydra,hydra+typical"
polydraft bench acceptance --model tiny-speech --method hydra --temperatures 0.6,1,1.3
polydraft bench certainty --n 32 --temperature 1
polydraft bench latents --method eagle
polydraft bench moments --method eagle+coupled --prompts 200
polydraft bench serve --clients 1,2,4,8
polydraft bench trial --clients 12 --seconds 100

Those of the engine itself are in `engine.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from polydraft.apps.commands.bench import engine
from polydraft.apps.commands.bench.engine import Output, Repeats
from polydraft.apps.commands.shared.application import Application
from polydraft.apps.commands.shared.options import (
    Device,
    Dtype,
    Method,
    MinP,
    Model,
    Results,
    Temperature,
    TopK,
    TopP,
)

app = Application(no_args_is_help=True, help="Measure speed, fidelity, understanding and costs.")
app.add_typer(engine.app)

DEPTH = 5  # of the chains that are drafted at a published shape
Choices = Literal["flat", "textured", "settings"]
WorldName = Annotated[
    Choices | None, typer.Option("--world", help="Captions with flat colours, settings (textured), or both (settings).")
]
Methods = Annotated[str | None, typer.Option(help="Names separated by commas. Default: all drafters the model has.")]
Named = Annotated[str | None, typer.Option(help="Names separated by commas.")]
Peers = Annotated[bool, typer.Option(help="Time transformers' own generate too.")]
Guidance = Annotated[
    float | None,
    typer.Option("--guidance-scale", "--guidance", help="How strictly the prompt guides; 1 is off."),
]


@app.callback()
def bench() -> None:
    """Measure speed, fidelity, understanding and costs."""


@app.command("image")
def image(
    prompts: Annotated[int, typer.Option(min=1, help="Prompts drawn by every method.")] = 8,
    repeats: Repeats = 3,
    batch: Annotated[int, typer.Option(min=1, help="Prompts drawn together.")] = 1,
    methods: Methods = None,
    model: Model = "tiny-image",
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
    captions: Annotated[
        str | None,
        typer.Option(help='Your own, one on every line (.txt) or as {"prompt": …} (.jsonl, .json, .parquet, hub set).'),
    ] = None,
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
    from polydraft.apps.bench.image.judging.quality import Wanted
    from polydraft.apps.bench.image.speed import run

    run(
        prompts=prompts, repeats=repeats, batch=batch, methods=methods, model=model, temperature=temperature,
        guidance_scale=guidance_scale, peers=peers, world=world, output=output, json=as_json, device=device,
        dtype=dtype, data=captions, wanted=Wanted(pictures, clip, fid, fid_features, inception, few),
    )  # fmt: skip


@app.command("speech")
def speech(
    sentences: Annotated[int, typer.Option(min=0, max=100, help="Everyday sentences a voice that are judged.")] = 25,
    prose: Annotated[int, typer.Option(min=0, max=100, help="Passages of mixed prose a voice that are judged.")] = 25,
    timed: Annotated[int, typer.Option(min=1, max=100, help="Sentences that are timed, one by one.")] = 8,
    repeats: Annotated[int, typer.Option(min=1, help="Timed rounds; medians are reported.")] = 3,
    methods: Methods = None,
    model: Model = "tiny-speech",
    temperature: Temperature = None,
    top_k: TopK = None,
    peers: Peers = True,
    recogniser: Annotated[
        str | None,
        typer.Option(
            help="pocketsphinx, whisper (polydraft[whisper]), wav2vec2 (polydraft[torchaudio], downloads its weights), "
            "separated by commas. Default: pocketsphinx, and whisper where it is installed."
        ),
    ] = None,
    squim: Annotated[bool, typer.Option("--squim", help="SQUIM quality too (as wav2vec2).")] = False,
    output: Output = None,
    as_json: Results = False,
) -> None:
    """Speed of speech methods, first sound, and how well recognisers understand them (needs polydraft[hearing])."""
    from polydraft.apps.bench.speech.run import run

    run(
        sentences=sentences, prose=prose, timed=timed, repeats=repeats, methods=methods, model=model,
        temperature=temperature, top_k=top_k, peers=peers, recogniser=recogniser, squim=squim, output=output,
        json=as_json,
    )  # fmt: skip


@app.command("vlm")
def vlm(
    prompts: Annotated[int, typer.Option(min=1, help="Scenes described by every method.")] = 8,
    repeats: Repeats = 3,
    methods: Methods = None,
    model: Model = "tiny-vlm",
    drafter: Annotated[str | None, typer.Option(help="A drafter's folder, for a model that has none.")] = None,
    temperatures: Annotated[str, typer.Option(help="A table each; 0 is greedy.")] = "0,1",
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 160,
    peers: Annotated[bool, typer.Option(help="Time transformers' own generate too, and its ways to draft.")] = True,
    output: Output = None,
    as_json: Results = False,
) -> None:
    """Speed of descriptions of pictures: S, τ, and whether the tokens are identical."""
    from polydraft.apps.bench.vlm.speed import run

    run(
        prompts=prompts, repeats=repeats, methods=methods, model=model, drafter=drafter, temperatures=temperatures,
        max_new_tokens=max_new_tokens, peers=peers, output=output, json=as_json,
    )  # fmt: skip


@app.command("fidelity")
def fidelity(
    n: Annotated[int, typer.Option("--n", "-n", min=1, help="Held-out captions drawn.")] = 200,
    method: Method = None,
    model: Model = "tiny-image",
    temperature: Temperature = None,
    top_p: TopP = None,
    min_p: MinP = None,
    guidance_scale: Guidance = None,
    seed: Annotated[int, typer.Option(min=0, help="Picture i gets seed + i.")] = 0,
    world: WorldName = None,
    phrasing: Annotated[str, typer.Option(help="What is asked, {} being a caption.")] = "{}",
    output: Output = None,
    as_json: Results = False,
) -> None:
    """Share of pictures that show what was asked, on compositions no model was trained on."""
    from polydraft.apps.bench.image.judging.fidelity import run

    run(
        n=n, method=method, model=model, temperature=temperature, top_p=top_p, min_p=min_p,
        guidance_scale=guidance_scale, seed=seed, world=world, phrasing=phrasing, output=output, json=as_json,
    )  # fmt: skip


@app.command("descriptions")
def descriptions(
    n: Annotated[int, typer.Option("--n", "-n", min=1, max=1000, help="Held-out scenes described.")] = 200,
    method: Method = None,
    model: Model = "tiny-vlm",
    temperature: Temperature = None,
    seed: Annotated[int, typer.Option(min=0, help="Scene i gets seed + i.")] = 0,
    output: Output = None,
    as_json: Results = False,
) -> None:
    """Share of descriptions that say what is there, on scenes no model was trained on."""
    from polydraft.apps.bench.vlm.descriptions import run

    run(n=n, method=method, model=model, temperature=temperature, seed=seed, output=output, json=as_json)


@app.command("costs")
def costs(
    prompts: Annotated[int, typer.Option(min=1, help="Training prompts that τ is measured on.")] = 16,
    model: Model = "tiny-image",
    write: Annotated[bool, typer.Option("--write", help="Store τ by window in the model's manifest.")] = False,
    output: Output = None,
    as_json: Results = False,
) -> None:
    """What a pass of N nodes costs on this machine, and τ by Jacobi window."""
    from polydraft.apps.bench.image.costs import run

    run(prompts=prompts, model=model, write=write, output=output, json=as_json)


@app.command("frontier")
def frontier(
    n: Annotated[int, typer.Option("--n", "-n", min=2, help="Held-out captions drawn.")] = 200,
    timed: Annotated[int, typer.Option(min=1, help="Of these, how many one by one, for S; the first ones.")] = 40,
    methods: Named = None,
    model: Model = "tiny-image",
    batch: Annotated[int, typer.Option(min=2, help="How many of the others are drawn together.")] = 10,
    temperature: Temperature = None,
    top_k: TopK = None,
    min_p: MinP = None,
    guidance_scale: Guidance = None,
    world: WorldName = None,
    output: Output = None,
    as_json: Results = False,
) -> None:
    """What lossy rules buy and cost: S against prompt fidelity, paired with plain decoding."""
    from polydraft.apps.bench.image.frontier import run

    run(
        n=n, timed=timed, methods=methods, model=model, batch=batch, temperature=temperature, top_k=top_k,
        min_p=min_p, guidance_scale=guidance_scale, world=world, output=output, json=as_json,
    )  # fmt: skip


@app.command("depth")
def depth(
    prompts: Annotated[int, typer.Option(min=1, help="Prompts drawn by every method.")] = 8,
    repeats: Repeats = 1,
    methods: Named = None,
    model: Model = "tiny-image",
    temperature: Temperature = None,
    min_p: MinP = None,
    guidance_scale: Guidance = None,
    world: WorldName = None,
    output: Output = None,
    as_json: Results = False,
) -> None:
    """How deep drafts are accepted: published verifiers beside trees on the shared noise."""
    from polydraft.apps.bench.image.depth import run

    run(
        prompts=prompts, repeats=repeats, methods=methods, model=model, temperature=temperature,
        min_p=min_p, guidance_scale=guidance_scale, world=world, output=output, json=as_json,
    )  # fmt: skip


@app.command("drift")
def drift(
    prompts: Annotated[int, typer.Option(min=2, max=32, help="Captions, sentences or scenes.")] = 16,
    methods: Named = None,
    model: Model = "tiny-image",
    tokens: Annotated[int, typer.Option(min=8, help="Most tokens of a sequence.")] = 512,
    world: WorldName = None,
    output: Output = None,
    as_json: Results = False,
) -> None:
    """How far lossy rules lead from the target's law: nats of what they commit beside the law's own entropy."""
    from polydraft.apps.bench.drift import run

    run(prompts=prompts, methods=methods, model=model, tokens=tokens, world=world, output=output, json=as_json)


@app.command("acceptance")
def acceptance(
    prompts: Annotated[int, typer.Option(min=1, max=32, help="Captions, sentences or scenes.")] = 8,
    method: Annotated[str, typer.Option(help="Whose candidates: draft, eagle2, hydra, above, medusa.")] = "draft",
    model: Model = "tiny-image",
    temperatures: Annotated[str, typer.Option(help="A table each, separated by commas.")] = "0.6,1,1.3",
    tokens: Annotated[int, typer.Option(min=8, help="Most tokens of a sequence.")] = 256,
    world: WorldName = None,
    output: Output = None,
    as_json: Results = False,
) -> None:
    """How often one of k candidates is what the target chooses: ranked with the shared noise, drawn, or likeliest."""
    from polydraft.apps.bench.acceptance import run

    run(
        prompts=prompts, method=method, model=model, temperatures=temperatures, tokens=tokens, world=world,
        output=output, json=as_json,
    )  # fmt: skip


@app.command("certainty")
def certainty(
    n: Annotated[int, typer.Option("--n", "-n", min=1, help="Held-out captions drawn.")] = 32,
    model: Model = "tiny-image",
    temperature: Temperature = None,
    min_p: MinP = None,
    guidance_scale: Guidance = None,
    world: WorldName = None,
    output: Output = None,
    as_json: Results = False,
) -> None:
    """How sure a model is of its codes, on things and on the ground that they stand on."""
    from polydraft.apps.bench.image.certainty import run

    run(
        n=n, model=model, temperature=temperature, min_p=min_p, guidance_scale=guidance_scale, world=world,
        output=output, json=as_json,
    )  # fmt: skip


@app.command("latents")
def latents(
    prompts: Annotated[int, typer.Option(min=1, help="Pictures whose places are looked at.")] = 4,
    method: Annotated[str, typer.Option(help="A way to draft that has a chain: draft, eagle or early-exit.")] = "eagle",
    model: Model = "tiny-latent",
    temperature: Temperature = None,
    guidance_scale: Guidance = None,
    output: Output = None,
    as_json: Results = False,
) -> None:
    """How often drafted latents are accepted: by step of the chain, noise levels and coordinates."""
    from polydraft.apps.bench.image.latents import run

    run(
        prompts=prompts, method=method, model=model, temperature=temperature, guidance_scale=guidance_scale,
        output=output, json=as_json,
    )  # fmt: skip


@app.command("moments")
def moments(
    prompts: Annotated[int, typer.Option(min=2, help="Captions, drawn plainly and with the method.")] = 200,
    method: Annotated[str, typer.Option(help="Of the same law as plain decoding, or so it says.")] = "eagle+coupled",
    model: Model = "tiny-latent",
    temperature: Temperature = None,
    guidance_scale: Guidance = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the first picture.")] = 0,
    output: Output = None,
    as_json: Results = False,
) -> None:
    """Whether a method's latents have plain decoding's moments at every place, and its pictures the same fidelity."""
    from polydraft.apps.bench.image.moments import run

    run(
        prompts=prompts, method=method, model=model, temperature=temperature, guidance_scale=guidance_scale, seed=seed,
        output=output, json=as_json,
    )  # fmt: skip


@app.command("trial")
def trial(
    clients: Annotated[int, typer.Option(min=1, help="Clients at a time.")] = 12,
    seconds: Annotated[float, typer.Option(min=1, help="How long.")] = 100.0,
    option: Annotated[
        list[str] | None, typer.Option(help="Of `polydraft serve`, as in --option=--rows=4; may be repeated.")
    ] = None,
    as_json: Results = False,
) -> None:
    """A server while clients leave, pictures are too thin, rows turn NaN and SIGTERM comes; every answer compared."""
    from polydraft.apps.bench.service.trial import run, tell
    from polydraft.apps.commands.shared.outcome import BROKEN
    from polydraft.apps.commands.shared.terminal import print_json

    value = run(clients, seconds, option or [])
    if as_json:
        print_json(value)
    if not tell(value):
        raise typer.Exit(BROKEN)


@app.command("serve")
def serve(
    url: Annotated[str | None, typer.Option(help="A running server. Default: one is started for it.")] = None,
    api_key: Annotated[str, typer.Option(envvar="POLYDRAFT_API_KEY", help="What it wants to be shown.")] = "",
    clients: Annotated[str, typer.Option(help="Clients at a time, separated by commas.")] = "1,2,4,8",
    requests: Annotated[int, typer.Option(min=1, help="Requests a client.")] = 2,
    modalities: Annotated[str, typer.Option(help="image, speech, vlm, separated by commas.")] = "image,speech,vlm",
    mixed: Annotated[bool, typer.Option("--mixed", help="All at once for a while, every answer compared.")] = False,
    seconds: Annotated[float, typer.Option(min=1, help="How long, with --mixed.")] = 60.0,
    option: Annotated[
        list[str] | None, typer.Option(help="Of `polydraft serve`, as in --option=--rows=4; may be repeated.")
    ] = None,
    output: Output = None,
    as_json: Results = False,
) -> None:
    """A server under load: requests a second, first byte and latency, drafted and plain. Use an idle machine."""
    from polydraft.apps.bench.service.run import run

    run(
        url=url, api_key=api_key, clients=clients, requests=requests, modalities=modalities, is_mixed=mixed,
        seconds=seconds, options=option or [], output=output, json=as_json,
    )  # fmt: skip
