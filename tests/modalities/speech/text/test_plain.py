"""Removal of markup: text is kept, and removed content is reported."""

from __future__ import annotations

import pytest

from polydraft.core.errors import PromptError
from polydraft.modalities.speech.text.markup import check_text
from polydraft.modalities.speech.text.plain import LONGEST_TEXT, to_plain
from polydraft.modalities.speech.text.splitting import read_as_written

LINE = "A line that is as long as lines are that"


@pytest.mark.parametrize(
    ("text", "paragraphs", "dropped"),
    [
        ("Plain text, 2 * 3 < 7 & more_or_less.", ["Plain text, 2 * 3 < 7 & more_or_less."], ()),
        ("# Title #\n\nOne *two*.\nThree", ["Title", "One two.", "Three"], ()),
        ("1. a\n2. b\n   - c", ["1. a", "2. b", "c"], ()),
        ("> > said\n> > twice", ["said twice"], ()),
        ("> " * 40 + "deep", ["deep"], ()),
        ("[a](https://b.org \"c d\") ![e](f.png)", ["a e"], ("https://b.org", "c d", "f.png")),
        ("<https://a.org> [https://b.org](https://b.org)", ["https://a.org https://b.org"], ()),
        ("```py\nx = 1\n\ny\n```", ["x = 1", "y"], ("py",)),
        ("| a | b |\n|:--|--:|\n| 1 | 2 | 3 |", ["a, b", "1, 2, 3"], ()),
        ("<table><tr><td>a</td><td>b</td></tr><tr><td>c</td></tr></table>", ["a, b", "c"], ()),
        ("<STYLE>p {}</STYLE><p class='x'>A&eacute;&#33;</p>", ["Aé!"], ("p {}",)),
        ("<img src=a.png alt='a cat'>", ["a cat"], ("a.png",)),
        ("x <laugh> y <b class=z>w</b>", ["x <laugh> y w"], ()),
        ("x<y and y>z, a<b and c>d", ["x<y and y>z, a<b and c>d"], ()),
        ("5*3*2 and a*b*c and 这是*好*的", ["5*3*2 and a*b*c and 这是好的"], ()),
        ("[note]: /url", ["[note]: /url"], ()),
        ("    indented\ttext", ["indented text"], ()),
        ("m<sup>2</sup> and H<sub>2</sub>O <mark>now</mark>", ["m² and H2O now"], ()),
        (f"{LINE}\nwas wrapped. Short\nOne", [f"{LINE} was wrapped. Short", "One"], ()),
    ],
)  # fmt: skip
def test_to_plain_keeps_text_and_reports_dropped(text: str, paragraphs: list[str], dropped: tuple[str, ...]) -> None:
    assert to_plain(text) == (paragraphs, dropped)


@pytest.mark.parametrize("text", [None, 3, b"x", "", " \n"])
def test_to_plain_without_text_is_refused(text: object) -> None:
    with pytest.raises(PromptError, match="empty"):
        to_plain(text)


def test_read_as_written_reports_ignored_content() -> None:
    written = read_as_written("Yes. [Here](https://a.org).\n\n🎉\n\nNo <laugh>.")
    assert written == (["Yes.", "Here.", "No <laugh>."], ("https://a.org", "🎉"))


@pytest.mark.parametrize("piece", ["[", "![", "*a", "`", "<a ", "&", "> ", "1. ", "_a", "a|", "<b x=", "(a.) "])
def test_to_plain_long_markup_loses_no_text(piece: str) -> None:
    plain = to_plain((piece * LONGEST_TEXT)[: LONGEST_TEXT - 4] + "zebr")
    assert "zebr" in "".join(plain.paragraphs) + "".join(plain.dropped)


@pytest.mark.parametrize("text", ["H<sub>2</sub>O", "<mark>now</mark>", "<audio controls>"])
def test_check_text_html_shared_with_ssml_is_accepted(text: str) -> None:
    assert check_text(text) == text


@pytest.mark.parametrize("text", ['<sub alias="water">H2O</sub>', '<mark name="a"/>', '<audio src="a.wav"/>'])
def test_check_text_ssml_attribute_is_refused(text: str) -> None:
    with pytest.raises(PromptError, match="SSML"):
        check_text(text)
