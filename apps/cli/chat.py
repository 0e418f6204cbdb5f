"""`polydraft chat`: ask about pictures, or a language model anything, and show what drafting earned.

    polydraft chat frogs.png "How many frogs are there?"
    polydraft chat before.png after.png "What has changed?" --compare
    curl -s https://example.org/cat.jpg | polydraft chat - "Describe the picture." --json
    polydraft chat frogs.png "Describe the picture." --map runs.png
    polydraft chat frogs.png --turns
    polydraft chat photo.jpg "What is this?" --model HuggingFaceTB/SmolVLM-256M-Instruct --method pld
    polydraft chat "Why is the sky blue?" --model HuggingFaceTB/SmolLM2-135M-Instruct

The answer goes to standard output as it is found, everything else to standard error.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polydraft.apps.cli import request
from polydraft.apps.terminal.completion import method_names
from polydraft.apps.terminal.options import (
    AnyModel,
    Compare,
    Device,
    Drafters,
    Dtype,
    RepetitionPenalty,
    Temperature,
    TopK,
    TopP,
)
from polydraft.apps.terminal.outcome import report, summary, tell, tell_comparison
from polydraft.apps.terminal.quoting import check_question
from polydraft.apps.terminal.terminal import is_interactive, note

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

    from polydraft.modalities.vlm.pipeline import ChatPipeline
    from polydraft.modalities.vlm.result import ChatResult

LEAVE = ("", "exit", "quit")  # what ends a conversation


def chat(
    about: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PICTURE… QUESTION", show_default=False,
            help="Files, unless the model reads text alone, and, last, a question, which is asked for if left out; - "
            "is standard input.",
        ),
    ] = None,
    turns: Annotated[bool, typer.Option("--turns", help="Keep asking; all arguments are pictures.")] = False,
    model: AnyModel = "tiny-vlm",
    drafter: Drafters = None,
    reference: Annotated[
        Path | None, typer.Option(help="A text that answers may quote, to look drafts up in.", dir_okay=False)
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="As in `polydraft methods`, e.g. 'eagle2'.", autocompletion=method_names)
    ] = None,
    speculative: Annotated[bool, typer.Option(help="Draft, or decode plainly: same answer, slower.")] = True,
    seed: Annotated[int, typer.Option(help="Another number, another answer, above temperature 0.")] = 0,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    repetition_penalty: RepetitionPenalty = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Longest answer; default: the model's own, or 256.")
    ] = None,
    min_new_tokens: Annotated[int, typer.Option(min=0, help="Shortest answer.")] = 0,
    max_pixels: Annotated[
        int | None, typer.Option(help="Make larger pictures smaller, so that they take fewer positions.")
    ] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="A string that ends the answer; may be given several times.")
    ] = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    compare: Compare = False,
    map_file: Annotated[
        Path | None, typer.Option("--map", help="Also draw which pass committed which words into this picture.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print answer and statistics as JSON.")] = False,
) -> None:
    """Answer QUESTION, about pictures or without any."""
    from polydraft.core.errors import InvalidArgument

    for name, given in (("--json", as_json), ("--map", map_file)):
        if turns and given:
            raise InvalidArgument(f"--turns is a conversation and {name} tells of one answer; leave one out.")
    sampling = {
        "temperature": temperature, "top_k": top_k, "top_p": top_p, "repetition_penalty": repetition_penalty,
    }  # fmt: skip
    loading: dict[str, Any] = {"drafter": drafter, "reference": reference, "device": device, "dtype": dtype}
    request.check(model, "vlm", map_file, compare, speculative, method, **loading)
    from polydraft.modalities.vlm.pipeline import check_chat_arguments

    check_chat_arguments(seed, max_new_tokens, min_new_tokens, stop or (), **sampling)
    words = about or []
    files, question = (words, None) if turns or not words or is_picture(words[-1]) else (words[:-1], words[-1])
    if question is not None:
        check_question(files, question)
    elif not turns:
        check_can_ask(files)
    check_sees(model, files)
    pictures = read_images(files, question)
    if question is None and not turns:
        question = typer.prompt("Question", err=True)
    pipe = request.loaded(model, "vlm", **loading)
    options: dict[str, Any] = {
        "seed": seed, "max_new_tokens": max_new_tokens, "min_new_tokens": min_new_tokens, "max_pixels": max_pixels,
        "stop": stop or (),
    } | sampling  # fmt: skip
    comparison = request.CommandRequest(
        options | {"image": pictures, "question": question}, speculative, method, compare
    )
    if turns:
        converse(pipe, comparison)
        return
    comparison.warm_up(pipe.stream)
    result, plain = comparison.run(pipe if as_json else partial(answer, pipe), pipe)
    if map_file is not None:
        from polydraft.apps.cli.maps.answer import save_answer_map

        save_answer_map(result, pictures[0] if pictures else None, str(question), map_file)
    value = report(
        result, map_file, seed=result.seeds[0], answer=result.text, tokens=len(result.tokens),
        finish_reason=result.finish_reason, notes=list(result.notes),
    )  # fmt: skip
    tell(result, plain, summary(result), value, as_json, note)


def is_picture(argument: str) -> bool:
    """Check whether an argument is a picture's file, there or not, and no question."""
    from PIL import Image

    suffix = Path(argument).suffix.lower()
    is_named_so = suffix in Image.registered_extensions() and len(argument.split()) == 1
    return argument == "-" or is_named_so or is_file(argument)


