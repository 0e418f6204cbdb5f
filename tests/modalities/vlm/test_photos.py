"""A phone's photo of 4032×3024 at the preprocessor settings that the checkpoints are published with.

The Qwen models encode every pixel of it, which takes a minute each: they get max_pixels here, and
`POLYDRAFT_EVERY=1 python -m pytest tests/modalities/vlm/test_photos.py` gives them the whole photo.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from polydraft.core.sampling.params import SamplingParams
from polydraft.modalities.loading import load
from polydraft.modalities.vlm.conversation import build_conversations

from ...covering import EVERY
from .conftest import MAKERS, TEXT, VISION, generate_greedy, method, oracle, picture, run

SQUARES = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
PUBLISHED: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    # preprocessor_config.json, the settings that it implies for model and processor, positions of the photo;
    # llava-1.5-7b-hf, llava-v1.6-mistral-7b-hf, pixtral-12b, SmolVLM-256M-Instruct, gemma-3-4b-it,
    # Qwen2.5-VL-7B-Instruct, Qwen3-VL-4B-Instruct
    "llava": ({"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}}, {"image_size": 336}, 576),
    "llava_next": (
        {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}, "image_grid_pinpoints": SQUARES},
        {"image_size": 336, "image_grid_pinpoints": SQUARES}, 2340,
    ),
    "pixtral": (
        {"size": {"longest_edge": 1024}, "patch_size": {"height": 16, "width": 16}},
        {"image_size": 1024, "patch_size": 16}, 64 * 48,
    ),
    "smolvlm": (
        {"size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512}},
        {"image_size": 512, "patch_size": 16, "scale_factor": 4, "image_seq_len": 64}, 13 * 64,
    ),
    "gemma3": (
        {"size": {"height": 896, "width": 896}},
        {"image_size": 896, "mm_tokens_per_image": 256, "image_seq_length": 256}, 256,
    ),
    "qwen2_5_vl": ({"size": {"shortest_edge": 3136, "longest_edge": 12845056}}, {}, 144 * 108),
    "qwen3_vl": ({"size": {"shortest_edge": 65536, "longest_edge": 16777216}}, {}, 126 * 94),
}  # fmt: skip
LARGE = {} if EVERY else {"qwen2_5_vl": 10**6, "qwen3_vl": 10**6}  # pixels


def settle(file: Path, values: dict[str, Any]) -> None:
    """Set the fields of a file that it already has."""
    fields = json.loads(file.read_text())
    file.write_text(json.dumps(fields | {name: value for name, value in values.items() if name in fields}))


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Return a function that loads a tiny checkpoint in float64 at the published settings and encodes an image once."""

    def build(family: str) -> Any:
        before, after, _ = PUBLISHED[family]
        monkeypatch.setitem(TEXT, "max_position_embeddings", 32768)
        for name, value in {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 1}.items():
            monkeypatch.setitem(VISION, name, value)
        for name in ("image_size", "patch_size"):
            monkeypatch.setitem(VISION, name, after.get(name, VISION[name]))
        given = {"scale": after["scale_factor"]} if "scale_factor" in after else {}
        MAKERS[family](tmp_path, **given)  # type: ignore[call-arg]
        settle(tmp_path / "preprocessor_config.json", before)
        for file in ("config.json", "processor_config.json"):
            settle(tmp_path / file, {name: value for name, value in after.items() if name != "image_size"})
        pipe = load(str(tmp_path), dtype="float64")
        tower, seen = pipe.target_model.base_model, {}
        original = tower.get_image_features

        @wraps(original)  # transformers inspects its signature
        def once(**pictures: Any) -> Any:
            key = pictures["pixel_values"].shape
            seen[key] = seen.get(key) or original(**pictures)
            return seen[key]

        monkeypatch.setattr(tower, "get_image_features", once)
        return pipe

    return build


@pytest.mark.parametrize("family", MAKERS)
def test_photo_answer_equals_generate(real, family):
    pipe, asked = real(family), build_conversations(picture(4032, 3024), "What is this?", None)
    (prompt,) = pipe.build_prompts(asked, [0], 6, SamplingParams(temperature=0), max_pixels=LARGE.get(family))
    num_image_tokens = sum(token in pipe.placeholder_ids for token in prompt.branch_token_ids[0])
    is_large = family in LARGE
    assert (
        prompt.max_new_tokens == 6 and num_image_tokens >= PUBLISHED[family][2]
        if not is_large
        else (900 < num_image_tokens < 1280)
    )
    plain, _, _ = run(method(pipe), [prompt])
    assert plain == [generate_greedy(pipe, prompt)]
    drafted, _, tau = run(method(pipe, oracle(plain, pipe.token_mask.shape[1], 3)), [prompt])
    assert drafted == plain and tau > 1.5
