"""Use of the page in a browser: generating images and speech, asking, comparing, stopping and leaving."""

from __future__ import annotations

import base64
import io
import re
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import soundfile
from PIL import Image, ImageChops

from polydraft.modalities.image.recipe import ImageRecipe

from ...modalities.transcription.tiny_whisper import SAMPLE_RATE, tone
from .conftest import KEY, LISTENING, PATIENCE, Live, until

PROMPT = "a tiger on a green background"
WATCH_RUNS = """(tab) => {
  window.seen = [];
  const look = () => {
    const count = document.querySelectorAll(`#${tab}-stage .run`).length;
    if (count !== window.seen.at(-1)) window.seen.push(count);
  };
  new MutationObserver(look).observe(document.body, { childList: true, subtree: true });
}"""


def picture_of(address: str) -> Image.Image:
    """Return the image of a `data:` URL."""
    return Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2])))


@pytest.fixture
def slow_passes(live: Live) -> Iterator[None]:
    """Slow passes down to a tenth of a second, so that requests can be interrupted."""
    compute = live.engine.worker.compute
    work = compute.work

    def delayed_work() -> bool:
        time.sleep(0.1)
        return work()

    compute.work = delayed_work
    yield
    compute.work = work


def choose_plain_decoding(page: Any, name: str) -> None:
    """Choose plain decoding, which takes the most passes."""
    page.get_by_role("button", name="More settings").locator("visible=true").click()
    box = page.locator(f"#{name}-method input").first
    box.fill("ar")
    box.press("Enter")


def test_draw_image_fills_in(open_page: Any, live: Live) -> None:
    page = open_page()
    page.evaluate(WATCH_RUNS, "draw")
    page.get_by_label("Prompt").locator("visible=true").fill(PROMPT)
    page.get_by_role("button", name="Draw", exact=True).click()
    save = page.get_by_role("link", name="Save PNG")
    save.wait_for()
    seen = page.evaluate("window.seen")
    grown = [count for count in seen if count]
    assert len(set(grown)) > 3, seen  # Several partial images were shown.
    assert grown == sorted(grown), seen
    drawn = picture_of(save.get_attribute("href"))
    assert drawn.text["prompt"] == PROMPT and ImageRecipe.parse(drawn.text["polydraft"]).seeds == [0]
    pipe = live.engine.model("tiny-image").pipe
    plain = live.compute(pipe, PROMPT, speculative=False, seed=0)
    assert ImageChops.difference(drawn.convert("RGB"), plain.image).getbbox() is None  # The same image.
    assert page.get_by_label(f"Drawing: {PROMPT}").is_visible()
    drafted = live.compute(pipe, PROMPT, seed=0)
    assert seen[-1] == len(drafted.passes.unique())  # The first passes may only write the plan.
    passes = f"{drafted.stats.target_passes} passes"
    assert page.locator("#draw-stage .bar.drafted .value").inner_text() == passes


def test_shared_link_with_key_is_restored(open_page: Any, live: Live) -> None:
    """Check that the cookie authorises everything the page fetches later, such as its stream and the sound."""
    page = open_page(f"?tab=speak&text=It+is+late.&key={KEY}", address=live.keyed)
    assert "key" not in page.url and page.get_by_label("Text").locator("visible=true").input_value() == "It is late."
    page.get_by_role("button", name="Speak", exact=True).click()
    page.wait_for_function("document.querySelector('audio').readyState === 4")
    page.get_by_role("link", name="Save WAV").wait_for()


def test_token_runs_are_coloured_on_request(open_page: Any) -> None:
    page = open_page()
    page.get_by_role("button", name="Draw", exact=True).click()
    page.get_by_role("link", name="Save PNG").wait_for()
    shown = "getComputedStyle(document.querySelector('#draw-stage .runs')).opacity"
    assert page.evaluate(shown) == "0"
    page.get_by_label("Colour what each pass made").locator("visible=true").check()
    page.wait_for_function(f"{shown} === '1'")


def test_speech_plays_while_it_is_synthesised(open_page: Any, live: Live) -> None:
    page = open_page("?tab=speak")
    page.get_by_label("Text").locator("visible=true").fill("We will meet again tomorrow. Dinner is at seven.")
    page.get_by_role("button", name="Speak", exact=True).click()
    page.wait_for_function("document.querySelector('audio').readyState === 4")
    page.wait_for_function("document.querySelector('audio').currentTime > 0.1")
    save = page.get_by_role("link", name="Save WAV")
    save.wait_for()
    assert page.evaluate("document.querySelector('audio').error") is None
    assert page.locator("#speak-stage .spectrum img").count() == 1
    assert page.locator("#speak-stage .band .run").count() > 5
    page.wait_for_function("document.querySelector('audio').ended")
    seconds = float(page.locator("#speak-stage .sound").get_attribute("data-length"))
    assert abs(page.evaluate("document.querySelector('audio').currentTime") - seconds) < 0.3
    sought = page.get_by_label("Position in the speech")
    sought.fill("0.5")
    page.wait_for_function("document.querySelector('audio').currentTime >= 0.5")
    assert page.get_by_role("button", name=re.compile("^(Play|Pause)$")).is_enabled()


