"""Links and lines of Python that reproduce a result, and streamed sounds."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polydraft.apps.ui.again import changed, link, python, restored
from polydraft.apps.ui.kept import Bounds
from polydraft.apps.ui.sounds import BOUNDS, Sound, Sounds, part, span
from polydraft.modalities.speech.result import to_pcm16, wav_header

KNOWN = {"prompt": "", "seed": 0, "temperature": 0.7, "runs": False, "method": "jacobi"}


@given(st.fixed_dictionaries({
    "prompt": st.text(min_size=1, max_size=50).filter(lambda text: not any(0xD800 <= ord(c) < 0xE000 for c in text)),
    "seed": st.integers(0, 2**53), "temperature": st.floats(0, 2),
    "method": st.sampled_from(["ar", "jacobi(window=9)"]),
}))  # fmt: skip
def test_links_restore_their_settings(settings: dict[str, Any]) -> None:
    query = dict(parse_qsl(link("draw", settings).removeprefix("?"), keep_blank_values=True))
    assert query.pop("tab") == "draw"
    assert restored(query, KNOWN) == settings


def test_restored_omits_unreadable_settings() -> None:
    query = {"seed": "1e3", "temperature": "nan", "runs": "maybe", "prompt": "x" * 90_000, "other": "1"}
    assert restored(query, KNOWN) == {"prompt": "x" * 20_000}
    assert restored({"runs": "1", "temperature": "1"}, KNOWN) == {"runs": True, "temperature": 1.0}


@given(st.text(), st.integers())
def test_python_line_reproduces_the_call(prompt: str, seed: int) -> None:
    line = python("generate_image", [prompt], {"seed": seed, "method": None}, ".image.save('picture.png')")
    asked: list[Any] = []
    source = line.removeprefix("from polydraft import generate_image; ").removesuffix(".image.save('picture.png')")
    eval(source, {"generate_image": lambda *given, **named: asked.append((given, named))})
    assert asked == [((prompt,), {"seed": seed})]
    assert "\n" not in line


def test_changed_returns_only_changed_settings() -> None:
    assert changed({"seed": 3, "top_k": 4, "speed": 1.0}, {"seed": 0, "top_k": 4}) == {"seed": 3, "speed": 1.0}


def test_sound_streams_from_start_while_growing() -> None:
    """Check that an early and a late player get the same bytes, and that the finished sound is a valid WAV."""
    parts = [np.full(100, 0.1 * number, np.float32) for number in range(5)]

    async def play() -> None:
        sound = Sound(16000)

        async def listen() -> bytes:
            return b"".join([piece async for piece in sound.stream()])

        early = asyncio.create_task(listen())
        for index, audio in enumerate(parts):
            await asyncio.sleep(0)
            sound.add(audio)
            if index == 2:
                late = asyncio.create_task(listen())
        await asyncio.sleep(0)
        sound.close()
        received = await asyncio.wait_for(asyncio.gather(early, late), 30)
        wanted = wav_header(16000) + b"".join(map(to_pcm16, parts))
        assert received == [wanted, wanted]
        assert to_pcm16(np.concatenate(parts)) in sound.to_wav()
        assert sound.seconds == 500 / 16000

    asyncio.run(play())


def add_sound(sounds: Sounds, session: str) -> str:
    """Add a sound of a tenth of a second and return its key."""
    key, sound = sounds.begin(16000, session)
    sound.add(np.zeros(1600, np.float32))
    sound.close()
    return key


def test_sounds_of_other_sessions_do_not_evict() -> None:
    async def make() -> None:
        sounds = Sounds()
        mine = add_sound(sounds, "me")
        for number in range(BOUNDS.total_count + 10):
            add_sound(sounds, f"other {number % 8}")
        assert sounds.kept.get(mine) is not None and len(sounds.kept.entries) <= BOUNDS.total_count

    asyncio.run(make())


def test_sounds_of_a_session_are_bounded_in_bytes() -> None:
    async def make() -> None:
        sounds = Sounds(Bounds(count=64, size=3 * 3200, total_count=64, total_size=10**6, age=3600))
        keys = [add_sound(sounds, "me") for _ in range(5)]
        assert list(sounds.kept.entries) == keys[2:]

    asyncio.run(make())


@pytest.mark.parametrize(
    ("header", "found"),
    [
        (None, (None, 0)), ("bytes=0-", (0, 99)), ("bytes=10-19", (10, 19)), ("bytes=90-500", (90, 99)),
        ("bytes=-10", (90, 99)), ("bytes=-500", (0, 99)), ("bytes=x-1", (None, 0)), ("lines=0-1", (None, 0)),
        ("bytes=-", (None, 0)), ("bytes=0-1,5-6", (None, 0)),
    ],
)  # fmt: skip
def test_audio_range_returns_requested_part(header: str | None, found: tuple[int | None, int]) -> None:
    assert span(header, 100) == found
    answer = part(bytes(range(100)), header)
    first, last = found
    if first is None:
        assert (answer.status_code, bytes(answer.body)) == (200, bytes(range(100)))
    else:
        assert (answer.status_code, bytes(answer.body)) == (206, bytes(range(first, last + 1)))
        assert answer.headers["content-range"] == f"bytes {first}-{last}/100"


def test_audio_range_past_the_end_is_refused() -> None:
    assert part(b"abc", "bytes=3-").status_code == 416
