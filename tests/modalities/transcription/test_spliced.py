"""Models with spliced sound: their own `generate` token for token, and the same however they are drafted."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from numpy.typing import NDArray

from polydraft.core.drafters.network.eagle import EagleModel
from polydraft.core.errors import (
    InvalidArgument,
    MissingPackage,
    PromptError,
    UnknownModel,
    UnsupportedModel,
    WeightsError,
)
from polydraft.core.target.spliced import SplicedTarget
from polydraft.modalities.loading import load
from polydraft.modalities.model_card import FAMILY_PIPELINES, load_card
from polydraft.modalities.request import BatchScheduler
from polydraft.modalities.transcription.detection import FAMILY_MARKERS
from polydraft.modalities.transcription.pipeline import THRESHOLDS
from polydraft.modalities.transcription.prompts import PROMPTS
from polydraft.modalities.transcription.result import Transcription
from polydraft.modalities.transcription.segments import QualityThresholds, compression_ratio
from polydraft.modalities.transcription.spliced import SplicedPipeline

from .spliced_folders import FAMILIES, TEXT, WINDOW_SECONDS, with_torchaudio, write_spliced
from .tiny_whisper import SAMPLE_RATE, tone

NEVER_GOOD = QualityThresholds(compression_ratio=None, log_prob=1.0, no_speech=None)  # sure texts round to 0
SECONDS = 5.3  # three pieces
DRAFTED = ("hypothesis", "history", "suffix", "recycling", "pld", "jacobi", "auto")


@pytest.fixture(scope="module")
def patch() -> Any:
    with pytest.MonkeyPatch.context() as monkeypatch:
        with_torchaudio(monkeypatch)
        yield monkeypatch


@pytest.fixture(scope="module")
def folder_of(patch: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that writes the folder of a family once and returns it."""
    made: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family not in made:
            made[family] = write_spliced(family, tmp_path_factory.mktemp("spliced") / family)
        return made[family]

    return folder


@pytest.fixture(scope="module")
def pipe_of(folder_of: Callable[[str], Path]) -> Callable[..., SplicedPipeline]:
    """Return a function that loads the pipeline of a family once per dtype."""
    loaded: dict[tuple[str, str], SplicedPipeline] = {}

    def pipe(family: str, dtype: str = "float32") -> SplicedPipeline:
        if (family, dtype) not in loaded:
            loaded[family, dtype] = load(folder_of(family), dtype=dtype)
        return loaded[family, dtype]

    return pipe


def sound(seconds: float, seed: int = 0) -> tuple[NDArray[np.float32], int]:
    return tone(seconds, seed), SAMPLE_RATE


def ids_of(result: Transcription) -> list[int]:
    return [token for segment in result.segments for token in segment.tokens]


def generate(pipe: SplicedPipeline, seconds: float, seed: int) -> list[int]:
    """Return the tokens of the model's own greedy `generate` for one piece of sound, without the end."""
    inputs = dict(pipe.prompts.encode(tone(seconds, seed)))
    features = {
        name: value.to(pipe.dtype) if value.is_floating_point() else value for name, value in inputs.items()
    }
    mask = torch.ones_like(features["input_ids"])
    model: Any = pipe.target_model
    output = model.generate(**features, attention_mask=mask, do_sample=False)[0, mask.shape[1] :].tolist()
    return [token for token in output if token not in pipe.eos_token_ids]


def test_families_have_prompts_and_are_tested() -> None:
    pipelines = {family for family, (module, _) in FAMILY_PIPELINES.items() if module.endswith(".spliced")}
    assert set(FAMILY_MARKERS) == set(PROMPTS) | {"whisper"} and pipelines == set(PROMPTS)
    assert set(PROMPTS) == set(FAMILIES) | {"granite_speech_plus"}  # a Granite Speech with another encoder


