"""`polydraft image`: draw prompts, and show what drafting earned.

    polydraft image "two frogs on a blue background" -o frogs.png --seed 7
    polydraft image "a cat on a pink background" "three suns on a navy background" --n 2 -o sheet.png
    polydraft image "a tiger on a green background" --compare --map passes.png --json

Everything that can be refused is refused before a file is touched; pictures are written whole or not at all.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polydraft.apps.commands.outcome import check_compare, tell
from polydraft.apps.commands.terminal import busy, note, progress

if TYPE_CHECKING:
    from polydraft.modalities.image.pipeline import ImagePipeline, ImageStep
    from polydraft.modalities.image.result import ImageResult

WARM_UP_PASSES = 3


def image(
    prompts: Annotated[list[str], typer.Argument(metavar="PROMPT...", help="What to draw; several become one batch.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="A .png, .jpg or .webp file.")] = Path("out.png"),
    model: Annotated[str, typer.Option(help="Embedded model or a model folder.")] = "tiny-image",
    method: Annotated[str | None, typer.Option(help="As in `polydraft methods`, e.g. 'jacobi(window=16)'.")] = None,
    speculative: Annotated[bool, typer.Option(help="Draft, or decode plainly: same picture, slower.")] = True,
    n: Annotated[int, typer.Option("--n", "-n", help="Pictures a prompt.")] = 1,
    seed: Annotated[
        list[str] | None,
        typer.Option(metavar="INTEGER", help="Picture i gets seed + i; 1,2,3 are one a picture. Default 0."),
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy. Default: the model's own.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Keep the k likeliest tokens; 0 is off.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Keep the likeliest tokens of this mass; 1 is off.")] = None,
    guidance_scale: Annotated[float | None, typer.Option(help="How strictly the prompt guides; 1 is off.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    compare: Annotated[bool, typer.Option("--compare", help="Decode plainly too: S, τ, same tokens?")] = False,
    map_file: Annotated[
        Path | None, typer.Option("--map", help="Also draw which pass committed which token into this file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print statistics as JSON.")] = False,
) -> None:
    """Draw PROMPTs into one picture file."""
    seeds = read_seeds(seed)
    check_request(output, map_file, compare, speculative, method)

    from polydraft.modalities.loading import load

    with busy(f"loading {model}"):
        pipe = load(model, device=device, dtype=dtype, modality="image")
    options: dict[str, Any] = {
        "n": n, "seed": seeds, "temperature": temperature, "top_k": top_k, "top_p": top_p,
        "guidance_scale": guidance_scale,
    }  # fmt: skip
    chosen = {"speculative": speculative, "method": method}
    if compare:
        warm_up(pipe, prompts, options | chosen, options | {"method": "ar"})
    result = draw(pipe, prompts, "drawing", options | chosen)
    plain = draw(pipe, prompts, "drawing plainly", options | {"method": "ar"}) if compare else None

    result.save(output)
    if map_file is not None:
        from polydraft.apps.commands.maps.image import save_map

        save_map(result, map_file)
    if result.ignored_words:
        note(f"note: {result.model} does not know {', '.join(result.ignored_words)}; ignored")
    tell(result, plain, str(output), report(result, output, map_file), as_json)


def read_seeds(given: list[str] | None) -> int | list[int]:
    """A number, or one a picture from repeated options and comma lists."""
    from polydraft.core.errors import InvalidArgument

    parts = [part.strip() for text in given or ["0"] for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise InvalidArgument(f"seed={','.join(parts)} is not possible; give whole numbers from 0, such as 7 or 1,2,3.")
    numbers = [int(part) for part in parts]
    return numbers[0] if len(numbers) == 1 else numbers


def check_request(output: Path, map_file: Path | None, compare: bool, speculative: bool, method: str | None) -> None:
    """Refuse what cannot work before any model is loaded."""
    from polydraft.core.errors import OutputUnwritable
    from polydraft.modalities.image.result import check_output

    for path in filter(None, (output, map_file)):
        check_output(path)
    if map_file is not None and map_file.resolve() == output.resolve():
        raise OutputUnwritable(f"--map and --output are both {output}; give two file names.")
    check_compare(compare, speculative, method)


def draw(pipe: ImagePipeline, prompts: list[str], label: str, options: dict[str, Any]) -> ImageResult:
    """All pictures, with progress."""
    with progress(label) as advance:

        def on_step(step: ImageStep) -> None:
            advance(step.tokens_done, step.tokens_total, step.passes)

        return pipe(prompts, on_step=on_step, **options)


def warm_up(pipe: ImagePipeline, prompts: list[str], *runs: dict[str, Any]) -> None:
    """A few passes of each run, so that neither pays for the first use of a kernel."""
    for options in runs:
        stream = pipe.stream(prompts, **options)
        for _ in range(WARM_UP_PASSES):
            next(stream)
        stream.close()


def report(result: ImageResult, output: Path, map_file: Path | None) -> dict[str, Any]:
    """What --json prints."""
    return {
        "output": str(output), "map": None if map_file is None else str(map_file), "model": result.model,
        "method": result.method, "prompts": result.prompts, "seeds": result.seeds,
        "finish_reason": result.finish_reason, "ignored_words": list(result.ignored_words),
        "stats": result.stats.to_dict(), "rows": [stats.to_dict() for stats in result.row_stats],
    }  # fmt: skip
