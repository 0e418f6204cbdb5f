"""Conversion of language models in GGUF files to folders of safetensors, tokenizer and chat template.

    convert(Path("SmolLM2-135M-Instruct.Q4_1.gguf"), Path("smollm2"))

transformers reads the file and unpacks its weights, of which nothing is run.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GgufConfig, PreTrainedConfig
from transformers.utils import logging

from polydraft.core.checks.extras import missing_package_error
from polydraft.core.folders.readers import read_gguf
from polydraft.modalities.checkpoints import write_folder

PACKAGES = ("gguf", "accelerate")  # that transformers reads GGUF files with
# Tokens that end a turn. Files often name only the token that ends a text, which no answer in a chat ends with.
TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eot|>", "<end_of_turn>", "<turn|>", "<|end|>")
READING_OPTIONS = ("is_local", "local_files_only")  # that transformers would write into the tokenizer's settings
README = "README.md"


def convert(file: Path, out: Path, readme: str = "") -> PreTrainedConfig:
    """Convert a GGUF file to the folder `out` in bfloat16, written completely or not at all.

    Args:
        file (Path): the GGUF file.
        out (Path): a folder that does not exist yet.
        readme (str): text of its README.md; empty for none.

    Returns:
        PreTrainedConfig: the model's configuration.

    Raises:
        MissingPackage: a package of the extra `gguf` is not installed.
        WeightsError: the file cannot be read.
        OutputUnwritable: `out` exists, or cannot be written.
    """
    check_packages()
    configs = []
    write_folder(out, lambda folder: configs.append(write_model(file, folder, readme)))
    return configs[0]


def check_packages() -> None:
    """Raise MissingPackage where a package that reads GGUF files is not installed."""
    for package in PACKAGES:
        try:
            import_module(package)
        except ModuleNotFoundError as error:
            raise missing_package_error(package, "reading a GGUF file", "gguf") from error


def write_model(file: Path, folder: Path, readme: str) -> PreTrainedConfig:
    """Write model, tokenizer, chat template and generation config of a GGUF file into `folder`."""
    logging.disable_progress_bar()
    tokenizer = read_gguf("tokenizer", AutoTokenizer, file)
    model = read_gguf(
        "model", AutoModelForCausalLM, file, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    stated = model.generation_config
    model.generation_config = GenerationConfig(
        bos_token_id=stated.bos_token_id, eos_token_id=find_ends(tokenizer, stated.eos_token_id),
        pad_token_id=stated.pad_token_id,
    )  # fmt: skip
    model.save_pretrained(folder)
    for name in READING_OPTIONS:
        tokenizer.init_kwargs.pop(name, None)
    tokenizer.save_pretrained(folder)
    if readme:
        (folder / README).write_text(readme, encoding="utf-8")
    config: PreTrainedConfig = model.config
    return config


def find_ends(tokenizer: Any, configured: int | list[int] | None) -> list[int]:
    """Return the ids that end an answer: the configured ones, and those that end a turn in the chat template.

    Args:
        tokenizer (Any): the transformers tokenizer.
        configured (int | list[int] | None): `eos_token_id` of the file; None is the tokenizer's.
    """
    configured = tokenizer.eos_token_id if configured is None else configured
    ids = [] if configured is None else configured if isinstance(configured, list) else [configured]
    vocabulary, template = tokenizer.get_vocab(), str(tokenizer.chat_template or "")
    return sorted({*ids, *(vocabulary[token] for token in TURN_ENDS if token in template and token in vocabulary)})
