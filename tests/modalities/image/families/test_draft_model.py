"""Smaller models of the same codebook as draft models: other text ids, the same images, and guidance."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from torch import Tensor

import polydraft
from polydraft.modalities.image.pipeline import ImagePipeline
from polydraft.modalities.loading import load

from ....apps.command_line import assert_refused, run
from ....covering import every_pair
from .folders import SIZES, louder

CAPTIONS = ["a red cat", "owls reading late at night", "a"]
FolderOf = Callable[[str], Path]
FILE = "model.safetensors"
METHODS = ("draft(depth=3)", "draft(depth=3,width=2,total=5)")
TEXTS = {  # embeddings of words, and how their ids are written in configurations
    "janus": "model.language_model.embed_tokens.weight",
    "emu3": "model.text_model.embed_tokens.weight",
}


def changed(folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    """Change the tensors of a folder."""
    save_file(change(load_file(folder / FILE)), folder / FILE, {"format": "pt"})


def renumbered(source: Path, folder: Path) -> None:
    """Copy a Janus and renumber its words, all but special ones in reverse order, with one more id between."""
    shutil.copytree(source, folder)
    tokenizer_json = json.loads((folder / "tokenizer.json").read_text())
    vocab: dict[str, int] = tokenizer_json["model"]["vocab"]
    special = {token["content"] for token in tokenizer_json["added_tokens"]}
    plain = sorted((word for word in vocab if word not in special), key=vocab.__getitem__)
    order = [*special, *reversed(plain)]
    order = [word for word in order if word in special][::-1] + [word for word in order if word not in special]
    numbers = {word: place for place, word in enumerate(order)}
    tokenizer_json["model"]["vocab"] = numbers
    for token in tokenizer_json["added_tokens"]:
        token["id"] = numbers[token["content"]]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json))
    for name in ("config.json", "generation_config.json"):
        asked = json.loads((folder / name).read_text())
        for part in (asked, asked.get("text_config", {})):
            for key in ("bos_token_id", "eos_token_id", "pad_token_id", "image_token_id"):
                if isinstance(part.get(key), int):
                    part[key] = numbers[{number: word for word, number in vocab.items()}[part[key]]]
        (folder / name).write_text(json.dumps(asked))

    def moved(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        rows = torch.empty(len(vocab), dtype=torch.long)
        for word, number in vocab.items():
            rows[numbers[word]] = number
        return tensors | {TEXTS["janus"]: tensors[TEXTS["janus"]][rows].contiguous()}

    changed(folder, moved)


def weaker(source: Path, folder: Path) -> None:
    """Copy a model and blur its last layer, so that its drafts are sometimes right."""
    shutil.copytree(source, folder)
    torch.manual_seed(3)

    def blurred(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {
            name: of + 0.3 * of.std() * torch.randn_like(of) if ".layers.2." in name and of.ndim > 1 else of
            for name, of in tensors.items()
        }

    changed(folder, blurred)


def load_with_drafter(folder: Path, drafter: Path, dtype: str = "float32", size: str | None = None) -> ImagePipeline:
    return load(str(folder), drafter=drafter, dtype=dtype, modality="image").with_size(size)


def test_words_are_translated_and_codes_are_not(folder_of: FolderOf, tmp_path: Path) -> None:
    """With the same weights under other ids every draft is right, guided or not."""
    renumbered(folder_of("janus"), tmp_path / "other")
    alone = load(str(tmp_path / "other"), dtype="float64", modality="image")
    pipe = load_with_drafter(folder_of("janus"), tmp_path / "other", "float64")
    one, other = (which.build_prompts(CAPTIONS[:1])[0].branch_token_ids for which in (pipe, alone))
    assert one != other and list(map(len, one)) == list(map(len, other))
    read = pipe.drafter("lm").vocab_mapping.input_ids
    for branch, wanted in zip(one, other, strict=True):
        assert (read[torch.tensor(branch) + pipe.family.vocab_size] - pipe.family.vocab_size).tolist() == list(wanted)
    for guidance in (1.0, 3.0):
        asked: dict[str, Any] = {"seed": 3, "guidance_scale": guidance, "temperature": 1.0}
        drawn = pipe(CAPTIONS, method="draft(depth=3,spread=0.1)", **asked)
        assert drawn.tokens.equal(pipe(CAPTIONS, method="ar", **asked).tokens)
        assert drawn.tokens.equal(alone(CAPTIONS, method="ar", **asked).tokens)
        assert drawn.stats.mean_accepted_length > 3.5, "a draft of the target's own law is always right"


@pytest.mark.parametrize(
    ("family", "temperature", "guidance", "rows"),
    every_pair(("janus", "emu3", "imagegpt", "lumina-mgpt", "liquid"), (0.0, 1.0), (1.0, 2.5), (1, 3)),
)
def test_draft_model_matches_plain_decoding(
    folder_of: FolderOf, tmp_path: Path, family: str, temperature: float, guidance: float, rows: int
) -> None:
    weaker(folder_of(family), tmp_path / "small")
    pipe = load_with_drafter(folder_of(family), tmp_path / "small", size=SIZES.get(family))
    asked: dict[str, Any] = {"seed": 3, "temperature": temperature}
    asked |= {} if pipe.family.num_branches == 1 else {"guidance_scale": guidance}
    plain = pipe(CAPTIONS[:rows], method="ar", **asked)
    for method in METHODS:
        drawn = pipe(CAPTIONS[:rows], method=method, **asked)
        assert drawn.tokens.equal(plain.tokens), method
        assert drawn.stats.mean_accepted_length > 1.5, method
    assert pipe.default_method.name == "auto" and "draft" in pipe.method(pipe.default_method).drafter.candidates


def test_draft_model_without_row_ends_drafts(folder_of: FolderOf) -> None:
    """Anole and Lumina-mGPT share Chameleon's codes."""
    pipe = load_with_drafter(folder_of("lumina-mgpt"), folder_of("anole"), size=None)
    assert pipe.grid != load(str(folder_of("anole")), modality="image").grid
    with pytest.raises(polydraft.WeightsError, match="tiny-anole generates 4x4 codes and 4x6 are asked for"):
        pipe.with_size("12x8")("a red cat")
    square = pipe.with_size("8x8")
    for method in METHODS:
        drawn = square(CAPTIONS, method=method, seed=3)
        assert drawn.tokens.equal(square(CAPTIONS, method="ar", seed=3).tokens)