def test_an_uploaded_picture_is_asked_about(open_page: Any, tmp_path: Any) -> None:
    import numpy as np

    from polydraft.modalities.world.scene import Composition, ObjectGroup, place_objects

    scene = place_objects(Composition("orange", (ObjectGroup("robot", 2, "large"),)), np.random.default_rng(3))
    Image.fromarray(scene.render()).save(tmp_path / "robots.png")
    page = open_page("?tab=ask")
    page.get_by_label("Remove Image").or_(page.get_by_label("Clear")).locator("visible=true").first.click()
    page.locator("#ask-picture input[type=file]").set_input_files(tmp_path / "robots.png")
    page.locator("#ask-picture img").wait_for()
    page.get_by_label("Question").locator("visible=true").fill("What colour is the background?")
    page.get_by_role("button", name="Ask", exact=True).click()
    page.locator("#ask-stage .actions").wait_for()
    assert "orange" in page.locator("#ask-stage .answer").inner_text()
    assert page.locator("#ask-stage .said").count() >= 1
    page.get_by_label("Question").locator("visible=true").fill("How many robots are there?")
    page.get_by_label("Question").locator("visible=true").press("Enter")
    page.wait_for_function("document.querySelectorAll('#ask-stage .answer').length === 2")
    page.locator("#ask-stage .actions").wait_for()
    assert "two" in page.locator("#ask-stage .answer").last.inner_text()


@pytest.mark.parametrize(
    ("kind", "prompt"),
    [
        ("Picture", PROMPT), ("Speech", "It is late."),
        pytest.param("Answer", "Describe the picture.", marks=pytest.mark.thorough),
    ],
)  # fmt: skip
def test_a_race_ends_with_the_same_tokens(open_page: Any, kind: str, prompt: str) -> None:
    page = open_page("?tab=compare")
    box = page.locator("#compare-prompt textarea")
    before = box.input_value()
    if kind != "Picture":  # Selected when the page opens.
        page.locator("#compare-kind").get_by_text(kind, exact=True).click()
        shown = "document.querySelector('#compare-prompt textarea')"  # Absent while it is rendered again.
        page.wait_for_function(f"(was) => {shown} && {shown}.value !== was", arg=before)
    box.fill(prompt)
    page.get_by_role("button", name="Race", exact=True).click()
    page.locator("#compare-stage").locator(".verdict, .failure").wait_for()
    verdict = page.locator("#compare-stage .verdict")
    assert verdict.count() == 1, page.locator("#compare-stage").inner_text()
    assert "The same tokens" in verdict.inner_text()
    assert page.locator("#compare-stage .lane .flag").all_inner_texts() == ["first"]  # The clock decides which lane.
    names, values = verdict.locator("dt").all_inner_texts(), verdict.locator("dd:not(.why)").all_inner_texts()
    figures = dict(zip(names, values, strict=True))
    lanes = page.locator("#compare-stage .lane .counters").all_inner_texts()
    counted = {int(re.search(r"(\d+)\s*tokens|tokens\s*(\d+)", lane).expand(r"\1\2")) for lane in lanes}
    [compared] = re.findall(r"All (\d+) tokens were compared", verdict.inner_text())
    assert counted == {int(compared)}, lanes
    assert float(figures["τ"]) > 1.2 and int(figures["Passes"]) > 1 and figures["S"].endswith("×"), figures


def choose_sound(page: Any, name: str, tmp_path: Path, seconds: float = 5.0) -> Path:
    """Upload a sound into a tab's box and return its file."""
    file = tmp_path / "talk.wav"
    soundfile.write(file, tone(seconds), SAMPLE_RATE)
    page.locator(f"#{name}-sound input[type=file]").set_input_files(file)
    page.locator(f"#{name}-sound .file-preview").wait_for()
    return file


def saved_text(page: Any, kind: str) -> str:
    """Return what a button of *Listen* saves."""
    address = page.locator("#listen-stage .formats").get_by_role("link", name=kind, exact=True).get_attribute("href")
    return base64.b64decode(address.partition(",")[2]).decode()


def test_recording_becomes_text_and_plays(open_page: Any, live: Live, tmp_path: Path) -> None:
    page = open_page("?tab=listen")
    file = choose_sound(page, "listen", tmp_path)
    page.evaluate(WATCH_RUNS, "listen")
    page.get_by_role("button", name="Transcribe", exact=True).click()
    page.locator("#listen-stage .formats").wait_for()
    assert len(set(page.evaluate("window.seen"))) > 3  # Runs appear while it decodes.
    pipe = live.engine.model(LISTENING).pipe
    plain = live.compute(pipe, str(file), speculative=False)
    assert saved_text(page, "TXT") == plain.render(".txt") and saved_text(page, "SRT") == plain.render(".srt")
    assert page.locator("#listen-stage .wave .segment").count() == len(plain.segments)
    page.locator("#tab-listen [data-play]").click()
    page.wait_for_function("document.querySelector('audio').currentTime > 0.1")
    page.locator("#listen-stage [data-seek]").last.click()
    page.wait_for_function("(at) => document.querySelector('audio').currentTime >= at", arg=plain.segments[-1].start)


