"""The page itself: links, copies, keys, names for screen readers, small screens, errors that are sentences."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Live

TABS = ("draw", "speak", "ask", "compare", "models")
CLIPPED = """() => [...document.querySelectorAll('[role=tab]')].filter((tab) => {
  const box = tab.getBoundingClientRect();
  return tab.scrollWidth > tab.clientWidth + 1 || box.left < 0 || box.right > innerWidth;
}).map((tab) => tab.textContent)"""
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


def test_a_link_restores_the_controls(opened: Any) -> None:
    settings = "seed=41&method=eagle2&temperature=0.5&min_p=0.3&runs=1&top_p=warm"
    page = opened(f"?tab=draw&prompt=three+bees+on+a+grey+background&{settings}")
    page.wait_for_function("document.querySelector('#draw-prompt textarea')?.value.startsWith('three bees')")
    assert page.locator("#draw-seed input").input_value() == "41"
    assert page.locator("#draw-runs input").is_checked()
    page.get_by_role("button", name="More settings").locator("visible=true").click()
    assert page.locator("#draw-method input").first.input_value().startswith("eagle2")
    assert page.locator("#draw-temperature input[type=number]").input_value() == "0.5"
    assert page.locator("#draw-min-p input[type=number]").input_value() == "0.3"
    assert page.locator("#draw-top-p input[type=number]").input_value() == "1"  # what cannot be read is left alone


def test_copies_make_the_same_again(opened: Any, live: Live) -> None:
    page = opened("?tab=ask&question=What+colour+is+the+background%3F&seed=5")
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


def test_errors_are_sentences(opened: Any) -> None:
    page = opened()
    for prompt, word in (("zzz qqq", "knows no word"), ("   ", "prompt is empty")):
        page.get_by_label("Prompt").locator("visible=true").fill(prompt)
        page.get_by_role("button", name="Draw", exact=True).click()
        alert = page.get_by_role("alert")
        alert.get_by_text(word).wait_for()
        assert alert.locator("p").inner_text().endswith(".")


def test_keys_alone_are_enough(opened: Any) -> None:
    page = opened("?tab=ask")
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


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False), (390, True)])
def test_it_fits_and_can_be_read(opened: Any, width: int, dark: bool) -> None:
    page = opened(width=width, dark=dark)
    assert page.evaluate("document.body.classList.contains('dark')") is dark
    for name in TABS:
        page.get_by_role("tab", name=name.capitalize(), exact=True).click()
        page.locator(f"#tab-{name}").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(CLIPPED) == []
        assert page.evaluate(UNNAMED) == []
        assert page.evaluate(FAINT) == []


def test_day_and_night_are_a_click_away(opened: Any) -> None:
    page = opened()
    page.get_by_role("button", name="Switch between light and dark").click()
    assert page.evaluate("document.body.classList.contains('dark')")
    again = page.context.new_page()  # reloading would abort what the page still asks for, and tell an error
    again.goto(page.url)
    again.get_by_role("tab", name="Draw", exact=True).wait_for()
    again.wait_for_function("document.body.classList.contains('dark')")


def test_methods_can_be_filtered(opened: Any) -> None:
    page = opened("?tab=models")
    rows = page.locator("table.methods tbody tr")
    rows.first.wait_for()
    everything = rows.count()
    page.locator("#models-promise").get_by_text("lossy", exact=True).click()
    page.wait_for_function("(all) => document.querySelectorAll('table.methods tbody tr').length < all", arg=everything)
    assert set(rows.evaluate_all("rows => rows.map((row) => row.dataset.promise)")) == {"lossy"}
