"""`polydraft redraw`: draw a picture again from what its file says.

    polydraft redraw frogs.png -o again.png
    polydraft redraw frogs.png -o again.png --model ./models/Janus-Pro-1B

Files that `polydraft image`, the server and the page write say from which prompt, model, method, seeds and settings.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polydraft.apps.terminal.options import Device, Drafters, Statistics


def redraw(
    picture: Annotated[Path, typer.Argument(metavar="PICTURE", help="A file that polydraft wrote.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="A .png, .jpg or .webp file.")] = Path("out.png"),
    model: Annotated[
        str | None, typer.Option(help="Folder or repository of the model that the file names, if it is not embedded.")
    ] = None,
    codec: Annotated[str | None, typer.Option(help="Folder of the autoencoder, where the model's has none.")] = None,
    drafter: Drafters = None,
    prime: Annotated[Path | None, typer.Option(help="The picture that it goes on from, if it does.")] = None,
    device: Device = "auto",
    as_json: Statistics = False,
) -> None:
    """Draw PICTURE again, from the prompt, model, method, seed and settings in its file."""
    import polydraft
    from polydraft.apps.cli import request
    from polydraft.apps.cli.image import draw, opened
    from polydraft.apps.terminal.outcome import report, summary, tell
    from polydraft.apps.terminal.terminal import note
    from polydraft.core.errors import InvalidArgument
    from polydraft.modalities import model_card
    from polydraft.modalities.image.recipe import read_recipe
    from polydraft.modalities.image.result import check_output

    recipe = read_recipe(picture)
    check_output(output)
    if recipe.prime and prime is None:
        raise InvalidArgument(f"{picture} goes on from another picture; give that with --prime.")
    if model is None and recipe.model not in [card.name for card in model_card.embedded_models()]:
        # what a file names is not fetched from anywhere unless the user says so
        raise InvalidArgument(f"{picture} is of {recipe.model!r:.80}; give its folder or repository with --model.")
    if recipe.version != polydraft.__version__:
        note(f"note: {picture} is of polydraft {recipe.version:.20}, and this is {polydraft.__version__}")
    options = recipe.arguments
    prompts, dtype, name = options.pop("prompt"), options.pop("dtype"), options.pop("model")
    loads = {"codec": codec, "drafter": drafter, "device": device, "dtype": dtype}
    pipe = request.loaded(model or name, "image", **loads)
    result = draw(pipe, prompts, "drawing", **options, prime=opened(prime))
    result.save(output)
    value = {"output": str(output)} | report(
        result, None, prompts=result.prompts, captions=result.captions, seeds=result.seeds,
        ignored_words=list(result.ignored_words),
    )  # fmt: skip
    tell(result, None, f"{output}; {summary(result)}", value, as_json)