def test_mismatched_codebook_is_refused_in_one_sentence(folder_of: FolderOf, tmp_path: Path) -> None:
    janus, out = folder_of("janus"), tmp_path / "x.png"
    shutil.copytree(janus, tmp_path / "turned")
    changed(tmp_path / "turned", lambda kept: {
        name: of.flip(0).contiguous() if name.endswith("quantize.embedding.weight") else of for name, of in kept.items()
    })  # fmt: skip
    plain = hf.LlamaForCausalLM(hf.LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    ))  # fmt: skip
    louder(plain).save_pretrained(tmp_path / "words")
    for drafter, word in (
        (folder_of("imagegpt"), "has 16 codes where tiny-janus has 32"),
        (tmp_path / "turned", "has other code vectors than tiny-janus"),
        (tmp_path / "words", "generates no images; tiny-janus takes a smaller model with its codes"),
    ):
        done = run("image", "a cat", "--model", janus, "--drafter", drafter, "-o", out)
        assert_refused(done, word)
    assert not out.exists()


def test_prompts_that_only_the_model_reads_are_refused(folder_of: FolderOf) -> None:
    folder = folder_of("llamagen_t2i")
    with pytest.raises(polydraft.WeightsError, match="prompts that are more than their ids"):
        load_with_drafter(folder, folder)("a red cat")


@pytest.mark.parametrize("guidance", [1.0, 4.0])
def test_branches_with_different_last_ids_are_read(folder_of: FolderOf, guidance: float) -> None:
    """A prompt is a class, and guidance leads away from the class that is none; the drafter is the target once more."""
    folder = folder_of("llamagen_c2i")
    pipe = load_with_drafter(folder, folder, "float64")
    asked: dict[str, Any] = {"seed": 3, "guidance_scale": guidance, "temperature": 1.0}
    drawn = pipe(["7", "3", "88"], method="draft(depth=3)", **asked)
    assert drawn.tokens.equal(pipe(["7", "3", "88"], method="ar", **asked).tokens)
    assert drawn.stats.mean_accepted_length > 3


def test_command_accepts_draft_model(folder_of: FolderOf, tmp_path: Path) -> None:
    weaker(folder_of("janus"), tmp_path / "small")
    done = run(
        "image", "a red cat", "--model", folder_of("janus"), "--drafter", tmp_path / "small", "--compare",
        "-o", tmp_path / "x.png",
    )  # fmt: skip
    assert done.exit_code == 0 and "auto, 16 tokens" in done.output and "the same tokens" in done.output, done.output
