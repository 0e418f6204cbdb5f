"""Named endpoints of the page, driven by Gradio's client."""

from __future__ import annotations

import io
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile
from PIL import Image

from polydraft.apps.server.limits import LARGEST_BODY, LARGEST_PICTURE, LARGEST_UPLOAD

from ...embedded import image_token_count
from ...modalities.transcription.tiny_whisper import SAMPLE_RATE, tone
from .conftest import LISTENING, PATIENCE, Live


@pytest.fixture(scope="module")
def client(live: Live) -> Iterator[Any]:
    gradio_client = pytest.importorskip("gradio_client", reason="gradio_client is not installed")
    yield gradio_client.Client(live.address, verbose=False, httpx_kwargs={"timeout": PATIENCE})


def last(client: Any, *arguments: Any, api_name: str) -> Any:
    return client.submit(*arguments, api_name=api_name).result(timeout=PATIENCE)


def test_endpoints_are_the_five_generators(client: Any) -> None:
    names = {"/draw", "/speak", "/listen", "/ask", "/compare"}
    assert set(client.view_api(return_format="dict")["named_endpoints"]) == names


def test_only_generators_wait_in_the_queue(live: Live) -> None:
    """Check the queue: a run right after a change of controls may get lost otherwise (`desk.AT_ONCE`)."""
    with urllib.request.urlopen(live.address + "config", timeout=PATIENCE) as answer:
        events = [event for event in json.load(answer)["dependencies"] if event["backend_fn"]]
    queued = [event["targets"] for event in events if event["queue"] is not False and not event["types"]["generator"]]
    assert queued == [] and sum(event["types"]["generator"] for event in events) >= 5


def test_draw(client: Any) -> None:
    html, result = last(client, "two cats on a pink background", 3, "eagle2", 0.7, 4, 1, 1.3, 0.05, api_name="/draw")
    assert "Save PNG" in html
    assert result["finish_reason"] == "length" and result["stats"]["tokens"] == image_token_count()
    assert result["stats"]["guarantee"] == "identical" and result["stats"]["mean_accepted_length"] > 1.5


def test_speak_and_fetch_the_sound(client: Any, live: Live) -> None:
    _, result = last(client, "It is late.", "rms", 1, "hydra", 1, 0.6, 20, 1, api_name="/speak")
    with urllib.request.urlopen(live.address + result["sound"], timeout=PATIENCE) as answer:
        samples, rate = soundfile.read(io.BytesIO(answer.read()), dtype="float32")
    plain = live.compute(live.engine.model("tiny-speech").pipe, "It is late.", voice="rms", seed=1, speculative=False)
    assert rate == plain.sample_rate and len(samples) == len(plain.audio)
    assert np.abs(samples - plain.audio.clip(-1, 1)).max() < 1e-3


def test_speak_too_long_text_is_refused_immediately(client: Any, live: Live) -> None:
    before = live.engine.count
    _, result = last(client, "It is late. " * 417, "rms", 1, "hydra", 1, 0.6, 20, 1, api_name="/speak")
    assert "5,004 characters" in result["error"] and "4,096" in result["error"] and live.engine.count == before


def test_listen_equals_the_pipeline(client: Any, live: Live, tmp_path: Path) -> None:
    from gradio_client import handle_file

    soundfile.write(tmp_path / "talk.flac", tone(5.0), SAMPLE_RATE)
    file = handle_file(str(tmp_path / "talk.flac"))
    html, known = last(client, file, LISTENING, "de", "transcribe", "suffix", True, "", api_name="/listen")
    pipe = live.engine.model(LISTENING).pipe
    plain = live.compute(pipe, str(tmp_path / "talk.flac"), language="de", speculative=False)
    assert known["text"] == plain.text and known["segments"] == plain.to_dict()["segments"] and plain.text
    assert known["stats"]["guarantee"] == "identical" and 'download="talk.srt"' in html


def test_listen_refusals_are_one_sentence(client: Any, tmp_path: Path) -> None:
    from gradio_client import handle_file

    (tmp_path / "broken.wav").write_bytes(b"RIFF, but no sound")
    soundfile.write(tmp_path / "empty.wav", np.zeros(0, np.float32), SAMPLE_RATE)
    soundfile.write(tmp_path / "talk.wav", tone(1.0), SAMPLE_RATE)
    broken, empty, talk = (handle_file(str(tmp_path / name)) for name in ("broken.wav", "empty.wav", "talk.wav"))
    options = (LISTENING, "auto", "transcribe", "ar", True)
    for inputs, words in (
        ((None, *options, ""), "there is no sound yet"), ((broken, *options, ""), "is no sound of a known format"),
        ((empty, *options, ""), "sound"), ((talk, *options, "x" * 10_001), "10,001 characters"),
        ((talk, LISTENING, "auto", "transcribe", "no-such-way", True, ""), "method 'no-such-way' is unknown"),
    ):  # fmt: skip
        html, known = last(client, *inputs, api_name="/listen")
        assert words in known["error"] and known["error"].endswith(".") and str(tmp_path) not in known["error"], known
        assert "polydraft-page" not in known["error"] and 'role="alert"' in html


def test_page_and_api_accept_equal_sizes(live: Live) -> None:
    with urllib.request.urlopen(live.address + "config", timeout=PATIENCE) as answer:
        assert json.load(answer)["max_file_size"] == LARGEST_UPLOAD
    assert 4 * LARGEST_PICTURE / 3 < LARGEST_BODY  # Size in Base64.


