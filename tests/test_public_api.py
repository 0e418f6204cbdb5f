"""What users import: every name is found, typed and documented, and overloads name the class that comes back."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_overloads

import pytest

import polydraft
from polydraft.modalities import loading, model_card
from polydraft.modalities.image.base import ImageOptions, TextToImagePipeline

ROOT = Path(__file__).resolve().parents[1]
INIT = ROOT / "src/polydraft/__init__.py"
DUNDERS = ("__init__", "__call__")  # public methods whose names begin with underscores


def names_for_type_checkers() -> set[str]:
    """Return the names that `polydraft/__init__.py` imports for type checkers alone."""
    tree = ast.parse(INIT.read_text("utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
    return {alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}


def public_callables(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield a function, or the methods and properties of a class that polydraft defines."""
    if inspect.isfunction(value):
        yield name, value
    elif inspect.isclass(value):
        yield name, value
        for attribute, member in inspect.getmembers(value):
            is_public = not attribute.startswith("_") or attribute in DUNDERS
            is_documented = isinstance(member, property) or inspect.isfunction(member)
            if is_public and is_documented and is_ours(member):
                yield f"{name}.{attribute}", member


def is_ours(member: Any) -> bool:
    function = member.fget if isinstance(member, property) else member
    return str(getattr(function, "__module__", "")).startswith("polydraft")


def untyped_parameters(function: Any) -> list[str]:
    """Return the parameters of a function without annotations, and "return" if its result has none."""
    signature = inspect.signature(function)
    names = [
        name
        for name, parameter in signature.parameters.items()
        if name not in ("self", "cls") and parameter.annotation is parameter.empty
    ]
    return names + (["return"] if signature.return_annotation is signature.empty else [])


def lapses(value: Any, name: str) -> list[str]:
    """Return what a public object lacks: annotations and docstrings."""
    found = []
    for label, member in public_callables(value, name):
        function = member.fget if isinstance(member, property) else member
        is_generated = label.endswith(".__init__") and "__dataclass_fields__" in vars(value)
        if not inspect.getdoc(member) and not label.endswith(DUNDERS[0]):
            found.append(f"{label} has no docstring")
        if not inspect.isclass(member) and not is_generated:
            found += [f"{label} has no type of {parameter}" for parameter in untyped_parameters(function)]
    return found


def test_every_public_name_is_found() -> None:
    assert len(set(polydraft.__all__)) == len(polydraft.__all__)
    for name in polydraft.__all__:
        value = getattr(polydraft, name)
        assert getattr(value, "__name__", name) == name


def test_type_checkers_see_every_public_name() -> None:
    assert names_for_type_checkers() == set(polydraft.__all__)
    assert (INIT.parent / "py.typed").is_file()


@pytest.mark.parametrize("name", [name for name in polydraft.__all__ if name != "__version__"])
def test_public_name_is_typed_and_documented(name: str) -> None:
    assert lapses(getattr(polydraft, name), name) == []


def test_planted_lapses_are_found() -> None:
    class Planted:
        """Stand for a class of the package."""

        def draw(self, prompt, seed: int = 0) -> None: ...  # type: ignore[no-untyped-def]

        @property
        def size(self):  # type: ignore[no-untyped-def]
            """Return nothing."""

    for member in (Planted.draw, Planted.size.fget):  # type: ignore[attr-defined]
        member.__module__ = "polydraft.planted"
    assert lapses(Planted, "Planted") == [
        "Planted.draw has no docstring",
        "Planted.draw has no type of prompt",
        "Planted.size has no type of return",
    ]


def test_load_options_are_the_parameters_of_load() -> None:
    parameters = set(inspect.signature(loading.load).parameters)
    assert set(loading.LoadOptions.__annotations__) == parameters - {"name", "modality"}


def test_image_options_are_the_parameters_of_run() -> None:
    parameters = set(inspect.signature(TextToImagePipeline.run).parameters)
    assert set(ImageOptions.__annotations__) == parameters - {"self", "prompt"}


def literals(annotation: str) -> tuple[str, ...]:
    """Return the strings of a `Literal[…]` in an annotation."""
    match = re.search(r"Literal\[[^]]*\]", annotation)
    return get_args(eval(match[0], {"Literal": __import__("typing").Literal})) if match else ()


def test_overloads_name_the_class_of_every_pipeline() -> None:
    names, modalities = set(), set()
    for overload in get_overloads(loading.load):
        annotations = overload.__annotations__
        promised = getattr(polydraft, annotations["return"].partition("[")[0])
        for name in literals(annotations["name"]):
            names.add(name)
            assert issubclass(class_of(name), promised)
        for modality in literals(annotations["modality"]):
            modalities.add(modality)
            for pipeline in pipelines_of(modality):
                assert literals(annotations["name"]) or issubclass(pipeline, promised)
    embedded = {card.name for card in model_card.embedded_models()}
    assert names == embedded | set(model_card.PACKAGED) and modalities == set(model_card.PIPELINES)


def class_of(name: str) -> type:
    """Return the pipeline class of an embedded or packaged model."""
    packaged = model_card.PACKAGED.get(name)
    card = model_card.load_card(name) if packaged is None else model_card.packaged_card(packaged)
    return load_class(*card.pipeline)


def pipelines_of(modality: str) -> list[type]:
    """Return all pipeline classes of a modality."""
    homes = {model_card.PIPELINES[modality], *model_card.FAMILY_PIPELINES.values()}
    homes |= {model_card.TEXT_PIPELINE, *model_card.LATENT_PIPELINES.values()}
    room = {"vlm": ("vlm", "text")}.get(modality, (modality,))
    return [load_class(module, name) for module, name in sorted(homes) if module.split(".")[2] in room]


def load_class(module: str, name: str) -> type:
    found: type = getattr(__import__(module, fromlist=[name]), name)
    return found
