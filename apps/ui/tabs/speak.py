"""*Speak*: text becomes speech that plays while it is made, under its spectrogram."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import gradio as gr

from polydraft.apps.ui.again import changed, link, python
from polydraft.apps.ui.frames import Frame
from polydraft.apps.ui.kept import session_of
from polydraft.apps.ui.tabs import desk
from polydraft.apps.ui.tabs.desk import Desk
from polydraft.apps.ui.views import chrome, counts, stage
from polydraft.apps.ui.views.sound import Spectrogram, sound
from polydraft.core.errors import PolydraftError

EXAMPLES = (
    "We will meet again tomorrow.", "Dinner is at 7:30 pm, bring $5!",
    "The first sound comes early. The rest follows without a seam.",
)  # fmt: skip
HINT = "You will hear the first words while the rest is still being made."


def tab(at: Desk) -> None:
    """Build the tab: controls on the left, the spectrogram with its player on the right."""
    offer = at.offers.get("speech")
    if offer is None:
        desk.html(stage.empty("sound", "No speech model is loaded; start with --speech to speak."))
        return
    desk.html(chrome.lead("Speak", "Type what to say. It starts playing while the rest is still being made."))
    with gr.Row(elem_classes="desk"):
        with gr.Column(scale=5, min_width=320, elem_classes="controls"):
            text = gr.Textbox(
                EXAMPLES[0], label="Text", info="English; numbers, times, dates and money are read out.",
                elem_id="speak-text", **desk.PROMPT,
            )  # fmt: skip
            start, stop = desk.buttons("speak", "Speak")
            examples = gr.Column(elem_classes="bare")
            voice = gr.Radio(
                list(offer.voices), value=next(iter(offer.voices), None), label="Voice", elem_id="speak-voice",
                info="Who speaks.", visible=bool(offer.voices), elem_classes="choice",
            )  # fmt: skip
        with gr.Column(scale=6, min_width=320, elem_classes="stage"):
            desk.html(chrome.player("speech"))
            view = desk.html(stage.stage(stage.empty("sound", HINT)), elem_id="speak-stage")
            runs = desk.runs_box("speak", True)
        with gr.Column(scale=5, min_width=320, elem_classes="more"):
            seed = desk.seed_box("speak")
            with gr.Accordion("More settings", open=False):
                method = desk.method_box(offer, "speak")
                fine = {
                    "speed": gr.Slider(
                        0.5, 2, 1.0, step=0.05, label="Speed", elem_id="speak-speed",
                        info="Faster or slower, at the same pitch.",
                    )
                } | desk.sampling(offer, "speak")  # fmt: skip
    record = gr.JSON(visible=False)
    default_values = desk.untouched(fine, seed=0, method=offer.method, voice=voice.value)
    rate = at.engine.model(None, "speech").pipe.sample_rate

    async def speak(
        request: gr.Request, text: str, voice: str | None, seed: int, method: str, *values: float
    ) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        settings = {"voice": voice, "seed": int(seed or 0), "method": method} | dict(zip(fine, values, strict=True))
        given = changed(settings, default_values)
        key, heard = at.sounds.begin(rate, session_of(request.request))
        drawing = Drawing(key, rate)
        try:
            async for frame in at.frames("speech", text=text, **given):
                heard.add(frame.audio)
                yield drawing.speech_stage(frame, text, given)
        except PolydraftError as error:
            yield stage.stage(drawing.heard_so_far() + stage.failure(str(error))), {"error": str(error)}
        finally:
            heard.close()

    inputs = [text, voice, seed, method, *fine.values()]
    after = desk.wired(speak, [start.click, text.submit], stop, inputs, [view, record], "speak")
    with examples:
        desk.chips(EXAMPLES, text, after)
    at.links["speak"] = {"text": text, "voice": voice, "seed": seed, "method": method, "runs": runs, **fine}


class Drawing:
    """The spectrogram of one speech as it grows."""

    def __init__(self, key: str, rate: int) -> None:
        self.key: str = key
        self.rate: int = rate
        self.spectrogram: Spectrogram = Spectrogram()
        self.samples: int = 0
        self.last_strip: str = ""

    def heard_so_far(self) -> str:
        """Return the strip and a button to save it, where a run ended early; "" where there is nothing to hear."""
        if not self.samples:
            return ""
        return f"<div data-live data-made>{self.last_strip}</div>{stage.partial_result(self.download(), hidden=False)}"

    def download(self, name: str = "part") -> tuple[str, str, str]:
        """Return label, address and file name for the button that saves the sound."""
        return "Save WAV", f"sound/{self.key}.wav", f"polydraft-{name}.wav"

    def strip(self, frame: Frame) -> str:
        """Spectrogram and runs so far."""
        self.spectrogram.add(frame.audio)
        self.samples += len(frame.audio)
        drawn = self.spectrogram.image() if self.samples else None
        self.last_strip = sound(
            drawn, frame.passes, self.samples / self.rate, frame.length, self.rate / 2000, self.key
        )  # fmt: skip
        return self.last_strip

    def speech_stage(self, frame: Frame, text: str, given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Return the stage as HTML, and the facts about the run."""
        now, result, strip = frame.counts, frame.result, self.strip(frame)
        if result is None:
            part = stage.partial_result(self.download(), hidden=True) if self.samples else ""
            below = counts.bars(now) + counts.facts(now) + part
            return stage.stage(f"<div data-live>{strip}</div>", below, going=True), {}
        unknown = stage.left_out(result.ignored_words, "said")
        cut = "A sentence did not end by itself and was cut." if result.finish_reason in ("length", "loop") else ""
        notes_html = stage.notes([unknown, cut, result.silent, *(f"{text}." for text in result.notes)])
        below = counts.bars(now) + counts.facts(now) + notes_html + stage.actions(
            link("speak", {"text": text} | given), python("generate_speech", [text], given, ".save('speech.wav')"),
            self.download(str(result.seed)),
        )  # fmt: skip
        announcement = f"{result.seconds:.1f} seconds of speech are finished. {counts.sentence(now)}"
        known = {
            "stats": result.stats.to_dict(), "finish_reason": result.finish_reason, "seconds": result.seconds,
            "sound": f"sound/{self.key}.wav",
        }  # fmt: skip
        return stage.stage(f"<div data-live data-made>{strip}</div>", below, announcement), known
