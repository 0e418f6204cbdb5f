"""Token ids that tokenizer and model disagree about raise one sentence, at load or for the prompt."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

from polydraft.core.errors import InvalidArgument, PromptError, UnsupportedModel, WeightsError
from polydraft.core.target.causal import CausalTarget, PromptInputs
from polydraft.modalities.loading import load

from .conftest import picture, write_tokenizer


def copied(folder: Path, to: Path) -> Path:
    return Path(shutil.copytree(folder, to / "model"))


def rewritten(file: Path, **values: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def test_token_without_embedding_is_named(folder_of, tmp_path):
    folder = copied(folder_of("llava"), tmp_path)
    words = hf.AutoTokenizer.from_pretrained(folder)
    words.add_tokens(["zebra"])
    words.save_pretrained(folder)
    pipe = load(str(folder), dtype="float32")
    assert pipe(picture(56, 56), "Why?", max_new_tokens=2).stats.tokens == 2
    with pytest.raises(PromptError, match=r"'zebra' as id \d+, and the model's embeddings end at \d+; leave the word"):
        pipe(picture(56, 56), "Why a zebra?", max_new_tokens=2)


@pytest.mark.parametrize("family", ["llava", "smolvlm", "gemma3", "qwen2_5_vl"])
def test_unwritten_image_token_id_is_refused_at_load(folder_of, tmp_path, family):
    folder = copied(folder_of(family), tmp_path)
    config = json.loads((folder / "config.json").read_text())
    name = "image_token_index" if "image_token_index" in config else "image_token_id"
    rewritten(folder / "config.json", **{name: 7})
    with pytest.raises(WeightsError, match="puts pictures at id 7, .*correct image_token_id in its config.json"):
        load(str(folder), dtype="float32")


def test_id_beyond_target_embeddings_is_refused(pipe_of):
    target = CausalTarget(pipe_of("llava").target_model)
    size = target.num_token_ids
    with pytest.raises(InvalidArgument, match=f"has the id {size} and this target knows {size}"):
        target.prefill(target.empty_state(), [PromptInputs(((1, target.num_token_ids),), 4)])


def test_unsupported_draft_model_is_refused_at_load(folder_of, tmp_path):
    torch.manual_seed(0)
    size = hf.AutoConfig.from_pretrained(folder_of("llava")).text_config.vocab_size
    config = hf.BloomConfig(vocab_size=size, hidden_size=32, n_layer=2, n_head=2)
    hf.BloomForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match=f"the drafter in {tmp_path} cannot draft: BloomForCausalLM cannot run"):
        load(str(folder_of("llava")), drafter=tmp_path, dtype="float32")


@pytest.mark.parametrize("positions", [16, 100])
def test_draft_model_with_short_context_drafts_within_it(folder_of, tmp_path, positions):
    """Prompts may be longer than its context, and its own tokenizer may have more tokens than its embeddings."""
    torch.manual_seed(0)
    size = hf.AutoConfig.from_pretrained(folder_of("llava")).text_config.vocab_size
    config = hf.GPT2Config(vocab_size=size - 9, n_embd=32, n_layer=2, n_head=2, n_positions=positions,
                           bos_token_id=1, eos_token_id=2)  # fmt: skip
    hf.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    write_tokenizer(tmp_path, ["<image>"])
    pipe = load(str(folder_of("llava")), drafter=tmp_path, dtype="float32")
    question = "What is this? How many frogs? Why? What is this? How many frogs? Why? What is this?"
    for method in ("draft", "draft(width=3)", "draft+sps"):
        found = pipe([picture(56, 56)] * 2, question, method=method, max_new_tokens=60, seed=3)
        assert found.finish_reason in ("length", "eos")
        if "sps" not in method:
            plain = pipe([picture(56, 56)] * 2, question, method="ar", max_new_tokens=60, seed=3)
            assert found.tokens.equal(plain.tokens)
