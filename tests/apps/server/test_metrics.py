"""`/metrics`: promised names are present and the numbers add up."""

from __future__ import annotations

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from polydraft.apps.server import errors
from polydraft.apps.server.api import envelope
from polydraft.apps.server.engine.meter import outcome
from polydraft.core.errors import InvalidArgument, PromptError, UnsupportedMethod, WeightsError

from ...embedded import image_token_count
from .live import Live
from .reading import PROMPT, question_messages

NAMES = (
    "spec_decode_num_drafts", "spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens",
    "spec_decode_num_accepted_tokens_per_pos", "num_requests_running", "num_requests_waiting",
    "time_to_first_token_seconds", "admission_rejections",
)  # fmt: skip


NEW_NAMES = (
    "build_info", "http_requests", "request_queue_time_seconds", "request_time_per_output_token_seconds", "steps",
    "compute_seconds",
)  # fmt: skip


def numbers(live: Live, model: str) -> dict[str, float]:
    """Return the samples of one model by name and further labels."""
    found = {}
    for family in text_string_to_metric_families(live.http.get("/metrics").text):
        for sample in family.samples:
            rest = {name: value for name, value in sample.labels.items() if name != "model"}
            if sample.labels.get("model") == model:
                found[sample.name.removeprefix("polydraft:") + "".join(rest.values())] = sample.value
    return found


def test_metrics_include_promised_names(live: Live, client: openai.OpenAI) -> None:
    client.chat.completions.create(model="tiny-vlm", messages=question_messages(None))
    families = {family.name for family in text_string_to_metric_families(live.http.get("/metrics").text)}
    assert {f"polydraft:{name}" for name in (*NAMES, *NEW_NAMES)} <= families


def test_numbers_add_up(live: Live, client: openai.OpenAI) -> None:
    before = numbers(live, "tiny-image")
    answer = client.images.generate(prompt=PROMPT, extra_body={"seed": 3})
    after = numbers(live, "tiny-image")
    grown = {name: after[name] - before.get(name, 0) for name in after}
    drafting = answer.metrics["speculative_decoding"]
    assert grown["generation_tokens_total"] == drafting["tokens"] == image_token_count()
    assert grown["target_passes_total"] == drafting["target_passes"] == grown["spec_decode_num_drafts_total"]
    assert grown["spec_decode_num_accepted_tokens_total"] <= grown["spec_decode_num_draft_tokens_total"]
    per_place = [value for name, value in grown.items() if name.startswith("spec_decode_num_accepted_tokens_per_pos")]
    assert sum(per_place) == grown["spec_decode_num_accepted_tokens_total"] > 0
    assert after["mean_accepted_length"] * after["target_passes_total"] == pytest.approx(
        after["generation_tokens_total"]
    )
    assert grown["requests_totaldone"] == 1 and after["num_requests_running"] == after["num_requests_waiting"] == 0
    assert grown["time_to_first_token_seconds_count"] == 1 == grown["e2e_request_latency_seconds_count"]
    assert grown["request_queue_time_seconds_count"] == 1 == grown["request_time_per_output_token_seconds_count"]
    assert 0 <= grown["request_queue_time_seconds_sum"] < grown["e2e_request_latency_seconds_sum"]
    assert grown["steps_total"] == grown["target_passes_total"]  # of one row
    parts = [grown[f"compute_seconds_total{part}"] for part in ("join", "step", "publish")]
    assert min(parts) > 0 and sum(parts) < grown["e2e_request_latency_seconds_sum"] + 0.1


def responses(live: Live) -> dict[tuple[str, ...], float]:
    """Return the number of responses by handler, method and status."""
    families = {family.name: family for family in text_string_to_metric_families(live.http.get("/metrics").text)}
    samples = [each for each in families["polydraft:http_requests"].samples if each.name.endswith("_total")]
    return {tuple(each.labels[name] for name in ("handler", "method", "status")): each.value for each in samples}


def test_client_error_is_not_counted_as_failure(live: Live, client: openai.OpenAI) -> None:
    before, asked_before = numbers(live, "tiny-image"), responses(live)
    with pytest.raises(openai.BadRequestError):
        client.images.generate(prompt=PROMPT, extra_body={"method": "jacobi(window=0)"})
    with pytest.raises(openai.BadRequestError):
        client.images.generate(prompt="xyzzy")
    live.http.get("/nowhere/at/all")
    live.http.get("/v1/models/tiny-vlm")
    after, asked_after = numbers(live, "tiny-image"), responses(live)
    assert after["requests_totalrefused"] - before.get("requests_totalrefused", 0) >= 1
    assert after.get("requests_totalfailed", 0) == before.get("requests_totalfailed", 0)
    grown = {key: count - asked_before.get(key, 0) for key, count in asked_after.items()}
    assert grown["/v1/images/generations", "POST", "400"] == 2
    assert grown["none", "GET", "404"] == 1 == grown["/v1/models/{model:path}", "GET", "200"]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (None, "done"),
        (errors.Cancelled("left."), "cancelled"),
        (errors.DeadlinePassed("late."), "expired"),
        (errors.TooBusy("full."), "rejected"),
        (errors.Draining("stopping."), "rejected"),
        (errors.ComputeFailed("broken."), "failed"),
        (errors.ReplicaLost("gone."), "failed"),
        (WeightsError("damaged."), "failed"),
        (ZeroDivisionError(), "failed"),
        (PromptError("empty."), "refused"),
        (UnsupportedMethod("no drafter."), "refused"),
        (InvalidArgument("n=0."), "refused"),
    ],
)
def test_outcome_matches_error_kind(error: Exception | None, expected: str) -> None:
    assert outcome(error) == expected


def test_outcome_agrees_with_http_status() -> None:
    """Check that 4xx responses count as refused or rejected, and that failures answer with 5xx."""
    for kind, status, _ in envelope.OURS:
        named = outcome(kind("…"))
        assert (named in ("refused", "rejected")) == (status < 500 or status == 503 and named == "rejected"), kind
        assert named != "failed" or status >= 500, kind
