"""Many at once: answers stay those of their seeds, rows come and go, what fails fails alone."""

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
from .reading import NAVY, PROMPT, QUESTION, SENTENCES, as_pcm, asked, picture


def wait(holds: Callable[[], bool]) -> None:
    """For what another thread brings about."""
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
        model="tiny-vlm", messages=asked(NAVY), temperature=1.0, seed=seed, extra_body=options
    )
    return answer.choices[0].message.content or ""


def test_six_different_requests_at_once_answer_as_alone(live: Live, client: openai.OpenAI) -> None:
    """Two of each modality share a batch, with different seeds and temperatures; plain ones run beside them."""
    work = [
        (draw, 5, {}), (draw, 2, {"temperature": 0.3, "guidance_scale": 2.0}), (speak, 3, {}),
        (speak, 4, {"temperature": 0.0}), (reply, 5, {}), (reply, 6, {"top_k": 3}),
        (reply, 7, {"method": "ar"}),
    ]  # fmt: skip
    with ThreadPoolExecutor(len(work)) as pool:
        with live.held():
            under_way = [pool.submit(function, client, seed, **options) for function, seed, options in work]
            wait(lambda: live.ask(lambda: len(live.engine.handles)) == len(work))
        live.until(lambda: len(live.engine.worker.groups) > 1)
        made = [each.result(LONG) for each in under_way]
    for (function, seed, options), answer in zip(work, made, strict=True):
        if function is draw:
            alone: Any = live.alone("image", prompt=PROMPT, seed=seed, **options).image.tobytes()
        elif function is speak:
            alone = as_pcm(live.alone("speech", text=SENTENCES, voice="slt", seed=seed, **options).audio)
        else:
            alone = live.alone("vlm", image=NAVY, question=QUESTION, seed=seed, **{"temperature": 1.0} | options).text
        assert answer == alone, (function.__name__, seed)


def test_rows_of_one_method_share_passes(live: Live, client: openai.OpenAI) -> None:
    """Four equal requests that begin together take the passes of one."""
    with ThreadPoolExecutor(4) as pool:
        with live.held():
            under_way = [pool.submit(draw, client, 5) for _ in range(4)]
            wait(lambda: live.ask(lambda: len(live.engine.handles)) == 4)
        live.until(lambda: live.live_rows() == 4)
        assert len({each.result(LONG) for each in under_way}) == 1


def test_a_full_queue_refuses_and_the_clients_own_retry_succeeds(live: Live) -> None:
    with live.limited(rows=1, queue=1), ThreadPoolExecutor(3) as pool:
        with live.held() as go:
            accepted = [pool.submit(reply, live.client(max_retries=0), seed) for seed in (1, 2)]
            wait(lambda: live.ask(lambda: len(live.engine.handles)) == 2)
            before = live.engine.meter.rejections["tiny-vlm"]
            body = {"messages": asked(None), "model": "tiny-vlm"}
            refused = live.http.post("/v1/chat/completions", json=body)
            assert refused.status_code == 429 and 1 <= int(refused.headers["retry-after"]) <= 30
            assert refused.json()["error"]["type"] == "rate_limit_error"
            assert live.http.get("/health").status_code == 200 == live.http.get("/ready").status_code
            patient = pool.submit(reply, live.client(), 3)
            wait(lambda: live.engine.meter.rejections["tiny-vlm"] == before + 2)
            go.set()
        assert patient.result(LONG) == live.alone("vlm", image=NAVY, question=QUESTION, temperature=1.0, seed=3).text
        assert all(each.result(LONG) for each in accepted)


@pytest.mark.parametrize("streamed", [True, False])
def test_a_client_that_leaves_frees_its_row(live: Live, streamed: bool) -> None:
    """Long before a plain picture would be done."""
    outcomes = live.engine.meter.outcomes
    before, tokens = outcomes["tiny-image", "cancelled"], live.engine.meter.tokens["tiny-image"]
    body = {"prompt": PROMPT, "n": 4, "speculative": False, "seed": 1, "stream": streamed, "partial_images": 0}
    with nothing() if streamed else live.held():
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
    live.until(lambda: live.live_rows() == 0 and not any(group.jobs for group in live.engine.worker.groups.values()))
    assert live.ask(lambda: live.engine.admission.held["tiny-image"]) == 0
    assert live.engine.meter.tokens["tiny-image"] - tokens < 4 * image_token_count()


def own_target(live: Live) -> CausalTarget:
    """What draws at the model's own settings."""
    pipe = live.engine.model("tiny-image").pipe
    return pipe.target(pipe.sampling_params().guidance_scale != 1)