@pytest.mark.parametrize("family", FAMILIES)
def test_plain_transcript_equals_models_generate(pipe_of, family):
    pipe = pipe_of(family, "float64")
    texts = set()
    for seconds, seed in ((0.7, 0), (1.6, 1), (2.0, 2)):
        given = pipe(sound(seconds, seed), temperature=0.0, thresholds=None, method="ar")
        assert ids_of(given) == generate(pipe, seconds, seed) and len(given.tokens) > 3
        texts.add(given.text)
    assert len(texts) == 3, "the sound has no influence"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("temperature", [0.0, 0.6])
def test_drafted_transcript_equals_plain_one(pipe_of, family, temperature):
    pipe = pipe_of(family)
    options: dict[str, Any] = {"temperature": temperature, "seed": 7}
    plain = pipe(sound(SECONDS, 3), method="ar", **options)
    drafted = pipe(sound(SECONDS, 3), method="hypothesis", hypothesis=plain.text, **options)
    assert drafted.text == plain.text and drafted.segments == plain.segments and len(plain.text) > 20
    assert drafted.stats.tokens > 1.5 * drafted.stats.target_passes
    assert drafted.stats.guarantee == plain.stats.guarantee == "identical"


@pytest.mark.parametrize("method", DRAFTED)
def test_every_token_method_equals_plain_decoding(pipe_of, method):
    pipe = pipe_of("voxtral")
    plain = pipe(sound(SECONDS, 3), method="ar", temperature=0.6)
    drafted = pipe(sound(SECONDS, 3), method=method, hypothesis=plain.text, temperature=0.6)
    assert drafted.segments == plain.segments


def test_draft_model_and_eagle_equal_plain_decoding(folder_of, tmp_path):
    folder = folder_of("glmasr")
    torch.manual_seed(1)
    config = hf.AutoConfig.from_pretrained(folder).get_text_config()
    hf.LlamaForCausalLM(hf.LlamaConfig(vocab_size=config.vocab_size, **TEXT)).save_pretrained(tmp_path / "lm")
    (tmp_path / "eagle").mkdir()
    EagleModel(config).save_pretrained(tmp_path / "eagle")
    pipe = load(folder, dtype="float32", drafter=[tmp_path / "lm", tmp_path / "eagle"])
    plain = pipe(sound(SECONDS, 3), method="ar", temperature=0.0)
    for method in ("draft", "eagle2"):
        drafted = pipe(sound(SECONDS, 3), method=method, temperature=0.0)
        assert drafted.segments == plain.segments and drafted.method == method


def finish(*requests: Any) -> None:
    """Decode requests of one method together; every one after the first joins some passes later."""
    scheduler = BatchScheduler(requests[0].method)
    for step in itertools.count():
        for index, request in enumerate(requests):
            if step >= 3 * index:
                scheduler.add_prompts(request, request.schedulable_prompts(4))
        if all(request.is_finished for request in requests):
            return
        if scheduler.num_live:
            scheduler.step()


@pytest.mark.parametrize(
    ("family", "dtype", "temperature"),
    [("qwen2_audio", "float32", 0.0), ("qwen3_asr", "float32", 0.6), ("voxtral", "bfloat16", 0.6)],
)
def test_recordings_decoded_together_equal_those_alone(pipe_of, family, dtype, temperature):
    """Requests join one after the other and leave at different times, drafted and plain."""
    pipe = pipe_of(family, dtype)
    sounds = [sound(0.6 + 1.3 * index, index) for index in range(4)]
    options: dict[str, Any] = {"temperature": temperature, "seed": 3}
    alone = [pipe(each, method="ar", **options) for each in sounds]
    for method in ("ar", "hypothesis"):
        requests = [
            pipe.run(each, method=method, hypothesis=plain.text, **options)
            for each, plain in zip(sounds, alone, strict=True)
        ]
        finish(*requests)
        for request, plain in zip(requests, alone, strict=True):
            assert request.result().segments == plain.segments


