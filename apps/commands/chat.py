"""`polydraft chat`: ask about pictures, and show what drafting earned.

    polydraft chat frogs.png "How many frogs are there?"
    polydraft chat before.png after.png "What has changed?" --compare
    curl -s https://example.org/cat.jpg | polydraft chat - "Describe the picture." --json
    polydraft chat frogs.png "Describe the picture." --map runs.png
    polydraft chat frogs.png --turns
    polydraft chat photo.jpg "What is this?" --model HuggingFaceTB/SmolVLM-256M-Instruct --method pld

The answer goes to standard output as it is found, everything else to standard error.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polydraft.apps.commands.outcome import check_compare, check_promise, comparison, summary, tell
from polydraft.apps.commands.terminal import busy, note

if TYPE_CHECKING:
    from polydraft.modalities.vlm.pipeline import VLMPipeline
    from polydraft.modalities.vlm.result import ChatResult

LEAVE = ("", "exit", "quit")  # what ends a conversation


def chat(
    about: Annotated[
        list[str], typer.Argument(metavar="PICTURE… QUESTION", help="Files and, last, a question; - is standard input.")
    ],
    turns: Annotated[bool, typer.Option("--turns", help="Keep asking; all arguments are pictures.")] = False,
    model: Annotated[str, typer.Option(help="Embedded model, a folder, or organisation/repository.")] = "tiny-vlm",
    drafter: Annotated[str | None, typer.Option(help="A drafter's folder or repository.")] = None,
    method: Annotated[str | None, typer.Option(help="As in `polydraft methods`, e.g. 'eagle2'.")] = None,
    speculative: Annotated[bool, typer.Option(help="Draft, or decode plainly: same answer, slower.")] = True,
    seed: Annotated[int, typer.Option(help="Another number, another answer, above temperature 0.")] = 0,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy. Default: the model's own.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Keep the k likeliest tokens; 0 is off.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Keep the likeliest tokens of this mass; 1 is off.")] = None,
    repetition_penalty: Annotated[float | None, typer.Option(help="Above 1 avoids what was said; 1 is off.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 256,
    min_new_tokens: Annotated[int, typer.Option(min=0, help="Shortest answer.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    compare: Annotated[bool, typer.Option("--compare", help="Decode plainly too: S, τ, same tokens?")] = False,
    map_file: Annotated[
        Path | None, typer.Option("--map", help="Also draw which pass committed which words into this picture.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print answer and statistics as JSON.")] = False,
) -> None:
    """Answer QUESTION about pictures."""
    from polydraft.core.errors import InvalidArgument
    from polydraft.modalities.image.result import check_output
    from polydraft.modalities.loading import load

    for name, given in (("--json", as_json), ("--map", map_file)):
        if turns and given:
            raise InvalidArgument(f"--turns is a conversation and {name} tells of one answer; leave one out.")
    if map_file is not None:
        check_output(map_file)
    check_compare(compare, speculative, method)
    files, question = (about, None) if turns else (about[:-1], about[-1])
    pictures = [from_stdin() if file == "-" else file for file in files]
    with busy(f"loading {model}"):
        pipe = load(model, drafter=drafter, device=device, dtype=dtype, modality="vlm")
    options: dict[str, Any] = {
        "seed": seed, "temperature": temperature, "top_k": top_k, "top_p": top_p,
        "repetition_penalty": repetition_penalty, "max_new_tokens": max_new_tokens, "min_new_tokens": min_new_tokens,
    }  # fmt: skip
    chosen = {"speculative": speculative, "method": method}
    if turns:
        converse(pipe, pictures, options, chosen, compare)
        return
    asked: dict[str, Any] = {"image": pictures, "question": question}
    if compare:
        for run in (chosen, {"method": "ar"}):
            next(pipe.stream(**asked, **options | run))  # so that neither pays for the first use of a kernel
    result = pipe(**asked, **options | chosen) if as_json else answer(pipe, asked | options | chosen)
    plain = pipe(**asked, **options | {"method": "ar"}) if compare else None
    if map_file is not None:
        from polydraft.apps.commands.maps.answer import save_answer_map
        from polydraft.modalities.vlm.conversation import opened

        save_answer_map(result, opened(pictures[0]) if pictures else None, about[-1], map_file)
    if as_json:
        tell(result, plain, "", report(result, map_file), as_json)
    else:
        note(summary(result))
        if plain is not None:
            note(comparison(result, plain))
            check_promise(result, plain)


def answer(pipe: VLMPipeline, options: dict[str, Any]) -> ChatResult:
    """The answer, written as it is found."""
    stream = pipe.stream(**options)
    for step in stream:
        typer.echo(step.text, nl=False)
        sys.stdout.flush()
    typer.echo()
    result = stream.result()
    if result.finish_reason == "length":
        note("note: the answer was cut; raise --max-new-tokens")
    return result


def converse(
    pipe: VLMPipeline, pictures: list[Any], options: dict[str, Any], chosen: dict[str, Any], compare: bool
) -> None:
    """Ask until an empty line; every turn sees those before it."""
    messages: list[dict[str, Any]] = []
    note("ask about the picture; an empty line ends the conversation")
    while (question := ask()) not in LEAVE:
        asked: dict[str, Any] = {"image": pictures, "question": question, "messages": list(messages)}
        result = answer(pipe, asked | options | chosen)
        if compare:
            plain = pipe(**asked, **options | {"method": "ar"})
            note(comparison(result, plain))
            check_promise(result, plain)
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": result.text}]


def ask() -> str:
    """The next question; the end of the input ends the conversation."""
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except EOFError:
        return ""


def from_stdin() -> Any:
    """The picture on standard input."""
    from polydraft.modalities.vlm.conversation import read

    return read(io.BytesIO(sys.stdin.buffer.read()), "standard input")


def report(result: ChatResult, map_file: Path | None) -> dict[str, Any]:
    """What --json prints."""
    return {
        "map": None if map_file is None else str(map_file), "model": result.model, "method": result.method,
        "seed": result.seeds[0], "answer": result.text, "tokens": len(result.tokens),
        "finish_reason": result.finish_reason, "stats": result.stats.to_dict(),
    }  # fmt: skip
