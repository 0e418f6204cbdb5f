"""`generate` with drafts: the tokens that it gives without, whatever is asked of it."""

from __future__ import annotations

import inspect
import threading
import time
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LogitsProcessor, MaxTimeCriteria, StoppingCriteria

from polydraft.core.drafters.network.eagle import EagleModel
from polydraft.core.errors import InvalidArgument, UnsupportedModel
from polydraft.modalities.custom_generate.speculate import Speculation, speculate, streamer_of_caller

from .models import EOS, FAMILIES, SIZES, VOCAB, build, prompts
from .test_borrowed import snapshot

GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 24}
build_once = cache(build)
EXAMPLE = Path(__file__).parents[3] / "examples" / "custom_generate_folder"


class NextExcluded(LogitsProcessor):
    """Exclude the id after the last one."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores.scatter(1, (input_ids[:, -1:] + 1) % VOCAB, -torch.inf)


class RowBias(LogitsProcessor):
    """Prefer another id in every row of the batch."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        rows = torch.arange(len(scores))
        preferred = (input_ids[:, -1] + 3 * rows) % VOCAB
        return scores.index_put((rows, preferred), scores[rows, preferred] + 2.0)


class Counting(LogitsProcessor):
    """Prefer an id that depends on the number of calls."""

    calls = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        scores = scores.clone()
        scores[:, 10 + self.calls % 80] += 3.0
        return scores


class AfterThree(StoppingCriteria):
    """Stop behind an id that is a multiple of three."""

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        return input_ids[:, -1] % 3 == 0


ASKED: dict[str, dict[str, Any]] = {
    "plain": {}, "min_length": {"min_new_tokens": 20}, "max_length": {"max_new_tokens": None, "max_length": 21},
    "no end": {"eos_token_id": None}, "repetition": {"repetition_penalty": 1.4}, "ngrams": {"no_repeat_ngram_size": 2},
    "bad words": {"bad_words_ids": [[11], [12, 13], [40]]}, "suppress": {"suppress_tokens": list(range(20, 60))},
    "begin": {"begin_suppress_tokens": list(range(50))}, "forced end": {"forced_eos_token_id": 5},
    "bias": {"sequence_bias": [[[30], 4.0], [[31, 32], 5.0]]}, "decay": {"exponential_decay_length_penalty": (3, 1.3)},
    "prefix": {"prefix_allowed_tokens_fn": lambda row, ids: list(range(10 + row, 40 + row))},
    "own processor": {"logits_processor": [NextExcluded()]}, "processor of rows": {"logits_processor": [RowBias()]},
    "criterion": {"stopping_criteria": [AfterThree()]},
}  # fmt: skip


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_ids_equal_those_of_generate(family, rows):
    model, given = build_once(family), prompts(rows)
    expected = model.generate(**given, **GREEDY)
    for method in ("suffix", "recycling"):
        decoding = speculate(method)
        assert torch.equal(model.generate(**given, **GREEDY, custom_generate=decoding), expected)
        assert torch.equal(model.generate(**given, **GREEDY, custom_generate=decoding), expected)
    assert decoding.stats.target_passes < decoding.stats.tokens  # it has learnt the text from the first call


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("method", ["auto", "jacobi", "pld"])
@pytest.mark.parametrize("asked", ASKED)
def test_ids_equal_whatever_is_asked(asked, method, rows):
    model, given, options = build_once("llama"), prompts(rows), GREEDY | ASKED[asked]
    expected = model.generate(**given, **options)
    assert torch.equal(model.generate(**given, **options, custom_generate=speculate(method)), expected)


def test_draft_model_of_the_caller_drafts():
    model, given = build_once("llama"), prompts(3)
    draft_model = build("llama")
    for decoding in (speculate("draft", drafter=draft_model), speculate(drafter=[draft_model])):
        expected = model.generate(**given, **GREEDY)
        assert torch.equal(model.generate(**given, **GREEDY, custom_generate=decoding), expected)
    decoding = speculate("draft(depth=4)", drafter=draft_model)
    model.generate(**given, **GREEDY, custom_generate=decoding)
    assert decoding.stats.target_passes < decoding.stats.tokens / 2  # it is the same model
    assert draft_model.config._attn_implementation == model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("size", [VOCAB - 20, VOCAB + 20])
