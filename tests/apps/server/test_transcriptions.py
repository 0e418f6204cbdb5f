"""`/v1/audio/transcriptions` and `/v1/audio/translations` with the official client, on a random Whisper."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any, Literal

import httpx
import numpy as np
import openai
import pytest
import soundfile
from PIL import Image
from starlette.datastructures import UploadFile

from polydraft.apps.server.api import guards
from polydraft.apps.server.api.routes.transcriptions import next_delta
from polydraft.apps.server.engine.group import BatchGroup
from polydraft.apps.server.engine.uploads import UploadedSound
from polydraft.apps.server.settings import settings
from polydraft.modalities.transcription.features import LogMelStream
from polydraft.modalities.transcription.result import Transcription

from ...modalities.transcription.tiny_whisper import SAMPLE_RATE, tone, write_tiny_whisper
from .live import LONG, Live
from .reading import PROMPT, SENTENCES, as_pcm, events, picture, problem

PATHS = TRANSCRIPTIONS, TRANSLATIONS = "/v1/audio/transcriptions", "/v1/audio/translations"
MODEL = "tiny-whisper"
SAMPLING = {"seed": 3, "temperature": 0.7}  # one attempt at every window
MOST_BYTES, MOST_SECONDS = 500_000, 60.0


def sound_file(seconds: float, seed: int = 0, kind: str = "WAV", loudness: float = 1.0) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, tone(seconds, seed) * loudness, SAMPLE_RATE, format=kind)
    return file.getvalue()


SOUND = sound_file(5.0)  # three windows of two seconds


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Serve the model with an image and a speech model, and small limits."""
    folder = write_tiny_whisper(tmp_path_factory.mktemp("models") / MODEL)
    models = {"image": "tiny-image", "speech": "tiny-speech", "transcription": str(folder)}
    server = Live(models, max_upload_bytes=MOST_BYTES, max_sound_seconds=MOST_SECONDS)
    yield server
    server.close()


@pytest.fixture(scope="module")
def client(live: Live) -> openai.OpenAI:
    return live.client(max_retries=0)


def create(client: Any, sound: bytes = SOUND, **options: Any) -> Any:
    """Return the client's answer, or the awaitable of an asynchronous one."""
    extra = {"seed": SAMPLING["seed"]} | options.pop("extra_body", {})
    given = {"temperature": SAMPLING["temperature"], "model": MODEL} | options
    return client.audio.transcriptions.create(file=("sound.wav", sound), extra_body=extra, **given)


def post(live: Live, content: bytes | None = SOUND, path: str = TRANSCRIPTIONS, **fields: Any) -> httpx.Response:
    files = {"file": (None, "") if content is None else ("sound.wav", content)}
    return live.http.post(path, files=files, data=fields)


def alone(live: Live, sound: bytes = SOUND, **options: Any) -> Transcription:
    """Return the pipeline's result for a lone request."""
    return live.run_pipeline("transcription", audio=sound, **SAMPLING | options)


def test_blocks_of_an_upload_are_published() -> None:
    blocks: list[Any] = []
    buffer: Any = SimpleNamespace(push=lambda block: None, duration=1, num_samples=1, sample_rate=16_000)
    UploadedSound(io.BytesIO(SOUND), 60.0, blocks.append).read(lambda: buffer, lambda: False)
    assert len(blocks) > 0 and np.abs(np.concatenate(blocks) - tone(5.0)).max() < 1e-4


