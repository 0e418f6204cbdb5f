"""A phone's photo of 4032×3024 at the preprocessor settings that the checkpoints are published with.

The Qwens look at every pixel of it, which takes a minute each: they get max_pixels here, and
`POLYDRAFT_EVERY=1 python -m pytest tests/modalities/vlm/test_photos.py` shows them the whole of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from polydraft.core.law.sampling import Sampling
from polydraft.modalities.loading import load
from polydraft.modalities.vlm.conversation import conversations

from ...covering import EVERY
from .conftest import MAKERS, TEXT, VISION, generated, method, oracle, picture, run

SQUARES = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
PUBLISHED: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    # preprocessor_config.json, what follows from it for the model and for the processor, positions the photo takes;
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
    """Set those of `values` that the file already has."""
    said = json.loads(file.read_text())
    file.write_text(json.dumps(said | {name: value for name, value in values.items() if name in said}))


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """A family's tiny checkpoint in float64 at the published settings; its tower looks at a picture once."""

    def made(family: str) -> Any:
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
        honest = tower.get_image_features

        @wraps(honest)  # transformers looks which arguments it has
        def once(**pictures: Any) -> Any:
            key = pictures["pixel_values"].shape
            seen[key] = seen.get(key) or honest(**pictures)
            return seen[key]

        monkeypatch.setattr(tower, "get_image_features", once)
        return pipe

    return made


@pytest.mark.parametrize("family", MAKERS)
def test_a_photo_is_answered_as_generate_answers(real, family):
    pipe, asked = real(family), conversations(picture(4032, 3024), "What is this?", None)
    (prompt,) = pipe.prompts(asked, [0], 6, Sampling(temperature=0), max_pixels=LARGE.get(family))
    pictured = sum(token in pipe.placeholders for token in prompt.branches[0])
    assert prompt.budget == 6 and pictured >= PUBLISHED[family][2] if family not in LARGE else 900 < pictured < 1280
    plain, _, _ = run(method(pipe), [prompt])
    assert plain == [generated(pipe, prompt)]
    drafted, _, tau = run(method(pipe, oracle(plain, pipe.mask.shape[1], 3)), [prompt])
    assert drafted == plain and tau > 1.5