def test_draft_model_may_have_more_or_fewer_ids(size):
    model, given = build_once("llama"), prompts(3)
    torch.manual_seed(0)
    draft_model = hf.LlamaForCausalLM(hf.LlamaConfig(**SIZES | {"vocab_size": size})).double()
    ids = model.generate(**given, **GREEDY, custom_generate=speculate("draft", drafter=draft_model))
    assert torch.equal(ids, model.generate(**given, **GREEDY))


@pytest.mark.parametrize("method", ["eagle", "eagle2", "auto"])
def test_eagle_folder_drafts_beside_draft_model(tmp_path, method):
    model, given = build_once("llama"), prompts(3)
    torch.manual_seed(0)
    EagleModel(model.config).double().save_pretrained(tmp_path)
    decoding = speculate(method, drafter=[tmp_path, build("llama", 2)])
    assert torch.equal(model.generate(**given, **GREEDY, custom_generate=decoding), model.generate(**given, **GREEDY))


def test_draft_model_of_another_vocabulary_is_mapped(tmp_path):
    model, draft_model, given = build("llama"), build("llama"), prompts(1)
    words = [f"w{index}" for index in range(VOCAB)]
    order = [0, 1, *range(VOCAB - 1, 1, -1)]  # the draft model's ids of the same words
    for name, ids, each in (("target", range(VOCAB), model), ("draft", order, draft_model)):
        vocabulary = WordLevel({words[word]: index for index, word in enumerate(ids)}, unk_token="w0")
        tokenizer = hf.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(vocabulary), unk_token="w0", eos_token="w1")
        tokenizer.save_pretrained(tmp_path / name)
        each.config.name_or_path = str(tmp_path / name)
    for layer in (draft_model.get_input_embeddings(), draft_model.get_output_embeddings()):
        layer.weight.data = layer.weight.data[order]
    decoding = speculate("draft(depth=4)", drafter=draft_model)
    ids = model.generate(**given, **GREEDY, custom_generate=decoding)
    assert torch.equal(ids, model.generate(**given, **GREEDY))
    assert decoding.stats.target_passes < decoding.stats.tokens / 2


@pytest.mark.parametrize("rows", [1, 3])
def test_stateful_processor_is_called_once_a_token(rows):
    model, given, options = build_once("llama"), prompts(rows), GREEDY | {"eos_token_id": None}
    expected = model.generate(**given, **options, logits_processor=[Counting()])
    decoding = speculate("pld")
    with pytest.raises(InvalidArgument, match="nothing has been generated yet"):
        decoding.stats  # noqa: B018 - a property
    with pytest.warns(UserWarning, match="^Counting cannot be called at drafted tokens"):
        ids = model.generate(**given, **options, logits_processor=[Counting()], custom_generate=decoding)
    assert torch.equal(ids, expected)
    assert decoding.stats.method == "ar"


