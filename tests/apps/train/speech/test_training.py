"""From rendered shards to codes to batches to a language model, small; what each code is said for."""

from __future__ import annotations

import shutil
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from polydraft.apps.train.assemble import assemble
from polydraft.apps.train.checkpoint import save
from polydraft.apps.train.speech import target
from polydraft.apps.train.speech.codes import LENGTHS, NOTHING, Coded, code
from polydraft.apps.train.speech.flite import VOICES
from polydraft.apps.train.speech.tiny import jobs
from polydraft.modalities.loading import load
from polydraft.modalities.speech import vocabulary
from polydraft.modalities.speech.codecs.tiny import SAMPLES, CodecConfig, SpeechCodec
from polydraft.modalities.speech.text.lexicon import LETTERS, SYMBOLS, symbols

SENTENCES = (["we", "meet", "again", "."], ["yes", ",", "a", "cat", "."], ["good", "morning", "!"])
ROWS = 40


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    vocabulary.build(list(VOICES), list(SYMBOLS), CodecConfig().codebook_size).save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Noise said for sentences, a tenth of a second a symbol after a fifth of silence."""
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("speech") / "shard-00000.npz"
    said = [SENTENCES[row % len(SENTENCES)] for row in range(ROWS)]
    counts = [len(symbols(sentence)) for sentence in said]
    times = [np.stack([0.2 + 0.1 * np.arange(n), 0.3 + 0.1 * np.arange(n)], 1).astype(np.float32) for n in counts]
    sound = [(rng.normal(size=int(16000 * (0.3 + 0.1 * n))) * 3000).astype(np.int16) for n in counts]
    np.savez(
        path, samples=np.concatenate(sound), sample_ends=np.cumsum([len(one) for one in sound]),
        times=np.concatenate(times), time_ends=np.cumsum(counts), voices=np.arange(ROWS, dtype=np.uint8) % 4,
        sentences=np.array([" ".join(sentence) for sentence in said]),
    )  # fmt: skip
    return path


@pytest.fixture(scope="module")
def coded(shard: Path, tokenizer: Path) -> Path:
    torch.manual_seed(0)
    words: Tokenizer = vocabulary.load(tokenizer)
    folder = shard.parent / "coded"
    folder.mkdir()
    code(shard, SpeechCodec(CodecConfig(width=16)).eval(), words, folder / shard.name, seed=1)
    return folder


def test_batches_say_what_every_code_is_said_for(coded: Path, tokenizer: Path):
    words = vocabulary.load(tokenizer)
    letters = frozenset(vocabulary.id_of(words, letter) for letter in LETTERS)
    offset = vocabulary.code_offset(words)
    data = Coded(coded, letters, offset, held=8)
    assert len(data.held_out) == 4 and not set(data.held_out) & set(data.train) and len(data.train) == ROWS - 4
    batch = data.batch(np.random.default_rng(0), tokens=4 * LENGTHS[0])
    assert batch.ids.shape == (4, LENGTHS[0])
    for ids, judged, part, spoken in zip(batch.ids, batch.judged, batch.part, batch.spoken, strict=True):
        begun = int((ids == vocabulary.START).nonzero())
        end = int((ids == vocabulary.END).nonzero())
        assert judged.nonzero().squeeze(-1).tolist() == list(range(begun, end))
        assert (ids[begun + 1 : end] >= offset).all() and (ids[:begun] < offset).all()
        assert (part[1:begun] != NOTHING).all() and part[0] == part[begun] == NOTHING
        assert (spoken[begun : begun + 10] == NOTHING).all()  # a fifth of a second of silence
        said = spoken[begun + 10 : end - 1]
        assert (said[said != NOTHING].diff() >= 0).all() and set(said.tolist()) - {NOTHING} <= set(part.tolist())
        for place in range(1, begun):  # five codes of 20 ms a symbol, but a spelled word lasts as long as its phones
            if int(ids[place]) not in letters:
                assert int((spoken == part[place]).sum()) == 5


def test_a_language_model_learns_from_them_and_is_found_again(
    coded: Path, tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    kept = []
    for _ in range(2):
        target.run(coded, tokenizer, tmp_path, 0.03, tokens=2 * LENGTHS[0], width=32, layers=6, eager=True)
        kept.append(load_file(tmp_path / "heads" / "model.safetensors"))
    assert not any(torch.equal(kept[0][name], kept[1][name]) for name in kept[0]), (
        "heads that were found are trained on"
    )
    assert (tmp_path / "model.safetensors").exists() and "parameters" in capsys.readouterr().out
    assert (tmp_path / "heads" / "model.safetensors").exists()


def test_parts_become_a_model_that_speaks(coded: Path, tokenizer: Path, tmp_path: Path):
    torch.manual_seed(1)
    runs = tmp_path / "runs"
    (runs / "codec").mkdir(parents=True)
    save(SpeechCodec(CodecConfig(width=16)), runs / "codec")
    shutil.copytree(tokenizer, runs / "target")
    target.run(coded, tokenizer, runs / "target", 0.01, tokens=LENGTHS[0], width=32, layers=6, eager=True)
    assemble(runs, tmp_path / "model")
    spoken = load(str(tmp_path / "model"), dtype="float32", modality="speech")("Yes.", voice="awb", seed=1)
    assert spoken.finish_reason in ("eos", "length", "loop") and len(spoken.audio) == SAMPLES * len(spoken.tokens)


def test_sentences_take_voices_in_turns_and_are_the_same_again():
    first = list(islice(jobs(3), 8))
    assert first == list(islice(jobs(3), 8)) and [job.voice for job in first] == [*VOICES, *VOICES]
    assert len({job.seed for job in first}) == 8 and all(job.sentence for job in first)


def test_a_frame_of_silence_has_a_pitch_too(shard: Path, tmp_path: Path):
    pytest.importorskip("pyworld", reason="pyworld measures the voices that training starts from, and is not installed")
    from polydraft.apps.train.speech.analysis import measure

    measure(shard, tmp_path / "measured.npz")
    found = np.load(tmp_path / "measured.npz")
    assert found["lengths"].sum() == len(found["audio"]) and (found["lengths"] % SAMPLES == 0).all()
    assert found["params"].shape == (len(found["audio"]) // 80, 71) and np.isfinite(found["params"]).all()
