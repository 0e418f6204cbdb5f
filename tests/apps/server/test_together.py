"""Concurrent requests: answers match their seeds, rows are added and removed, and a failure stays isolated."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext as nothing
from typing import Any

import httpx
import openai
import pytest
import torch

from polydraft.apps.server.engine.group import BatchGroup
from polydraft.apps.server.engine.worker import KEPT
from polydraft.apps.server.errors import Cancelled, DeadlinePassed
from polydraft.core.target.causal import CausalTarget
from polydraft.modalities import request as runs

from ...embedded import image_token_count
from .live import LONG, Live
from .reading import NAVY, PROMPT, QUESTION, SENTENCES, as_pcm, picture, question_messages


def wait(holds: Callable[[], bool]) -> None:
    """Wait until a condition that another thread fulfils holds."""
    end = time.monotonic() + LONG
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def draw(client: openai.OpenAI, seed: int, **options: Any) -> bytes:
    answer = client.images.generate(prompt=PROMPT, extra_body={"seed": seed} | options)
    return picture(answer.data[0].b64_json).tobytes()


def speak(client: openai.OpenAI, seed: int, **options: Any) -> bytes:
    answer = client.audio.speech.create(
        model="tiny-speech", voice="slt", input=SENTENCES, response_format="pcm", extra_body={"seed": seed} | options
    )
    return answer.content


def reply(client: openai.OpenAI, seed: int, **options: Any) -> str:
    answer = client.chat.completions.create(
        model="tiny-vlm", messages=question_messages(NAVY), temperature=1.0, seed=seed, extra_body=options
    )
    return answer.choices[0].message.content or ""


def test_concurrent_different_requests_match_single_requests(live: Live, client: openai.OpenAI) -> None:
    """Run two requests per modality in one batch with different seeds and temperatures, and plain ones next to them."""
    work = [
        (draw, 5, {}), (draw, 2, {"temperature": 0.3, "guidance_scale": 2.0}), (speak, 3, {}),
        (speak, 4, {"temperature": 0.0}), (reply, 5, {}), (reply, 6, {"top_k": 3}),
        (reply, 7, {"method": "ar"}),
    ]  # fmt: skip
    with ThreadPoolExecutor(len(work)) as pool:
        with live.pause_compute():
            under_way = [pool.submit(function, client, seed, **options) for function, seed, options in work]
            wait(lambda: live.ask(lambda: len(live.engine.handles)) == len(work))
        live.wait_until(lambda: len(live.engine.worker.groups) > 1)
        made = [each.result(LONG) for each in under_way]
    for (function, seed, options), answer in zip(work, made, strict=True):
        if function is draw:
            alone: Any = live.run_pipeline("image", prompt=PROMPT, seed=seed, **options).image.tobytes()
        elif function is speak:
            alone = as_pcm(live.run_pipeline("speech", text=SENTENCES, voice="slt", seed=seed, **options).audio)
        else:
            alone = live.run_pipeline(
                "vlm", image=NAVY, question=QUESTION, seed=seed, **{"temperature": 1.0} | options
            ).text
        assert answer == alone, (function.__name__, seed)


def test_requests_of_one_method_share_passes(live: Live, client: openai.OpenAI) -> None:
    """Check that four equal requests that start together take the passes of one."""
    with ThreadPoolExecutor(4) as pool:
        with live.pause_compute():
            under_way = [pool.submit(draw, client, 5) for _ in range(4)]
            wait(lambda: live.ask(lambda: len(live.engine.handles)) == 4)
        live.wait_until(lambda: live.live_rows() == 4)
        assert len({each.result(LONG) for each in under_way}) == 1


def test_full_queue_refuses_and_client_retry_succeeds(live: Live) -> None:
    with live.limited(rows=1, queue=1), ThreadPoolExecutor(3) as pool:
        with live.pause_compute() as go:
            accepted = [pool.submit(reply, live.client(max_retries=0), seed) for seed in (1, 2)]
            wait(lambda: live.ask(lambda: len(live.engine.handles)) == 2)
            before = live.engine.meter.rejections["tiny-vlm"]
            body = {"messages": question_messages(None), "model": "tiny-vlm"}
            refused = live.http.post("/v1/chat/completions", json=body)
            assert refused.status_code == 429 and 1 <= int(refused.headers["retry-after"]) <= 30
            assert refused.json()["error"]["type"] == "rate_limit_error"
            assert live.http.get("/health").status_code == 200 == live.http.get("/ready").status_code
            patient = pool.submit(reply, live.client(), 3)
            wait(lambda: live.engine.meter.rejections["tiny-vlm"] == before + 2)
            go.set()
        assert (
            patient.result(LONG)
            == live.run_pipeline("vlm", image=NAVY, question=QUESTION, temperature=1.0, seed=3).text
        )
        assert all(each.result(LONG) for each in accepted)


@pytest.mark.parametrize("streamed", [True, False])
def test_disconnected_client_frees_its_row(live: Live, streamed: bool) -> None:
    """Check that the row is freed long before plain decoding of the image would end."""
    outcomes = live.engine.meter.outcomes
    before, tokens = outcomes["tiny-image", "cancelled"], live.engine.meter.tokens["tiny-image"]
    body = {"prompt": PROMPT, "n": 4, "speculative": False, "seed": 1, "stream": streamed, "partial_images": 0}
    with nothing() if streamed else live.pause_compute():
        with ThreadPoolExecutor(1) as pool:
            impatient = httpx.Client(base_url=live.url, timeout=httpx.Timeout(LONG, read=LONG if streamed else 0.2))
            if streamed:
                with impatient.stream("POST", "/v1/images/generations", json=body) as answer:
                    assert answer.status_code == 200
            else:
                with pytest.raises(httpx.ReadTimeout):
                    pool.submit(impatient.post, "/v1/images/generations", json=body).result(LONG)
            impatient.close()
        wait(lambda: outcomes["tiny-image", "cancelled"] == before + 1)
    live.wait_until(
        lambda: live.live_rows() == 0 and not any(group.jobs for group in live.engine.worker.groups.values())
    )
    assert live.ask(lambda: live.engine.admission.held["tiny-image"]) == 0
    assert live.engine.meter.tokens["tiny-image"] - tokens < 4 * image_token_count()


def default_target(live: Live) -> CausalTarget:
    """Return the target that generates with the model's default settings."""
    pipe = live.engine.model("tiny-image").pipe
    return pipe.target(pipe.sampling_params().guidance_scale != 1)


