"""One live server for all tests here; models are loaded once."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from .live import Live


@pytest.fixture(scope="session")
def live() -> Iterator[Live]:
    server = Live()
    yield server
    server.close()


@pytest.fixture(scope="session")
def client(live: Live) -> openai.OpenAI:
    """The official client; it does not retry."""
    return live.client(max_retries=0)
