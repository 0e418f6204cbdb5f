"""Views: HTML from plain values."""

from __future__ import annotations

import base64
import io
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from polydraft.apps.ui.views import race, stage
from polydraft.apps.ui.views.answer import answer
from polydraft.apps.ui.views.counts import PROMISES, Counts, badge, bars, facts, sentence
from polydraft.apps.ui.views.picture import data_url, differences, outline, picture
from polydraft.apps.ui.views.runs import SHADES, TokenRun, runs
from polydraft.apps.ui.views.sound import ROWS, Spectrogram, sound, ticks
from polydraft.apps.ui.views.tables import methods_table, model_cards

EVIL = "<script>alert('x')</script>\" onload=\"x"
DRAFTED = Counts("jacobi", "identical", 28, 256, 256, 0.5, True)
PLAIN = Counts("ar", "identical", 256, 256, 256, 2.0, True)


class Tags(HTMLParser):
    """Elements of a document in order; unclosed or doubly closed ones are an error."""

    VOID = ("img", "input", "path", "rect", "circle", "br")

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID or (tag in ("path", "rect") and not self.get_starttag_text().endswith("/>")):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def with_class(self, kind: str) -> list[dict[str, str | None]]:
        """Return the attributes of the elements with the class `kind`."""
        return [attributes for _, attributes in self.found if kind in (attributes.get("class") or "").split()]


def test_runs_group_tokens_of_one_pass() -> None:
    assert runs([1, 1, 2, 3, 3, 3, 0, 0]) == [TokenRun(1, 0, 2), TokenRun(2, 2, 3), TokenRun(3, 3, 6)]
    assert runs([0, 0]) == runs([]) == []
    assert str(TokenRun(3, 3, 6)) == "pass 3: 3 tokens" and str(TokenRun(2, 2, 3)) == "pass 2: 1 token"
    assert TokenRun(1, 0, 1).shade == TokenRun(1 + SHADES, 5, 6).shade == 0


