"""What a client of `bench serve` keeps of an answer: the same bytes are the same answer, however they are cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from polydraft.apps.bench.serve.asking import ServerAnswer, ask

SOUND = bytes(range(250))


def heard(*cuts: int) -> ServerAnswer:
    """The answer to a request for speech whose sound is sent in pieces."""

    async def pieces() -> AsyncIterator[bytes]:
        for begin, end in zip((0, *cuts), (*cuts, None), strict=True):
            yield SOUND[begin:end]

    async def asked() -> ServerAnswer:
        server = httpx.MockTransport(lambda _: httpx.Response(200, content=pieces()))
        async with httpx.AsyncClient(transport=server, base_url="http://server") as http:
            return await ask(http, "speech", 0, False, {})

    return asyncio.run(asked())


@pytest.mark.parametrize("cuts", [(2,), (2, 4, 100)])
def test_pieces_do_not_matter(cuts: tuple[int, ...]) -> None:
    assert heard(*cuts).content == heard().content


def test_other_sounds_are_other_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    before = heard().content
    monkeypatch.setitem(globals(), "SOUND", SOUND[:-1])
    assert heard().content != before
