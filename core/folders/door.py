"""The one door through which a model's folder is read: whatever a library raises there becomes one typed sentence.

    with reading("codec", folder):                     # anything may be raised inside
        model = read_model("codec", CodecModel, folder, dtype=torch.float32)
    words = read_tokenizer(folder / "tokenizer.json")

Only this package calls `from_pretrained`, safetensors, tokenizers or json on files of models; a test looks for others.
Nothing of a folder is run, no pickle is opened, and nothing is fetched.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from polydraft.core.errors import MissingPackage, PolydraftError, WeightsError
from polydraft.core.extras import EXTRAS
from polydraft.core.folders.faults import (
    SETTINGS,
    SHARD_INDEX,
    TOKENIZER,
    first_line,
    folder_error,
    index_fault,
)
from polydraft.core.folders.json_files import is_present, read_json, read_settings
from polydraft.core.folders.sizes import CONFIG, check_layers, check_memory
from polydraft.core.folders.weight_files import check_weights

VOCABULARIES = (TOKENIZER, "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")
SAFELY: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}


@contextmanager
def reading(what: str, folder: Path) -> Iterator[None]:
    """Turn whatever is raised inside into a PolydraftError that says what is wrong with the folder.

    A name that is not defined is a mistake of ours and no fault of a folder, and stays what it is.

    Args:
        what (str): what is read, the subject of the sentence.
        folder (Path): where it lies.

    Raises:
        PolydraftError: instead of anything else.
    """
    try:
        yield
    except (PolydraftError, NameError):
        raise
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in EXTRAS:
            raise  # `optional` says what to install
        raise package_needed(error, what, folder) from error
    except ImportError as error:
        raise package_needed(error, what, folder) from error
    except Exception as error:
        raise folder_error(error, what, folder) from error


def package_needed(error: ImportError, what: str, folder: Path) -> MissingPackage:
    """Return the error that reading needs a package that is not installed."""
    return MissingPackage(f"the {what} in {folder} needs another package ({first_line(error)}); install it.")


def read_pretrained(what: str, kind: Any, folder: Path, **options: Any) -> Any:
    """Return what `kind.from_pretrained` makes of a folder: a model, a tokenizer, a processor or a configuration.

    Args:
        what (str): what it is, for errors.
        kind (Any): a class of transformers or diffusers.
        folder (Path): a folder here; nothing is fetched and no code of it is run.
        options (Any): as `from_pretrained` takes them.

    Raises:
        PolydraftError: the folder cannot be read as one.
    """
    safely = SAFELY if not kind.__module__.startswith("diffusers") else {"local_files_only": True}
    check_regular(folder)
    with reading(what, folder):
        if "okenizer" in kind.__name__:
            check_tokenizer(folder)
        return kind.from_pretrained(folder, **safely, **options)


def check_regular(folder: Path) -> None:
    """Check that what is named like a file of settings is one; libraries pass over folders and links to nowhere.

    Raises:
        WeightsError: it is something else.
    """
    for name in SETTINGS:
        if is_present(folder / name) and not (folder / name).is_file():
            read_json(folder / name)


def check_tokenizer(folder: Path) -> None:
    """Check that a folder has the vocabulary of a tokenizer; raise WeightsError where it has none."""
    if not any(is_present(folder / name) for name in VOCABULARIES):
        raise WeightsError(f"{folder} has no {TOKENIZER}; download it.")


def read_tokenizer(file: Path) -> Any:
    """Return the tokenizer in a `tokenizer.json`.

    Raises:
        PolydraftError: it is none.
    """
    from tokenizers import Tokenizer

    with reading("tokenizer", file.parent):
        return Tokenizer.from_file(str(file))


def read_model(what: str, kind: Any, folder: Path, **options: Any) -> Any:
    """Return what `kind.from_pretrained` makes of a folder of safetensors, once it is certain that memory will do.

    Args:
        what (str): what it is, for errors.
        kind (Any): a model's class of transformers or diffusers, or an `Auto…` of transformers.
        folder (Path): holds config.json and weights.
        options (Any): as `from_pretrained` takes them.

    Raises:
        PolydraftError: the folder cannot be read as such a model.
    """
    check_weights(folder)
    read_settings(folder / CONFIG)
    if fault := next(filter(None, map(index_fault, sorted(folder.glob(f"*{SHARD_INDEX}")))), None):
        raise fault
    check_layers(folder)
    if not read_json(folder / CONFIG).get("quantization_config"):  # whose numbers are packed
        check_memory(lambda: described(kind, folder), folder)
    return read_pretrained(what, kind, folder, use_safetensors=True, **options)


def read_pipeline(what: str, kind: Any, folder: Path, **options: Any) -> Any:
    """Return what `kind.from_pretrained` makes of a folder of parts, once none asks for more than its files hold.

    Args:
        what (str): what it is, for errors.
        kind (Any): a pipeline's class of diffusers.
        folder (Path): holds model_index.json, and a folder of each part.
        options (Any): as `from_pretrained` takes them.

    Raises:
        PolydraftError: the folder cannot be read as such a pipeline.
    """
    import diffusers

    for part in sorted(config.parent for config in folder.glob(f"*/{CONFIG}")):
        check_layers(part)
        model = getattr(diffusers, str(read_json(part / CONFIG).get("_class_name")), None)
        if hasattr(model, "load_config"):
            check_memory(partial(described, model, part), part)
    return read_pretrained(what, kind, folder, use_safetensors=True, **options)


def described(kind: Any, folder: Path) -> Any:
    """Return the model that a folder's configuration describes, without its weights."""
    if hasattr(kind, "load_config"):  # of diffusers
        return kind.from_config(kind.load_config(folder, local_files_only=True))
    automatic = not hasattr(kind, "config_class")
    config = read_pretrained("configuration", AutoConfig if automatic else kind.config_class, folder)
    return kind.from_config(config, trust_remote_code=False) if automatic else kind._from_config(config)
