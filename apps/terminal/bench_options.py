"""Options that commands of `polydraft bench` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

Repeats = Annotated[int, typer.Option(min=1, help="Rounds; medians are reported.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="Folder for results and pictures.")]
KNOWN = (
    "smolvlm, smollm2-135m, llama-3.2-1b, small, llava-1.6-7b, pixtral-12b, janus-pro-1b, janus-pro-7b, emu3, "
    "glm-image, lumina-mgpt-7b or llamagen-xl, with random weights, emu3/16 with sizes divided by 16; or an embedded "
    "model."
)
Shape = Annotated[str, typer.Option(help=KNOWN)]
Choices = Literal["flat", "textured", "settings"]
WorldName = Annotated[
    Choices | None, typer.Option("--world", help="Captions with flat colours, settings (textured), or both (settings).")
]
Prompts = Annotated[
    int | None,
    typer.Option("--prompts", "--limit", min=1, help="Most prompts, the first ones. Default: all of --data, else 8."),
]
Methods = Annotated[str | None, typer.Option(help="Names separated by commas. Default: all drafters the model has.")]
Named = Annotated[str | None, typer.Option(help="Names separated by commas.")]
Peers = Annotated[bool, typer.Option(help="Time transformers' own generate too.")]
Guidance = Annotated[
    float | None,
    typer.Option("--guidance-scale", "--guidance", help="How strictly the prompt guides; 1 is off."),
]
