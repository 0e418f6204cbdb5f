"""`/metrics`: the names are there and the numbers add up."""

from __future__ import annotations

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from ...embedded import picture_tokens
from .live import Live
from .reading import PROMPT, asked

NAMES = (
    "spec_decode_num_drafts", "spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens",
    "spec_decode_num_accepted_tokens_per_pos", "num_requests_running", "num_requests_waiting",
    "time_to_first_token_seconds", "admission_rejections",
)  # fmt: skip


def numbers(live: Live, model: str) -> dict[str, float]:
    """Samples of one model by name and what else they are labelled with."""
    found = {}
    for family in text_string_to_metric_families(live.http.get("/metrics").text):
        for sample in family.samples:
            rest = {name: value for name, value in sample.labels.items() if name != "model"}
            if sample.labels.get("model") == model:
                found[sample.name.removeprefix("polydraft:") + "".join(rest.values())] = sample.value
    return found


def test_names_are_those_that_are_promised(live: Live, client: openai.OpenAI) -> None:
    client.chat.completions.create(model="tiny-vlm", messages=asked(None))
    families = {family.name for family in text_string_to_metric_families(live.http.get("/metrics").text)}
    assert {f"polydraft:{name}" for name in NAMES} <= families


def test_numbers_add_up(live: Live, client: openai.OpenAI) -> None:
    before = numbers(live, "tiny-image")
    answer = client.images.generate(prompt=PROMPT, extra_body={"seed": 3})
    after = numbers(live, "tiny-image")
    grown = {name: after[name] - before.get(name, 0) for name in after}
    drafting = answer.metrics["speculative_decoding"]
    assert grown["generation_tokens_total"] == drafting["tokens"] == picture_tokens()
    assert grown["target_passes_total"] == drafting["target_passes"] == grown["spec_decode_num_drafts_total"]
    assert grown["spec_decode_num_accepted_tokens_total"] <= grown["spec_decode_num_draft_tokens_total"]
    per_place = [value for name, value in grown.items() if name.startswith("spec_decode_num_accepted_tokens_per_pos")]
    assert sum(per_place) == grown["spec_decode_num_accepted_tokens_total"] > 0
    assert after["mean_accepted_length"] * after["target_passes_total"] == pytest.approx(
        after["generation_tokens_total"]
    )
    assert grown["requests_totaldone"] == 1 and after["num_requests_running"] == after["num_requests_waiting"] == 0
    assert grown["time_to_first_token_seconds_count"] == 1 == grown["e2e_request_latency_seconds_count"]