@pytest.mark.filterwarnings("ignore:.*cannot be called at drafted tokens")
@pytest.mark.parametrize("kind", ["function that keeps state", "rows that see others"])
def test_processor_beyond_nodes_is_called_in_lockstep(kind):
    model, given, calls = build_once("llama"), prompts(3), []

    def prefer_another_id(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        calls.append(len(input_ids))
        scores = scores.clone()
        scores[:, 10 + len(calls) % 80] += 3.0
        return scores

    class FirstRow(LogitsProcessor):
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            return scores.index_fill(1, (input_ids[0, -1:] + 1) % VOCAB, 9.0)

    processor = prefer_another_id if kind.startswith("function") else FirstRow()
    expected = model.generate(**given, **GREEDY, logits_processor=[processor])
    calls.clear()
    ids = model.generate(**given, **GREEDY, logits_processor=[processor], custom_generate=speculate("pld"))
    assert torch.equal(ids, expected)


@pytest.mark.parametrize(("returned", "words"), [(None, "NoneType"), (torch.zeros(1, 5), r"shape \(1, 5\)")])
def test_processor_without_scores_is_refused_by_name(returned, words):
    class Broken(LogitsProcessor):
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> Any:
            return returned

    with pytest.raises(InvalidArgument, match=f"Broken returns {words}"):
        build_once("llama").generate(
            **prompts(1), **GREEDY, logits_processor=[Broken()], custom_generate=speculate("pld")
        )


class ByRow(StoppingCriteria):
    """Stop every row of the batch at another length."""

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        return input_ids.shape[1] > 12 + 2 * torch.arange(len(input_ids))


def test_criterion_may_go_by_row():
    model, given = build_once("llama"), prompts(3)
    expected = model.generate(**given, **GREEDY, stopping_criteria=[ByRow()])
    ids = model.generate(**given, **GREEDY, stopping_criteria=[ByRow()], custom_generate=speculate("pld"))
    assert torch.equal(ids, expected)


def test_prefix_function_never_sees_excluded_paths():
    model, seen = build_once("llama"), set()

    def allowed(_row: int, ids: torch.Tensor) -> list[int]:
        seen.update(ids[9:].tolist())
        return list(range(60, 70))

    model.generate(**prompts(1), **GREEDY, prefix_allowed_tokens_fn=allowed, custom_generate=speculate("pld"))
    assert seen and seen <= set(range(60, 70))


@pytest.mark.parametrize("rows", [1, 3])
def test_dictionaries_have_scores_and_logits(rows):
    model, given = build_once("llama"), prompts(rows)
    options = GREEDY | {
        "return_dict_in_generate": True, "output_scores": True, "output_logits": True, "repetition_penalty": 1.2,
    }  # fmt: skip
    expected, output = (model.generate(**given, **options, **more) for more in ({}, {"custom_generate": speculate()}))
    assert torch.equal(output.sequences, expected.sequences) and type(output) is type(expected)
    assert len(output.scores) == len(output.logits) == len(expected.scores)
    generated = expected.sequences[:, 9:]
    for name in ("scores", "logits"):
        for step, (ours, theirs) in enumerate(zip(output[name], expected[name], strict=True)):
            is_live = (generated[:, :step] == EOS[0]).any(1) | (generated[:, :step] == EOS[1]).any(1)
            assert torch.allclose(ours[~is_live].float(), theirs[~is_live], atol=1e-5)
    assert output.speculative.tokens == sum(int((row != 0).sum()) for row in generated)


class Recorder:
    """Streamer that keeps what it is given."""

    def __init__(self) -> None:
        self.given: list[list[int]] = []
        self.num_ends = 0

    def put(self, tokens: torch.Tensor) -> None:
        self.given.append(tokens.flatten().tolist())

    def end(self) -> None:
        self.num_ends += 1


@pytest.mark.parametrize("rows", [1, 3])
def test_streamer_gets_the_same_tokens(rows):
    model, ours, theirs = build_once("llama"), Recorder(), Recorder()
    model.generate(**prompts(rows), **GREEDY, streamer=theirs)
    model.generate(**prompts(rows), **GREEDY, streamer=ours, custom_generate=speculate("pld"))
    assert ours.given == theirs.given and ours.num_ends == theirs.num_ends == 1


def test_streamer_is_found_only_in_generate():
    def generate(custom_generate: Any, streamer: Any) -> Any:
        return streamer_of_caller()

    assert generate(None, "a streamer") == "a streamer" and streamer_of_caller() is None
    assert {"streamer", "tokenizer"} <= inspect.signature(Speculation.__call__).parameters.keys()


def test_time_limit_stops_it():
    model = build_once("llama")
    late = MaxTimeCriteria(0.0, time.time() - 1)
    ids = model.generate(
        **prompts(1), **GREEDY | {"eos_token_id": None}, stopping_criteria=[late], custom_generate=speculate()
    )
    assert ids.shape[1] == 10


def test_sampled_ids_follow_distribution_of_generate():
    """Chi-squared of the first two sampled ids against those of `generate`, and equal ids for equal seeds."""
    model, num_rows = build_once("llama"), 3000
    ids = prompts(1)["input_ids"].repeat(num_rows, 1)
    options: dict[str, Any] = {"do_sample": True, "temperature": 0.7, "top_k": 8, "top_p": 0.95, "max_new_tokens": 3}
    torch.manual_seed(0)
    expected = Counter(map(tuple, model.generate(ids, **options)[:, 9:11].tolist()))
    found = Counter(
        map(tuple, model.generate(ids, **options, custom_generate=speculate("jacobi", seed=3))[:, 9:11].tolist())
    )
    frequent = [pair for pair in expected | found if expected[pair] + found[pair] >= 10]
    chi_squared = sum((expected[pair] - found[pair]) ** 2 / (expected[pair] + found[pair]) for pair in frequent)
    assert chi_squared < len(frequent) + 4 * (2 * len(frequent)) ** 0.5
    plain, *drafted = (
        model.generate(ids[:4], **options | {"max_new_tokens": 20}, custom_generate=speculate(method, seed=9))
        for method in ("ar", "suffix", "pld", "auto")
    )
    assert all(torch.equal(each, plain) for each in drafted)


def test_sampling_warpers_of_any_kind_are_kept():
    model, given = build_once("llama"), prompts(2)
    options: dict[str, Any] = {"do_sample": True, "max_new_tokens": 12, "typical_p": 0.6, "epsilon_cutoff": 0.01}
    plain, drafted = (
        model.generate(**given, **options, custom_generate=speculate(method, seed=4)) for method in ("ar", "pld")
    )
    assert torch.equal(plain, drafted)
    narrow = model.generate(**given, do_sample=True, top_k=1, max_new_tokens=24, custom_generate=speculate("pld"))
    assert torch.equal(narrow, model.generate(**given, **GREEDY))


def test_seed_none_follows_the_generator_of_torch():
    model, given = build_once("llama"), prompts(1)
    options: dict[str, Any] = {"do_sample": True, "max_new_tokens": 20, "eos_token_id": None}
    texts = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        texts.append(model.generate(**given, **options, custom_generate=speculate(seed=None)))
    assert torch.equal(texts[0], texts[1]) and not torch.equal(texts[0], texts[2])


def test_returned_sequences_differ():
    model = build_once("llama")
    ids = model.generate(
        **prompts(1), do_sample=True, max_new_tokens=20, num_return_sequences=3, custom_generate=speculate("pld")
    )
    assert len(ids) == 3 and len({tuple(row) for row in ids.tolist()}) == 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_beams": 3}, "num_beams=3"), ({"return_dict_in_generate": True, "output_hidden_states": True}, "hidden"),
        ({"guidance_scale": 2.0}, "UnbatchedClassifierFreeGuidance"), ({"inputs_embeds": True}, "input_ids"),
        ({"attention_mask": "holes"}, "on the left"),
    ],
)  # fmt: skip
def test_what_cannot_be_drafted_is_refused(options, words):
    model, given = build_once("llama"), prompts(1)
    if "inputs_embeds" in options:
        given = {"inputs_embeds": model.get_input_embeddings()(given["input_ids"])}
        options = {}
    if "attention_mask" in options:
        given["attention_mask"] = given["attention_mask"].clone()
        given["attention_mask"][0, 4] = 0
        options = {}
    with pytest.raises(InvalidArgument, match=words):
        model.generate(**given, **GREEDY | options, custom_generate=speculate("pld"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"guarantee": "good"}, "identical, exact, lossy"), ({"seed": -1}, "seed"), ({"on_step": 3}, "on_step"),
        ({"method": "jacobi+typical"}, "guarantee='lossy'"), ({"method": "warp"}, "warp"),
        ({"drafter": 7}, "language model"), ({"method": "eagle2"}, "eagle"),
    ],
)  # fmt: skip
def test_impossible_arguments_are_refused(arguments, words):
    with pytest.raises((InvalidArgument, Exception), match=words):
        build_once("llama").generate(**prompts(1), **GREEDY, custom_generate=speculate(**arguments))


