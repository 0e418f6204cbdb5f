"""`/v1/audio/transcriptions` and `/v1/audio/translations` on a model with spliced sound."""

from __future__ import annotations

import io
from collections.abc import Iterator

import httpx
import openai
import pytest
import soundfile

from ...modalities.transcription.spliced_folders import write_spliced
from ...modalities.transcription.tiny_whisper import tone
from .live import Live

MODEL = "tiny-voxtral"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = write_spliced("voxtral", tmp_path_factory.mktemp("models") / MODEL)
    server = Live({"transcription": str(folder)}, max_sound_seconds=8.0)
    yield server
    server.close()


def sound_file(seconds: float) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, tone(seconds), 8000, format="FLAC")  # half as fast and as high
    return file.getvalue()


SOUND = sound_file(2.6)  # 5.2 seconds as it is played


def post(live: Live, content: bytes = SOUND, path: str = "transcriptions", **fields: str) -> httpx.Response:
    return live.http.post(f"/v1/audio/{path}", files={"file": ("sound.flac", content)}, data=fields)


def test_answers_match_pipeline(live: Live) -> None:
    wanted = live.run_pipeline("transcription", audio=SOUND, temperature=0.7, seed=3)
    client = live.client(max_retries=0)
    given = {"model": MODEL, "temperature": 0.7, "extra_body": {"seed": 3}, "file": ("sound.flac", SOUND)}
    answer = client.audio.transcriptions.create(response_format="verbose_json", **given)
    assert answer.text == wanted.text and len(wanted.segments) == 4 and answer.duration == pytest.approx(5.2)
    assert [each.model_dump() for each in answer.segments] == wanted.to_dict()["segments"]
    assert answer.language == "und" and wanted.text.strip() == wanted.text
    *deltas, done = client.audio.transcriptions.create(stream=True, **given)
    assert done.text == wanted.text == "".join(event.delta for event in deltas) and len(deltas) == 4
    assert post(live, response_format="srt", temperature="0.7", seed="3").text == wanted.render(".srt")


def test_drafted_answer_equals_plain_one(live: Live) -> None:
    client = live.client(max_retries=0)
    given = {"model": MODEL, "file": ("sound.flac", SOUND), "language": "en"}
    plain = client.audio.transcriptions.create(extra_body={"speculative": False}, **given)
    body = {"method": "hypothesis", "hypothesis": plain.text}
    drafted = client.audio.transcriptions.create(extra_body=body, **given)
    assert drafted.text == plain.text and drafted.metrics["speculative_decoding"]["method"] == "hypothesis"


def test_what_the_model_lacks_is_refused(live: Live) -> None:
    with pytest.raises(openai.BadRequestError, match="is not known to translate"):
        live.client(max_retries=0).audio.translations.create(model=MODEL, file=("sound.flac", SOUND))
    refused = {"takes no text before": {"prompt": "Names"}, "knows no language": {"language": "klingon"}}
    for words, fields in refused.items():
        answer = post(live, **fields)
        assert answer.status_code == 400 and words in answer.json()["error"]["message"]
    for content, status in ((b"no sound at all", 415), (b"", 400), (sound_file(4.1), 413)):
        assert post(live, content).status_code == status