def test_failing_pass_fails_only_its_requests(
    live: Live, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest, planted = runs.decode_step, []

    def failing_step(method: Any, batch: Any) -> Any:
        if method.target is default_target(live) and len(batch) == 2 and not planted:
            planted.append(True)
            raise RuntimeError("planted")
        return honest(method, batch)

    monkeypatch.setattr(runs, "decode_step", failing_step)
    with ThreadPoolExecutor(3) as pool:
        with live.pause_compute():
            pictures = [pool.submit(draw, client, seed) for seed in (1, 2)]
            speech = pool.submit(speak, client, 3)
            wait(lambda: live.ask(lambda: len(live.engine.handles)) == 3)
        for each in pictures:
            with pytest.raises(openai.InternalServerError, match="computation failed") as caught:
                each.result(LONG)
            assert "planted" not in str(caught.value)
        assert speech.result(LONG) == as_pcm(live.run_pipeline("speech", text=SENTENCES, voice="slt", seed=3).audio)
    assert planted and draw(client, 5) == live.run_pipeline("image", prompt=PROMPT, seed=5).image.tobytes()


def test_failing_prefill_fails_only_its_request(
    live: Live, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the other request of the batch continues."""
    target = default_target(live)
    honest = target.run_prefill

    def failing_prefill(state: Any, prompts: Any, *rest: Any) -> Any:
        if prompts[0].seed == 666:
            raise RuntimeError("planted")
        return honest(state, prompts, *rest)

    monkeypatch.setattr(target, "run_prefill", failing_prefill)
    with ThreadPoolExecutor(2) as pool:
        with live.pause_compute():
            good = pool.submit(draw, client, 5)
            wait(lambda: live.ask(lambda: len(live.engine.handles)) == 1)
            bad = pool.submit(draw, client, 666)
            wait(lambda: live.ask(lambda: len(live.engine.handles)) == 2)
        with pytest.raises(openai.InternalServerError):
            bad.result(LONG)
        assert good.result(LONG) == live.run_pipeline("image", prompt=PROMPT, seed=5).image.tobytes()


def test_non_finite_row_fails_only_its_request(
    live: Live, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the batch is not rebuilt and other rows keep their results; one of two images is enough to fail."""
    wanted = live.run_pipeline("image", prompt=PROMPT, seed=5).image.tobytes()
    target, rebuilt = default_target(live), []
    honest, rebuild = target.prefill, BatchGroup.rebuild

    def non_finite_prefill(state: Any, prompts: Any) -> Any:
        seen = honest(state, prompts)
        state.is_finite[-len(prompts) :] &= torch.tensor([[prompt.seed != 667] for prompt in prompts])
        return seen

    monkeypatch.setattr(target, "prefill", non_finite_prefill)
    monkeypatch.setattr(BatchGroup, "rebuild", lambda group, error: rebuilt.append(error) or rebuild(group, error))
    with ThreadPoolExecutor(3) as pool:
        with live.pause_compute():
            good = pool.submit(draw, client, 5)
            bad = [pool.submit(draw, client, 667), pool.submit(draw, client, 666, n=2)]
            wait(lambda: live.ask(lambda: len(live.engine.handles)) == 3)
        for each in bad:
            with pytest.raises(openai.BadRequestError, match="nothing may follow token 0 .* not finite") as caught:
                each.result(LONG)
            assert caught.value.code == "invalid_value"
        assert good.result(LONG) == wanted
    live.wait_until(lambda: not live.live_rows())
    assert not rebuilt


def test_passed_deadline_and_cancelled_request_raise(live: Live) -> None:
    async def submit(**options: Any) -> Any:
        handle = live.engine.submit("tiny-image", "image", {"prompt": PROMPT, "method": "ar"}, **options)
        if not options:
            handle.cancel()
        return await handle.result()

    with live.pause_compute():
        with pytest.raises(DeadlinePassed, match=r"0\.01 s"):
            live.do(submit(deadline=0.01))
        with pytest.raises(Cancelled):
            live.do(submit())
    live.wait_until(lambda: live.live_rows() == 0)


def test_progress_of_a_request_adds_up(live: Live) -> None:
    async def collect_progress() -> tuple[list[Any], Any]:
        async with live.engine.submit(
            "tiny-image", "image", {"prompt": PROMPT, "seed": 5, "partial_images": 4}
        ) as handle:
            return [progress async for progress in handle], await handle.result()

    progress, result = live.do(collect_progress())
    assert len(progress) == result.stats.target_passes and progress[-1].tokens.equal(result.tokens)
    assert progress[-1].committed_at.equal(result.passes) and sum(len(each.images) for each in progress) == 4
    done = [each.tokens_done for each in progress]
    positive = [count for count in done if count]  # Passes that only write the plan generate no codes yet.
    assert done == [0] * (len(done) - len(positive)) + sorted(set(positive)) and done[-1] == 256


def test_long_text_leaves_capacity_for_short_text(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a text of twelve sentences takes three of four rows, so that the short text starts at once."""
    honest, rows = BatchGroup.turn, []

    def recording_turn(group: BatchGroup) -> None:
        honest(group)
        rows.append([job.run.num_live for job in group.jobs])

    async def run_both() -> list[Any]:
        long = live.engine.submit("tiny-speech", "speech", {"text": "Good day. " * 12, "seed": 1})
        while not rows:
            await asyncio.sleep(0.005)
        short = live.engine.submit("tiny-speech", "speech", {"text": "Yes.", "seed": 2})
        await short.result()
        state = long.state
        return [state, len((await long.result()).counts)]

    monkeypatch.setattr(BatchGroup, "turn", recording_turn)
    assert live.do(asyncio.wait_for(run_both(), LONG)) == ["running", 12]
    assert rows[0] == [3] and [3, 1] in rows and max(sum(each) for each in rows) == 4


def test_number_of_cached_methods_is_bounded(live: Live, client: openai.OpenAI) -> None:
    pipe = live.engine.model("tiny-vlm").pipe
    answers = {reply(client, 1, method=f"jacobi(window={window})", max_tokens=3) for window in range(2, 2 + KEPT + 3)}
    assert len(answers) == 1 and len(live.engine.worker.groups) <= KEPT
    kept = {group.method.name for group in live.engine.worker.groups.values()}
    assert f"jacobi(window={KEPT + 4})" in kept and "jacobi(window=2)" not in kept
    assert {method.name for method in pipe._methods.values()} & {"jacobi(window=2)"} == set()
