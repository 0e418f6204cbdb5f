"""Requests that benches make of the user's own data: images to draw, texts to speak, questions to answer.

requests = read_image_requests("prompts.jsonl")            # {"prompt": …, "seed": 3, "negative_prompt": …}, or text
requests = read_speech_requests("lines.txt", limit=8)      # {"text": …, "voice": "slt"}, or text
requests = read_questions("photos.jsonl", "vlm", limit=8)  # {"image": "a.png", "question": …, "answer": …}, messages, …

Fields and their forms are those of drafter training (`user_prompts.py`). What a model refuses names the record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TypeVar

from polydraft.apps.data.records import DataRecord
from polydraft.apps.data.user_prompts import Ask, open_conversation, read_asks, voice_in_turn
from polydraft.core.errors import DataUnavailable, InvalidArgument, PromptError
from polydraft.core.sampling.params import SamplingParams
from polydraft.core.target.causal import PromptInputs
from polydraft.modalities.image.base import TextToImagePipeline
from polydraft.modalities.speech.pipeline import SpeechPipeline
from polydraft.modalities.vlm.pipeline import ChatPipeline

Request = TypeVar("Request")


@dataclass(frozen=True)
class BenchImage:
    """Image that a model is to draw."""

    text: str
    seed: int
    negative_prompt: str | None = None
    row: DataRecord | None = None  # where it stands; None where the project wrote it


@dataclass(frozen=True)
class BenchUtterance:
    """Text that a model is to speak."""

    text: str
    seed: int
    voice: str | None = None
    reference: str | None = None  # path of a recording to clone
    reference_text: str | None = None
    row: DataRecord | None = None  # where it stands; None where the project wrote it

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments of `SpeechPipeline.stream`."""
        return {
            "voice": self.voice, "reference": self.reference, "reference_text": self.reference_text, "seed": self.seed,
        }  # fmt: skip


@dataclass(frozen=True)
class BenchQuestion:
    """Question that a model is to answer."""

    ask: Ask
    seed: int
    answers: tuple[str, ...] = ()  # any of which the right answer contains; empty where none is known


@contextmanager
def naming(row: DataRecord | None, what: str) -> Iterator[None]:
    """Let what a model refuses in the block name the record: "line 3 of FILE {what} (…)"."""
    try:
        yield
    except (PromptError, InvalidArgument) as error:
        raise error if row is None else row.refused(what, error) from error


def not_empty(requests: list[Request], data: str, example: str) -> list[Request]:
    """Return the requests; raise DataUnavailable where there are none."""
    if not requests:
        raise DataUnavailable(f"{data} holds nothing to measure; write lines such as {example}.")
    return requests


def read_image_requests(data: str) -> list[BenchImage]:
    """Return the images that user data asks for.

    Args:
        data (str): Text with a caption on every line, or records with `prompt`, `text` or `caption`, and optionally
            `seed` and `negative_prompt`; see `records.rows`.

    Raises:
        DataUnavailable: There are none, or a record is wrong.
    """
    requests = [
        BenchImage(ask.content["text"], ask.row.seed(index), ask.row.optional_text("negative_prompt"), ask.row)
        for index, ask in enumerate(read_asks(data, "image"))
    ]
    return not_empty(requests, data, '{"prompt": "a red cat"}, or captions in a text file')


def build_image_prompts(
    pipe: TextToImagePipeline, requests: Sequence[BenchImage], sampling: SamplingParams
) -> tuple[list[PromptInputs], list[str]]:
    """Return the prompts of images, and the words that the model ignores, each once.

    Raises:
        DataUnavailable: The model refuses a request of user data.
        PolydraftError: It refuses another.
    """
    prompts, ignored = [], dict[str, None]()
    for request in requests:
        with naming(request.row, "cannot be drawn"):
            drawing = pipe.with_negative_prompt(request.negative_prompt)
            captions, words = drawing.parse_captions([request.text])
            prompts += drawing.build_prompts(captions, [request.seed], sampling)
        ignored |= dict.fromkeys(words)
    return prompts, list(ignored)


