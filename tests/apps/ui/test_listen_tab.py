"""Wave, transcript and files of *Listen*, and how recordings are opened."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gradio", reason="Gradio is not installed: pip install 'polydraft[ui]'")

import gradio as gr

from polydraft.apps.server.engine.engine import ServerEngine
from polydraft.apps.server.engine.uploads import UploadedSound
from polydraft.apps.server.errors import TooBusy
from polydraft.apps.ui.frames import SeenTranscript, submit
from polydraft.apps.ui.sounds import Sounds
from polydraft.apps.ui.spoken import SPOKEN_TEXTS, SpokenExamples
from polydraft.apps.ui.tabs import listen
from polydraft.apps.ui.tabs.desk import Desk
from polydraft.apps.ui.tabs.listen import TranscriptStage, files, language_names
from polydraft.apps.ui.upload import ChosenSound, open_recording, upload_folder
from polydraft.apps.ui.views.sound import clock_time
from polydraft.apps.ui.views.transcript import transcript
from polydraft.apps.ui.views.wave import BIN, MOST_TITLES, Envelope, band, timed_runs, wave
from polydraft.core.errors import PromptError
from polydraft.core.stats import DecodeStats
from polydraft.modalities.transcription.committed_text import CommittedText, OpenSegment
from polydraft.modalities.transcription.request import TranscriptionProgress
from polydraft.modalities.transcription.result import FORMATS, Segment, Transcription

from ...modalities.transcription.tiny_whisper import SAMPLE_RATE, tone
from .test_views import EVIL, Tags

RUNS = (CommittedText(1, 2, " It was"), CommittedText(3, 1, " "), CommittedText(9, 1, " the best"))
SEGMENT = Segment(2.0, 4.0, " It was  the best", (7, 8), 0.0, -0.2, 1.1, 0.1, runs=RUNS)
OPEN = OpenSegment(4.0, None, (CommittedText(10, 3, " of times"),))


def result(*segments: Segment) -> Transcription:
    stats = DecodeStats("auto", "identical", tokens=9, target_passes=4, decode_seconds=0.5)
    return Transcription("It was the best", segments, "en", 8.0, stats, "tiny", "auto", language_probability=0.93)


def test_envelope_in_pieces_equals_whole() -> None:
    sound, whole, pieces = tone(3.0), Envelope(), Envelope()
    whole.add(sound)
    for start in range(0, len(sound), 777):
        pieces.add(sound[start : start + 777])
    assert np.array_equal(whole.peaks, pieces.peaks) and whole.path() == pieces.path()
    assert whole.seconds == pytest.approx(3.0) and whole.peaks[7] == np.abs(sound[7 * BIN : 8 * BIN]).max()


def test_envelope_path_spans_the_sound() -> None:
    envelope = Envelope()
    assert envelope.path() == ""
    envelope.add(np.concatenate([np.zeros(SAMPLE_RATE, np.float32), np.full(SAMPLE_RATE, 0.5, np.float32)]))
    lines = [line.partition(" ") for line in envelope.path().split("M")[1:]]
    places = [float(place) for place, _, _ in lines]
    assert places == sorted(places) and 0 < places[0] < 0.02 and 1.98 < places[-1] < 2.0
    assert lines[0][2] == "50.0V50.0" and lines[-1][2] == "6.0V94.0"  # Silence is flat, and the loudest part is high.


def test_runs_share_the_time_of_segments() -> None:
    first, second, third = timed_runs([SEGMENT, OPEN], 8.0)
    assert (first.start, second.end, third.start) == (2.0, pytest.approx(4.0), 4.0)
    assert first.end == second.start == pytest.approx(2.0 + 2.0 * 7 / 16)  # By letters; spaces alone are no run.
    assert (first.shade, second.shade) == (0, 1) and str(first) == "pass 1: 2 tokens"
    assert third.end == pytest.approx(4.0 + 0.06 * 9)  # The end of an open segment is a guess,
    [late] = timed_runs([OPEN], 4.2)
    assert late.end == 4.2  # and never behind the recording.
    [outside] = timed_runs([OPEN], 3.0)
    assert (outside.start, outside.end) == (3.0, 3.0)


def test_many_runs_are_one_shape_a_colour() -> None:
    runs = list(timed_runs([SEGMENT], 8.0)) * MOST_TITLES
    tags = Tags(f"<svg>{band(runs)}</svg>")
    assert [tag["class"] for tag in tags.with_class("run")] == ["run shade-0", "run shade-1"]
    few = Tags(f"<svg>{band(runs[:2])}</svg>")
    assert few.text == "pass 1: 2 tokenspass 9: 1 token" and len(few.with_class("run")) == 2


def test_wave_dims_what_is_not_written_down() -> None:
    going = Tags(wave("M1 40V60", [SEGMENT, OPEN], 8.0, "file=a", is_going=True))
    [strip], [rest] = going.with_class("recording"), going.with_class("unheard")
    assert strip["data-source"] == strip["data-sound"] == "file=a" and strip["data-length"] == "8.000"
    assert float(rest["x"] or 0) + float(rest["width"] or 0) == 8.0
    assert float(strip["data-front"] or 0) * 8 == pytest.approx(float(rest["x"] or 0), abs=0.01)
    ended = Tags(wave("", [SEGMENT], 8.0))
    assert Tags(wave("", [], 300.0)).text.startswith("0:000:100:20")  # A long one has ticks every ten seconds.
    assert "data-front" not in ended.with_class("recording")[0] and "data-sound" not in ended.with_class("sound")[0]
    assert ended.with_class("unheard")[0]["width"] == "0.00" and len(ended.with_class("segment")) == 1


def test_transcript_has_lines_times_and_passes() -> None:
    tags = Tags(transcript([SEGMENT, OPEN]))
    assert [tag["data-seek"] for tag in tags.with_class("at")] == ["2.00", "4.00"]
    assert [tag["class"] for tag in tags.with_class("said")] == ["said shade-0", "said shade-1", "said shade-2"]
    assert tags.text == "0:02 It was  the best0:04 of times" and tags.with_class("transcript")[0]["tabindex"] == "0"
    going = Tags(transcript([SEGMENT, OPEN], is_going=True, is_timed=False))
    assert len(going.with_class("caret")) == 1 and not going.with_class("at")
    assert len(Tags(transcript([], is_going=True)).with_class("caret")) == 1
    assert [clock_time(seconds) for seconds in (7.9, 61, 3723)] == ["0:07", "1:01", "1:02:03"]


def test_listen_views_escape_text() -> None:
    segment = OpenSegment(0.0, 1.0, (CommittedText(1, 1, EVIL),))
    for made in (transcript([segment]), wave("", [segment], 1.0, EVIL)):
        tags = Tags(made)
        assert "script" not in [tag for tag, _ in tags.found]
        assert all("onload" not in attributes for _, attributes in tags.found)


def test_frames_keep_finished_and_open_segments() -> None:
    seen = SeenTranscript("auto", None, 1.0)
    assert seen.idle_pace is not None  # The wave grows while a recording is read.
    seen.take(TranscriptionProgress([SEGMENT], "", 4.0, 8.0, 5, 12, 0.1, [OPEN]))
    seen.take(TranscriptionProgress([], "of", 4.0, 8.0, 6, 14, 0.2, []))
    frame = seen.frame()
    assert list(frame.segments) == [SEGMENT] and frame.open_segments == [] and frame.length == 8.0
    assert (frame.counts.passes, frame.counts.tokens, frame.counts.total) == (6, 14, 24)  # Three tokens a second.
    last = seen.last(result(SEGMENT))
    assert last.counts.done and last.counts.tokens == 9 and last.segments == (SEGMENT,)


def test_stage_offers_files_of_every_format() -> None:
    made = result(SEGMENT)
    links = files(made, "talk")
    assert [name for _, _, name in links] == [f"talk{suffix}" for suffix in FORMATS]
    texts = [base64.b64decode(address.partition(",")[2]).decode() for _, address, _ in links]
    assert texts == [made.render(suffix) for suffix in FORMATS]
    stage = TranscriptStage(ChosenSound("/tmp/x/sound.wav", "talk.mp3"), "tiny", {"language": "en"})
    html, known = stage.show(SeenTranscript("auto", None, 1.0).last(made))
    assert known["text"] == made.text and known["stats"]["tokens"] == 9 and json.dumps(known)
    assert "Language detected: English (93 %)." in html and 'download="talk.srt"' in html
    assert "transcribe(&#x27;talk.mp3&#x27;, model=&#x27;tiny&#x27;, language=&#x27;en&#x27;).save(" in html


def test_text_before_an_error_can_be_saved() -> None:
    stage = TranscriptStage(ChosenSound("/tmp/x/sound.wav", "talk.mp3"), "tiny", {})
    assert stage.unfinished() == ""
    seen = SeenTranscript("auto", None, 1.0)
    seen.take(TranscriptionProgress([SEGMENT], "", 4.0, 8.0, 5, 12, 0.1, [OPEN]))
    html, _ = stage.show(seen.frame())
    assert "data-partial hidden" in html and "data-partial hidden" not in stage.unfinished()
    address = next(tag["href"] for tag in Tags(stage.unfinished()).with_class("act")) or ""
    assert base64.b64decode(address.partition(",")[2]).decode() == "It was  the best\nof times\n"


def test_missing_recordings_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="there is no sound yet; .*example"):
        open_recording(None, 10.0)
    with pytest.raises(PromptError, match="no longer there"):
        open_recording(ChosenSound(str(tmp_path / "sound.wav"), "a.wav"), 10.0)


def test_errors_do_not_show_the_folder(tmp_path: Path) -> None:
    path = tmp_path / "sound.wav"
    path.write_bytes(b"no sound at all")
    buffer: Any = SimpleNamespace(close=lambda: None, sample_rate=16_000)
    with pytest.raises(Exception, match="^the sound is no sound of a known format"):
        open_recording(ChosenSound(str(path), "a.wav"), 10.0).read(lambda: buffer, lambda: False)


def test_refused_requests_close_the_recording(tmp_path: Path) -> None:
    def refuse(*arguments: Any) -> None:
        raise TooBusy("the queue is full; try again in a moment.")

    (tmp_path / "sound.wav").write_bytes(b"RIFF")
    recording = open_recording(ChosenSound(str(tmp_path / "sound.wav"), "a.wav"), 10.0)
    engine: Any = SimpleNamespace(submit=refuse)
    with pytest.raises(TooBusy):
        submit(engine, None, "transcription", {"audio": recording})
    assert isinstance(recording, UploadedSound) and recording.file.closed


def test_tab_without_models_says_what_to_install() -> None:
    upload_folder()
    engine: Any = None
    with gr.Blocks() as page:
        listen.tab(Desk(engine, Sounds(), {}))
    [html] = [block.value for block in page.blocks.values() if isinstance(block, gr.HTML)]
    assert "polydraft[listen]" in html and "whisper-base" in html and "--transcription" in html


def test_languages_have_names_after_detection() -> None:
    offer: Any = SimpleNamespace(languages=("en", "de", "xx"))
    assert language_names(offer) == [("Detect", "auto"), ("English", "en"), ("German", "de"), ("Xx", "xx")]


def test_examples_are_synthesised_once(tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []

    class Handle:
        async def __aenter__(self) -> Handle:
            return self

        async def __aexit__(self, *raised: object) -> None:
            pass

        async def result(self) -> Any:
            return SimpleNamespace(save=lambda file: file.write_bytes(b"RIFF"))

    class Engine(ServerEngine):
        def model(self, name: str | None, modality: str | None = None) -> Any:
            return SimpleNamespace(voices=["slt"])

        def submit(self, model: str | None, modality: str, arguments: dict[str, Any], **options: Any) -> Any:
            asked.append(arguments)
            return Handle()

    async def choose() -> list[Path]:
        examples = SpokenExamples(Engine(), tmp_path / "examples")
        names = list(SPOKEN_TEXTS)
        return list(await asyncio.gather(*(examples.file(name) for name in (names[0], names[0], names[1]))))

    first, same, second = asyncio.run(choose())
    assert first == same != second and first.read_bytes() == b"RIFF"
    assert [arguments.get("voice") for arguments in asked] == ["slt", None]  # The second voice is not the model's.
