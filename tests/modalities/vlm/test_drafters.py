"""Drafters that meet pictures in every way there is, that were published elsewhere, or speak another vocabulary."""

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

from polydraft.core.decode import start
from polydraft.core.drafters.network.eagle import PICTURES, EagleDrafter, EagleNetwork
from polydraft.core.drafters.tree.plans import Dynamic, Rank, Static
from polydraft.core.errors import PolydraftError, WeightsError
from polydraft.core.target import Prompt
from polydraft.core.training.eagle import laws
from polydraft.core.training.examples import Examples
from polydraft.modalities.loading import load
from polydraft.modalities.vlm.pipeline import VLMPipeline

from ...decoding import Watched
from .conftest import TEXT, WIDTH, asked, method, picture, run

QUESTION = "Where is it, and what?"


@torch.inference_mode()
def said_first(pipe: VLMPipeline, drafter: EagleDrafter, prompts: list[Prompt]) -> tuple[Tensor, Tensor]:
    """Logits `[B, V]` right behind prompts, and how many entries of them the drafter keeps, `[B, 1]`."""
    said: list[Tensor] = []

    class Heard(EagleDrafter):
        def logits(self, *given: Any) -> Tensor:
            logits = super().logits(*given)
            said.append(self.everywhere(logits))
            return logits

    reader: Any = drafter.reader
    heard = Heard(reader.model, drafter.target, drafter.plan, drafter.rank, reader.pictured)
    how = method(pipe, heard)
    batch = start(how, prompts)
    heard.draft(batch.state, batch.drafts, how.sampler, batch.noise)
    return said[0][:, 0], batch.drafts.cached


@pytest.mark.parametrize("pictures", PICTURES)
def test_a_head_reads_pictures_as_it_learned_to(pipe_of, pictures):
    """The law behind a prompt is the one that training saw there."""
    pipe = pipe_of("llava")
    torch.manual_seed(2)
    network = EagleNetwork(pipe.target_model.config.get_text_config(), pictures=pictures).eval()
    prompt = asked(pipe, rows=1)[0]
    drafter = EagleDrafter(network, pipe.target(), Dynamic(2), Rank(), pipe.unread)
    with torch.inference_mode():
        logits, cached = said_first(pipe, drafter, [prompt])
        drafted = logits[0].log_softmax(-1)
        examples = Examples.join([prompt.branches[0]], [torch.tensor([7])], [prompt.inputs], pipe.unread)
        _, q = laws(pipe.target(), network, examples)
    torch.testing.assert_close(drafted, q[0], atol=0.05, rtol=0.05)
    pictured = sum(token in pipe.placeholders for token in prompt.branches[0])
    entries = len(prompt.branches[0]) - 2 - (pictured if pictures == "dropped" else 0)
    assert cached.item() == entries


def test_the_ways_to_read_pictures_differ(pipe_of):
    pipe = pipe_of("llava")
    prompts, drafted = asked(pipe), {}
    plain, _, _ = run(method(pipe), prompts)
    for pictures in PICTURES:
        torch.manual_seed(2)
        network = EagleNetwork(pipe.target_model.config.get_text_config(), pictures=pictures)
        made = EagleDrafter(network, pipe.target(), Dynamic(2, 2, 4), Rank(), pipe.unread)
        assert run(method(pipe, made), prompts)[0] == plain
        drafted[pictures] = said_first(pipe, made, prompts)[0]
    assert not torch.allclose(drafted["features"], drafted["embeddings"], atol=0.01)
    assert not torch.allclose(drafted["features"], drafted["dropped"], atol=0.01)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_head_may_guess_only_some_words(pipe_of, dtype: str):
    """Those have the law's own logits, the others no chance, and answers are plain decoding's."""
    pipe, words = pipe_of("llava", dtype), [70, 3, 41, 12]
    target, prompts = pipe.target(), asked(pipe)
    torch.manual_seed(7)
    network = EagleNetwork(pipe.target_model.config.get_text_config()).to(pipe.dtype)
    plain, _, _ = run(method(pipe), prompts)
    waited = {id_ for row in plain for id_ in row}
    laws, drafted = [], set()
    for some in (None, words):
        network.guess_only(some)
        made = EagleDrafter(network, target, Dynamic(3, 2, 6), Rank(), pipe.unread)
        laws.append(said_first(pipe, made, prompts)[0][0])
        watched = Watched(made)
        assert run(method(pipe, watched), prompts)[0] == plain
        for draft in watched.drafts:
            drafted = set(draft.tokens[draft.valid].tolist())
            assert some is None or drafted <= set(words) | waited  # found before and not committed yet
    whole, narrow = laws
    torch.testing.assert_close(narrow[words], whole[words], atol=0.02, rtol=0.02)
    assert drafted and narrow.isfinite().sum() == len(words)