def test_ask(client: Any, tmp_path: Any) -> None:
    from gradio_client import handle_file

    Image.new("RGB", (128, 128), (38, 52, 98)).save(tmp_path / "night.png")
    inputs = handle_file(str(tmp_path / "night.png")), "What colour is the background?", 0, "hydra", 0, 0, 1, 64
    _, result = last(client, *inputs, api_name="/ask")
    assert "navy" in result["text"] and result["finish_reason"] == "eos"


def test_lossy_race_reports_number_of_equal_tokens(client: Any) -> None:
    html, result = last(client, "speech", "It is late.", None, 0, "top-k", api_name="/compare")
    assert result["drafted"]["guarantee"] == "lossy"
    assert ("The same tokens" in html) is result["same_tokens"]


def ask_page(live: Live, picture: dict[str, Any]) -> str:
    """Return the events of a question about an image that the request names."""
    body = json.dumps({"data": [picture, "What colour is the background?", 0, "hydra", 0, 0, 1, 16]}).encode()
    call = live.address + "gradio_api/call/ask"
    request = urllib.request.Request(call, body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        event = json.load(answer)["event_id"]
    with urllib.request.urlopen(f"{call}/{event}", timeout=PATIENCE) as answer:
        return answer.read().decode()


def test_files_not_uploaded_are_refused(live: Live, tmp_path: Any) -> None:
    from gradio.utils import get_upload_folder

    secret = tmp_path / "secret.png"
    Image.new("RGB", (128, 128), (38, 52, 98)).save(secret)
    kept = Path(get_upload_folder())
    traversing = kept / ".." / secret.relative_to(kept.parent) if secret.is_relative_to(kept.parent) else secret
    before = set(kept.rglob("*"))
    for named in (
        {"path": str(secret)}, {"path": str(traversing)}, {"path": live.address.replace("ui/", "favicon.ico")},
        {"path": None, "url": live.address.replace("ui/", "favicon.ico")}, {"url": f"file://{secret}"},
    ):  # fmt: skip
        answer = ask_page(live, named | {"meta": {"_type": "gradio.FileData"}})
        assert "navy" not in answer and "event: error" in answer or "no longer there" in answer, (named, answer)
    assert set(kept.rglob("*")) == before  # Nothing was copied or fetched.


@pytest.mark.parametrize(
    "path",
    [
        "gradio_api/file=/etc/passwd", "gradio_api/file=pyproject.toml", "gradio_api/proxy=http://[::1]:1/",
        "gradio_api/file=http://[::1]:1/", "gradio_api/file=https://example.org/a.png", "assets/..%2f..%2froutes.py",
        "gradio_api/file=%2e%2e/%2e%2e/etc/passwd", "gradio_api/deep_link?session_hash=a", "monitoring",
    ],
)  # fmt: skip
def test_other_files_and_urls_are_refused(live: Live, path: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{live.address}{path}", timeout=PATIENCE)
    assert refused.value.code == 404


def test_large_sounds_reach_the_upload_route(live: Live) -> None:
    files = {"files": ("talk.wav", bytes(LARGEST_BODY + 1))}
    answer = httpx.post(f"{live.address}gradio_api/upload", files=files, timeout=PATIENCE)
    assert answer.status_code == 200 and Path(answer.json()[0]).stat().st_size == LARGEST_BODY + 1


def upload(live: Live, **headers: str) -> httpx.Response:
    """Upload a file and return the response."""
    return httpx.post(
        f"{live.address}gradio_api/upload", files={"files": ("a.png", b"x" * 1000)}, headers=headers, timeout=PATIENCE
    )


def test_cross_site_uploads_leave_no_files(live: Live) -> None:
    from gradio.utils import get_upload_folder

    kept, origin = Path(get_upload_folder()), live.address.removesuffix("/ui/")
    before = set(kept.rglob("*"))
    answers = {upload(live, origin="https://evil.example").status_code for _ in range(20)}
    assert answers == {403} and set(kept.rglob("*")) == before
    [path] = upload(live, origin=origin).json()
    assert httpx.get(f"{live.address}gradio_api/file={path}", timeout=PATIENCE).content == b"x" * 1000


def test_page_headers_forbid_frames_and_other_hosts(live: Live) -> None:
    answer = httpx.get(live.address, timeout=PATIENCE)
    policy = answer.headers["content-security-policy"]
    assert "frame-ancestors 'none'" in policy and "default-src 'self'" in policy
    assert "access-control-allow-origin" not in httpx.get(live.address, headers={"origin": "null"}).headers
    assert answer.headers["set-cookie"].startswith("polydraft_session_")


def test_ask_invalid_images_are_refused(client: Any, tmp_path: Any) -> None:
    from gradio_client import handle_file

    bomb, broken = tmp_path / "bomb.png", tmp_path / "broken.png"
    Image.new("1", (10_000, 10_000)).save(bomb)
    Image.effect_noise((200, 200), 50).save(broken)
    broken.write_bytes(broken.read_bytes()[:3000])
    for file, word in ((bomb, "pixels"), (broken, "whole")):
        html, result = last(client, handle_file(str(file)), "What is this?", 0, "hydra", 0, 0, 1, 16, api_name="/ask")
        assert word in result["error"] and result["error"].endswith("."), result
        assert 'role="alert"' in html


def test_refusals_are_one_sentence(client: Any) -> None:
    html, result = last(client, "two cats on a pink background", 3, "no-such-way", 0.7, 4, 1, 1.3, api_name="/draw")
    assert result["error"].startswith("method 'no-such-way' is unknown") and 'role="alert"' in html
    html, result = last(client, "<script>alert(1)</script>", 0, "jacobi", 0.7, 4, 1, 1.3, api_name="/draw")
    assert "<script" not in html
