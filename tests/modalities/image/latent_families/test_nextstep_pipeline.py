"""NextStep from a small random folder, end to end: the same latents, drafted or not; free text; sizes."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import polydraft
from polydraft.core.methods.spec import CODEBOOK
from polydraft.modalities.image.families.nextstep.pipeline import NextStepPipeline
from polydraft.modalities.image.families.patches import unpatchify
from polydraft.modalities.loading import load
from polydraft.modalities.model_card import load_card

from ....covering import every_pair, first
from ....decoding import run
from .nextstep_folder import SMALL, SMALL_1, save_model, vae, write

SIZE = "64x48"
CAPTIONS = ["a cat", "two owls reading, late at night"]
METHODS = ("jacobi(window=4)", "early-exit(depth=3,layers=2)")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write(tmp_path_factory.mktemp("nextstep") / "NextStep-1.1"))


@lru_cache
def loaded(folder: str, dtype: str = "float32") -> NextStepPipeline:
    return load(folder, dtype=dtype)


# --- drawing


@pytest.mark.parametrize(
    ("dtype", "temperature", "guidance"), every_pair(("float32", "bfloat16"), (0.9, 1.0), (1.0, 2.0))
)
def test_every_method_draws_what_plain_decoding_draws(
    folder: str, dtype: str, temperature: float, guidance: float
) -> None:
    pipe = loaded(folder, dtype)
    asked: dict[str, Any] = {"size": SIZE, "seed": 3, "temperature": temperature, "guidance_scale": guidance}
    plain = pipe(CAPTIONS, speculative=False, **asked)
    alone = pipe(CAPTIONS[1], speculative=False, **asked | {"seed": 4})
    assert plain.stats.mean_accepted_length == 1 and plain.tokens.shape == (2, 12, 8)
    assert plain.tokens[1].equal(alone.tokens[0]), "a row must not depend on its neighbours"
    assert not plain.tokens[0].equal(plain.tokens[1])
    for method in METHODS:
        drawn = pipe(CAPTIONS, method=method, **asked)
        assert drawn.tokens.equal(plain.tokens), method
        assert drawn.stats.guarantee == "identical" and drawn.stats.mean_accepted_length > 1.5, method


def test_unguided_row_is_unchanged_among_guided_rows(folder: str) -> None:
    pipe = loaded(folder).with_size(SIZE)
    rows = [
        prompt
        for row, scale in enumerate((1.0, 2.0))
        for prompt in pipe.build_prompts(CAPTIONS[:1], [row], pipe.sampling_params(guidance_scale=scale))
    ]
    choice = pipe.check_method("jacobi(window=4)")
    alone, _ = run(pipe.method(choice), rows[:1])
    together, _ = run(pipe.method(choice, guided=True), rows)
    assert together[0].equal(alone[0]) and not together[1].equal(alone[0])
    hidden, x, scale = torch.randn(2, 2, 3, 32), torch.randn(2, 3, 8), torch.tensor([1.0, 2.0])
    with torch.inference_mode():
        means = pipe.head.mean(x, 4, pipe.head.condition(hidden), scale)
        assert means[:1].equal(pipe.head.mean(x[:1], 4, pipe.head.condition(hidden[:1, :1]), scale[:1]))


def test_coupled_method_samples_the_same_distribution(folder: str) -> None:
    pipe = loaded(folder)
    asked: dict[str, Any] = {"size": SIZE, "guidance_scale": 2.0}
    drawn = pipe(CAPTIONS, method="early-exit(depth=3,layers=2)+coupled", **asked)
    assert drawn.stats.guarantee == "exact" and drawn.stats.mean_accepted_length > 1.5
    assert drawn.tokens.isfinite().all() and not drawn.tokens.equal(pipe(CAPTIONS, **asked).tokens)
    assert drawn.tokens.equal(pipe(CAPTIONS, method="early-exit(depth=3,layers=2)+coupled", **asked).tokens)


def test_a_small_nextstep_drafts_for_another(folder: str, tmp_path: Path) -> None:
    small = save_model(tmp_path / "small", SMALL | {"num_hidden_layers": 2})
    pipe = load(folder, drafter=small, dtype="float32")
    assert pipe.default_method.name.startswith("draft") and "draft" in pipe.available_methods()
    plain = pipe(CAPTIONS, size=SIZE, speculative=False, guidance_scale=2.0)
    for method in (None, "draft(depth=2)"):
        assert pipe(CAPTIONS, size=SIZE, method=method, guidance_scale=2.0).tokens.equal(plain.tokens)
    coupled = pipe(CAPTIONS, size=SIZE, method="draft+coupled", guidance_scale=2.0)
    assert coupled.stats.guarantee == "exact" and coupled.tokens.isfinite().all()
    other = save_model(tmp_path / "other", SMALL | {"num_channels": 3})
    with pytest.raises(polydraft.WeightsError, match="has other ids or latents than NextStep-1.1"):
        load(folder, drafter=other, dtype="float32")(CAPTIONS, size=SIZE)


def test_images_are_decoded_latents(folder: str, tmp_path: Path) -> None:
    pipe = loaded(folder)
    drawn = pipe(CAPTIONS, size=SIZE, seed=7)
    assert [picture.size for picture in drawn.images] == [(64, 48)] * 2 and drawn.grid == (3, 4)
    reference = vae()
    reference.load_state_dict(pipe.autoencoder.vae.state_dict())
    with torch.inference_mode():
        wanted = reference.decode(unpatchify(drawn.tokens, (3, 4), 2) / 0.5 + 0.25).sample
    found = torch.stack([torch.tensor(list(picture.tobytes())).view(48, 64, 3) for picture in drawn.images])
    wanted = ((wanted.clamp(-1, 1) + 1) * 127.5).permute(0, 2, 3, 1)
    assert (found - wanted).abs().max() <= 0.51
    with Image.open(drawn.save(tmp_path / "x.png")) as picture:
        notes: Any = picture.text  # type: ignore[attr-defined]
    assert notes["prompt"] == "\n".join(CAPTIONS) and notes["model"] == "NextStep-1.1" and notes["seed"] == "7,8"


@pytest.mark.parametrize("dtype", first(1, ["bfloat16", "float32"]))
def test_batch_pixels_match_single_image_pixels(folder: str, dtype: str) -> None:
    pipe = loaded(folder, dtype)
    drawn = pipe([*CAPTIONS, "a"], size=SIZE, seed=7)
    alone = pipe("a", size=SIZE, seed=9)
    assert drawn.tokens[2].equal(alone.tokens[0]) and drawn.images[2].tobytes() == alone.image.tobytes()


def test_unfinished_pictures(folder: str) -> None:
    run = loaded(folder).run(CAPTIONS, size=SIZE, partial_images=1, method="jacobi(window=4)")
    scheduler = polydraft.modalities.request.BatchScheduler(run.method)
    scheduler.add_prompts(run, run.schedulable_prompts(2))
    shown = []
    while not run.is_finished:
        scheduler.step()
        shown += [picture.size for news in run.poll_events() for picture in news.images]
    assert shown == [(64, 48)] * 2 and run.result().tokens.isfinite().all()


# --- what is read


def test_branches_contain_caption_and_grid(folder: str) -> None:
    pipe = loaded(folder)
    words = pipe.tokenizer.convert_tokens_to_ids
    area = words(["<|image_area|>", "3", "*", "4", "<|begin_of_image|>"])
    (prompt,) = pipe.run("a cat, xyzzy", size=SIZE).prompts
    assert (
        prompt.branch_token_ids == ((*words(list("a cat, xyzzy")), *area), tuple(area)) and prompt.max_new_tokens == 12
    )
    (prompt,) = pipe.run("a cat", size=SIZE, negative_prompt="blurry").prompts
    assert prompt.branch_token_ids[1] == (*words(list("blurry")), *area)
    assert prompt.sampling_params.guidance_scale == 7.5 and prompt.sampling_params.temperature == 1
    (prompt,) = pipe.run("a cat").prompts
    assert prompt.max_new_tokens == 1024 and prompt.branch_token_ids[1][1:-1] == tuple(words(list("32*32")))
    one, other = (pipe("a cat", size=SIZE, negative_prompt=text).tokens for text in ("", "blurry"))
    assert not one.equal(other) and pipe("a cat", size=SIZE).ignored_words == ()


@pytest.mark.parametrize("guidance", [1.0, 7.5])
def test_hidden_states_are_those_of_transformers(folder: str, guidance: float) -> None:
    """Check a prompt and latents behind it, in float64, whichever way the latents came."""
    pipe = loaded(folder, "float64")
    guided = guidance != 1
    target = pipe.target(guided)
    prompts = pipe.run(CAPTIONS, size=SIZE, guidance_scale=guidance).prompts
    latents = pipe(CAPTIONS, size=SIZE, guidance_scale=guidance).tokens
    with torch.inference_mode():
        state = target.empty_state()
        target.prefill(state, prompts)
        draft = polydraft.core.draft.Draft.from_chain(latents[:, :5])
        found = target.score(state, draft).outputs  # [B, 6, R, D]
        for row, prompt in enumerate(prompts):
            for branch in range(2 if guided else 1):
                ids = torch.tensor([prompt.branch_token_ids[branch]])
                read = torch.cat(
                    [
                        pipe.target_model.embed_tokens(ids),
                        pipe.head.image_in_projector(latents[row : row + 1, :5].double()),
                    ],
                    1,
                )
                reference = pipe.target_model
                kind, reference.config._attn_implementation = reference.config._attn_implementation, "eager"
                wanted = reference(inputs_embeds=read, use_cache=False).last_hidden_state[0, -6:]
                reference.config._attn_implementation = kind
                torch.testing.assert_close(found[row, :, branch], wanted, rtol=0, atol=2e-6)  # norms are in float32


# --- release 1


def test_release_1_warns_that_no_draft_is_accepted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write(tmp_path / "NextStep-1-Large", SMALL_1)
    with caplog.at_level(logging.WARNING, logger="polydraft.models"):
        pipe = load(str(folder), dtype="float32")
    notes = [record.getMessage() for record in caplog.records if record.name == "polydraft.models"]
    assert len(notes) == 1 and notes[0].startswith("note: NextStep-1-Large") and "use NextStep-1.1" in notes[0]
    assert pipe.default_method.name == "ar"
    plain = pipe(CAPTIONS, size=SIZE)
    for method in METHODS:
        drawn = pipe(CAPTIONS, size=SIZE, method=method)
        assert drawn.tokens.equal(plain.tokens) and drawn.stats.mean_accepted_length == 1, method
    coupled = pipe(CAPTIONS, size=SIZE, method="early-exit(depth=2,layers=2)+coupled")
    assert coupled.stats.mean_accepted_length == 1 and coupled.tokens.isfinite().all()
    # what the autoencoder reads has mean 0 and variance 1, as what the backbone reads
    read = pipe.head.tokens(plain.tokens)
    assert read.mean(-1).abs().max() < 1e-5 and (read.var(-1, correction=0) - 1).abs().max() < 1e-3
    with torch.inference_mode():
        assert pipe.with_size(SIZE).decode_pixels(plain.tokens).equal(pipe.autoencoder.decode(read, (3, 4)))


# --- folders and requests


def test_it_is_recognised_from_its_folder(folder: str, caplog: pytest.LogCaptureFixture) -> None:
    reference = load_card(folder)
    assert (reference.modality, reference.is_latent, reference.manifest["family"]) == ("image", True, "nextstep")
    assert (
        reference.methods == ["ar", "jacobi", "early-exit", "auto"]
        and reference.prompt_choices == {}
        and CODEBOOK not in reference.capabilities
    )
    with caplog.at_level(logging.WARNING, logger="polydraft.models"):
        pipe = load(folder, dtype="float32", modality="image")
    assert type(pipe) is NextStepPipeline and pipe.dimensions == "512x512" and not caplog.records


def test_the_autoencoder_may_be_elsewhere(folder: str, tmp_path: Path) -> None:
    bare = save_model(tmp_path / "bare")
    with pytest.raises(polydraft.WeightsError, match="has no vae; put .* into its subfolder vae, or give codec="):
        load(str(bare), dtype="float32")
    pipe = load(str(bare), codec=str(Path(folder) / "vae"), dtype="float32")
    assert pipe("a cat", size=SIZE).tokens.equal(loaded(folder)("a cat", size=SIZE).tokens)


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def says(**fields: Any) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        (folder / "config.json").write_text(json.dumps(SMALL | fields))

    return edit


def pickled(folder: Path) -> None:
    for file in (folder / "vae").iterdir():
        file.unlink()
    (folder / "vae" / "checkpoint.pt").write_bytes(b"a pickle")


def of_three_channels(folder: Path) -> None:
    shutil.rmtree(folder / "vae")
    vae(3).save_pretrained(folder / "vae")


def without_area(folder: Path) -> None:
    file = folder / "tokenizer.json"
    file.write_text(file.read_text().replace("<|image_area|>", "<|image_space|>"))


WRONG: dict[str, tuple[Callable[[Path], None], type[Exception], str]] = {
    "a pickle": (pickled, polydraft.WeightsError, "run `polydraft convert autoencoder .*checkpoint.pt --out FOLDER`"),
    "no autoencoder": (
        remove("vae/diffusion_pytorch_model.safetensors"),
        polydraft.WeightsError,
        "convert autoencoder",
    ),
    "another autoencoder": (of_three_channels, polydraft.WeightsError, "has 3 channels and this NextStep generates 2"),
    "no tokenizer": (remove("tokenizer.json"), polydraft.WeightsError, "has no tokenizer.json"),
    "another tokenizer": (without_area, polydraft.WeightsError, r"has no <\|image_area\|>"),
    "no weights": (remove("model-00001-of-1.safetensors"), polydraft.WeightsError, "tensors are missing"),
    "no boi": (says(boi=None), polydraft.WeightsError, "says no boi"),
    "positions": (says(use_gen_pos_embed=True), polydraft.UnsupportedModel, "use_gen_pos_embed"),
    "other shapes": (says(genloss_width=20), polydraft.WeightsError, "does not fit"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_folders_raise_one_sentence(folder: str, tmp_path: Path, what: str) -> None:
    spoil, error, words = WRONG[what]
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    spoil(copy)
    with pytest.raises(error, match=words) as caught:
        load(str(copy), dtype="float32")
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".")


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"size": "100x64"}, polydraft.InvalidArgument, "multiples of 16, such as 512x512"),
    ({"size": "64"}, polydraft.InvalidArgument, "multiples of 16"),
    ({"size": "0x64"}, polydraft.InvalidArgument, "multiples of 16"),
    ({"size": "16384x16384"}, polydraft.InvalidArgument, "1048576 tokens and NextStep-1.1 holds 2048 positions"),
    ({"temperature": 0.0}, polydraft.InvalidArgument, "temperature above 0"),
    ({"top_k": 5}, polydraft.InvalidArgument, "top_k chooses among ids"),
    ({"method": "lantern"}, polydraft.UnsupportedMethod, "use one of ar, jacobi, early-exit"),
    ({"prompt": " "}, polydraft.PromptError, "the prompt is empty"),
    ({"prompt": "a" * 2001}, polydraft.PromptError, "at most 2000"),
    ({"negative_prompt": "a" * 2001}, polydraft.PromptError, "at most 2000"),
]


@pytest.mark.parametrize(("asked", "error", "words"), REFUSED)
def test_what_cannot_be_drawn_is_one_sentence(
    folder: str, asked: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words) as caught:
        loaded(folder).run(**{"prompt": "a cat"} | asked)
    assert "\n" not in str(caught.value)


def test_other_models_generate_one_size(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(polydraft.InvalidArgument, match="size=64x64 is not possible; tiny-image generates 128x128"):
        load("tiny-image", dtype="float32").run("a cat", size="64x64")
    monkeypatch.setattr("transformers.utils.import_utils.is_accelerate_available", lambda: True)
    with pytest.raises(polydraft.InvalidArgument, match="device_map"):
        load(folder, device_map={"": "cpu"})