def wait(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + LONG
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def wait_until_idle(live: Live) -> None:
    groups = live.engine.worker.groups.values()
    live.wait_until(lambda: live.live_rows() == 0 and not any(group.jobs for group in groups))


def test_json_and_verbose_json_match_pipeline(live: Live, client: openai.OpenAI) -> None:
    wanted = alone(live)
    brief, verbose = create(client), create(client, response_format="verbose_json")
    assert brief.text == verbose.text == wanted.text and len(wanted.text) > 10 and len(wanted.segments) > 1
    assert brief.usage.type == verbose.usage.type == "duration" and verbose.usage.seconds == wanted.duration == 5
    assert brief.seed == 3 and brief.model == MODEL
    assert brief.metrics["speculative_decoding"]["tokens"] == wanted.stats.tokens
    assert (verbose.language, verbose.duration) == (wanted.language, 5.0)
    assert [each.model_dump() for each in verbose.segments] == wanted.to_dict()["segments"]


@pytest.mark.parametrize("granularities", [["word"], ["segment"], ["word", "segment"]])
def test_words_and_segments_have_times_as_asked(
    live: Live, client: openai.OpenAI, granularities: list[Literal["word", "segment"]]
) -> None:
    wanted = alone(live, word_timestamps=True).to_dict()
    verbose = create(client, response_format="verbose_json", timestamp_granularities=granularities)
    assert (verbose.words is not None, verbose.segments is not None) == (
        "word" in granularities, "segment" in granularities,
    )  # fmt: skip
    assert [each.word for each in verbose.words or []] == [
        word["word"] for word in wanted["words"] if "word" in granularities
    ]
    if verbose.words:
        times = [time for word in verbose.words for time in (word.start, word.end)]
        assert len(times) > 4 and times == sorted(times) and times[-1] <= 5


def test_batch_of_pieces_matches_pipeline(live: Live, client: openai.OpenAI) -> None:
    answer = create(client, response_format="verbose_json", extra_body={"batch_size": 3})
    assert answer.text == alone(live, batch_size=3).text and len(answer.text) > 5
    silent = create(client, sound_file(2.0, loudness=0.0), extra_body={"batch_size": 3})
    assert silent.text == ""


@pytest.mark.parametrize(("kind", "media"), [("text", "text/plain"), ("srt", "text/plain"), ("vtt", "text/vtt")])
def test_text_formats_match_files_of_pipeline(live: Live, client: openai.OpenAI, kind: str, media: str) -> None:
    answer = client.audio.transcriptions.with_raw_response.create(
        file=("sound.wav", SOUND), model=MODEL, response_format=kind, temperature=0.7, extra_body={"seed": 3}
    )
    wanted = alone(live)
    content = answer.http_response.text
    assert content == (f"{wanted.text}\n" if kind == "text" else wanted.render(f".{kind}"))
    assert answer.headers["content-type"] == f"{media}; charset=utf-8"
    assert answer.headers["x-polydraft-seed"] == "3" and answer.headers["x-polydraft-model"] == MODEL
    assert json.loads(answer.headers["x-polydraft-metrics"])["speculative_decoding"]["tokens"] == wanted.stats.tokens


@pytest.mark.parametrize("kind", ["FLAC", "MP3", "OGG"])
def test_compressed_files_match_pipeline(live: Live, client: openai.OpenAI, kind: str) -> None:
    sound = sound_file(3.0, kind=kind)
    assert create(client, sound).text == alone(live, sound).text


def test_temperature_zero_tries_again_like_pipeline(live: Live, client: openai.OpenAI) -> None:
    sound = sound_file(1.5)
    wanted = live.run_pipeline("transcription", audio=sound, seed=3)
    assert create(client, sound, temperature=0).text == wanted.text
    assert wanted.segments[0].temperature > 0  # the first attempt was not good enough


def test_language_prompt_and_hypothesis_reach_pipeline(live: Live, client: openai.OpenAI) -> None:
    given = {"language": "de", "initial_prompt": "names of frogs"}
    answer = create(client, language="de", prompt="names of frogs", response_format="verbose_json")
    wanted = alone(live, **given)
    assert answer.text == wanted.text != alone(live).text and answer.language == "de"
    drafted = create(
        client, language="de", prompt="names of frogs",
        extra_body={"method": "hypothesis", "hypothesis": wanted.text},
    )  # fmt: skip
    assert drafted.text == wanted.text
    assert drafted.metrics["speculative_decoding"]["method"] == "hypothesis"
    assert drafted.metrics["speculative_decoding"]["target_passes"] < wanted.stats.tokens


def test_plain_decoding_gives_the_same_text(live: Live, client: openai.OpenAI) -> None:
    answer = create(client, extra_body={"speculative": False})
    assert answer.text == alone(live).text and answer.metrics["speculative_decoding"]["method"] == "ar"


def test_translations_translate(live: Live, client: openai.OpenAI) -> None:
    with pytest.warns(DeprecationWarning):  # of the client alone
        answer = client.audio.translations.create(
            file=("sound.wav", SOUND), model=MODEL, response_format="json", temperature=0.7, extra_body={"seed": 3}
        )
    assert answer.text == alone(live, task="translate").text != alone(live).text
    verbose = post(live, path=TRANSLATIONS, response_format="verbose_json", temperature="0.7", seed="3").json()
    assert (verbose["task"], verbose["text"]) == ("translate", answer.text)
    assert problem(post(live, path=TRANSLATIONS, language="de"))["param"] == "language"


def check_events(received: list[Any], wanted: Transcription) -> None:
    *deltas, done = received
    assert [event.type for event in received] == ["transcript.text.delta"] * len(deltas) + ["transcript.text.done"]
    assert "".join(event.delta for event in deltas) == done.text == wanted.text and len(deltas) > 1
    usage = done.usage
    assert usage.type == "tokens" and usage.output_tokens == wanted.stats.tokens
    assert usage.input_tokens == 3 * 3 and usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert done.seed == 3 and done.metrics["speculative_decoding"]["tokens"] == wanted.stats.tokens


def test_streamed_deltas_join_to_the_text(live: Live, client: openai.OpenAI) -> None:
    """Check deltas, and usage with the prompt of every window."""
    with create(client, stream=True) as stream:
        check_events(list(stream), alone(live))
    raw = post(live, stream="true", temperature="0.7", seed="3")
    assert raw.headers["content-type"].startswith("text/event-stream")
    assert events(raw.text)[-1]["text"] == alone(live).text


def test_deltas_have_no_spaces_around_the_text() -> None:
    texts, sent, waiting = ["  ", " a b ", " ", "c  ", "d", " \n"], "", ""
    for text in texts:
        delta, waiting = next_delta(sent, waiting + text)
        sent += delta
    assert sent == "".join(texts).strip() == "a b  c  d"


def test_asynchronous_client_streams_and_waits(live: Live) -> None:
    async def transcribe_twice() -> tuple[Any, list[Any]]:
        async with openai.AsyncOpenAI(
            base_url=f"{live.url}/v1", api_key="unused", timeout=LONG, max_retries=0
        ) as client:
            whole = await create(client)
            return whole, [event async for event in await create(client, stream=True)]

    whole, streamed = asyncio.run(transcribe_twice())
    assert whole.text == alone(live).text
    check_events(streamed, alone(live))


def test_deltas_arrive_while_later_windows_are_decoded(
    live: Live, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stop decoding after the first segment with a text until its delta has been received."""
    honest, received = BatchGroup.turn, threading.Event()

    def turn_until_first_text(group: BatchGroup) -> None:
        honest(group)
        if any(segment.text.strip() for job in group.jobs for segment in job.run.segments):
            assert received.wait(LONG)

    monkeypatch.setattr(BatchGroup, "turn", turn_until_first_text)
    with create(client, stream=True) as stream:
        first = next(iter(stream))
        assert first.type == "transcript.text.delta" and alone(live).text.startswith(first.delta)
        assert live.ask(lambda: [handle.state for handle in live.engine.handles]) == ["running"]
        received.set()
        rest = list(stream)
    assert first.delta + "".join(event.delta for event in rest[:-1]) == rest[-1].text


def zip_file() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("sound.wav", SOUND)
    return file.getvalue()


def png_file() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "PNG")
    return file.getvalue()


FLAC = sound_file(5.0, kind="FLAC")


@pytest.mark.parametrize(
    ("content", "status", "word"),
    [
        (None, 400, "no file"), (b"", 400, "empty"), (b"What was said.\n" * 100, 415, "no sound"),
        (b"\0" * 5000, 415, "no sound"), (zip_file(), 415, "no sound"), (png_file(), 415, "PNG"),
        (b"#EXTM3U\nhttp://localhost/a.wav\n", 415, "no sound"), (FLAC[: len(FLAC) // 2], 400, "cut off"),
        (sound_file(MOST_SECONDS + 1, kind="OGG"), 413, "60 s"),
    ],
    ids=["none", "empty", "text", "zeros", "zip", "png", "playlist", "cut", "long"],
)  # fmt: skip
def test_unusable_files_are_refused(live: Live, content: bytes | None, status: int, word: str) -> None:
    answer = post(live, content)
    error = problem(answer)
    assert answer.status_code == status and word in error["message"] and error["type"] == "invalid_request_error"
    assert error["code"] == {400: "invalid_value", 413: "too_long", 415: "unsupported_media_type"}[status]
    streamed = post(live, content, stream="true")  # refused before the first event
    assert streamed.status_code == status and problem(streamed) == error


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"langage": "en"}, "'language'"), ({"language": "xx"}, "de, en, fr"), ({"temperature": "1.5"}, "temperature"),
        ({"temperature": "nan"}, "temperature"), ({"temperature": "hot"}, "temperature"), ({"seed": "-1"}, "seed"),
        ({"response_format": "diarized_json"}, "verbose_json"), ({"stream": "maybe"}, "stream"),
        ({"stream": "true", "response_format": "srt"}, "srt"), ({"method": "warp"}, "warp"),
        ({"timestamp_granularities[]": ["segment", "word"]}, "verbose_json"), ({"include[]": "logprobs"}, "log"),
        ({"timestamp_granularities[]": "letter"}, "segment"), ({"batch_size": "0"}, "batch_size"),
        ({"method": "jacobi", "speculative": "false"}, "speculative"), ({"prompt": "y" * 10_001}, "prompt"),
        ({"seed": ["1", "2"]}, "twice"), ({"file[]": "x"}, "no file"), ({"chunking_strategy": "vad"}, "windows"),
    ],
)  # fmt: skip
def test_impossible_fields_are_refused(live: Live, fields: dict[str, Any], word: str) -> None:
    files = None if "file[]" in fields else {"file": ("sound.wav", SOUND)}
    if files is None:
        fields = {"model": MODEL}
        answer = live.http.post(TRANSCRIPTIONS, files={"model": (None, MODEL)})
    else:
        answer = live.http.post(TRANSCRIPTIONS, files=files, data=fields)
    assert answer.status_code == 400 and word in problem(answer)["message"]


def test_bodies_that_are_no_forms_are_refused(live: Live) -> None:
    for options in (
        {"json": {"file": "sound.wav"}}, {"data": {"model": MODEL}}, {"content": b""},
        {"content": b"x" * 99, "headers": {"content-type": "multipart/form-data"}},
        {"content": b"x" * 99, "headers": {"content-type": "multipart/form-data; boundary=a"}},
        {"files": [("file", ("a.wav", SOUND)), ("file", ("b.wav", SOUND))]},
    ):  # fmt: skip
        answer = live.http.post(TRANSCRIPTIONS, **options)  # type: ignore[arg-type]
        assert answer.status_code == 400 and "form" in problem(answer)["message"]


def test_unset_and_ignored_fields(live: Live) -> None:
    fields = {"language": "", "model": "", "seed": "3", "temperature": "0.7", "chunking_strategy": "auto"}
    answer = post(live, **fields, **{"timestamp_granularities[]": "segment"})
    assert answer.json()["text"] == alone(live).text
    assert answer.headers["x-polydraft-ignored"] == "chunking_strategy, timestamp_granularities"
    verbose = post(live, response_format="verbose_json", temperature="1", **{"timestamp_granularities[]": "segment"})
    assert "x-polydraft-ignored" not in verbose.headers


def test_unknown_models_are_not_found(live: Live, client: openai.OpenAI) -> None:
    for model in ("whisper-1", "tiny-image"):
        with pytest.raises(openai.NotFoundError) as caught:
            create(client, model=model)
        assert caught.value.code == "model_not_found" and MODEL in str(caught.value)


@contextmanager
def begun_upload(live: Live, path: str, length: int) -> Iterator[socket.socket]:
    """Yield a connection on which a form of `length` bytes begins and does not go on."""
    url = httpx.URL(live.url)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {url.host}:{url.port}\r\nContent-Type: multipart/form-data; boundary=a\r\n"
        f"Content-Length: {length}\r\n\r\n--a\r\n"
    )
    with socket.create_connection((url.host, url.port or 80), LONG) as connection:
        connection.sendall(head.encode())
        yield connection


@pytest.mark.parametrize("path", PATHS)
def test_uploads_beyond_the_limit_are_not_received(live: Live, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send a hundred megabytes whose length is not stated, ten gigabytes as stated, and a byte too much."""
    read, honest = [], UploadedSound.read
    written, write = [0], UploadFile.write

    async def write_counted(upload: UploadFile, content: bytes) -> None:
        written[0] += len(content)
        await write(upload, content)

    monkeypatch.setattr(UploadedSound, "read", lambda upload, *rest: read.append(upload) or honest(upload, *rest))
    monkeypatch.setattr(UploadFile, "write", write_counted)

    def parts() -> Iterator[bytes]:
        yield b'--a\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
        for _ in range(100):
            yield bytes(1_000_000)

    headers = {"content-type": "multipart/form-data; boundary=a"}
    answer = live.http.post(path, content=parts(), headers=headers)
    assert answer.status_code == 413 and problem(answer)["code"] == "body_too_large"
    assert MOST_BYTES < written[0] <= MOST_BYTES + guards.OTHER_FIELDS
    with begun_upload(live, path, 10**10) as connection:
        assert connection.recv(1000).startswith(b"HTTP/1.1 413 ")
    exact = SOUND + bytes(MOST_BYTES + 1 - len(SOUND))
    assert problem(post(live, exact, path))["code"] == "too_long" and not read
    assert post(live, exact[:-1], path).status_code == 200 and len(read) == 1


def test_limit_of_uploads_is_for_their_paths_alone() -> None:
    limits = guards.Guards(None, most=1000, most_upload=10**8)  # type: ignore[arg-type]
    assert [limits.limit({"path": path}) for path in ("/v1/chat/completions", TRANSCRIPTIONS)] == [
        1000, 10**8 + guards.OTHER_FIELDS,
    ]  # fmt: skip
    assert limits.limit({"path": f"/p{TRANSLATIONS}", "root_path": "/p"}) > 10**8


def test_uploads_under_way_are_bounded(live: Live) -> None:
    """Leave as many uploads half-way as the engine takes requests; another one is refused until they have gone."""
    slots, most = live.app.state.uploads, live.engine.limits.rows + live.engine.limits.queue
    with ExitStack() as waiting:
        for _ in range(most):
            waiting.enter_context(begun_upload(live, TRANSCRIPTIONS, 100_000))
        wait(lambda: live.ask(lambda: slots.used) == most)
        refused = post(live)
        assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
        assert problem(refused)["type"] == "rate_limit_error"
    wait(lambda: live.ask(lambda: slots.used) == 0)
    assert post(live, temperature="0.7").status_code == 200


def test_full_queue_refuses(live: Live) -> None:
    with live.limited(rows=1, queue=1), ThreadPoolExecutor(2) as pool:
        with live.pause_compute():
            accepted = [pool.submit(post, live, temperature="0.7", seed=str(seed)) for seed in (1, 2)]
            wait(lambda: live.ask(lambda: len(live.engine.handles)) == 2)
            refused = post(live)
            assert refused.status_code == 429 and problem(refused)["code"] == "queue_full"
        assert [each.result(LONG).status_code for each in accepted] == [200, 200]


def test_reading_a_file_blocks_neither_server_nor_passes(
    live: Live, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest, reached, go = UploadedSound.push_blocks, threading.Event(), threading.Event()

    def push_later(*arguments: Any) -> None:
        reached.set()
        assert go.wait(LONG)
        honest(*arguments)

    monkeypatch.setattr(UploadedSound, "push_blocks", push_later)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(create, client)
        try:
            assert reached.wait(LONG) and live.http.get("/health").status_code == 200
            drawn = client.images.generate(prompt=PROMPT, extra_body={"seed": 5}).data[0].b64_json
            assert picture(drawn).tobytes() == live.run_pipeline("image", prompt=PROMPT, seed=5).image.tobytes()
            assert not slow.done()
        finally:
            go.set()
        assert slow.result(LONG).text == alone(live).text


@contextmanager
def sent_request(live: Live, sound: bytes, **fields: str) -> Iterator[None]:
    """Send a request, and close its connection at the end of the block without reading an answer."""
    request = httpx.Request("POST", f"{live.url}{TRANSCRIPTIONS}", files={"file": ("a.wav", sound)}, data=fields)
    head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    with socket.create_connection((request.url.host, request.url.port or 80), LONG) as connection:
        connection.sendall(f"POST {TRANSCRIPTIONS} HTTP/1.1\r\n{head}\r\n".encode() + request.read())
        yield


def closed_features(monkeypatch: pytest.MonkeyPatch) -> list[LogMelStream]:
    """Return a list that collects the features that are closed."""
    closed: list[LogMelStream] = []
    honest = LogMelStream.close
    monkeypatch.setattr(LogMelStream, "close", lambda stream: closed.append(stream) or honest(stream))
    return closed


@pytest.mark.parametrize("streamed", [True, False])
def test_disconnected_client_frees_its_row(live: Live, streamed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave during the second window; the row and the temporary file are free, and the third is never decoded."""
    honest, closed = BatchGroup.turn, closed_features(monkeypatch)
    reached, left, outcomes = threading.Event(), threading.Event(), live.engine.meter.outcomes
    before, windows = outcomes[MODEL, "cancelled"], []

    def turn_until_second_window(group: BatchGroup) -> None:
        honest(group)
        windows.append(max((len(job.run.prompts) for job in group.jobs), default=0))
        if windows[-1] == 2 and not reached.is_set():
            reached.set()
            assert left.wait(LONG)

    monkeypatch.setattr(BatchGroup, "turn", turn_until_second_window)
    try:
        with sent_request(live, SOUND, temperature="0.7", seed="3", stream=str(streamed).lower()):
            assert reached.wait(LONG)
        wait(lambda: outcomes[MODEL, "cancelled"] == before + 1)
    finally:
        left.set()
    wait_until_idle(live)
    assert max(windows) == 2 and len(set(map(id, closed))) == 1
    assert live.ask(lambda: live.engine.admission.held[MODEL]) == 0


def test_client_that_leaves_ends_the_reading(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave while the file is read: no more of it is, and its features and file are closed."""
    honest, closed, files = LogMelStream.push, closed_features(monkeypatch), []
    reached, left, outcomes = threading.Event(), threading.Event(), live.engine.meter.outcomes
    before, pushed = outcomes[MODEL, "cancelled"], []
    read = UploadedSound.read

    def push_and_wait(stream: LogMelStream, samples: Any) -> None:
        honest(stream, samples)
        pushed.append(len(samples))
        reached.set()
        assert left.wait(LONG)

    monkeypatch.setattr(LogMelStream, "push", push_and_wait)
    monkeypatch.setattr(UploadedSound, "read", lambda upload, *rest: files.append(upload.file) or read(upload, *rest))
    try:
        with sent_request(live, sound_file(40.0, kind="OGG")):
            assert reached.wait(LONG)
        wait(lambda: outcomes[MODEL, "cancelled"] == before + 1)
    finally:
        left.set()
    wait(lambda: len(closed) == 1 and files[0].closed)
    assert len(pushed) == 1


def test_eight_clients_beside_pictures_and_speech_match_pipeline(live: Live, client: openai.OpenAI) -> None:
    """Start recordings of one to five windows together; they share four rows, and answers are those of lone ones."""
    sounds = [sound_file(1.5 + 1.2 * seed, seed) for seed in range(7)]
    work: list[tuple[bytes, dict[str, Any]]] = [(sound, {"seed": seed}) for seed, sound in enumerate(sounds)]
    work.append((sounds[2], {"seed": 2, "language": "fr", "temperature": 0.0}))
    shared: list[int] = []

    def transcribe(sound: bytes, options: dict[str, Any]) -> str:
        given = {name: value for name, value in options.items() if name != "seed"}
        return create(client, sound, extra_body={"seed": options["seed"]}, **given).text

    def draw(seed: int) -> bytes:
        return picture(client.images.generate(prompt=PROMPT, extra_body={"seed": seed}).data[0].b64_json).tobytes()

    def speak(seed: int) -> bytes:
        return client.audio.speech.create(
            model="tiny-speech", voice="slt", input=SENTENCES, response_format="pcm", extra_body={"seed": seed}
        ).content

    def rows_of_recordings() -> bool:
        groups = live.engine.worker.groups.values()
        shared.append(max((group.live for group in groups if group.model == MODEL), default=0))
        return not live.engine.handles

    with ThreadPoolExecutor(12) as pool:
        with live.pause_compute():
            texts = [pool.submit(transcribe, sound, options) for sound, options in work]
            pictures, speech = [pool.submit(draw, seed) for seed in (5, 6)], pool.submit(speak, 3)
            wait(lambda: live.ask(lambda: len(live.engine.handles)) == len(work) + 3)
        live.wait_until(rows_of_recordings)
        answers = [each.result(LONG) for each in texts]
    for (sound, options), text in zip(work, answers, strict=True):
        wanted = alone(live, sound, **{"temperature": 0.7} | options | no_zero(options))
        assert text == wanted.text
    assert len(set(answers)) == len(answers) and max(shared) == live.engine.limits.rows
    for seed, made in zip((5, 6), pictures, strict=True):
        assert made.result(LONG) == live.run_pipeline("image", prompt=PROMPT, seed=seed).image.tobytes()
    assert speech.result(LONG) == as_pcm(live.run_pipeline("speech", text=SENTENCES, voice="slt", seed=3).audio)


def no_zero(options: dict[str, Any]) -> dict[str, Any]:
    """Return the pipeline's temperatures for OpenAI's 0, which tries higher ones where a text is not good enough."""
    return {"temperature": None} if options.get("temperature") == 0 else {}


def test_model_is_listed_and_counted(live: Live, client: openai.OpenAI) -> None:
    card = client.models.retrieve(MODEL)
    assert card.modality == "transcription" and {"ar", "hypothesis"} <= set(card.methods)  # type: ignore[attr-defined]
    meter, names = live.engine.meter, ("prompt_tokens", "tokens", "passes")
    before = [getattr(meter, name)[MODEL] for name in names]
    answer = post(live, temperature="0.7", seed="3")
    stats = alone(live).stats
    counted = [getattr(meter, name)[MODEL] - count for name, count in zip(names, before, strict=True)]
    assert counted[:2] == [3 * 3, stats.tokens] and 0 < counted[2] <= stats.tokens  # three windows of three prompt ids
    state = live.http.get(f"/v1/requests/{answer.headers['x-request-id']}").json()
    assert (state["model"], state["state"], state["seed"]) == (MODEL, "done", 3)
    assert f'generation_tokens_total{{model="{MODEL}"}}' in live.http.get("/metrics").text


def test_failing_window_fails_only_its_request(
    live: Live, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fail the prefill of a second window: the request ends with its error, and another one goes on."""
    target = live.engine.model(MODEL).pipe.target()
    honest = target.run_prefill

    def failing_prefill(state: Any, prompts: Any, *rest: Any) -> Any:
        if any(prompt.seed == 666 and prompt.segment for prompt in prompts):
            raise RuntimeError("planted")
        return honest(state, prompts, *rest)

    monkeypatch.setattr(target, "run_prefill", failing_prefill)
    closed = closed_features(monkeypatch)
    with ThreadPoolExecutor(2) as pool:
        with live.pause_compute():
            good, bad = pool.submit(create, client), pool.submit(create, client, extra_body={"seed": 666})
            wait(lambda: live.ask(lambda: len(live.engine.handles)) == 2)
        with pytest.raises(openai.InternalServerError, match="computation failed"):
            bad.result(LONG)
        assert good.result(LONG).text == alone(live).text
    assert len(set(map(id, closed))) >= 2


def test_option_names_the_model() -> None:
    assert settings({"transcription": "mine"}).model_choices == [("mine", "transcription")]
    chosen = settings({"max_upload_bytes": 2000, "max_sound_seconds": 3})
    assert (chosen.max_upload_bytes, chosen.max_sound_seconds) == (2000, 3.0)
