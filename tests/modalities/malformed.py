"""Mutations of folders that load: copies with one fault each, the same in every run.

    for name, mutate in mutations(folder, seed=0):
        mutate(copy)

A mutation changes a file of a copy; which fields of a configuration it changes follows from the seed.
"""

from __future__ import annotations

import json
import os
import random
import struct
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

Mutation = Callable[[Path], None]
NOT_CHANGED = ("chat_template.jinja", "README.md", "curves.png")
DEEP = "[" * 100_000 + "]" * 100_000
FIELD_VALUES: tuple[Any, ...] = (
    "x", "", -1, 0, 1, 3, 10**12, 2**63, 1.5, float("nan"), float("inf"), None, True, [], [1], {}, {"a": 1}, [None],
    "../x",
)  # fmt: skip
CODE = {"AutoConfig": "evil.Config", "AutoModelForImageTextToText": "evil.Model", "AutoModelForCausalLM": "evil.Model",
        "AutoProcessor": "evil.Processor", "AutoTokenizer": "evil.Tokenizer"}  # fmt: skip


def mutations(folder: Path, seed: int, fields_per_file: int = 8) -> Iterator[tuple[str, Mutation]]:
    """Yield names and functions that damage a copy of `folder` in one way each."""
    rng = random.Random(seed)
    files = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    for file in files:
        if file.name in NOT_CHANGED:
            continue
        kinds = json_mutations if file.suffix == ".json" else weight_mutations
        for name, change in kinds(folder / file, rng, fields_per_file):
            yield f"{file}: {name}", partial(_apply, file, change)
    yield "folder: symlinked files lead elsewhere", _link_outside
    yield "folder: pickles alone", _pickles_alone
    yield "folder: index leads upwards", partial(_write_index, "../other.safetensors")
    yield "folder: index leads nowhere", partial(_write_index, "model-00009.safetensors")
    yield "folder: index names a number", partial(_write_index, 3)
    yield "folder: index is a list", partial(_write_index, None)


def _apply(file: Path, change: Callable[[Path], None], folder: Path) -> None:
    change(folder / file)


def json_mutations(file: Path, rng: random.Random, count: int) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Yield mutations of a JSON file, and of `count` of its fields."""
    text = file.read_text()
    yield "missing", Path.unlink
    yield "empty", partial(_write, b"")
    yield "cut short", partial(_write, text.encode()[: len(text) // 2])
    yield "not UTF-8", partial(_write, b'{"a": "\xff\xfe"}')
    yield "byte-order mark", partial(_write, b"\xef\xbb\xbf" + text.encode())
    yield "a list", partial(_write, b"[1, 2]")
    yield "a string", partial(_write, b'"config"')
    yield "null", partial(_write, b"null")
    yield "no object's fields", partial(_write, b"{}")
    yield "nested deeply", partial(_write, DEEP.encode())
    yield "deep field", partial(_write, f'{{"model_type": {DEEP}}}'.encode())
    yield "a folder", _make_folder
    yield "a loop of links", _make_loop
    whole = json.loads(text)
    if not isinstance(whole, dict):
        return
    yield "duplicated key", partial(_write, (text.rstrip()[:-1] + ', "model_type": 3}').encode())
    yield "extra key", partial(_write, json.dumps(whole | {"extra": {"a": [1]}}).encode())
    yield "code of its own", partial(_write, json.dumps(whole | {"auto_map": CODE}).encode())
    paths = [path for path in field_paths(whole) if "vocab" not in path[:-1] and "vocabulary_map" not in path]
    chosen = rng.sample(paths, min(count, len(paths)))
    for path in sorted(chosen):
        value = rng.choice(FIELD_VALUES)
        label = f"{'.'.join(map(str, path))} = {json.dumps(value)}"
        yield label, partial(_write, json.dumps(replaced(whole, path, value)).encode())
    for path in sorted(rng.sample(paths, min(2, len(paths)))):
        yield f"no {'.'.join(map(str, path))}", partial(_write, json.dumps(replaced(whole, path, ...)).encode())


def field_paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every field of a JSON value; of lists, the first element only."""
    found = [path] if path else []
    if isinstance(value, dict):
        for name, inside in list(value.items())[:60]:
            found += field_paths(inside, (*path, name))
    elif isinstance(value, list) and value:
        found += field_paths(value[0], (*path, 0))
    return found


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """Return a copy of a JSON value with another field; `...` leaves the field out."""
    if not path:
        return new
    made = dict(value) if isinstance(value, dict) else list(value)
    if new is ... and len(path) == 1:
        del made[path[0]]
    else:
        made[path[0]] = replaced(value[path[0]], path[1:], new)
    return made