def test_a_pass_that_raises_fails_its_requests_alone(
    live: Live, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest, planted = runs.decode_step, []

    def raising(method: Any, batch: Any) -> Any:
        if method.target is own_target(live) and len(batch) == 2 and not planted:
            planted.append(True)
            raise RuntimeError("planted")
        return honest(method, batch)

    monkeypatch.setattr(runs, "decode_step", raising)
    with ThreadPoolExecutor(3) as pool:
        with live.held():
            pictures = [pool.submit(draw, client, seed) for seed in (1, 2)]
            speech = pool.submit(speak, client, 3)
            wait(lambda: live.ask(lambda: len(live.engine.handles)) == 3)
        for each in pictures:
            with pytest.raises(openai.InternalServerError, match="computation failed") as caught:
                each.result(LONG)
            assert "planted" not in str(caught.value)
        assert speech.result(LONG) == as_pcm(live.alone("speech", text=SENTENCES, voice="slt", seed=3).audio)
    assert planted and draw(client, 5) == live.alone("image", prompt=PROMPT, seed=5).image.tobytes()


def test_a_prompt_that_cannot_be_read_fails_alone(
    live: Live, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its neighbour in the same batch goes on."""
    target = own_target(live)
    honest = target.run_prefill

    def reading(state: Any, prompts: Any, *rest: Any) -> Any:
        if prompts[0].seed == 666:
            raise RuntimeError("planted")
        return honest(state, prompts, *rest)

    monkeypatch.setattr(target, "run_prefill", reading)
    with ThreadPoolExecutor(2) as pool:
        with live.held():
            good = pool.submit(draw, client, 5)
            wait(lambda: live.ask(lambda: len(live.engine.handles)) == 1)
            bad = pool.submit(draw, client, 666)
            wait(lambda: live.ask(lambda: len(live.engine.handles)) == 2)
        with pytest.raises(openai.InternalServerError):
            bad.result(LONG)
        assert good.result(LONG) == live.alone("image", prompt=PROMPT, seed=5).image.tobytes()


def test_row_that_turns_nan_fails_its_request_alone(
    live: Live, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch is not built anew, and its other rows say what they would have said; of two pictures one is enough."""
    wanted = live.alone("image", prompt=PROMPT, seed=5).image.tobytes()
    target, rebuilt = own_target(live), []
    honest, rebuild = target.prefill, BatchGroup.rebuild

    def breaking(state: Any, prompts: Any) -> Any:
        seen = honest(state, prompts)
        state.is_finite[-len(prompts) :] &= torch.tensor([[prompt.seed != 667] for prompt in prompts])
        return seen

    monkeypatch.setattr(target, "prefill", breaking)
    monkeypatch.setattr(BatchGroup, "rebuild", lambda group, error: rebuilt.append(error) or rebuild(group, error))
    with ThreadPoolExecutor(3) as pool:
        with live.held():
            good = pool.submit(draw, client, 5)
            bad = [pool.submit(draw, client, 667), pool.submit(draw, client, 666, n=2)]
            wait(lambda: live.ask(lambda: len(live.engine.handles)) == 3)
        for each in bad:
            with pytest.raises(openai.BadRequestError, match="nothing may follow token 0 .* not finite") as caught:
                each.result(LONG)
            assert caught.value.code == "invalid_value"
        assert good.result(LONG) == wanted
    live.until(lambda: not live.live_rows())
    assert not rebuilt


def test_a_deadline_and_a_cancelled_ticket(live: Live) -> None:
    async def asked_for(**options: Any) -> Any:
        handle = live.engine.submit("tiny-image", "image", {"prompt": PROMPT, "method": "ar"}, **options)
        if not options:
            handle.cancel()
        return await handle.result()

    with live.held():
        with pytest.raises(DeadlinePassed, match=r"0\.01 s"):
            live.do(asked_for(deadline=0.01))
        with pytest.raises(Cancelled):
            live.do(asked_for())
    live.until(lambda: live.live_rows() == 0)


def test_news_of_a_ticket_add_up(live: Live) -> None:
    async def watched() -> tuple[list[Any], Any]:
        async with live.engine.submit(
            "tiny-image", "image", {"prompt": PROMPT, "seed": 5, "partial_images": 4}
        ) as handle:
            return [progress async for progress in handle], await handle.result()

    progress, result = live.do(watched())
    assert len(progress) == result.stats.target_passes and progress[-1].tokens.equal(result.tokens)
    assert progress[-1].committed_at.equal(result.passes) and sum(len(each.images) for each in progress) == 4
    done = [each.tokens_done for each in progress]
    drawn = [count for count in done if count]  # passes that only write the plan draw nothing yet
    assert done == [0] * (len(done) - len(drawn)) + sorted(set(drawn)) and done[-1] == 256


def test_a_long_text_leaves_room_for_a_short_one(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four rows a text of twelve sentences takes three, so the short one begins at once."""
    honest, rows = BatchGroup.turn, []

    def watched(group: BatchGroup) -> None:
        honest(group)
        rows.append([job.run.num_live for job in group.jobs])

    async def both() -> list[Any]:
        long = live.engine.submit("tiny-speech", "speech", {"text": "Good day. " * 12, "seed": 1})
        while not rows:
            await asyncio.sleep(0.005)
        short = live.engine.submit("tiny-speech", "speech", {"text": "Yes.", "seed": 2})
        await short.result()
        state = long.state
        return [state, len((await long.result()).counts)]

    monkeypatch.setattr(BatchGroup, "turn", watched)
    assert live.do(asyncio.wait_for(both(), LONG)) == ["running", 12]
    assert rows[0] == [3] and [3, 1] in rows and max(sum(each) for each in rows) == 4


def test_methods_without_end_are_not_all_kept(live: Live, client: openai.OpenAI) -> None:
    pipe = live.engine.model("tiny-vlm").pipe
    answers = {reply(client, 1, method=f"jacobi(window={window})", max_tokens=3) for window in range(2, 2 + KEPT + 3)}
    assert len(answers) == 1 and len(live.engine.worker.groups) <= KEPT
    kept = {group.method.name for group in live.engine.worker.groups.values()}
    assert f"jacobi(window={KEPT + 4})" in kept and "jacobi(window=2)" not in kept
    assert {method.name for method in pipe._methods.values()} & {"jacobi(window=2)"} == set()