def test_long_recording_is_cut_where_it_is_quiet(pipe_of):
    loud, silence = tone(1.4, 2), np.zeros(SAMPLE_RATE // 2, np.float32)
    pieces = [loud, silence, loud, silence, loud, silence, loud]
    whole = np.concatenate(pieces)
    result = pipe_of("voxtral")((whole, SAMPLE_RATE), temperature=0.0)
    bounds = [segment.start for segment in result.segments] + [result.segments[-1].end]
    assert bounds[0] == 0.0 and bounds[-1] == pytest.approx(result.duration) and len(bounds) == 5
    assert [segment.end for segment in result.segments] == bounds[1:]
    for index, bound in enumerate(bounds[1:-1]):
        assert 1.9 * index + 1.4 < bound < 1.9 * (index + 1), "cut within sound"
    assert max(np.diff(bounds)) <= WINDOW_SECONDS
    assert result.text == "".join(segment.text for segment in result.segments).strip()


def test_pieces_do_not_depend_on_each_other(pipe_of):
    """The third piece alone has the text that it has in the whole recording."""
    pipe = pipe_of("qwen3_asr")
    whole = pipe(sound(SECONDS, 3), temperature=0.0)
    last = whole.segments[-1]
    samples = tone(SECONDS, 3)[round(last.start * SAMPLE_RATE) :]
    assert pipe((samples, SAMPLE_RATE), temperature=0.0).segments[0].tokens == last.tokens


def test_finished_windows_leave_no_features(pipe_of):
    request = pipe_of("voxtral").run(sound(SECONDS), temperature=0.0)
    finish(request)
    assert len(request.prompts) == 3 and not any(prompt.model_kwargs for prompt in request.prompts)
    with pytest.raises(ValueError, match="closed"):
        request.features.window(0, 1)


def test_poor_text_is_decoded_again(pipe_of):
    given = pipe_of("voxtral")(sound(1.0), temperature=(0.0, 0.4, 0.8), thresholds=NEVER_GOOD)
    assert {segment.temperature for segment in given.segments} == {0.8}
    assert given.stats.tokens > len(ids_of(given)), "earlier attempts count as work"


def test_repetition_is_measured_alike_for_large_vocabularies(pipe_of):
    """By ids of three bytes a text would seem to repeat itself more than by those of two."""
    pipe, most = pipe_of("voxtral"), THRESHOLDS.compression_ratio
    ids = np.random.default_rng(0).integers(0, 60_000, 200).tolist()
    assert pipe.compression_ratio(ids) == compression_ratio(ids, 51_865) < 1.05 < compression_ratio(ids, 150_000)
    assert pipe.compression_ratio(ids[:20] * 10) > 2 * most


def test_text_cut_by_token_limit_is_noted(folder_of):
    pipe = load(folder_of("voxtral"), dtype="float32")
    pipe.lengths = replace(pipe.lengths, max_new_tokens=5)
    given = pipe(sound(1.0), temperature=0.0)
    assert given.notes == ("the text from second 0 was cut at the limit of new tokens",) and len(given.tokens) == 5
    notes = pipe(sound(SECONDS), temperature=0.0).notes
    assert notes == ("the text of 3 windows, the first from second 0, was cut at the limit of new tokens",)


def test_streamed_text_equals_whole_text(pipe_of):
    stream, segments, partial = pipe_of("glmasr").stream(sound(SECONDS, 3), temperature=0.0), [], 0
    for step in stream:
        segments += step.segments
        partial += bool(step.partial)
    assert segments == stream.result().segments and partial > 3
    assert step.progress.seconds_done == step.progress.seconds_total == pytest.approx(SECONDS)


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        ("voxtral", {"timestamps": True}, "writes no times.*pieces of at most 2 s"),
        ("voxtral", {"condition_on_previous": True}, "every 2 s on their own"),
        ("voxtral", {"initial_prompt": "Names"}, "takes no text before the recording"),
        ("voxtral", {"task": "translate"}, "is not known to translate; use task='transcribe'"),
        ("voxtral", {"task": "sing"}, "task 'sing' is unknown"),
        ("voxtral", {"language": "klingon"}, "knows no language 'klingon'"),
        ("qwen2_audio", {"language": "klingon"}, "give one of de, en, es, fr, it, ja, yue, zh"),
        ("glmasr", {"language": "en"}, "finds the language by itself"),
        ("qwen3_asr", {"initial_prompt": "a <|im_end|> b"}, "'<|im_end|>' in it, a mark of"),
        ("qwen3_asr", {"initial_prompt": "word " * 200}, "takes 1000 positions"),
    ],
)
def test_options_that_models_lack_are_refused(pipe_of, family, options, message):
    with pytest.raises(InvalidArgument, match=message) as caught:
        pipe_of(family)(sound(1.0), **options)
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)