def test_microphone_has_captions_and_becomes_text(open_page: Any) -> None:
    page = open_page("?tab=listen&language=en")
    button = page.locator("[data-record=listen]")
    button.click()
    page.locator("#listen-stage .captions span").filter(has_text=re.compile("[a-z]")).first.wait_for()
    button.click()
    page.locator("#listen-stage .formats").wait_for()
    assert "recording" in page.locator("#listen-sound").inner_text() and button.inner_text() == "Record"


def test_spoken_example_is_transcribed(open_page: Any) -> None:
    page = open_page("?tab=listen")
    page.get_by_role("button", name="A voice message").locator("visible=true").click()
    page.locator("#listen-stage .formats").wait_for()
    assert "a-voice-message" in page.locator("#listen-sound").inner_text()


def test_transcripts_race_to_equal_tokens(open_page: Any, tmp_path: Path) -> None:
    page = open_page("?tab=compare&kind=transcription&method=suffix")
    choose_sound(page, "compare", tmp_path)
    page.get_by_role("button", name="Race", exact=True).click()
    page.locator("#compare-stage").locator(".verdict, .failure").wait_for()
    assert "The same tokens" in page.locator("#compare-stage").inner_text()


def test_stopped_transcription_frees_its_row(open_page: Any, live: Live, slow_passes: None, tmp_path: Path) -> None:
    page, before = open_page("?tab=listen&method=ar"), live.cancelled()
    choose_sound(page, "listen", tmp_path, 9.0)
    page.get_by_role("button", name="Transcribe", exact=True).click()
    page.locator("#listen-stage [data-going] .said").nth(3).wait_for()
    page.locator("#listen-stop").click()
    until(lambda: live.cancelled() > before and not live.engine.handles, "the request was cancelled")
    page.locator("#listen-stage").get_by_text("Stopped.").wait_for()
    assert page.get_by_role("link", name="Save TXT").is_visible()


def test_stop_frees_the_row(open_page: Any, live: Live, slow_passes: None) -> None:
    page, before = open_page(), live.cancelled()
    choose_plain_decoding(page, "draw")
    page.get_by_role("button", name="Draw", exact=True).click()
    page.locator("#draw-stage [data-going] .run").nth(5).wait_for(state="attached")
    page.locator("#draw-stop").click()
    until(lambda: live.cancelled() > before and not live.engine.handles, "the request was cancelled")
    page.locator("#draw-stage").get_by_text("Stopped.").wait_for()
    # A delayed frame arrives.
    page.evaluate("document.querySelector('#draw-stage .notes').parentElement.outerHTML = '<p data-going></p>'")
    page.locator("#draw-stage").get_by_text("Stopped.").wait_for()
    page.get_by_role("button", name="Draw", exact=True).click()
    page.locator("#draw-stage [data-going] .run").first.wait_for(state="attached")
    page.locator("#draw-stop").click()


def test_audio_before_stop_can_be_saved(open_page: Any, live: Live, slow_passes: None) -> None:
    page = open_page("?tab=speak")
    page.get_by_label("Text").locator("visible=true").fill("We will meet again tomorrow. Dinner is at seven.")
    page.get_by_role("button", name="Speak", exact=True).click()
    page.locator("#speak-stage [data-partial]").wait_for(state="attached")
    assert not page.get_by_role("link", name="Save WAV").is_visible()
    page.locator("#speak-stop").click()
    save = page.get_by_role("link", name="Save WAV")
    save.wait_for()
    until(lambda: not live.engine.handles, "the request was cancelled")
    with urllib.request.urlopen(live.address + save.get_attribute("href"), timeout=PATIENCE) as answer:
        samples, _ = soundfile.read(io.BytesIO(answer.read()))
    assert len(samples) > 0


def test_enter_starts_and_shift_enter_breaks_line(open_page: Any) -> None:
    page = open_page()
    box = page.get_by_label("Prompt").locator("visible=true")
    box.fill(PROMPT)
    box.press("Shift+Enter")
    box.press_sequentially("with a cake")
    assert box.input_value() == f"{PROMPT}\nwith a cake" and page.locator("#draw-stage .empty").count() == 1
    box.press("Enter")
    page.locator("#draw-stage .picture").wait_for()
    page.locator("#draw-stop").click()


def test_leaving_frees_the_row(open_page: Any, live: Live, slow_passes: None) -> None:
    page, before = open_page(), live.cancelled()
    choose_plain_decoding(page, "draw")
    page.get_by_role("button", name="Draw", exact=True).click()
    page.locator("#draw-stage [data-going] .run").nth(5).wait_for(state="attached")
    page.close()
    until(lambda: live.cancelled() > before and not live.engine.handles, "the request was cancelled")
