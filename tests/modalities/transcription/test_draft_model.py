"""Small Whisper models as drafters: the same transcripts as without, own prompts, own features, and shared encoders."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

from polydraft.core.drafters.network.draft_model import VocabMapping
from polydraft.core.drafters.network.encoder_decoder import EncoderDecoderDrafterNetwork, EncoderDecoderDraftModel
from polydraft.core.errors import InvalidArgument, UnsupportedMethod
from polydraft.core.target.causal import PromptInputs
from polydraft.core.target.encoder_decoder import ENCODER_INPUT
from polydraft.modalities import model_card
from polydraft.modalities.loading import load
from polydraft.modalities.packaged import PackagedModel
from polydraft.modalities.transcription.draft_model import DraftPrompts
from polydraft.modalities.transcription.pipeline import WhisperPipeline
from polydraft.modalities.transcription.tokens import ControlTokens

from .test_pipeline import NEVER_GOOD, finish
from .tiny_whisper import SAMPLE_RATE, tone, write_tiny_whisper


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a target; a copy of it; one whose encoder is a little different; and one that is different throughout."""
    folder = tmp_path_factory.mktemp("whisper")
    made = {name: write_tiny_whisper(folder / name) for name in ("target", "copy", "other encoder")}
    file = made["other encoder"] / "model.safetensors"
    weights = load_file(file)
    weights["model.encoder.conv2.bias"] += 1e-4
    save_file(weights, file, {"format": "pt"})
    made["english"] = write_tiny_whisper(folder / "english", is_multilingual=False, seed=1, width=24, num_mels=12)
    return made


@cache
def load_once(target: Path, drafter: Path, dtype: str) -> Any:
    return load(target, drafter=drafter, dtype=dtype)


def open_pipe(folders: dict[str, Path], drafter: str, target: str = "target", dtype: str = "float32") -> Any:
    return load_once(folders[target], folders[drafter], dtype)


def draft_model_of(pipe: WhisperPipeline) -> EncoderDecoderDraftModel:
    draft_model: EncoderDecoderDraftModel = pipe.drafter("lm")
    return draft_model


@pytest.mark.parametrize(
    ("drafter", "method", "least"),
    [("copy", "draft", 2.5), ("other encoder", "draft", 2.5), ("english", "draft", 1.0), ("copy", "draft(width=2)", 2)],
)
@pytest.mark.parametrize("temperature", [0.0, 0.6])
def test_drafted_transcripts_equal_plain_ones(folders, drafter, method, least, temperature):
    pipe = open_pipe(folders, drafter)
    options: dict[str, Any] = {"language": "en", "temperature": temperature, "seed": 7, "condition_on_previous": True}
    plain = pipe((tone(5.3, 3), SAMPLE_RATE), method="ar", **options)
    drafted = pipe((tone(5.3, 3), SAMPLE_RATE), method=method, **options)
    assert drafted.segments == plain.segments
    assert drafted.stats.tokens / drafted.stats.target_passes >= least


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("drafter", ["copy", "english"])
def test_rows_that_join_and_leave_keep_their_sounds(folders, drafter, dtype):
    """Requests join one after the other, each with sound of another length; the copy is right in every row."""
    pipe = open_pipe(folders, drafter, dtype=dtype)
    sounds = [(tone(1.0 + 1.3 * index, index), SAMPLE_RATE) for index in range(4)]
    options: dict[str, Any] = {"language": "en", "temperature": 0.6, "seed": 3}
    alone = [pipe(each, method="ar", **options) for each in sounds]
    requests = [pipe.run(each, method="draft", **options) for each in sounds]
    finish(*requests)
    for request, plain in zip(requests, alone, strict=True):
        assert request.result().segments == plain.segments
        if drafter == "copy" and dtype == "float32":
            stats = request.result().stats
            assert stats.tokens / stats.target_passes > 2


@pytest.mark.parametrize(("drafter", "has_encoder"), [("copy", False), ("other encoder", True), ("english", True)])
def test_equal_encoders_run_once_a_window(folders, drafter, has_encoder):
    pipe = open_pipe(folders, drafter)
    draft_model, calls = draft_model_of(pipe), []
    assert draft_model.has_encoder == has_encoder
    if has_encoder:
        draft_model.model.model.get_encoder().register_forward_hook(lambda *_: calls.append(1))
    options: dict[str, Any] = {"language": "en", "temperature": (0.0, 0.4), "thresholds": NEVER_GOOD}
    request = pipe.run((tone(3.0), SAMPLE_RATE), method="draft", **options)
    finish(request)
    windows = {id(prompt.model_kwargs[ENCODER_INPUT]) for prompt in request.prompts}
    assert len(calls) == has_encoder * len(windows) and 2 <= len(windows) < len(request.prompts)