def is_file(argument: str) -> bool:
    """Check whether an argument is a file's name; a long question is longer than any name may be."""
    try:
        return Path(argument).is_file()
    except OSError:
        return False


def check_sees(model: str, files: list[str]) -> None:
    """Raise PromptError where pictures are given and the model reads text alone."""
    from polydraft.core.errors import PromptError
    from polydraft.modalities.model_card import load_card

    card = load_card(model, modality="vlm")
    if files and card.is_text_only:
        from polydraft.modalities.text.encoding import image_refusal

        raise PromptError(image_refusal(card.name))


def check_can_ask(files: list[str]) -> None:
    """Raise InvalidArgument where a question is missing and nobody is there to be asked for one."""
    from polydraft.core.errors import InvalidArgument

    if "-" in files or not is_interactive():
        place = f" behind {files[-1]!r:.80}" if files else ""
        words = " ".join(["polydraft chat", *map(shlex.quote, files)])
        raise InvalidArgument(f'there is no question{place}; give one: {words} "What is this?".')


def answer(pipe: ChatPipeline, **options: Any) -> ChatResult:
    """Generate the answer and print it as it is verified."""
    stream = pipe.stream(**options)
    for step in stream:
        typer.echo(step.text, nl=False)
        sys.stdout.flush()
    typer.echo()
    result = stream.result()
    for text in result.notes:
        note(f"note: {text}")
    if result.finish_reason == "length":
        note("note: the answer was cut; raise --max-new-tokens")
    return result


def converse(pipe: ChatPipeline, comparison: request.CommandRequest) -> None:
    """Ask until an empty line; every turn sees those before it."""
    messages: list[dict[str, Any]] = []
    what = " about the picture" if comparison.options["image"] else ""
    note(f"ask{what}; an empty line ends the conversation")
    while (question := ask()) not in LEAVE:
        turn = replace(comparison, options=comparison.options | {"question": question, "messages": list(messages)})
        result, plain = turn.run(partial(answer, pipe), pipe)
        tell_comparison(result, plain, note)
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": result.text}]


def ask() -> str:
    """Read the next question; the end of the input ends the conversation."""
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except EOFError:
        return ""


def read_images(files: list[str], question: str | None) -> list[Picture]:
    """Open the images before a model is loaded; raises PromptError where they or the question cannot be used."""
    from polydraft.modalities.image_io import load_image, open_image
    from polydraft.modalities.vlm.conversation import build_conversation

    pictures = [
        open_image(sys.stdin.buffer.read(), "standard input") if file == "-" else load_image(file) for file in files
    ]
    if question is not None:
        build_conversation(pictures, question, ())
    return pictures