def read_speech_requests(data: str, limit: int | None) -> list[BenchUtterance]:
    """Return the texts that user data asks for.

    Args:
        data (str): Text with a text on every line, or records with `text`, and optionally `voice`, `seed`, `reference`
            (a path relative to the file's folder) and `reference_text`; see `records.rows`.
        limit (int | None): Most texts, the first ones; None for all.

    Raises:
        DataUnavailable: There are none, or a record is wrong.
    """
    requests = [read_speech_request(ask, index) for index, ask in enumerate(islice(read_asks(data, "speech"), limit))]
    return not_empty(requests, data, '{"text": "Good morning.", "voice": "slt"}, or texts in a text file')


def read_speech_request(ask: Ask, index: int) -> BenchUtterance:
    """Return the request of a record, the one at `index`."""
    voice, reference, reference_text = map(ask.row.optional_text, ("voice", "reference", "reference_text"))
    path = None if reference is None else str(ask.row.folder / reference)
    return BenchUtterance(ask.content["text"], ask.row.seed(index), voice, path, reference_text, ask.row)


def with_voices(pipe: SpeechPipeline, requests: Sequence[BenchUtterance]) -> list[BenchUtterance]:
    """Return the requests, the model's voices in turn for those that name neither a voice nor a recording."""
    return [
        replace(request, voice=voice_in_turn(pipe, index))
        if request.voice is None and request.reference is None
        else request
        for index, request in enumerate(requests)
    ]


def check_speech_requests(
    pipe: SpeechPipeline, requests: Sequence[BenchUtterance], method: str, options: dict[str, Any]
) -> None:
    """Check that a model speaks all texts, in their voices.

    Args:
        pipe (SpeechPipeline): The model.
        requests (Sequence[BenchUtterance]): What it is to speak.
        method (str): A method of decoding.
        options (dict[str, Any]): Sampling options, which are checked first.

    Raises:
        DataUnavailable: It refuses a request of user data.
        PolydraftError: It refuses another, or the options.
    """
    pipe.sampling_params(**options)
    for request in requests:
        with naming(request.row, "cannot be spoken"):
            pipe.stream(request.text, method=method, **request.options(), **options).close()


def read_questions(data: str, kind: str, limit: int | None) -> list[BenchQuestion]:
    """Return the questions that user data asks.

    Args:
        data (str): Records of any schema in `schemas.py`, optionally with `seed`, and with `answer` where they ask one
            question; see `records.rows`.
        kind (str): Kind of the model's prompts, as of `prompt_kind`.
        limit (int | None): Most questions, the first ones; None for all.

    Raises:
        DataUnavailable: There are none, or a record is wrong.
    """
    asks = list(islice(read_asks(data, kind), limit))
    counts = Counter(ask.row.place for ask in asks)
    requests = [
        BenchQuestion(ask, ask.row.seed(index), read_answers(ask.row) if counts[ask.row.place] == 1 else ())
        for index, ask in enumerate(asks)
    ]
    return not_empty(requests, data, '{"image": "frogs.png", "question": "How many frogs are there?"}')


def read_answers(row: DataRecord) -> tuple[str, ...]:
    """Return the answers in a record: a string, several, or none."""
    value = row.value.get("answer")
    answers = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(answer, str) and answer.strip() for answer in answers):
        raise row.wrong(f"has the answer {value!r:.40}", "write it as a string, or several as a list, or leave it out")
    return tuple(answers)


def build_question_prompts(
    pipe: ChatPipeline, requests: Sequence[BenchQuestion], max_new_tokens: int
) -> list[PromptInputs]:
    """Return the prompts of questions.

    Raises:
        DataUnavailable: A picture is damaged, or the model refuses a question.
    """
    prompts = []
    for request in requests:
        with naming(request.ask.row, "cannot be asked"):
            prompts += pipe.build_prompts([open_conversation(request.ask)], [request.seed], max_new_tokens)
    return prompts