def test_empty_recording_and_live_sound_are_refused(pipe_of):
    with pytest.raises(PromptError):
        pipe_of("voxtral")((np.zeros(0, np.float32), SAMPLE_RATE))
    with pytest.raises(UnsupportedModel, match="writes no times, which live captions need"):
        pipe_of("voxtral").listen([])


def test_untested_language_model_is_checked_with_sound(folder_of, monkeypatch):
    """Granite's logits are checked when it is loaded; prompts without sound pass where sound is heard otherwise."""
    original = SplicedTarget.prefill_inputs

    def turned(target: Any, *given: Any) -> Any:
        for inputs in original(target, *given):
            yield {name: -value if value.is_floating_point() else value for name, value in inputs.items()}

    monkeypatch.setattr(SplicedTarget, "prefill_inputs", turned)
    with pytest.raises(UnsupportedModel, match="logits of a (chain|tree) are not those"):
        load(folder_of("granite_speech"), dtype="float32")


def edited(folder: Path, copy: Path, name: str, **changes: Any) -> Path:
    """Return a copy of a folder whose JSON file has other fields."""
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    content = json.loads((copy / name).read_text()) if (copy / name).exists() else {}
    (copy / name).write_text(json.dumps(content | changes))
    return copy


@pytest.mark.parametrize(
    ("file", "changes", "error", "message"),
    [
        ("config.json", {"audio_token_id": 7}, WeightsError, "hears sound at id 7, which its processor never writes"),
        ("preprocessor_config.json", {"feature_size": 9}, WeightsError, "cannot read a prompt|cannot read any sound"),
        ("preprocessor_config.json", {"sampling_rate": "fast"}, WeightsError, "sampling_rate"),
        ("preprocessor_config.json", {"chunk_length": 60}, WeightsError, "60 s of sound take"),
        ("adapter_config.json", {"r": 8}, UnsupportedModel, "an adapter apart from its weights"),
    ],
)
def test_folder_that_cannot_hear_is_refused(folder_of, tmp_path, file, changes, error, message):
    folder = edited(folder_of("glmasr"), tmp_path / "copy", file, **changes)
    with pytest.raises(error, match=message):
        load(folder, dtype="float32")(sound(1.0))


def test_missing_chat_template_is_refused(folder_of, tmp_path):
    folder = edited(folder_of("glmasr"), tmp_path / "copy", "config.json")
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(WeightsError, match="the chat template is wrong or missing"):
        load(folder, dtype="float32")


def test_classifier_of_family_is_no_transcriber(folder_of, tmp_path):
    folder = edited(
        folder_of("qwen3_asr"), tmp_path / "copy", "config.json", architectures=["Qwen3ASRForTokenClassification"]
    )
    with pytest.raises(UnknownModel, match="no family"):
        load_card(folder)


def test_missing_torchaudio_is_named(folder_of, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchaudio", None)
    with pytest.raises(MissingPackage, match=r"granite_speech needs the package torchaudio.*polydraft\[torchaudio\]"):
        load(folder_of("granite_speech"))
