"""`polydraft image`: draw prompts, and show what drafting earned.

    polydraft image "two frogs on a blue background" -o frogs.png --seed 7
    polydraft image "a cat on a pink background" "three suns on a navy background" --n 2 -o sheet.png
    polydraft image "please draw two cute frogs in the snow" --n 4 -o frogs-{i}.png --sheet
    polydraft image "a tiger on a green background" --compare --map passes.png --json

Everything that can be refused is refused before a file is touched; pictures are written whole or not at all. They say
what they were drawn from, and `polydraft redraw` draws them again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polydraft.apps.cli import request
from polydraft.apps.terminal.completion import method_names
from polydraft.apps.terminal.options import (
    Compare,
    Device,
    Drafters,
    Dtype,
    MinP,
    Model,
    Statistics,
    Temperature,
    TopK,
    TopP,
)
from polydraft.apps.terminal.outcome import report, summary, tell
from polydraft.apps.terminal.quoting import check_prompts
from polydraft.apps.terminal.terminal import note, progress

if TYPE_CHECKING:
    from polydraft.modalities.image.pipeline import ImagePipeline, ImageStep
    from polydraft.modalities.image.result import ImageResult

WARM_UP_PASSES = 3
PROMPTS = "What to draw, each in quotes; several become one batch."


def image(
    prompts: Annotated[list[str], typer.Argument(metavar="PROMPT...", help=PROMPTS)],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="A .png, .jpg or .webp file: one sheet of all pictures, or with {i} in its name one "
            "file each, {i} being 1, 2, ….",
        ),
    ] = Path("out.png"),
    sheet: Annotated[bool, typer.Option("--sheet", help="With {i}: also one sheet of all pictures.")] = False,
    model: Model = "tiny-image",
    method: Annotated[
        str | None,
        typer.Option(help="As in `polydraft methods`, e.g. 'jacobi(window=16)'.", autocompletion=method_names),
    ] = None,
    speculative: Annotated[bool, typer.Option(help="Draft, or decode plainly: same picture, slower.")] = True,
    n: Annotated[int, typer.Option("--n", "-n", help="Pictures a prompt.")] = 1,
    seed: Annotated[
        list[str] | None,
        typer.Option(metavar="INTEGER", help="Picture i gets seed + i; 1,2,3 are one a picture. Default 0."),
    ] = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    guidance_scale: Annotated[float | None, typer.Option(help="How strictly the prompt guides; 1 is off.")] = None,
    size: Annotated[str | None, typer.Option(help="Such as 512x256, for models that draw several.")] = None,
    negative_prompt: Annotated[
        str | None, typer.Option(help="What guidance leads away from, for models that read it.")
    ] = None,
    prime: Annotated[
        Path | None, typer.Option(help="A picture to go on from, or to show with the prompt, for models that can.")
    ] = None,
    iterations: Annotated[int | None, typer.Option(help="Sets of tokens, for models that draw these.")] = None,
    codec: Annotated[str | None, typer.Option(help="Folder of the autoencoder, where the model's has none.")] = None,
    drafter: Drafters = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    compare: Compare = False,
    map_file: Annotated[
        Path | None, typer.Option("--map", help="Also draw which pass committed which token into this file.")
    ] = None,
    as_json: Statistics = False,
) -> None:
    """Draw PROMPTs into picture files."""
    check_prompts(prompts)
    seeds = read_seeds(seed)
    files = Files.from_output(output, sheet)
    files.check(n * len(prompts), map_file)
    sampling = {
        "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "guidance_scale": guidance_scale,
    }  # fmt: skip
    check_request(prompts, n, seeds, sampling)
    loading = {"codec": codec, "drafter": drafter, "device": device, "dtype": dtype}
    request.check(model, "image", map_file, compare, speculative, method, **loading)
    shown = opened(prime)
    pipe = request.loaded(model, "image", **loading)
    options: dict[str, Any] = {
        "n": n, "seed": seeds, "size": size, "negative_prompt": negative_prompt, "prime": shown,
        "iterations": iterations,
    } | sampling  # fmt: skip
    comparison = request.CommandRequest(options, speculative, method, compare)
    comparison.warm_up(partial(pipe.stream, prompts), WARM_UP_PASSES)
    result, plain = comparison.run(
        partial(draw, pipe, prompts, "drawing"), partial(draw, pipe, prompts, "drawing plainly")
    )

    written = files.write(result)
    if map_file is not None:
        from polydraft.apps.cli.maps.image import save_map

        save_map(result, map_file)
    if result.ignored_words:
        drawn = "; ".join(dict.fromkeys(filter(None, result.captions))) or "what the model draws unasked"
        note(f"note: {result.model} cannot draw {', '.join(result.ignored_words)}; drawn: {drawn}")
    if failed := result.finish_reasons.count("impossible"):
        note(f"note: {failed} of {len(result.images)} pictures could not go on, as outputs of the model are not finite")
    value = {"output": str(output), "outputs": [str(path) for path in written]} | report(
        result, map_file, prompts=result.prompts, captions=result.captions, seeds=result.seeds,
        finish_reason=result.finish_reason, ignored_words=list(result.ignored_words),
    )  # fmt: skip
    value |= {"rows": [stats.to_dict() for stats in result.row_stats]}
    if cheap := pipe.options_at_equal_cost(result):
        plainer = draw(pipe, prompts, "drawing plainly in as many passes", **options | cheap)
        beside = files.with_suffix_word("plain")
        beside.write(plainer)
        note(f"{beside.output}; plain drawing in {cheap['iterations']} passes, to be compared with what is lossy")
        value |= {"plain_in_as_many_passes": {"output": str(beside.output), "stats": plainer.stats.to_dict()}}
    tell(result, plain, f"{output}; {summary(result)}", value, as_json)


def read_seeds(given: list[str] | None) -> int | list[int]:
    """Return one seed, or one per image from repeated options and comma-separated lists."""
    from polydraft.core.errors import InvalidArgument

    parts = [part.strip() for text in given or ["0"] for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise InvalidArgument(f"seed={','.join(parts)} is not possible; give whole numbers from 0, such as 7 or 1,2,3.")
    numbers = [int(part) for part in parts]
    return numbers[0] if len(numbers) == 1 else numbers


def check_request(prompts: list[str], n: int, seeds: int | list[int], sampling: dict[str, Any]) -> None:
    """Refuse what no model could draw before any is loaded."""
    from polydraft.modalities.image.base import check_image_arguments

    check_image_arguments(prompts, n, seeds, **sampling)


def opened(prime: Path | None) -> Any:
    """Open an image file, so that errors come before a model is loaded."""
    from polydraft.modalities.image_io import load_image

    return None if prime is None else load_image(prime)


@dataclass(frozen=True)
class Files:
    """Write pictures into one sheet, or into a file each."""

    output: Path
    sheet: Path | None  # a sheet; None is no sheet
    each: bool  # whether every picture has a file

    @staticmethod
    def from_output(output: Path, sheet: bool) -> Files:
        """Return what an output's name means; a sheet beside numbered files is numbered "sheet"."""
        from polydraft.modalities.image.result import NUMBER

        each = NUMBER in output.name
        name = output.with_name(output.name.replace(NUMBER, "sheet"))
        return Files(output, name if sheet or not each else None, each)

    def names(self, count: int) -> list[Path]:
        """Return the names of all files of so many pictures."""
        from polydraft.modalities.image.result import number_paths

        return (number_paths(self.output, count) if self.each else []) + ([self.sheet] if self.sheet else [])

    def check(self, count: int, map_file: Path | None) -> None:
        """Refuse what cannot be written before any model is loaded."""
        from polydraft.core.errors import OutputUnwritable
        from polydraft.modalities.image.result import check_output

        for name in self.names(count):
            check_output(name)
            if map_file is not None and map_file.resolve() == name.resolve():
                raise OutputUnwritable(f"--map and --output are both {name}; give two file names.")

    def write(self, result: ImageResult) -> list[Path]:
        """Write all files and return their names."""
        written = result.save_each(self.output) if self.each else []
        return written + ([result.save(self.sheet)] if self.sheet else [])

    def with_suffix_word(self, word: str) -> Files:
        """Return the files of other pictures, whose names end in `word`."""
        return Files.from_output(
            self.output.with_stem(f"{self.output.stem}-{word}"), self.each and self.sheet is not None
        )


def draw(pipe: ImagePipeline, prompts: list[str], label: str, **options: Any) -> ImageResult:
    """Generate all images with a progress bar."""
    with progress(label) as advance:

        def on_step(step: ImageStep) -> None:
            advance(step.tokens_done, step.tokens_total, step.passes)

        return pipe(prompts, on_step=on_step, **options)