@given(st.integers(1, 7), st.data())
def test_outline_encloses_its_cells(columns: int, data: st.DataObject) -> None:
    """Check that the path's area (shoelace) is the number of cells and that it stays inside their rows."""
    start = data.draw(st.integers(0, 30))
    end = data.draw(st.integers(start + 1, 40))
    points, x, y = [], 0, 0
    for command, numbers in re.findall(r"([MHVZ])([\d ]*)", outline(start, end, columns)):
        if command == "M":
            x, y = map(int, numbers.split())
        elif command == "H":
            x = int(numbers)
        elif command == "V":
            y = int(numbers)
        points.append((x, y))
    turns = zip(points, points[1:] + points[:1], strict=True)
    assert abs(sum(a * d - b * c for (a, b), (c, d) in turns)) / 2 == end - start
    assert {y for _, y in points} <= set(range(start // columns, (end - 1) // columns + 2))
    assert {x for x, _ in points} <= set(range(columns + 1))


def test_partial_image_masks_missing_tokens() -> None:
    drawn = Image.new("RGB", (8, 8), "red")
    tags = Tags(picture(drawn, [1, 1, 1, 2, 0, 0, 0, 0, 0], (3, 3), f"Drawing: {EVIL}"))
    (undrawn,), (newest,) = tags.with_class("undrawn"), tags.with_class("newest")
    assert undrawn["d"] == outline(4, 9, 3) and newest["d"] == outline(3, 4, 3)
    assert len(tags.with_class("run")) == 2 and tags.found[0][1]["aria-label"] == f"Drawing: {EVIL}"
    whole = Tags(picture(drawn, [1] * 9, (3, 3), "x"))
    assert not whole.with_class("undrawn") and not whole.with_class("newest")
    assert Tags(picture(None, [], (3, 3), "x")).with_class("undrawn")[0]["d"] == outline(0, 9, 3)


def test_differences_list_generated_and_ignored_words() -> None:
    assert differences("Two frogs on grass", "two frogs on grass", ()) == ["", ""]
    lines = differences("a blue 🐱", "a cat on grass", ("blue",))
    assert lines == ["Drawn: a cat on grass.", "Not drawn: blue."]


def test_data_url_images_carry_metadata() -> None:
    address = data_url(Image.new("RGB", (4, 4), "blue"), {"prompt": "τ", "seed": "3"})
    found = Image.open(io.BytesIO(base64.b64decode(address.removeprefix("data:image/png;base64,"))))
    assert found.text == {"prompt": "τ", "seed": "3"} and found.getpixel((0, 0)) == (0, 0, 255)


def test_answer_words_of_one_pass_share_underline() -> None:
    tags = Tags(answer([" There are", "", " two <b>frogs</b>."]))
    assert tags.text.split() == ["There", "are", "two", "<b>frogs</b>."]
    assert [word["class"] for word in tags.with_class("said")] == ["said shade-0", "said shade-2"]
    assert "caret" not in answer(["x"]) and "caret" in answer([], going=True)


@given(st.lists(st.text()))
def test_answer_keeps_all_text(pieces: list[str]) -> None:
    # Like a browser, a parser normalises line breaks and drops characters that no document may contain.
    plain = [re.sub(r"[\r\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]", "", piece) for piece in pieces]
    assert Tags(answer(plain)).text == "".join(plain)


def test_incremental_spectrogram_equals_full_spectrogram() -> None:
    audio = np.sin(np.arange(16000) * 2 * np.pi * 1000 / 16000).astype(np.float32)
    whole, parts = Spectrogram(), Spectrogram()
    whole.add(audio)
    for start in range(0, len(audio), 777):
        parts.add(audio[start : start + 777])
    assert np.array_equal(np.asarray(whole.image()), np.asarray(parts.image()))
    brightness = np.asarray(whole.image()).sum(-1).mean(1)
    assert abs(ROWS - 1 - brightness.argmax() - ROWS / 8) <= 1  # 1 kHz of 8 kHz, from below.
    assert Spectrogram().image().size == (1, ROWS)


def test_sound_view_shows_progress() -> None:
    drawn = Image.new("RGB", (10, ROWS))
    tags = Tags(sound(drawn, [1, 1, 2], made=1.0, length=4.0, khz=8, key="k"))
    assert next(attributes for tag, attributes in tags.found if tag == "img")["style"] == "width:25.000%"
    boxes = [(float(box["x"]), float(box["width"])) for box in tags.with_class("run")]
    assert np.allclose(boxes, [(0, 2 / 3), (2 / 3, 1 / 3)], atol=1e-3)
    assert tags.with_class("sound")[0]["data-sound"] == "k" and tags.with_class("sound")[0]["data-length"] == "4.000"
    assert Tags(ticks(60.0)).text == "0 s10 s20 s30 s40 s50 s"
    assert Tags(sound(None, [], 0, 0, 8, "k")).with_class("run") == []


def test_counts_report_passes_and_speed() -> None:
    assert (DRAFTED.tau, DRAFTED.speed, DRAFTED.share) == (pytest.approx(9.143, abs=1e-3), 512, 1)
    assert Counts("jacobi", "", 0, 0, 0, 0.0).tau == 0 and Counts("x", "", 1, 64, 256, 1).share == 0.25
    assert sentence(DRAFTED) == "28 passes made 256 tokens; plain decoding takes 256 passes."
    assert len(Tags(bars(DRAFTED)).found) > 28 and "drafted" not in Tags(bars(PLAIN)).text
    assert "9.14" in facts(DRAFTED) and "500 ms" in facts(DRAFTED) and "512/s" in facts(DRAFTED)
    assert bars(Counts("jacobi", "", 0, 0, 256, 0.0)) == ""


@pytest.mark.parametrize("guarantee", PROMISES)
def test_badges_explain_themselves(guarantee: str) -> None:
    tags = Tags(badge(guarantee))
    assert tags.found[0][1]["title"] == PROMISES[guarantee] and PROMISES[guarantee] in tags.text


def test_race_verdict_matches_comparison() -> None:
    same = Tags(race.verdict(PLAIN, DRAFTED, True, 256, 256)).text
    assert "The same tokens" in same and "All 256" in same and "4.00×" in same and "9.14" in same
    lossy = Counts("lantern", "lossy", 20, 256, 256, 0.4, True)
    other = Tags(race.verdict(PLAIN, lossy, False, 31, 256))
    assert "Other tokens" in other.text and "31 of 256" in other.text and "report" not in other.text
    broken = Tags(race.verdict(PLAIN, DRAFTED, False, 255, 256))
    assert "please report" in broken.text and broken.with_class("broken")


def test_lanes_have_counters() -> None:
    lane = Tags(race.lane("Drafted", DRAFTED, "<p>x</p>", won=True))
    assert "28" in lane.text and "first" in lane.text and "jacobi" in lane.text
    assert "first" not in Tags(race.lane("Plain", None, "")).text
    both = race.race(race.lane("Plain", PLAIN, ""), race.lane("Drafted", DRAFTED, ""))
    assert both.index("Drafted") < both.index("Plain")


def test_stage_escapes_user_text() -> None:
    for made in (
        stage.failure(EVIL), stage.notes([EVIL]), stage.empty("picture", EVIL), stage.stage("", say=EVIL),
        stage.actions("?prompt=" + EVIL, EVIL, ("Save", "data:x", EVIL)), answer([EVIL]),
    ):  # fmt: skip
        tags = Tags(made)
        assert "script" not in [tag for tag, _ in tags.found]
        assert all("onload" not in attributes for _, attributes in tags.found)
    assert "data-going" in stage.stage("", going=True) and "data-going" not in stage.stage("")


def test_tables_show_every_model_and_method() -> None:
    model = {
        "name": "tiny", "modality": "image", "summary": "draws things", "defaults": {"method": "jacobi", "top_k": 4},
        "drafters": [], "makes": {"kinds": ["cat", "<b>"]}, "megabytes": 40.0,
    }  # fmt: skip
    card = Tags(model_cards([model]))
    assert "Draws things." in card.text and "none of its own" in card.text and "40 MB" in card.text
    method = {
        "name": "pld", "tokens": "ids", "guarantee": "identical", "summary": "copy what followed", "paper": "",
        "parameters": {"longest": {"default": 3, "help": "words"}},
    }  # fmt: skip
    table = Tags(methods_table([method], {("ids", "pld"): ["tiny"]}))
    assert "longest=3" in table.text and "tiny" in table.text and "–" in table.text
    assert [attributes.get("data-promise") for tag, attributes in table.found if tag == "tr"] == [None, "identical"]
