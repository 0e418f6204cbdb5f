"""Numbers of a running server, from its `/metrics`.

before = await read_metrics(http, "tiny-image")
grown = (await read_metrics(http, "tiny-image")) - before
grown["compute_seconds_total{step}"]
"""

from __future__ import annotations

from collections import Counter

import httpx

PREFIX = "polydraft:"


async def read_metrics(http: httpx.AsyncClient, model: str) -> Counter[str]:
    """Return the samples of one model by name, with the values of further labels in braces."""
    from prometheus_client.parser import text_string_to_metric_families

    answer = await http.get("/metrics")
    answer.raise_for_status()
    found: Counter[str] = Counter()
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            rest = [value for name, value in sample.labels.items() if name != "model"]
            if sample.labels.get("model") == model:
                name = sample.name.removeprefix(PREFIX)
                found[f"{name}{{{','.join(rest)}}}" if rest else name] = sample.value  # type: ignore[assignment]
    return found
