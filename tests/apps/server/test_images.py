"""`/v1/images/generations` with the official client: images match their seeds, streamed or not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import openai
import pytest
from PIL import Image

from polydraft.apps.server.api.pictures import encode_base64
from polydraft.modalities.image.recipe import ImageRecipe

from ...embedded import image_token_count
from .live import Live
from .reading import PROMPT, picture


def test_images_match_pipeline_at_same_seeds(live: Live, client: openai.OpenAI) -> None:
    answer = client.images.generate(model="tiny-image", prompt=PROMPT, n=2, size="128x128", extra_body={"seed": 5})
    alone = live.run_pipeline("image", prompt=PROMPT, n=2, seed=5)
    assert [picture(each.b64_json).tobytes() for each in answer.data] == [each.tobytes() for each in alone.images]
    assert answer.output_format == "png" and answer.size == "128x128"
    tokens = 2 * image_token_count()
    assert answer.usage.output_tokens == tokens and answer.usage.total_tokens == tokens + answer.usage.input_tokens
    drafting = answer.metrics["speculative_decoding"]
    assert drafting["guarantee"] == "identical" and drafting["mean_accepted_length"] > 1.5
    assert drafting["tokens"] == tokens and drafting["accepted_tokens"] <= drafting["drafted_tokens"]


def test_png_metadata_records_the_request(live: Live, client: openai.OpenAI) -> None:
    answer = client.images.generate(prompt=PROMPT, extra_body={"seed": 5, "method": "jacobi(window=12)"})
    shown = picture(answer.data[0].b64_json)
    notes = shown.text  # type: ignore[attr-defined]
    assert (notes["model"], notes["method"], notes["seed"]) == ("tiny-image", "jacobi(window=12)", "5")
    recipe = ImageRecipe.parse(notes["polydraft"])
    alone = live.run_pipeline("image", prompt=PROMPT, n=2, seed=5).recipe.for_image(0)
    assert recipe == replace(alone, method="jacobi(window=12)")
    assert shown.tobytes() == live.run_pipeline("image", prompt=PROMPT, n=2, seed=5).image.tobytes()


def test_sampling_parameters_are_applied(live: Live, client: openai.OpenAI) -> None:
    snow = "two frogs in the snow"
    prompt = "Please draw two blue FROGS in the snow!"
    answer = client.images.generate(prompt=prompt, extra_body={"seed": 5, "min_p": 0.9})
    assert answer.data[0].revised_prompt == snow and answer.ignored_words == ["blue"]
    shown = picture(answer.data[0].b64_json).tobytes()
    assert shown == live.run_pipeline("image", prompt=snow, seed=5, min_p=0.9).image.tobytes()
    assert shown != live.run_pipeline("image", prompt=snow, seed=5).image.tobytes()


@pytest.mark.parametrize("kind", ["webp", "jpeg"])
def test_other_formats_record_the_request(kind: str) -> None:
    shown = picture(encode_base64(Image.new("RGB", (128, 128), "navy"), kind, 95, {"model": "tiny-image", "seed": "7"}))
    assert shown.format == kind.upper() and shown.size == (128, 128)
    assert shown.getexif()[0x010E] == "model tiny-image; seed 7" and shown.getexif()[0x0131] == "polydraft"


def test_streamed_images_fill_in(live: Live, client: openai.OpenAI) -> None:
    """Check that generated parts equal the final image up to rounding, and that the rest is plain."""
    prompt = f"a photo of 🐸🐉🐸 {PROMPT.removeprefix('two frogs')}"
    events = list(client.images.generate(prompt=prompt, stream=True, partial_images=3, extra_body={"seed": 5}))
    *partial, last = events
    assert last.revised_prompt == PROMPT and last.ignored_words == ["🐉"]
    assert [event.type for event in partial] == ["image_generation.partial_image"] * 3
    assert [event.partial_image_index for event in partial] == [0, 1, 2]
    whole = picture(last.b64_json)
    assert last.type == "image_generation.completed" and last.usage.output_tokens == image_token_count()
    assert whole.tobytes() == live.run_pipeline("image", prompt=PROMPT, n=2, seed=5).image.tobytes()
    top = (0, 0, 128, 16)  # Generated in the first quarter of the tokens.
    assert np.abs(pixels(partial[1].b64_json, top) - pixels(last.b64_json, top)).mean() < 2
    bottom = (0, 120, 128, 128)
    assert [len(np.unique(pixels(event.b64_json, bottom).reshape(-1, 3), axis=0)) > 1 for event in events] == [
        False, False, False, True,
    ]  # fmt: skip


def pixels(b64_json: str, box: tuple[int, int, int, int]) -> np.ndarray:
    return np.asarray(picture(b64_json).convert("RGB").crop(box)).astype(int)


def test_stream_of_several_images(client: openai.OpenAI) -> None:
    events = list(
        client.images.generate(
            prompt=PROMPT, n=2, output_format="webp", stream=True, partial_images=1, extra_body={"seed": 5}
        )
    )
    assert [(event.type.rpartition(".")[2], event.index) for event in events] == [
        ("partial_image", 0), ("partial_image", 1), ("completed", 0), ("completed", 1),
    ]  # fmt: skip
    assert [event.seed for event in events[2:]] == [5, 6]
