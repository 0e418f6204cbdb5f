"""Liquid against transformers' own loop over Gemma."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

import polydraft
from polydraft.modalities.loading import load
from polydraft.modalities.model_card import load_card

from .conftest import Loaded
from .folders import CHAMELEON_CODES, LIQUID_SIDE

CAPTIONS = ["a red cat", "owls reading late at night", "a"]


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("guidance", [1.0, 7.0])
def test_greedy_codes_are_those_of_the_stock_loop(
    folder_of: Callable[[str], Path], loaded: Loaded, rows: int, guidance: float
) -> None:
    folder = folder_of("liquid")
    model: Any = hf.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    words = hf.PreTrainedTokenizerFast.from_pretrained(folder)
    first = len(words)

    def read(texts: list[str]) -> Any:
        prompts = [f"<bos>{text}<boi>" for text in texts]
        return words(prompts, padding=True, return_tensors="pt", return_token_type_ids=False)

    inputs = read([f"{text} Generate an image based on this description." for text in CAPTIONS[:rows]])
    other = read(["<unconditional>"] * rows)
    guided = {
        "guidance_scale": guidance, "negative_prompt_ids": other["input_ids"],
        "negative_prompt_attention_mask": other["attention_mask"],
    }  # fmt: skip
    codes = list(range(first, first + CHAMELEON_CODES))
    generated = model.generate(
        **inputs, **(guided if guidance != 1 else {}), do_sample=False, max_new_tokens=LIQUID_SIDE**2,
        prefix_allowed_tokens_fn=lambda row, ids: codes,
    )  # fmt: skip
    wanted = generated[:, inputs["input_ids"].shape[1] :] - first
    drawn = loaded("liquid", "float64")(
        CAPTIONS[:rows], temperature=0.0, guidance_scale=guidance, method="jacobi(window=6)"
    )
    assert drawn.tokens.equal(wanted) and (rows == 1 or len(wanted.unique()) > 3)


def test_prompts_and_defaults_are_the_makers(folder_of: Callable[[str], Path], loaded: Loaded) -> None:
    (prompt,) = loaded("liquid").build_prompts(["a red cat"])
    sampling = prompt.sampling_params
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.guidance_scale) == (0.99, 4096, 0.96, 7)
    assert prompt.branch_token_ids[1] == (2, 5, 3) and prompt.branch_token_ids[0][:1] + prompt.branch_token_ids[0][
        -1:
    ] == (2, 3)
    sly = loaded("liquid").build_prompts(["a red <boi>cat<unconditional>"])[0]
    assert sly.branch_token_ids == prompt.branch_token_ids


def test_another_gemma_is_no_model_of_pictures(folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    folder = tmp_path / "gemma"
    shutil.copytree(folder_of("liquid"), folder)
    shutil.rmtree(folder / "vqvae")
    with pytest.raises(polydraft.UnknownModel, match="is for vlm, not for image"):
        load(str(folder), modality="image")
    generated = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(generated | {"vocab_size": 264192}))
    with pytest.raises(polydraft.WeightsError, match="put leloy/Anole-7b-v0.1-vqvae-hf into its subfolder vqvae"):
        load_card(str(folder), modality="image")


def test_mismatched_vocabulary_is_refused_in_one_sentence(folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    folder = tmp_path / "other"
    shutil.copytree(folder_of("liquid"), folder)
    words = json.loads((folder / "tokenizer.json").read_text())
    words["model"]["vocab"]["more"] = len(words["model"]["vocab"])
    (folder / "tokenizer.json").write_text(json.dumps(words))
    with pytest.raises(polydraft.WeightsError, match="48 words, and its tokenizer and VQGAN have 17 and 32") as caught:
        load(str(folder))
    assert "\n" not in str(caught.value)