REFUSED_FAMILIES: dict[str, Any] = {
    "t5": lambda: hf.T5ForConditionalGeneration(
        hf.T5Config(vocab_size=VOCAB, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4, decoder_start_token_id=0)
    ),
    "bloom": lambda: hf.BloomForCausalLM(hf.BloomConfig(vocab_size=VOCAB, hidden_size=32, n_layer=2, n_head=4)),
    "bert": lambda: hf.BertLMHeadModel(
        hf.BertConfig(
            vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
            is_decoder=True,
        )
    ),
    "mamba": lambda: hf.MambaForCausalLM(hf.MambaConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2)),
    "gemma2": lambda: hf.Gemma2ForCausalLM(hf.Gemma2Config(**SIZES, head_dim=8)),
}  # fmt: skip


@pytest.mark.parametrize("family", REFUSED_FAMILIES)
def test_unknown_computation_is_refused_every_time(family):
    torch.manual_seed(0)
    model = REFUSED_FAMILIES[family]().double().eval()
    decoding, before = speculate("pld"), snapshot(model)
    for _ in range(2):
        with pytest.raises(UnsupportedModel):
            model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=4, pad_token_id=0, custom_generate=decoding)
        assert snapshot(model) == before


def test_hook_that_changes_a_layer_is_refused():
    model = build("llama")
    decoding = speculate("pld")
    model.generate(**prompts(1), **GREEDY, custom_generate=decoding)
    model.model.layers[0].register_forward_hook(lambda _module, _inputs, output: output * 1.5)
    with pytest.raises(UnsupportedModel):
        model.generate(**prompts(1), **GREEDY, custom_generate=decoding)


