"""Drafters with every handling of images, published drafters, and drafters with another vocabulary."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

from polydraft.core.decode import start_batch
from polydraft.core.distillation.eagle import target_and_draft_log_probs
from polydraft.core.distillation.examples import Examples
from polydraft.core.drafters.network.eagle import IMAGE_MODES, EagleDrafter, EagleModel
from polydraft.core.drafters.tree.shapes import CandidateRanking, DynamicTree, StaticTree
from polydraft.core.errors import PolydraftError, WeightsError
from polydraft.core.target.causal import PromptInputs
from polydraft.modalities.loading import load
from polydraft.modalities.vlm.pipeline import VLMPipeline

from ...decoding import RecordingDrafter
from .conftest import TEXT, WIDTH, method, picture, run, sample_prompts

QUESTION = "Where is it, and what?"


@torch.inference_mode()
def first_logits(pipe: VLMPipeline, drafter: EagleDrafter, prompts: list[PromptInputs]) -> tuple[Tensor, Tensor]:
    """Return the drafter's logits `[B, V]` after prompts, and the number of its KV entries `[B, 1]`."""
    outputs: list[Tensor] = []

    class RecordingEagleDrafter(EagleDrafter):
        def logits(self, *given: Any) -> Tensor:
            logits = super().logits(*given)
            outputs.append(self.scatter_to_vocab(logits))
            return logits

    reader: Any = drafter.network
    parts = drafter.target, drafter.tree_shape, drafter.ranking, reader.image_placeholder_mask
    recording = RecordingEagleDrafter(reader.model, *parts)
    how = method(pipe, recording)
    batch = start_batch(how, prompts)
    recording.draft(batch.state, batch.drafter_state, how.sampler, batch.noise)
    return outputs[0][:, 0], batch.drafter_state.num_cached


@pytest.mark.parametrize("pictures", IMAGE_MODES)
def test_eagle_head_input_equals_training_input(pipe_of, pictures):
    """The distribution after a prompt equals that of training."""
    pipe = pipe_of("llava")
    torch.manual_seed(2)
    network = EagleModel(pipe.target_model.config.get_text_config(), pictures=pictures).eval()
    prompt = sample_prompts(pipe, rows=1)[0]
    drafter = EagleDrafter(network, pipe.target(), DynamicTree(2), CandidateRanking(), pipe.image_placeholder_mask)
    with torch.inference_mode():
        logits, cached = first_logits(pipe, drafter, [prompt])
        drafted = logits[0].log_softmax(-1)
        ids, outputs = [prompt.branch_token_ids[0]], [torch.tensor([7])]
        examples = Examples.from_outputs(ids, outputs, [prompt.model_kwargs], pipe.image_placeholder_mask)
        _, q = target_and_draft_log_probs(pipe.target(), network, examples)
    torch.testing.assert_close(drafted, q[0], atol=0.05, rtol=0.05)
    num_image_tokens = sum(token in pipe.placeholder_ids for token in prompt.branch_token_ids[0])
    entries = len(prompt.branch_token_ids[0]) - 2 - (num_image_tokens if pictures == "dropped" else 0)
    assert cached.item() == entries


def test_image_handling_modes_differ(pipe_of):
    pipe = pipe_of("llava")
    prompts, drafted = sample_prompts(pipe), {}
    plain, _, _ = run(method(pipe), prompts)
    for pictures in IMAGE_MODES:
        torch.manual_seed(2)
        network = EagleModel(pipe.target_model.config.get_text_config(), pictures=pictures)
        shape, mask = DynamicTree(2, 2, 4), pipe.image_placeholder_mask
        made = EagleDrafter(network, pipe.target(), shape, CandidateRanking(), mask)
        assert run(method(pipe, made), prompts)[0] == plain
        drafted[pictures] = first_logits(pipe, made, prompts)[0]
    assert not torch.allclose(drafted["features"], drafted["embeddings"], atol=0.01)
    assert not torch.allclose(drafted["features"], drafted["dropped"], atol=0.01)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_head_with_reduced_vocabulary_drafts(pipe_of, dtype: str):
    """Its tokens keep their logits, the others have probability zero, and answers equal plain decoding."""
    pipe, words = pipe_of("llava", dtype), [70, 3, 41, 12]
    target, prompts = pipe.target(), sample_prompts(pipe)
    torch.manual_seed(7)
    network = EagleModel(pipe.target_model.config.get_text_config()).to(pipe.dtype)
    plain, _, _ = run(method(pipe), prompts)
    waited = {id_ for row in plain for id_ in row}
    logits, drafted = [], set()
    for some in (None, words):
        network.restrict_vocab(some)
        made = EagleDrafter(network, target, DynamicTree(3, 2, 6), CandidateRanking(), pipe.image_placeholder_mask)
        logits.append(first_logits(pipe, made, prompts)[0][0])
        watched = RecordingDrafter(made)
        assert run(method(pipe, watched), prompts)[0] == plain
        for draft in watched.drafts:
            drafted = set(draft.tokens[draft.valid].tolist())
            assert some is None or drafted <= set(words) | waited  # accepted before and not committed yet
    whole, narrow = logits
    torch.testing.assert_close(narrow[words], whole[words], atol=0.02, rtol=0.02)
    assert drafted and narrow.isfinite().sum() == len(words)


