"""Controls of the page: links, copies, keyboard, names for screen readers, small screens, error messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import soundfile

from ...covering import first
from ...modalities.transcription.tiny_whisper import SAMPLE_RATE, tone
from .conftest import Live

TABS = ("draw", "speak", "listen", "ask", "compare", "models")
CLIPPED = """() => [...document.querySelectorAll('[role=tab]')].filter((tab) => {
  const box = tab.getBoundingClientRect();
  return tab.scrollWidth > tab.clientWidth + 1 || box.left < 0 || box.right > innerWidth;
}).map((tab) => tab.textContent)"""
OUTSIDE = """() => [...document.querySelectorAll('.lane, .verdict, .picture, .counters dd, .card')]
  .filter((element) => element.offsetParent)
  .filter((element) => element.getBoundingClientRect().right > document.querySelector('#tabs')
    .getBoundingClientRect().right + 1 || element.scrollWidth > element.clientWidth + 1)
  .map((element) => element.className || element.outerHTML)"""
UNNAMED = """() => [...document.querySelectorAll('input, textarea, button, select, a[href], [role=slider]')]
  .filter((element) => element.offsetParent !== null && element.type !== 'file')
  .filter((element) => !(element.getAttribute('aria-label') || element.getAttribute('aria-labelledby')
    || element.textContent.trim() || element.title
    || [...(element.labels || [])].some((label) => label.textContent.trim())))
  .map((element) => element.outerHTML.slice(0, 160))"""
FAINT = """() => {
  const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = channels(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const kinds = '.lead, .info-text, [data-testid=block-info], .masthead p, .facts dt, .empty p, td, button';
  return [...document.querySelectorAll(kinds)]
    .filter((element) => element.offsetParent && element.textContent.trim() && !element.closest('.scene'))
    .map((element) => {
      const [a, b] = [light(channels(getComputedStyle(element).color)), light(behind(element))];
      return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), element.textContent.trim().slice(0, 40)];
    }).filter(([ratio]) => ratio < 4.5);
}"""


def test_a_link_restores_the_controls(open_page: Any) -> None:
    settings = "seed=41&method=eagle2&temperature=0.5&min_p=0.3&runs=1&top_p=warm"
    page = open_page(f"?tab=draw&prompt=three+bees+on+a+grey+background&{settings}")
    page.wait_for_function("document.querySelector('#draw-prompt textarea')?.value.startsWith('three bees')")
    assert page.locator("#draw-seed input").input_value() == "41"
    assert page.locator("#draw-runs input").is_checked()
    page.get_by_role("button", name="More settings").locator("visible=true").click()
    assert page.locator("#draw-method input").first.input_value().startswith("eagle2")
    assert page.locator("#draw-temperature input[type=number]").input_value() == "0.5"
    assert page.locator("#draw-min-p input[type=number]").input_value() == "0.3"
    assert page.locator("#draw-top-p input[type=number]").input_value() == "1"  # Unreadable values are ignored.


def test_copied_link_and_python_contain_settings(open_page: Any, live: Live) -> None:
    page = open_page("?tab=ask&question=What+colour+is+the+background%3F&seed=5")
    page.wait_for_function("document.querySelector('#ask-question textarea')?.value.startsWith('What colour')")
    page.get_by_role("button", name="Ask", exact=True).click()
    page.get_by_role("button", name="Copy link").click()
    link = page.evaluate("navigator.clipboard.readText()")
    assert link == live.address + "?tab=ask&question=What+colour+is+the+background%3F&seed=5"
    page.locator("[data-copy]").click()
    line = page.evaluate("navigator.clipboard.readText()")
    assert line == (
        "from polydraft import chat; print(chat('picture.png', 'What colour is the background?', seed=5).text)"
    )


def test_errors_are_one_sentence(open_page: Any) -> None:
    page = open_page()
    for prompt, word in (("zzz qqq", "can generate nothing"), ("   ", "prompt is empty")):
        page.get_by_label("Prompt").locator("visible=true").fill(prompt)
        page.get_by_role("button", name="Draw", exact=True).click()
        alert = page.get_by_role("alert")
        alert.get_by_text(word).wait_for()
        assert alert.locator("p").inner_text().endswith(".")


def test_page_is_usable_by_keyboard(open_page: Any) -> None:
    page = open_page("?tab=ask")
    page.get_by_role("tab", name="Ask", exact=True).focus()
    wanted = ["ask-question", "ask-go"]
    for _ in range(40):
        page.keyboard.press("Tab")
        inside = page.evaluate("document.activeElement.closest('[id]')?.id ?? ''")
        if inside == wanted[0]:
            wanted.pop(0)
            if not wanted:
                break
    assert not wanted, f"not reached by Tab: {wanted}"
    page.keyboard.press("Enter")
    page.locator("#ask-stage .actions").wait_for()


def with_results(page: Any, sound: Path) -> None:
    """Run every tab once, so that its results are checked too."""
    for name, start, made in (
        ("Draw", "Draw", "#draw-stage .actions"), ("Speak", "Speak", "#speak-stage [data-made]"),
        ("Listen", "Transcribe", "#listen-stage .formats"), ("Ask", "Ask", "#ask-stage .actions"),
        ("Compare", "Race", "#compare-stage .verdict"),
    ):  # fmt: skip
        page.get_by_role("tab", name=name, exact=True).click()
        if name == "Listen":
            page.locator("#listen-sound input[type=file]").set_input_files(sound)
            page.locator("#listen-sound .file-preview").wait_for()
        page.get_by_role("button", name=start, exact=True).click()
        page.locator(made).wait_for()
        for fold in page.get_by_role("button", name="More settings").locator("visible=true").all():
            fold.click()


WIDE, NARROW = 1280, 390


LOOKS = ((False, WIDE), (True, NARROW), (False, NARROW), (True, WIDE))


@pytest.mark.parametrize("turn", first(1, range(len(LOOKS))))
def test_every_view_fits_and_can_be_read(open_page: Any, turn: int, tmp_path: Path) -> None:
    """Check six tabs with results, light and dark, wide and narrow, with axe."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = open_page()
    soundfile.write(tmp_path / "sound.wav", tone(5.0), SAMPLE_RATE)
    with_results(page, tmp_path / "sound.wav")
    wrong = []
    for index, name in enumerate(TABS):
        dark, width = LOOKS[(index + turn) % len(LOOKS)]
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme="dark" if dark else "light")
        page.get_by_role("tab", name=name.capitalize(), exact=True).click()
        page.locator(f"#tab-{name}").wait_for()
        page.wait_for_function("(dark) => document.body.classList.contains('dark') === dark", arg=dark)
        page.evaluate("Promise.all(document.getAnimations().map((each) => each.finished))")
        found = [
            (each["id"], node["html"][:120], node["failureSummary"])
            for each in axe.run(page).response["violations"] if each["impact"] in ("serious", "critical")
            for node in each["nodes"]
        ]  # fmt: skip
        checks = {script: page.evaluate(script) for script in (CLIPPED, UNNAMED, FAINT, OUTSIDE)}
        found += [item for script in checks for item in checks[script]]
        if page.locator("h1").count() != 1 or page.evaluate("document.documentElement.scrollWidth") > width:
            found.append("headings or width")
        wrong += [(name, dark, width, item) for item in found]
    assert wrong == []