def test_draft_model_with_other_mel_bands_hears_them(folders):
    """Its encoder's output equals that of transformers for as many mel bands as it has."""
    pipe = open_pipe(folders, "english")
    features = pipe.read_sound((tone(2.0, 5), SAMPLE_RATE))
    given = pipe.encoder_input(features, 0, pipe.window_frames)
    assert given.features.shape[0] == 8
    prompt = PromptInputs(((pipe.control_tokens.start,),), 4, model_kwargs={ENCODER_INPUT: given})
    target = pipe.target()
    network = EncoderDecoderDrafterNetwork(draft_model_of(pipe), target)
    with torch.inference_mode():
        (states,) = network.encoder_states(target.prefill(target.empty_state(), [prompt]))
    model = WhisperForConditionalGeneration.from_pretrained(folders["english"], dtype=torch.float32).eval()
    extractor = WhisperFeatureExtractor.from_pretrained(folders["english"])
    wanted = extractor(tone(2.0, 5), sampling_rate=SAMPLE_RATE, return_tensors="pt").input_features
    with torch.no_grad():
        assert torch.allclose(states, model.get_encoder()(wanted).last_hidden_state[0], atol=1e-4)


def test_features_of_another_pipeline_are_refused(folders):
    pipe, plain = open_pipe(folders, "english"), load(folders["target"], dtype="float32")
    features = plain.read_sound((np.zeros(SAMPLE_RATE, np.float32), SAMPLE_RATE))
    with pytest.raises(InvalidArgument, match="log_mel"):
        pipe.run(features, language="en")
    assert plain.with_drafter(folders["english"]).log_mel == pipe.log_mel != plain.log_mel


def prompts_of(
    folders: dict[str, Path], target: str, drafter: str
) -> tuple[DraftPrompts, ControlTokens, ControlTokens]:
    draft_model = draft_model_of(open_pipe(folders, drafter, target))
    assert isinstance(draft_model.prompt_ids, DraftPrompts)
    prompts = draft_model.prompt_ids
    return prompts, prompts.target, prompts.draft


def test_prompts_for_english_model_have_no_language(folders):
    prompts, target, draft = prompts_of(folders, "target", "english")
    for language, task in (("en", "transcribe"), ("de", "translate")):
        assert prompts(target.prompt(language, task, timestamps=True)) == (draft.start,)
        assert prompts(target.prompt(language, task, timestamps=False)) == (draft.start, draft.no_timestamps)
    assert prompts(target.prompt("en", "transcribe", True, (0, 26, 2))) == (draft.previous, 0, 26, 2, draft.start)
    assert prompts.num_extra_ids == 0


def test_prompts_for_multilingual_model_name_english(folders):
    prompts, target, draft = prompts_of(folders, "english", "target")
    wanted = (draft.start, draft.languages["en"], draft.tasks["transcribe"])
    assert prompts(target.prompt(None, "transcribe", timestamps=True)) == wanted
    assert prompts(target.prompt(None, "transcribe", False, (3, 4)))[-1] == draft.no_timestamps
    assert prompts.num_extra_ids == 2


@pytest.mark.parametrize(("target", "drafter"), [("target", "english"), ("english", "target")])
def test_control_tokens_are_mapped_by_meaning(folders, target, drafter):
    pipe = open_pipe(folders, drafter, target)
    mapping, (prompts, ours, theirs) = draft_model_of(pipe).vocab_mapping, prompts_of(folders, target, drafter)
    assert isinstance(mapping, VocabMapping)
    for token, draft_token in ((ours.end, theirs.end), (ours.first_timestamp + 7, theirs.first_timestamp + 7), (4, 4)):
        assert mapping.input_ids[token] == mapping.logit_ids[token] == draft_token
    for timestamps in (True, False):  # the root is processed with the tokens after it, by the mapping alone
        prompt = ours.prompt(next(iter(ours.languages), None), "transcribe", timestamps)
        assert mapping.input_ids[prompt[-1]] == prompts(prompt)[-1]


def test_longer_prompts_of_drafter_fit_its_context(folders):
    """The drafter's prompts are longer by two ids, so its context ends before the target's."""
    pipe = open_pipe(folders, "target", "english")
    options: dict[str, Any] = {"temperature": 1.0, "thresholds": None, "initial_prompt": "abcdefghijklmnopqrstuvwxyz"}
    sound = (tone(2.0, 1), SAMPLE_RATE)
    plain = pipe(sound, method="ar", **options)
    assert pipe(sound, method="draft(depth=16)", **options).segments == plain.segments
    request = pipe.run(sound, method="draft(depth=16)", **options)
    finish(request)
    pairs = zip(request.prompts, request.rows, strict=True)
    longest = max(len(prompt.branch_token_ids[0]) + len(row.ids) for prompt, row in pairs)
    assert longest == pipe.context_len, "no transcript reaches the end of the context"


def test_model_of_other_windows_is_refused(folders, tmp_path):
    longer = write_tiny_whisper(tmp_path / "longer", window_seconds=3)
    with pytest.raises(UnsupportedMethod, match="the same windows"):
        load(folders["target"], drafter=longer)


def test_model_that_transcribes_drafts_no_other(folders):
    with pytest.raises(UnsupportedMethod, match="transcribes sound and tiny-speech does not"):
        load("tiny-speech", drafter=folders["copy"])


def test_packaged_model_is_drafter_by_name(folders, monkeypatch):
    packaged = PackagedModel("whisper-copy", "transcription", "whisper", "", "MIT", 1, (), "listen", "", version=1)
    monkeypatch.setattr(PackagedModel, "fetch", lambda self: (folders["copy"], {}))
    monkeypatch.setattr(model_card, "find_packaged", lambda name: packaged if name == "whisper-copy" else None)
    pipe = load(folders["target"], drafter="whisper-copy", dtype="float32")
    assert not draft_model_of(pipe).has_encoder
