"""Fixtures for one live server that all tests of this folder share; models are loaded once."""

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
    """Return the official client, without retries."""
    return live.client(max_retries=0)
