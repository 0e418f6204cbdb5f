"""Language models that callers have loaded as drafters: in pipelines and in `generate`, by one rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from polydraft.core.errors import InvalidArgument, PolydraftError, UnsupportedMethod
from polydraft.modalities.custom_generate.borrowed import BorrowedModel
from polydraft.modalities.custom_generate.speculate import speculate
from polydraft.modalities.given_drafters import LoadedDrafter, to_drafters
from polydraft.modalities.loading import load
from polydraft.modalities.pipeline import Pipeline
from polydraft.modalities.vlm.processor import load_processor

from .custom_generate.models import VOCAB, build, prompts
from .transcription.tiny_whisper import write_tiny_whisper
from .vlm import conftest as vlm

GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 24}


def tokenizer_of_words(order: list[int]) -> Any:
    """Return a tokenizer of the words w0, w1 …, whose ids are in this order."""
    words = WordLevel({f"w{word}": index for index, word in enumerate(order)}, unk_token="w0")
    tokenizer = hf.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words), unk_token="w0", eos_token="w1")
    tokenizer.chat_template = "{% for message in messages %}w9 w10 w11{% endfor %}"
    return tokenizer


def test_forms_of_a_drafter_are_equal():
    model, tokenizer = build("llama"), tokenizer_of_words(list(range(VOCAB)))
    for given in (model, [model], torch.compile(model, backend="eager"), LoadedDrafter(model)):
        assert to_drafters(given) == (LoadedDrafter(model),)
    pair = model, tokenizer
    assert to_drafters(pair) == to_drafters([pair]) == (LoadedDrafter(model, tokenizer),)
    assert to_drafters([model, Path("eagle")]) == (LoadedDrafter(model), "eagle") and to_drafters(None) == ()


def test_given_tokenizers_map_another_vocabulary():
    model, draft_model, given = build("llama"), build("llama"), prompts(1)
    order = [0, 1, *range(VOCAB - 1, 1, -1)]
    for layer in (draft_model.get_input_embeddings(), draft_model.get_output_embeddings()):
        layer.weight.data = layer.weight.data[order]
    drafter, words = (draft_model, tokenizer_of_words(order)), tokenizer_of_words(list(range(VOCAB)))
    mapped, unmapped = speculate("draft", drafter=drafter, tokenizer=words), speculate("draft", drafter=draft_model)
    for decoding in (mapped, unmapped):
        ids = model.generate(**given, **GREEDY, custom_generate=decoding)
        assert torch.equal(ids, model.generate(**given, **GREEDY))
    assert mapped.stats.mean_accepted_length > 2 > 1.5 > unmapped.stats.mean_accepted_length


@pytest.mark.parametrize("with_tokenizer", [False, True])
def test_pipelines_draft_by_loaded_models(with_tokenizer, tmp_path):
    tokenizer = tokenizer_of_words(list(range(VOCAB)))
    build("llama").float().save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)

    def drafter() -> Any:
        model = build("llama").float()
        return (model, tokenizer) if with_tokenizer else model

    pipes = [
        Pipeline.from_model(build("llama").float(), tokenizer, drafter=drafter(), method="draft"),
        load(tmp_path, drafter=drafter(), method="draft", dtype="float32"),
        load(tmp_path, dtype="float32").with_drafter(drafter()),
    ]
    answers = []
    for pipe in pipes:
        plain, drafted = (pipe(None, "w3", method=each, max_new_tokens=24, temperature=0) for each in ("ar", "draft"))
        assert drafted.text == plain.text and drafted.stats.mean_accepted_length > 1.5
        answers.append(plain.text)
    assert len(set(answers)) == 1


def test_unfit_loaded_drafters_are_refused(tmp_path):
    model = build("llama")
    whisper = hf.WhisperForConditionalGeneration.from_pretrained(write_tiny_whisper(tmp_path / "whisper"))
    unfit: list[tuple[Any, type[PolydraftError], str]] = [
        (whisper, UnsupportedMethod, "has an encoder"), (model.model, UnsupportedMethod, "no LM head"),
        ([model, build("qwen2")], InvalidArgument, "both of kind 'lm'"),
        ([model, model], InvalidArgument, "given twice"),
        (torch.nn.Linear(2, 2), InvalidArgument, "language model"),
    ]  # fmt: skip
    for drafter, error, words in unfit:
        with pytest.raises(error, match=words):
            model.generate(**prompts(1), **GREEDY, custom_generate=speculate(drafter=drafter))
    with pytest.raises(UnsupportedMethod, match="generates image"):
        load("tiny-image", drafter=model)
    inputs = torch.zeros(1, whisper.config.num_mel_bins, 2 * whisper.config.max_source_positions)
    with pytest.raises(UnsupportedMethod, match="transcribes"):
        whisper.generate(inputs, custom_generate=speculate("draft", drafter=tmp_path / "whisper"))


def test_drafter_of_other_dtype_is_not_refused(monkeypatch):
    # in 16 bits the logits of deep models part from those of their own forward
    monkeypatch.setattr(BorrowedModel, "check_logits", lambda *_: pytest.fail("a tested architecture is compared"))
    model, draft_model = build("llama").float(), build("llama").bfloat16()
    ids = model.generate(**prompts(2), **GREEDY, custom_generate=speculate("draft", drafter=draft_model))
    assert torch.equal(ids, model.generate(**prompts(2), **GREEDY))


@pytest.mark.parametrize("wanted", [{"dtype": "bfloat16"}, {"dtype": torch.float64}])
def test_loaded_models_keep_their_dtype(wanted):
    with pytest.raises(InvalidArgument, match="is not that of the loaded model, 'float32'"):
        load(build("llama").float(), processor=tokenizer_of_words(list(range(VOCAB))), **wanted)


def test_processor_without_video_is_saved(tmp_path):
    vlm.qwen2_5_vl(tmp_path)
    load_processor(tmp_path, "qwen2_5_vl").save_pretrained(tmp_path / "saved")
    saved = load_processor(tmp_path / "saved", "qwen2_5_vl")
    assert saved.video_processor is None and type(saved).__name__ == "Qwen2_5_VLProcessor"
