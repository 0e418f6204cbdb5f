"""Answers kept by the client of `bench serve`: equal bytes are equal answers, however they are chunked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from polydraft.apps.bench.serve.asking import ServerAnswer, ask

SOUND = bytes(range(250))


def answer_in_chunks(*cuts: int) -> ServerAnswer:
    """Return the answer to a speech request whose audio is sent in chunks."""

    async def pieces() -> AsyncIterator[bytes]:
        for begin, end in zip((0, *cuts), (*cuts, None), strict=True):
            yield SOUND[begin:end]

    async def send_request() -> ServerAnswer:
        server = httpx.MockTransport(lambda _: httpx.Response(200, content=pieces()))
        async with httpx.AsyncClient(transport=server, base_url="http://server") as http:
            return await ask(http, "speech", 0, False, {})

    return asyncio.run(send_request())


@pytest.mark.parametrize("cuts", [(2,), (2, 4, 100)])
def test_pieces_do_not_matter(cuts: tuple[int, ...]) -> None:
    assert answer_in_chunks(*cuts).content == answer_in_chunks().content


def test_other_sounds_are_other_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    before = answer_in_chunks().content
    monkeypatch.setitem(globals(), "SOUND", SOUND[:-1])
    assert answer_in_chunks().content != before
