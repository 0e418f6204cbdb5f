"""`polydraft bench` of methods: how far lossy ones drift, and how often drafts are accepted.

polydraft bench drift --model tiny-speech --methods "hydra,hydra+typical"
polydraft bench acceptance --model tiny-speech --method hydra --temperatures 0.6,1,1.3
"""

from __future__ import annotations

from typing import Annotated

import typer

from polydraft.apps.terminal.application import Application
from polydraft.apps.terminal.bench_options import Named, Output, WorldName
from polydraft.apps.terminal.options import Drafters, Model, Results

app: Application = Application()


@app.command("drift")
def drift(
    prompts: Annotated[int, typer.Option(min=2, max=32, help="Captions, sentences or scenes.")] = 16,
    methods: Named = None,
    model: Model = "tiny-image",
    drafter: Drafters = None,
    tokens: Annotated[int, typer.Option(min=8, help="Most tokens of a sequence.")] = 512,
    world: WorldName = None,
    output: Output = None,
    as_json: Results = False,
) -> None:
    """Drift of lossy rules from the target distribution: nats per committed token beyond its entropy."""
    from polydraft.apps.bench.drift import run

    run(
        prompts=prompts, methods=methods, model=model, drafter=drafter, tokens=tokens, world=world, output=output,
        json=as_json,
    )  # fmt: skip


@app.command("acceptance")
def acceptance(
    prompts: Annotated[int, typer.Option(min=1, max=32, help="Captions, sentences or scenes.")] = 8,
    method: Annotated[str, typer.Option(help="Whose candidates: draft, eagle2, hydra, above, medusa.")] = "draft",
    model: Model = "tiny-image",
    drafter: Drafters = None,
    temperatures: Annotated[str, typer.Option(help="A table each, separated by commas.")] = "0.6,1,1.3",
    tokens: Annotated[int, typer.Option(min=8, help="Most tokens of a sequence.")] = 256,
    world: WorldName = None,
    output: Output = None,
    as_json: Results = False,
) -> None:
    """Acceptance of the best of k draft candidates, ranked by shared noise, sampled, or by likelihood."""
    from polydraft.apps.bench.acceptance import run

    run(
        prompts=prompts, method=method, model=model, drafter=drafter, temperatures=temperatures, tokens=tokens,
        world=world, output=output, json=as_json,
    )  # fmt: skip