@pytest.mark.parametrize("change", ["layer", "dtype", "vocabulary"])
def test_changed_model_is_read_anew(change):
    model, decoding = build("llama"), speculate("suffix")
    model.generate(**prompts(2), **GREEDY, custom_generate=decoding)
    if change == "layer":
        model.model.layers[0].self_attn.q_proj = torch.nn.Linear(32, 32, bias=False).double()
    elif change == "dtype":
        model.float()
    else:
        model.resize_token_embeddings(VOCAB + 4)
    expected = model.generate(**prompts(2), **GREEDY)
    assert torch.equal(model.generate(**prompts(2), **GREEDY, custom_generate=decoding), expected)


def test_threads_share_model_and_callable():
    model, decoding = build_once("llama"), speculate("suffix")
    expected, results = model.generate(**prompts(1), **GREEDY), []

    def call() -> None:
        for each in (decoding, speculate("pld")):
            results.append(model.generate(**prompts(1), **GREEDY, custom_generate=each))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8 and all(torch.equal(each, expected) for each in results)


@pytest.mark.parametrize(
    ("options", "mode"),
    [({"penalty_alpha": 0.6, "top_k": 4}, "contrastive"), ({"dola_layers": "low"}, "dola"),
     ({"force_words_ids": [[11]]}, "constrained")],
)  # fmt: skip
def test_other_generation_modes_are_refused(options, mode):
    with pytest.raises(InvalidArgument, match=mode):
        build_once("llama").generate(**prompts(1), **GREEDY | options, custom_generate=speculate("pld"))


def test_unprepared_call_equals_that_of_generate():
    model, given = build_once("llama"), prompts(3)
    config = hf.GenerationConfig(max_new_tokens=9, do_sample=False, pad_token_id=0, eos_token_id=5)
    ids = speculate("pld")(model=model, generation_config=config, repetition_penalty=1.3, **given)
    assert torch.equal(ids, model.generate(**given, generation_config=config, repetition_penalty=1.3))


@pytest.mark.parametrize("rows", [1, 3])
def test_folder_of_custom_generate_drafts(rows):
    model, given, ours, theirs = build_once("llama"), prompts(rows), Recorder(), Recorder()
    options = GREEDY | {"repetition_penalty": 1.3}
    expected = model.generate(**given, **options, streamer=theirs)
    ids = model.generate(
        **given, **options, streamer=ours, custom_generate=str(EXAMPLE), trust_remote_code=True, method="pld",
        return_dict_in_generate=True,
    )  # fmt: skip
    assert torch.equal(ids.sequences, expected) and ours.given == theirs.given
    assert "pld" in ids.speculative.method


def test_callback_is_given_every_pass():
    model, steps = build_once("llama"), []
    decoding = speculate("pld", on_step=steps.append)
    model.generate(**prompts(1), **GREEDY, custom_generate=decoding)
    assert sum(sum(step.num_committed) for step in steps) == decoding.stats.tokens
