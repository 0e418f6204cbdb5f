"""From rendered shards to codes to batches to a language model, small; what each code is said for."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from polydraft.apps.lab.recipes.assemble import assemble
from polydraft.apps.lab.recipes.speech import drafters, target, target_samples, tiny
from polydraft.apps.lab.recipes.speech.codes import LENGTHS, NO_SYMBOL, CodedSpeech, encode_shard
from polydraft.apps.lab.recipes.speech.corpus.data import load_shard
from polydraft.apps.lab.recipes.speech.corpus.flite import VOICES
from polydraft.apps.lab.recipes.speech.sound import codec as codecs
from polydraft.apps.lab.recipes.speech.sound import gate
from polydraft.apps.lab.recipes.speech.sound.analysed_speech import AnalysedSpeech
from polydraft.apps.lab.recipes.speech.sound.analysis import analyse, analyse_shard
from polydraft.apps.lab.recipes.speech.sound.gate import CodecGate
from polydraft.apps.lab.recipes.speech.sound.spectra import render_frames, spectral_distance
from polydraft.apps.lab.recipes.speech.tiny import training_jobs
from polydraft.apps.lab.training.checkpoint import load_curve, save
from polydraft.core.distillation.examples import Examples
from polydraft.core.errors import InvalidArgument
from polydraft.modalities.loading import load
from polydraft.modalities.speech import vocabulary
from polydraft.modalities.speech.codecs.tiny import REFERENCE_PITCH, SAMPLES_PER_CODE, CodecConfig, SpeechCodec
from polydraft.modalities.speech.codecs.vocoder import VocoderFrames
from polydraft.modalities.speech.text.lexicon import LETTERS, SYMBOLS, sentence_symbols

SENTENCES = (["we", "meet", "again", "."], ["yes", ",", "a", "cat", "."], ["good", "morning", "!"])
ROWS = 40


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "target"
    folder.mkdir()
    vocabulary.build_tokenizer(list(VOICES), list(SYMBOLS), CodecConfig().codebook_size).save(
        str(folder / "tokenizer.json")
    )
    return folder


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write noise for sentences, a tenth of a second per symbol after a fifth of silence."""
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("speech") / "shard-00000.npz"
    utterances = [SENTENCES[row % len(SENTENCES)] for row in range(ROWS)]
    counts = [len(sentence_symbols(sentence)) for sentence in utterances]
    times = [np.stack([0.2 + 0.1 * np.arange(n), 0.3 + 0.1 * np.arange(n)], 1).astype(np.float32) for n in counts]
    sound = [(rng.normal(size=int(16000 * (0.3 + 0.1 * n))) * 3000).astype(np.int16) for n in counts]
    np.savez(
        path, samples=np.concatenate(sound), sample_ends=np.cumsum([len(one) for one in sound]),
        times=np.concatenate(times), time_ends=np.cumsum(counts), voices=np.arange(ROWS, dtype=np.uint8) % 4,
        sentences=np.array([" ".join(sentence) for sentence in utterances]),
    )  # fmt: skip
    return path


@pytest.fixture(scope="module")
def coded(shard: Path, tokenizer: Path) -> Path:
    torch.manual_seed(0)
    words: Tokenizer = vocabulary.load_tokenizer(tokenizer)
    folder = tokenizer.parent / "coded"
    folder.mkdir()
    encode_shard(shard, SpeechCodec(CodecConfig(width=16)).eval(), words, folder / shard.name, seed=1)
    return folder


def test_sample_batch_labels_spoken_symbols(coded: Path, tokenizer: Path):
    words = vocabulary.load_tokenizer(tokenizer)
    letters = frozenset(vocabulary.id_of(words, letter) for letter in LETTERS)
    offset = vocabulary.code_offset(words)
    data = CodedSpeech(coded, letters, offset, num_held_out=8)
    assert len(data.held_out) == 4 and not set(data.held_out) & set(data.train) and len(data.train) == ROWS - 4
    batch = data.sample_batch(np.random.default_rng(0), tokens=4 * LENGTHS[0])
    assert batch.ids.shape == (4, LENGTHS[0])
    for ids, judged, part, spoken in zip(batch.ids, batch.judged, batch.symbol_index, batch.spoken_symbol, strict=True):
        begun = int((ids == vocabulary.START).nonzero())
        end = int((ids == vocabulary.END).nonzero())
        assert judged.nonzero().squeeze(-1).tolist() == list(range(begun, end))
        assert (ids[begun + 1 : end] >= offset).all() and (ids[:begun] < offset).all()
        assert (part[1:begun] != NO_SYMBOL).all() and part[0] == part[begun] == NO_SYMBOL
        assert (spoken[begun : begun + 10] == NO_SYMBOL).all()  # a fifth of a second of silence
        utterances = spoken[begun + 10 : end - 1]
        assert (utterances[utterances != NO_SYMBOL].diff() >= 0).all() and set(utterances.tolist()) - {
            NO_SYMBOL
        } <= set(part.tolist())
        for place in range(1, begun):  # five codes of 20 ms a symbol, but a spelled word lasts as long as its phones
            if int(ids[place]) not in letters:
                assert int((spoken == part[place]).sum()) == 5