class Everywhere(EagleDrafter):
    """Its laws are over all ids, as where they remember something."""

    def narrow(self, *_: Any) -> None:
        return None


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("plan", [Dynamic(3, 2, 6), Static(3, 6), Dynamic(3, 5, 9)])
def test_some_words_alone_make_the_same_drafts(pipe_of, plan: Any, temperature: float):
    """What is ranked among a head's words is what is ranked among all ids, and drafts with fewer words than a node has
    children are possible."""
    pipe = pipe_of("llava", "fp32")
    network = EagleNetwork(pipe.target_model.config.get_text_config()).to(pipe.dtype)
    network.guess_only([70, 3, 41, 12])
    sampling = replace(pipe.sampling(), temperature=temperature)
    prompts = [replace(prompt, sampling=sampling) for prompt in asked(pipe)]
    drafts = []
    for kind in (EagleDrafter, Everywhere):
        watched = Watched(kind(network, pipe.target(), plan, Rank(), pipe.unread))
        run(method(pipe, watched), prompts)
        drafts.append(
            [(draft.tokens.tolist(), draft.parents.tolist(), draft.valid.tolist()) for draft in watched.drafts]
        )
    assert drafts[0] == drafts[1]


class Published(nn.Module):
    """EAGLE-1's head as its authors describe it, written from the tensors' names."""

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
    """A head in the published form, with the embeddings that come with it."""
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


def test_published_heads_load_and_mean_what_they_meant(folder_of, tmp_path: Path):
    reference = published(tmp_path)
    pipe = load(str(folder_of("llava")), drafter=tmp_path, dtype="float32")
    network = pipe.drafter("eagle")
    embeddings, features = torch.randn(2, 9, WIDTH), torch.randn(2, 9, WIDTH)
    with torch.no_grad():
        ours = network.layer(inputs_embeds=network.fused(embeddings, features)).last_hidden_state
        torch.testing.assert_close(ours, reference(embeddings, features), atol=1e-4, rtol=1e-4)
    plain = pipe(picture(56, 56), QUESTION, speculative=False, seed=3, max_new_tokens=24)
    drafted = pipe(picture(56, 56), QUESTION, method="eagle2", seed=3, max_new_tokens=24)
    assert drafted.tokens.equal(plain.tokens) and drafted.stats.drafter_passes > 0


def test_heads_that_do_not_fit_are_refused(folder_of, tmp_path: Path):
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


def test_a_drafter_with_another_tokenizer_is_understood(folder_of, tmp_path: Path):
    """Its vocabulary is in another order, smaller, and has merges; ids are translated by what they spell."""
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
    read, said = (part.tolist() for part in (pipe.drafter("lm").translation.read, pipe.drafter("lm").translation.said))
    mine = pipe.words.get_vocab()
    assert read[mine["a"]] == said[mine["a"]] == vocab["a"] != mine["a"]
    assert said[mine[letters[-1]]] == len(wrapped) + 3, "a letter that it lacks"
    assert said[mine["<|end|>"]] == wrapped.eos_token_id, "ends are ends, whatever they are called"
    plain = target(picture(56, 56), QUESTION, speculative=False, seed=3, max_new_tokens=24)
    drafted = pipe(picture(56, 56), QUESTION, method="draft", seed=3, max_new_tokens=24)
    assert drafted.tokens.equal(plain.tokens) and drafted.stats.drafter_passes > 0
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(WeightsError, match="tokenizer"):
        load(str(folder_of("llava")), drafter=tmp_path, dtype="float32").drafter("lm")


def test_answers_can_be_made_longer(pipe_of, monkeypatch):
    """The end is not drawn before its time, drafted or not."""
    pipe = pipe_of("llava")
    free = pipe(None, QUESTION, speculative=False, seed=3, max_new_tokens=24, temperature=1.0)
    monkeypatch.setattr(pipe, "eos", frozenset({int(free.tokens[4])}))
    for made in ("ends", "sampler"):
        pipe.__dict__.pop(made, None)
    pipe._methods.clear()  # made with the ends it had
    options = {"seed": 3, "max_new_tokens": 24, "temperature": 1.0}
    short = pipe(None, QUESTION, speculative=False, **options)
    long = pipe(None, QUESTION, speculative=False, min_new_tokens=12, **options)
    drafted = pipe(None, QUESTION, method="jacobi(window=5)", min_new_tokens=12, **options)
    assert len(short.tokens) == 5 and len(long.tokens) >= 12
    assert drafted.tokens.equal(long.tokens)
    for made in ("ends", "sampler"):
        pipe.__dict__.pop(made, None)
    pipe._methods.clear()  # made with the ends it had