class FullVocabularyDrafter(EagleDrafter):
    """Drafter whose distributions cover all ids, as with history-dependent sampling."""

    def restricted_ids(self, *_: Any) -> None:
        return None


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("tree_shape", [DynamicTree(3, 2, 6), StaticTree(3, 6), DynamicTree(3, 5, 9)])
def test_reduced_vocabulary_gives_equal_drafts(pipe_of, tree_shape: Any, temperature: float):
    """This includes drafts with fewer tokens than a node has children."""
    pipe = pipe_of("llava", "fp32")
    network = EagleModel(pipe.target_model.config.get_text_config()).to(pipe.dtype)
    network.restrict_vocab([70, 3, 41, 12])
    sampling = replace(pipe.sampling_params(), temperature=temperature)
    prompts = [replace(prompt, sampling_params=sampling) for prompt in sample_prompts(pipe)]
    drafts = []
    for kind in (EagleDrafter, FullVocabularyDrafter):
        parts = network, pipe.target(), tree_shape, CandidateRanking(), pipe.image_placeholder_mask
        watched = RecordingDrafter(kind(*parts))
        run(method(pipe, watched), prompts)
        drafts.append(
            [(draft.tokens.tolist(), draft.parents.tolist(), draft.valid.tolist()) for draft in watched.drafts]
        )
    assert drafts[0] == drafts[1]


