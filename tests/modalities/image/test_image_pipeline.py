"""Public behaviour of `generate_image` and `load`: results, seeds, cancelling, images, errors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from PIL import Image

import polydraft
from polydraft.core.errors import UnsupportedMethod
from polydraft.modalities.image import vocabulary
from polydraft.modalities.image.pipeline import ImagePipeline
from polydraft.modalities.image.request import ImageRequestInfo
from polydraft.modalities.loading import load
from polydraft.modalities.model_card import load_card
from polydraft.modalities.world.words.captions import caption_vocabulary as words

PROMPT = "a cat above a star on a navy background"


@pytest.fixture(scope="module")
def pipe() -> ImagePipeline:
    return load("tiny-image")


def test_drafted_images_match_plain_images(pipe: ImagePipeline) -> None:
    drafted, plain = pipe(PROMPT, seed=3), pipe(PROMPT, seed=3, speculative=False)
    assert torch.equal(drafted.tokens, plain.tokens) and drafted.image.tobytes() == plain.image.tobytes()
    assert drafted.stats.guarantee == "identical" and drafted.stats.mean_accepted_length > 1.5
    assert plain.stats.mean_accepted_length == 1 and plain.stats.target_passes == pipe.num_new_tokens
    assert drafted.finish_reason == "length" and drafted.tokens.min() >= 0


def test_batch_rows_match_images_of_their_seeds(pipe: ImagePipeline) -> None:
    batch = pipe([PROMPT, "two frogs on a blue background"], n=2, seed=5)
    assert [picture.size for picture in batch.images] == [(128, 128)] * 4 and batch.seeds == [5, 6, 7, 8]
    alone = pipe(PROMPT, seed=6)
    assert torch.equal(batch.tokens[1], alone.tokens[0]) and batch.images[1].tobytes() == alone.image.tobytes()
    assert torch.equal(batch.tokens[3], pipe("two frogs on a blue background", seed=[8]).tokens[0])
    assert batch.stats.tokens == 4 * pipe.num_new_tokens == sum(row.tokens for row in batch.row_stats)


def test_every_image_is_decoded_alone() -> None:
    """Convolutions round differently in a batch, on some processors and for some shapes."""

    class Crowded(ImagePipeline):
        def __init__(self) -> None:
            self.device = torch.device("cpu")

        def decode_pixels(self, tokens: torch.Tensor, request_info: Sequence[ImageRequestInfo] = ()) -> torch.Tensor:
            return (tokens[:, :3, None, None] / 10 + len(tokens) / 100).expand(-1, 3, 2, 2)

    tokens = torch.arange(27).view(9, 3) % 4
    together = Crowded().decode_images(tokens)
    assert [picture.tobytes() for picture in together] == [
        Crowded().decode_images(tokens[row : row + 1])[0].tobytes() for row in range(9)
    ]


def test_passes_record_when_tokens_were_committed(pipe: ImagePipeline) -> None:
    result = pipe(PROMPT)
    assert (result.passes[0].diff() >= 0).all() and 1 <= result.passes[0, 0] <= 1 + pipe.num_preview_tokens
    assert result.passes[0, -1] == result.stats.target_passes


def test_stream_can_be_closed_early(pipe: ImagePipeline) -> None:
    stream = pipe.stream(PROMPT)
    for step in stream:
        if step.tokens_done > 40:
            break
    stream.close()
    result = stream.result()
    done = int((result.tokens >= 0).sum())
    assert result.finish_reason == "cancelled" and 40 < done < 256
    assert torch.equal(result.tokens[0, :done], pipe(PROMPT).tokens[0, :done])
    assert list(stream) == []


def test_unknown_words_are_ignored_and_named(pipe: ImagePipeline) -> None:
    result = pipe("A majestic CAT above a star, on a navy background!")
    assert result.ignored_words == ("majestic",)
    assert torch.equal(result.tokens, pipe(PROMPT).tokens)


def test_png_contains_its_recipe(pipe: ImagePipeline, tmp_path: Path) -> None:
    path = pipe(PROMPT, seed=9).save(tmp_path / "cat.png")
    with Image.open(path) as picture:
        notes = picture.text  # type: ignore[attr-defined]
    assert (notes["prompt"], notes["model"], notes["seed"]) == (PROMPT, "tiny-image", "9") and notes["method"]
    assert [file.name for file in tmp_path.iterdir()] == ["cat.png"]


BAD_CALLS = [
    ({"prompt": ""}, polydraft.PromptError), ({"prompt": []}, polydraft.PromptError),
    ({"prompt": "cat " * 25_000}, polydraft.PromptError), ({"prompt": "xyzzy"}, polydraft.PromptError),
    ({"model": "tiny-imge"}, polydraft.UnknownModel), ({"method": "warp"}, polydraft.UnknownMethod),
    ({"method": "jacobi(windoow=3)"}, polydraft.UnknownMethod),
    ({"method": "jacobi(window=0)"}, polydraft.InvalidArgument),
    ({"method": "jacobi(init=magic)"}, polydraft.InvalidArgument), ({"n": 0}, polydraft.InvalidArgument),
    ({"temperature": -1.0}, polydraft.InvalidArgument), ({"top_p": 0.0}, polydraft.InvalidArgument),
    ({"top_p": 1.5}, polydraft.InvalidArgument), ({"top_k": -1}, polydraft.InvalidArgument),
    ({"guidance_scale": -1.0}, polydraft.InvalidArgument), ({"seed": -1}, polydraft.InvalidArgument),
    ({"seed": [1, 2]}, polydraft.InvalidArgument), ({"device": "abacus"}, polydraft.DeviceUnavailable),
    ({"dtype": "int3"}, polydraft.DeviceUnavailable),
    ({"speculative": False, "method": "jacobi"}, polydraft.InvalidArgument),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "error"), BAD_CALLS)
def test_bad_calls_raise_typed_one_sentence_errors(wrong: dict, error: type[polydraft.PolydraftError]) -> None:
    with pytest.raises(error) as caught:
        polydraft.generate_image(**({"prompt": PROMPT} | wrong))
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".") and len(str(caught.value)) < 400


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """Copy the model, to be damaged."""
    folder = tmp_path / "broken"
    shutil.copytree(load_card("tiny-image").path, folder)
    return folder


@pytest.mark.parametrize("part", ["target", "tokenizer"])
def test_truncated_weights_are_named(broken: Path, part: str) -> None:
    path = broken / part / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(polydraft.WeightsError, match=part):
        load(str(broken))


@pytest.mark.parametrize(("part", "field"), [("target", "num_hidden_layers"), ("tokenizer", "decoder_width")])
def test_weights_of_another_shape_are_named(broken: Path, part: str, field: str) -> None:
    path = broken / part / "config.json"
    fields = json.loads(path.read_text())
    path.write_text(json.dumps(fields | {field: fields[field] // 2}))
    with pytest.raises(polydraft.WeightsError, match=part):
        load(str(broken))


def test_parts_with_different_vocabularies_are_refused(broken: Path) -> None:
    vocabulary.build_tokenizer(words()[:40], {}).save(str(broken / "target" / "tokenizer.json"))
    with pytest.raises(polydraft.WeightsError, match="several models"):
        load(str(broken))


def test_saved_tokenizer_reads_plurals_as_singulars(pipe: ImagePipeline) -> None:
    assert pipe.family.emoji_vocabulary.tokenizer.encode("two foxes on buses").tokens == ["two", "fox", "on", "bus"]
    read = [pipe.family.emoji_vocabulary.tokenizer.encode(word).ids for word in words()]
    assert all(len(ids) == 1 and ids[0] > vocabulary.UNK for ids in read)


def test_a_method_without_its_drafter_names_what_fits(broken: Path) -> None:
    manifest = json.loads((broken / "polydraft.json").read_text()) | {"drafters": {}}
    manifest["defaults"]["method"] = "jacobi"
    (broken / "polydraft.json").write_text(json.dumps(manifest))
    with pytest.raises(polydraft.UnsupportedMethod, match="jacobi"):
        load(str(broken), method="draft")


def test_refusal_names_available_methods(pipe: ImagePipeline) -> None:
    with pytest.raises(UnsupportedMethod, match="'heads'.* draft, .*eagle2, .*lantern, "):
        pipe("a cat", method="vadusa")
