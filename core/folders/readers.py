"""Load models, tokenizers and configurations from folders; library exceptions become typed one-sentence errors.

    with convert_load_errors("codec", folder):         # anything may be raised inside
        model = read_model("codec", CodecModel, folder, dtype=torch.float32)
    tokenizer = read_tokenizer(folder / "tokenizer.json")

Only this package calls `from_pretrained`, safetensors, tokenizers or json on model files; a test checks that. No code
in a folder is run, no pickle is opened, and nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from polydraft.core.checks.extras import EXTRAS
from polydraft.core.checks.system_errors import system_error
from polydraft.core.errors import MissingPackage, PolydraftError, WeightsError
from polydraft.core.folders.diagnosis import (
    SETTINGS,
    SHARD_INDEX,
    TOKENIZER,
    first_line,
    folder_error,
    weight_index_error,
)
from polydraft.core.folders.json_files import is_present, read_json, read_settings
from polydraft.core.folders.sizes import CONFIG, check_layers, check_memory
from polydraft.core.folders.weight_files import check_weights

VOCABULARY_FILES = (TOKENIZER, "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")
GGUF_MAGIC = b"GGUF"
SAFE_OPTIONS: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}


@contextmanager
def convert_load_errors(noun: str, folder: Path) -> Iterator[None]:
    """Convert any exception raised inside the block to a PolydraftError that says what is wrong with the folder.

    A NameError is a bug of ours, no fault of the folder, and passes unchanged.

    Args:
        noun (str): Kind of thing that is loaded, such as "tokenizer", for the message.
        folder (Path): Where it is.

    Raises:
        PolydraftError: In place of any other exception.
    """
    try:
        yield
    except (PolydraftError, NameError):
        raise
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in EXTRAS:
            raise  # an optional dependency of this package, whose own message names the extra to install
        raise missing_package_error(error, noun, folder) from error
    except ImportError as error:
        raise missing_package_error(error, noun, folder) from error
    except Exception as error:
        raise folder_error(error, noun, folder) from error


def missing_package_error(error: ImportError, noun: str, folder: Path) -> MissingPackage:
    """Return the error for a folder that needs a package that is not installed; `noun` says what is in the folder."""
    return MissingPackage(f"the {noun} in {folder} needs another package ({first_line(error)}); install it.")


def read_pretrained(noun: str, pretrained_class: Any, folder: Path, **options: Any) -> Any:
    """Return `pretrained_class.from_pretrained(folder)`: a model, a tokenizer, a processor or a configuration.

    Args:
        noun (str): Kind of thing that is loaded, such as "tokenizer", for errors.
        pretrained_class (Any): A class of transformers or diffusers.
        folder (Path): A local folder; nothing is downloaded and no code in it is run.
        options (Any): Further arguments of `from_pretrained`.

    Raises:
        PolydraftError: The folder cannot be loaded.
    """
    is_diffusers = pretrained_class.__module__.startswith("diffusers")  # which has no `trust_remote_code`
    safe_options = {"local_files_only": True} if is_diffusers else SAFE_OPTIONS
    check_settings_are_files(folder)
    with convert_load_errors(noun, folder):
        if "okenizer" in pretrained_class.__name__:  # such as AutoTokenizer
            check_tokenizer(folder)
        return pretrained_class.from_pretrained(folder, **safe_options, **options)


def read_gguf(noun: str, pretrained_class: Any, file: Path, **options: Any) -> Any:
    """Return `pretrained_class.from_pretrained` of a GGUF file: a model or a tokenizer.

    Args:
        noun (str): Kind of thing that is read, such as "tokenizer", for errors.
        pretrained_class (Any): An `Auto…` class of transformers.
        file (Path): Local file; nothing is downloaded and no code is run.
        options (Any): Further arguments of `from_pretrained`.

    Raises:
        WeightsError: The file is not there, is no GGUF file, or is of an architecture that transformers does not read.
        PolydraftError: The system refuses, such as memory that is too small.
    """
    try:
        with file.open("rb") as opened:
            if opened.read(len(GGUF_MAGIC)) != GGUF_MAGIC:
                raise WeightsError(f"{file} is no GGUF file; give one, or download it again.")
        return pretrained_class.from_pretrained(file.parent, gguf_file=file.name, **SAFE_OPTIONS, **options)
    except (PolydraftError, NameError):
        raise
    except (FileNotFoundError, IsADirectoryError) as error:
        raise WeightsError(f"{file} is no file; give a GGUF file.") from error
    except Exception as error:
        raise system_error(error, f"the {noun} in {file} cannot be read") or WeightsError(
            f"the {noun} in {file} cannot be read ({first_line(error)}); use a whole GGUF file of an architecture that "
            "transformers reads, such as Llama."
        ) from error


def check_settings_are_files(folder: Path) -> None:
    """Check that settings files are regular files; libraries silently ignore folders and dangling links.

    Raises:
        WeightsError: One is something else.
    """
    for name in SETTINGS:
        if is_present(folder / name) and not (folder / name).is_file():
            read_json(folder / name)  # raises the error that says what it is


def check_tokenizer(folder: Path) -> None:
    """Check that a folder has a vocabulary file of a tokenizer, one of VOCABULARY_FILES.

    Raises:
        WeightsError: It has none.
    """
    if not any(is_present(folder / name) for name in VOCABULARY_FILES):
        raise WeightsError(f"{folder} has no {TOKENIZER}; download it.")


def read_tokenizer(file: Path) -> Any:
    """Return the tokenizer in a `tokenizer.json`.

    Raises:
        PolydraftError: The file cannot be loaded.
    """
    from tokenizers import Tokenizer

    with convert_load_errors("tokenizer", file.parent):
        return Tokenizer.from_file(str(file))


def read_model(noun: str, model_class: Any, folder: Path, **options: Any) -> Any:
    """Return a model from a folder of safetensors, after checking that it is no larger than its files.

    Args:
        noun (str): Kind of model, such as "codec", for errors.
        model_class (Any): A model class of transformers or diffusers, or an `Auto…` class of transformers.
        folder (Path): Holds config.json and weights.
        options (Any): Further arguments of `from_pretrained`.

    Raises:
        PolydraftError: The folder cannot be loaded as such a model.
    """
    check_weights(folder)
    read_settings(folder / CONFIG)
    if error := next(filter(None, map(weight_index_error, sorted(folder.glob(f"*{SHARD_INDEX}")))), None):
        raise error
    check_layers(folder)
    if not read_json(folder / CONFIG).get("quantization_config"):  # quantised files hold fewer, packed numbers
        check_memory(lambda: build_from_config(model_class, folder), folder)
    return read_pretrained(noun, model_class, folder, use_safetensors=True, **options)


def read_pipeline(noun: str, pipeline_class: Any, folder: Path, **options: Any) -> Any:
    """Return a diffusers pipeline, after checking that no component is larger than its files.

    Args:
        noun (str): Kind of pipeline, for errors.
        pipeline_class (Any): A pipeline class of diffusers.
        folder (Path): Holds model_index.json, and a folder per component.
        options (Any): Further arguments of `from_pretrained`.

    Raises:
        PolydraftError: The folder cannot be loaded as such a pipeline.
    """
    import diffusers

    # folders of components that are models: schedulers and tokenizers have no config.json
    for component in sorted(config.parent for config in folder.glob(f"*/{CONFIG}")):
        check_layers(component)
        model_class = getattr(diffusers, str(read_json(component / CONFIG).get("_class_name")), None)
        if hasattr(model_class, "load_config"):
            check_memory(partial(build_from_config, model_class, component), component)
    return read_pretrained(noun, pipeline_class, folder, use_safetensors=True, **options)


def build_from_config(model_class: Any, folder: Path) -> Any:
    """Return the model that a folder's configuration describes, with random weights.

    `model_class` is a model class of diffusers or transformers, or an `Auto…` class of transformers.
    """
    if hasattr(model_class, "load_config"):  # diffusers
        return model_class.from_config(model_class.load_config(folder, local_files_only=True))
    is_auto_class = not hasattr(model_class, "config_class")
    config = read_pretrained("configuration", AutoConfig if is_auto_class else model_class.config_class, folder)
    if is_auto_class:
        return model_class.from_config(config, trust_remote_code=False)
    return model_class._from_config(config)