class Published(nn.Module):
    """EAGLE-1 head as its authors describe it, with the names of its tensors."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size)
        self.layers = nn.ModuleList([LlamaDecoderLayer(config, 0)])
        self.layers[0].input_layernorm = nn.Identity()
        self.rotary = LlamaRotaryEmbedding(config)

    def forward(self, embeddings: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        x = self.fc(torch.cat([embeddings, features], -1))
        mask = torch.full((x.shape[1], x.shape[1]), -torch.inf).triu(1)[None, None]
        places = torch.arange(x.shape[1])[None]
        return self.layers[0](x, attention_mask=mask, position_embeddings=self.rotary(x, places), position_ids=places)


def published(folder: Path, width: int = WIDTH, **others: torch.Tensor) -> Published:
    """Write a head in the published form, with its embeddings."""
    torch.manual_seed(4)
    config = LlamaConfig(
        vocab_size=64, **TEXT | {"num_hidden_layers": 1, "hidden_size": width, "intermediate_size": 40}
    )
    config._attn_implementation = "eager"
    made = Published(config)
    tensors = {name: value for name, value in made.state_dict().items() if "rotary" not in name}
    save_file(tensors | {"embed_tokens.weight": torch.zeros(64, width)} | others, folder / "model.safetensors")
    stored = {"model_type": "llama", "num_hidden_layers": 1, "intermediate_size": 40, "num_attention_heads": 2,
              "num_key_value_heads": 1, "head_dim": 16, "architectures": ["LlamaForCausalLM"]}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(stored))
    return made


def test_published_heads_equal_reference(folder_of, tmp_path: Path):
    reference = published(tmp_path)
    pipe = load(str(folder_of("llava")), drafter=tmp_path, dtype="float32")
    network = pipe.drafter("eagle")
    embeddings, features = torch.randn(2, 9, WIDTH), torch.randn(2, 9, WIDTH)
    with torch.no_grad():
        ours = network.layer(inputs_embeds=network.fuse_inputs(embeddings, features)).last_hidden_state
        torch.testing.assert_close(ours, reference(embeddings, features), atol=1e-4, rtol=1e-4)
    plain = pipe(picture(56, 56), QUESTION, speculative=False, seed=3, max_new_tokens=24)
    drafted = pipe(picture(56, 56), QUESTION, method="eagle2", seed=3, max_new_tokens=24)
    assert drafted.tokens.equal(plain.tokens) and drafted.stats.drafter_passes > 0


def test_mismatched_heads_are_refused(folder_of, tmp_path: Path):
    def refused(folder: Path) -> str:
        with pytest.raises(PolydraftError) as caught:
            load(str(folder_of("llava")), drafter=folder, dtype="float32").drafter("eagle")
        assert "\n" not in str(caught.value)
        return str(caught.value)

    for name, others in {"wide": {"width": 48}, "three": {"d2t": torch.zeros(4)}, "pickle": {}}.items():
        (tmp_path / name).mkdir()
        published(tmp_path / name, **others)
    (tmp_path / "pickle" / "model.safetensors").rename(tmp_path / "pickle" / "pytorch_model.bin")
    assert "48 features and this one has 32" in refused(tmp_path / "wide")
    assert "'d2t'" in refused(tmp_path / "three")
    assert "pickle" in refused(tmp_path / "pickle")
    (tmp_path / "wide" / "model.safetensors").write_bytes(b"damaged")
    assert "it is damaged or was cut short" in refused(tmp_path / "wide")


def test_draft_model_with_other_tokenizer_is_mapped(folder_of, tmp_path: Path):
    """Its vocabulary has another order, is smaller and has merges; ids are mapped by their text."""
    target = load(str(folder_of("llava")), dtype="float32")
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())[::-1]
    vocab = {letter: number for number, letter in enumerate(letters[:-20])} | {"th": len(letters) - 20}
    words = Tokenizer(models.BPE(vocab=vocab, merges=[("t", "h")]))
    words.pre_tokenizer, words.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    words.add_special_tokens(["</s>"])
    wrapped = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>")
    wrapped.save_pretrained(tmp_path)
    torch.manual_seed(5)
    LlamaForCausalLM(LlamaConfig(vocab_size=len(wrapped) + 3, **TEXT)).save_pretrained(tmp_path)
    pipe = load(str(folder_of("llava")), drafter=tmp_path, dtype="float32")
    mapping = pipe.drafter("lm").vocab_mapping
    input_ids, logit_ids = mapping.input_ids.tolist(), mapping.logit_ids.tolist()
    target_vocab = pipe.tokenizer.get_vocab()
    assert input_ids[target_vocab["a"]] == logit_ids[target_vocab["a"]] == vocab["a"] != target_vocab["a"]
    assert logit_ids[target_vocab[letters[-1]]] == len(wrapped) + 3, "a letter that the drafter lacks"
    assert logit_ids[target_vocab["<|end|>"]] == wrapped.eos_token_id, "end tokens map whatever their text is"
    plain = target(picture(56, 56), QUESTION, speculative=False, seed=3, max_new_tokens=24)
    drafted = pipe(picture(56, 56), QUESTION, method="draft", seed=3, max_new_tokens=24)
    assert drafted.tokens.equal(plain.tokens) and drafted.stats.drafter_passes > 0
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(WeightsError, match="tokenizer"):
        load(str(folder_of("llava")), drafter=tmp_path, dtype="float32").drafter("lm")


def test_min_new_tokens_lengthens_answer(pipe_of, monkeypatch):
    """The end token is not sampled before min_new_tokens, drafted or not."""
    pipe = pipe_of("llava")
    free = pipe(None, QUESTION, speculative=False, seed=3, max_new_tokens=24, temperature=1.0)
    monkeypatch.setattr(pipe, "eos_token_ids", frozenset({int(free.tokens[4])}))
    for made in ("stop_token_mask", "sampler"):
        pipe.__dict__.pop(made, None)
    pipe._methods.clear()  # they have the old end tokens
    options = {"seed": 3, "max_new_tokens": 24, "temperature": 1.0}
    short = pipe(None, QUESTION, speculative=False, **options)
    long = pipe(None, QUESTION, speculative=False, min_new_tokens=12, **options)
    drafted = pipe(None, QUESTION, method="jacobi(window=5)", min_new_tokens=12, **options)
    assert len(short.tokens) == 5 and len(long.tokens) >= 12
    assert drafted.tokens.equal(long.tokens)
    for made in ("stop_token_mask", "sampler"):
        pipe.__dict__.pop(made, None)
    pipe._methods.clear()  # they have the old end tokens