@pytest.fixture
def runs(coded: Path, tmp_path: Path) -> Path:
    """Return a folder with encoded speech, its vocabulary and an untrained codec, as `polydraft train tiny-speech`."""
    torch.manual_seed(1)
    for name in ("coded", "target"):
        shutil.copytree(coded.parent / name, tmp_path / "runs" / name)
    (tmp_path / "runs" / "codec").mkdir()
    save(SpeechCodec(CodecConfig(width=16)), tmp_path / "runs" / "codec")
    return tmp_path / "runs"


SMALL: dict[str, Any] = {"tokens": 2 * LENGTHS[0], "width": 32, "layers": 6, "eager": True, "anyway": True}


def test_target_run_trains_and_continues(runs: Path, capsys: pytest.CaptureFixture[str]):
    kept = []
    for again in (False, True):
        target.run(runs, 0.03, again=again, **SMALL)
        kept.append(load_file(runs / "target" / "heads" / "model.safetensors"))
    assert not any(torch.equal(kept[0][name], kept[1][name]) for name in kept[0]), (
        "heads that were found are trained on"
    )
    assert (runs / "target" / "model.safetensors").exists()
    utterances = capsys.readouterr().out
    assert "parameters" in utterances and re.search(r"held-out loss \d.*entropy \d", utterances)


def test_target_run_finished_is_not_repeated(runs: Path, capsys: pytest.CaptureFixture[str]):
    for _ in range(2):
        target.run(runs, 0.02, **SMALL)
        before = (runs / "target" / "model.safetensors").stat().st_mtime_ns
    assert "has had its 0.02 minutes" in capsys.readouterr().out
    assert (runs / "target" / "model.safetensors").stat().st_mtime_ns == before


def test_target_run_requires_passed_gate(runs: Path, capsys: pytest.CaptureFixture[str]):
    """Training is refused without a result, with a failed one, and with one of other weights."""
    rates = dict.fromkeys(VOICES, 0.1)
    good = CodecGate(rates, rates | {"awb": 0.13}, 100, gate.weights_hash(runs / "codec"))
    refused = {
        "nothing is known": None, "not passed, slt pays 0.060": replace(good, codec=rates | {"slt": 0.16}),
        "of the codec in": replace(good, of="another"),
    }  # fmt: skip
    for reason, found in refused.items():
        if found is not None:
            (runs / "codec" / gate.FILE).write_text(json.dumps(vars(found)))
        with pytest.raises(InvalidArgument, match=reason):
            target.run(runs, 0.01, **SMALL | {"anyway": False})
        gate.check_gate(runs / "codec", anyway=True)
    (runs / "codec" / gate.FILE).write_text(json.dumps(vars(good)))
    gate.check_gate(runs / "codec", anyway=False)
    assert "awb 0.100 → 0.130, kal16 0.100 → 0.100; passed" in capsys.readouterr().out.splitlines()[-1]


def test_add_dropout_acts_in_training_only(runs: Path):
    torch.manual_seed(2)
    shape = LlamaConfig(vocab_size=8, hidden_size=32, num_hidden_layers=2, intermediate_size=64, num_attention_heads=1)
    model, ids = LlamaForCausalLM(shape), torch.arange(8)[None]
    plain = model.eval()(ids).logits
    target.add_dropout(model, 0.5)
    assert model(ids).logits.equal(plain) and not model.train()(ids).logits.equal(plain)


def test_assembled_model_synthesises_speech(runs: Path, tmp_path: Path):
    target.run(runs, 0.01, **SMALL)
    assemble(runs, tmp_path / "model")
    spoken = load(str(tmp_path / "model"), dtype="float32", modality="speech")("Yes.", voice="awb", seed=1)
    assert spoken.finish_reason in ("eos", "length", "loop") and len(spoken.audio) == SAMPLES_PER_CODE * len(
        spoken.tokens
    )