def test_colour_scheme_is_switched_by_one_click(open_page: Any) -> None:
    page = open_page()
    page.get_by_role("button", name="Switch between light and dark").click()
    assert page.evaluate("document.body.classList.contains('dark')")
    again = page.context.new_page()  # Reloading would abort pending requests, which the browser reports as an error.
    again.goto(page.url)
    again.get_by_role("tab", name="Draw", exact=True).wait_for()
    again.wait_for_function("document.body.classList.contains('dark')")


def test_reload_keeps_tab_and_inputs(open_page: Any, live: Live) -> None:
    page = open_page().context.new_page()  # Errors are not collected here, since a reload aborts requests.
    page.goto(live.address + "?tab=compare&prompt=three+stars&seed=5")
    page.wait_for_function("document.querySelector('#compare-prompt textarea')?.value === 'three stars'")
    page.get_by_role("tab", name="Speak", exact=True).click()
    page.get_by_label("Text").locator("visible=true").fill("It is late.")
    page.locator("#speak-voice").get_by_text("slt", exact=True).click()
    page.wait_for_function("(sessionStorage.getItem('polydraft-inputs') ?? '').includes('slt')")
    page.reload()
    page.wait_for_function("document.querySelector('#speak-text textarea')?.value === 'It is late.'")
    page.locator("#tab-speak").wait_for()
    assert page.locator("#speak-voice input:checked").get_attribute("value") == "slt"
    page.get_by_role("tab", name="Compare", exact=True).click()
    assert page.locator("#compare-prompt textarea").input_value() == "three stars"
    assert page.locator("#compare-seed input").input_value() == "5"


def test_methods_unfold_on_a_phone(open_page: Any) -> None:
    page = open_page("?tab=models", width=390)
    row = page.locator("table.methods tbody tr").first
    description = row.locator('[data-name="What it does"]')
    assert description.is_hidden() and page.evaluate("document.documentElement.scrollHeight") < 5000
    row.get_by_role("button", name="Details").click()
    assert description.is_visible() and row.get_by_role("button").get_attribute("aria-expanded") == "true"


def test_methods_can_be_filtered(open_page: Any) -> None:
    page = open_page("?tab=models")
    rows = page.locator("table.methods tbody tr")
    rows.first.wait_for()
    everything = rows.count()
    page.locator("#models-promise").get_by_text("lossy", exact=True).click()
    page.wait_for_function("(all) => document.querySelectorAll('table.methods tbody tr').length < all", arg=everything)
    assert set(rows.evaluate_all("rows => rows.map((row) => row.dataset.promise)")) == {"lossy"}