def weight_mutations(file: Path, rng: random.Random, count: int) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Yield mutations of a safetensors file."""
    yield "missing", Path.unlink
    yield "empty", partial(_write, b"")
    yield "cut short", lambda path: path.write_bytes(path.read_bytes()[:-7]) and None
    yield "head cut short", partial(_write, file.read_bytes()[:20])
    yield "another format", partial(_write, b"GGUF" + bytes(64))
    yield "head of huge length", partial(_write, struct.pack("<Q", 1 << 62) + b"{}")
    yield "a folder", _make_folder
    if file.suffix == ".safetensors":
        yield "tensor missing", partial(_tensors, rng.random(), _drop)
        yield "tensor too many", partial(_tensors, rng.random(), _add)
        yield "tensor turned", partial(_tensors, rng.random(), _turn)
        yield "tensor narrower", partial(_tensors, rng.random(), _narrow)
        yield "whole numbers", partial(_tensors, rng.random(), _integers)
        yield "no numbers", partial(_tensors, rng.random(), _nan)
        yield "tensor without dimensions", partial(_tensors, rng.random(), _scalar)


def _write(content: bytes, path: Path) -> None:
    path.write_bytes(content)


def _make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _make_loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def _tensors(place: float, change: Callable[[dict[str, Any], str], None], path: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = {name: tensor.clone() for name, tensor in load_file(path).items()}
    names = sorted(weights)
    change(weights, names[int(place * len(names))])
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, path, {"format": "pt"})


def _drop(weights: dict[str, Any], name: str) -> None:
    del weights[name]


def _add(weights: dict[str, Any], name: str) -> None:
    weights["extra.weight"] = weights[name].clone()


def _turn(weights: dict[str, Any], name: str) -> None:
    weights[name] = weights[name].flatten()[:, None] if weights[name].ndim < 2 else weights[name].transpose(0, -1)[None]


def _narrow(weights: dict[str, Any], name: str) -> None:
    weights[name] = weights[name].flatten()[:-1]


def _integers(weights: dict[str, Any], name: str) -> None:
    for each in weights:
        weights[each] = weights[each].int()


def _nan(weights: dict[str, Any], name: str) -> None:
    weights[name] = weights[name].float() * float("nan")


def _scalar(weights: dict[str, Any], name: str) -> None:
    weights[name] = weights[name].flatten()[0].clone()


def _link_outside(folder: Path) -> None:
    """Move the weights elsewhere and link to them from the folder."""
    for file in sorted(folder.rglob("*.safetensors")):
        outside = folder.parent / f"outside-{folder.name}-{file.name}"
        os.replace(file, outside)
        file.symlink_to(outside)


def _pickles_alone(folder: Path) -> None:
    for file in sorted(folder.rglob("*.safetensors")):
        file.with_name("pytorch_model.bin").write_bytes(b"\x80\x04cos\nsystem\n(S'touch EXECUTED'\ntR.")
        file.unlink()


def _write_index(name: Any, folder: Path) -> None:
    """Write an index that names the file `name` for the first tensor."""
    from safetensors import safe_open

    file = sorted(folder.rglob("*.safetensors"))[0]
    with safe_open(file, "pt") as opened:
        where: Any = dict.fromkeys(sorted(opened.keys()), file.name)
    where = where | {min(where): name} if name is not None else [1]
    content = json.dumps({"metadata": {"total_size": 1}, "weight_map": where})
    target = file.with_name(f"{file.stem}.safetensors.index.json")
    file.rename(file.with_name(f"{file.stem}-1.safetensors"))
    target.write_text(content.replace(f'"{file.name}"', f'"{file.stem}-1.safetensors"'))