@pytest.mark.thorough
def test_drafters_alternate_speech_and_target_samples(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("polydraft.apps.data.built_in_prompts.ROWS", 2)
    monkeypatch.setattr("polydraft.apps.train.evaluation.LONGEST", 4)
    target.run(runs, 0.01, **SMALL)
    assemble(runs, runs / "model")
    assert target_samples.run(runs, 3, minutes=1.0) == 4 == target_samples.run(runs, 3, minutes=1.0)
    before = sorted((runs / "samples").glob("taught-*"))
    examples, yielded_batches = CodedSpeech.examples, list[Examples]()

    def counting_examples(coded: CodedSpeech, *given: Any) -> Iterator[Examples]:
        for batch in examples(coded, *given):
            yielded_batches.append(batch)
            yield batch

    monkeypatch.setattr(CodedSpeech, "examples", counting_examples)
    ticks = count()  # a clock that knows no slow machines: steps are as many everywhere
    monkeypatch.setattr("polydraft.core.distillation.distill.time", SimpleNamespace(monotonic=lambda: next(ticks) / 10))
    steps = drafters.run("heads", runs, 0.05).steps
    assert steps > 1 and len(yielded_batches) == steps // 2
    assert (runs / "drafter-heads" / "model.safetensors").exists()
    assert sorted((runs / "samples").glob("taught-*")) == before


def test_training_jobs_are_deterministic_and_alternate_voices():
    first = list(islice(training_jobs(3), 8))
    assert first == list(islice(training_jobs(3), 8)) and [job.voice for job in first] == [*VOICES, *VOICES]
    assert len({tuple(job.sentence) for job in first}) == 8 and all(job.sentence for job in first)


@pytest.fixture(scope="module")
def analysed(shard: Path) -> Path:
    pytest.importorskip("pyworld", reason="pyworld measures the voices that training starts from, and is not installed")
    folder = shard.parent / "analysed"
    folder.mkdir()
    analyse_shard(shard, folder / "shard-00000.safetensors")
    return folder


def test_analysed_speech_restores_quantised_values(shard: Path, analysed: Path):
    data, utterances = AnalysedSpeech(analysed), load_shard(shard)
    assert data.counts.tolist() == [len(one.samples) // SAMPLES_PER_CODE for one in utterances]
    row, codes = 3, int(data.counts[3])
    piece = data.pieces([row], np.zeros(1, int), codes)
    pitch, voiced, envelope, noise = (
        torch.from_numpy(x)[: 4 * codes] for x in analyse(utterances[row].samples / 32768)
    )
    sound = torch.from_numpy(utterances[row].samples[: codes * SAMPLES_PER_CODE]) / 32768
    assert piece.sound[0].allclose(sound) and piece.voice.tolist() == [VOICES.index(utterances[row].voice)]
    assert (piece.frames.envelope[0] - envelope).abs().max() < 0.06
    assert (piece.frames.noise[0] - noise).abs().max() < 0.003
    assert (piece.frames.pitch[0] - (pitch / REFERENCE_PITCH).log()).abs().max() < 0.001
    assert piece.voiced[0].bool().equal(voiced) and set(piece.phones[0].tolist()) <= set(range(len(SYMBOLS)))
    assert piece.judged.all()


def test_pieces_score_edges_of_utterance(analysed: Path):
    data = AnalysedSpeech(analysed)
    count, codes = int(data.counts[0]), 12
    counting_examples = data.pieces([0, 0, 0], np.array([0, 2, count - codes]), codes).judged[:, ::4].int().tolist()
    assert counting_examples == [[1] * 8 + [0] * 4, [0] * 4 + [1] * 4 + [0] * 4, [0] * 4 + [1] * 8]


def test_codec_run_trains_and_resumes(
    analysed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(codecs, "CODES", 16)
    monkeypatch.setattr(codecs, "ROWS", 4)
    monkeypatch.setattr(codecs, "JUDGE_EVERY", 10)
    shape = CodecConfig(width=16, ahead=(1, 0), view=2)
    for minutes in (0.03, 0.05, 0.05):
        codecs.run(analysed, tmp_path, minutes, config=shape)
    curve = load_curve(tmp_path)
    assert [place["seconds"] for place in curve] == sorted(place["seconds"] for place in curve)
    assert "has had its 0.05 minutes" in capsys.readouterr().out
    assert SpeechCodec.from_folder(tmp_path).config == shape
    codes = SpeechCodec.from_folder(tmp_path).encode(torch.ones(1, 10 * SAMPLES_PER_CODE) / 3)
    codecs.run(analysed, tmp_path, 0.03, decoder=True, often=codecs.OFTEN)
    assert SpeechCodec.from_folder(tmp_path).encode(torch.ones(1, 10 * SAMPLES_PER_CODE) / 3).equal(codes)
    with pytest.raises(InvalidArgument, match="no codec whose decoder"):
        codecs.run(analysed, tmp_path / "other", 0.01, decoder=True)


def test_tiny_run_all_stages(shard: Path, analysed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """From rendered and analysed speech to a model that drafts; it stops where the codec is not intelligible."""

    def in_this_process(module: str, tokens: int, share: str, *arguments: object) -> None:
        assert module == target.__name__ and share == "--tokens" and "--anyway" in arguments
        given = dict(zip(arguments[::2], arguments[1::2], strict=False))
        target.run(given["--runs"], given["--minutes"], given["--seed"], **SMALL)

    def deaf(folder: Path, each: int) -> CodecGate:
        rates = dict.fromkeys(VOICES, 0.1)
        found = CodecGate(rates, rates | {"rms": 0.3}, 5 * each, gate.weights_hash(folder))
        (folder / gate.FILE).write_text(json.dumps(vars(found)))
        return found

    for name, value in (("CODES", 16), ("ROWS", 4)):
        monkeypatch.setattr(codecs, name, value)
    monkeypatch.setattr("polydraft.apps.data.built_in_prompts.ROWS", 2)
    monkeypatch.setattr("polydraft.apps.train.evaluation.LONGEST", 4)
    monkeypatch.setattr(tiny, "render_speech", lambda *_: [shard])
    monkeypatch.setattr(tiny, "analyse_speech", lambda _, out: shutil.copytree(analysed, out, dirs_exist_ok=True))
    monkeypatch.setattr(tiny, "launch_on_all_cores", in_this_process)
    monkeypatch.setattr(gate, "run", deaf)
    with pytest.raises(InvalidArgument, match="rms pays 0.200"):
        tiny.run(tmp_path, 0.05, sentences=100)
    assert not (tmp_path / "coded").exists()
    tiny.run(tmp_path, 0.05, sentences=100, anyway=True)
    kinds = {path.name for path in (tmp_path / "model").glob("drafter-*")}
    assert kinds == {f"drafter-{kind}" for kind in drafters.KINDS}
    utterances = load(str(tmp_path / "model"), dtype="float32", modality="speech")
    tokens = [utterances("Yes.", voice="awb", seed=1, speculative=drafted).tokens for drafted in (True, False)]
    assert tokens[0].equal(tokens[1])


def test_spectral_distance_gradient_reaches_envelope():
    """True frames are nearer to their own audio than louder ones, and the gradient points there, at the edges too."""
    count = 60
    pitch = torch.full((1, count), 0.1)
    noise, envelope = torch.full((1, count, 5), 0.1), torch.full((1, count, 64), -6.0)
    true = render_frames(VocoderFrames(pitch, envelope, noise), pitch)
    judged = torch.ones(1, count)
    guess = (envelope + 1).requires_grad_()
    apart = spectral_distance(render_frames(VocoderFrames(pitch, guess, noise), pitch), true, judged)
    apart.backward()
    assert 3.5 < apart.item() < 5 and guess.grad is not None  # a neper of power is 4.3 dB
    assert guess.grad.isfinite().all() and (guess.grad.sum(-1) > 0)[0, 4:-4].all()
    assert float(spectral_distance(true, true, judged)) == 0
    half = torch.cat([torch.ones(1, 30), torch.zeros(1, 30)], 1)
    late = torch.where(torch.arange(count * 80) < 2400, true, 0.5)
    assert float(spectral_distance(late, true, half)) == 0


def test_conditional_bits_of_constant_and_random_codes():
    codec = SpeechCodec(CodecConfig(width=16, levels=(3, 3)))
    generator = torch.Generator().manual_seed(0)
    constant = torch.randint(9, (64, 1), generator=generator).expand(64, 50)
    free = torch.randint(9, (64, 500), generator=generator)
    assert codecs.conditional_bits(codec, constant) == 0 and 3.1 < codecs.conditional_bits(codec, free) < 3.18
