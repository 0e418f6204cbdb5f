"""`Range` headers on the routes that serve the page's files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from polydraft.apps.server.api.app import create_app, create_engine
from polydraft.apps.server.settings import ServerSettings

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # Set before anything imports Gradio.


@pytest.fixture(scope="module")
def client() -> TestClient:
    """Return a client of the API without models and of Gradio's files."""
    gradio = pytest.importorskip("gradio", reason="Gradio is not installed: pip install 'polydraft[ui]'")
    settings = ServerSettings(port=0, ui=False)
    app = create_app(settings, create_engine(settings))
    with gradio.Blocks() as page:
        gradio.Markdown("A page.")
    gradio.mount_gradio_app(app, page, path="/page", ssr_mode=False)
    return TestClient(app, raise_server_exceptions=False)


@pytest.fixture(scope="module")
def file(client: TestClient) -> Iterator[str]:
    """Return the address of a file of a hundred bytes that the page serves."""
    from gradio.utils import get_upload_folder

    folder = Path(get_upload_folder()) / "polydraft-ranges"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sound.wav").write_bytes(bytes(range(100)))
    yield f"/page/gradio_api/file={folder / 'sound.wav'}"
    (folder / "sound.wav").unlink()


JUNK = [
    b"bytes=", b"bytes=-", b"bytes=a-b", b"bytes=0-1-2", b"bytes=0-1,2-3", b"bytes=-1-2", b"bytes=5-2", b"lines=0-1",
    b"bytes=" + b"9" * 5000 + b"-1", b"bytes=0-" + b"9" * 5000, b"bytes=\xb2-\xb3", b"\xff\xfe", b"bytes==0-1", b"0-1",
]  # fmt: skip


@pytest.mark.parametrize("junk", JUNK, ids=lambda junk: repr(junk[:14]))
def test_invalid_range_is_ignored(client: TestClient, file: str, junk: bytes) -> None:
    answer = client.get(file, headers=[(b"range", junk)])
    assert answer.status_code == 200 and answer.content == bytes(range(100))


@pytest.mark.parametrize(("byte_range", "expected"), [("0-9", (0, 10)), ("90-", (90, 100)), ("-5", (95, 100))])
def test_one_range_is_served(client: TestClient, file: str, byte_range: str, expected: tuple[int, int]) -> None:
    answer = client.get(file, headers={"range": f"bytes={byte_range}"})
    assert answer.status_code == 206 and answer.content == bytes(range(*expected))
