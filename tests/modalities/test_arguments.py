"""Public functions and odd values of every argument: each works, or is refused in one typed sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import polydraft
from polydraft.apps.batch import jobs
from polydraft.core.checks.arguments import format_value
from polydraft.core.errors import InvalidArgument, PolydraftError, PromptError, UnknownMethod
from polydraft.core.methods.kinds import REGISTRIES, parse
from polydraft.core.sampling.context import GenerationContext
from polydraft.core.sampling.params import RepetitionAware, SamplingParams, SamplingTensors
from polydraft.core.sampling.sampler import Sampler
from polydraft.modalities import loading
from polydraft.modalities.image.request import ImageStream
from polydraft.modalities.loading import check_model, load
from polydraft.modalities.model_card import load_card
from polydraft.modalities.request import GenerationStream
from polydraft.modalities.speech.request import SpeechStream
from polydraft.modalities.vlm.request import ChatStream

ODD: list[Any] = [
    None, True, -1, 3, 10**30, 10**5000, 2.5, float("nan"), float("inf"), -float("inf"), 1e300, 5e-324, "", "x",
    "x" * 100_000, "a\0b", "~x", "\ud800", b"x", [], [1], ["x"], {}, {"a": 1}, {1}, (), object(), np.int64(3),
    np.uint8(3), np.float32(0.5), np.bool_(True), np.array([1, 2]), np.array(3), torch.tensor(2), torch.tensor([1, 2]),
    torch.float32, torch.device("cpu"), Path("tiny-image"), Path("/nonexistent"), 3 + 4j, len,
]  # fmt: skip
PICTURE = Image.new("RGB", (64, 64))
IMAGE = {"prompt": "a cat", "n": 1, "seed": 0}
SPEECH = {"text": "Yes."}
CHAT = {"image": PICTURE, "question": "What is this?"}
SAMPLED = ("seed", "temperature", "top_k", "top_p", "method")
PUBLIC: dict[str, tuple[Callable[..., Any], dict[str, Any], tuple[str, ...]]] = {
    "generate_image": (
        polydraft.generate_image, IMAGE,
        ("prompt", "model", "drafter", "n", *SAMPLED, "min_p", "guidance_scale", "size", "negative_prompt", "prime",
         "device", "dtype", "on_step", "num_images_per_prompt", "generator", "callback_on_step_end"),
    ),
    "generate_speech": (
        polydraft.generate_speech, SPEECH,
        ("text", "model", "codec", "drafter", *SAMPLED, "repetition_penalty", "voice", "reference", "reference_text",
         "speed", "device", "dtype", "on_step"),
    ),
    "chat": (
        polydraft.chat, CHAT,
        ("image", "question", "messages", "model", "drafter", *SAMPLED, "repetition_penalty", "max_new_tokens",
         "min_new_tokens", "max_pixels", "stop", "device", "dtype", "on_step"),
    ),
    "images": (lambda **asked: pipe("tiny-image").run(**asked), IMAGE, ("iterations", "partial_images")),
    "sentences": (lambda **asked: pipe("tiny-speech").run(**asked), SPEECH, ("together",)),
    "check": (
        check_model, {"name": "tiny-image"},
        ("name", "codec", "drafter", "device", "dtype", "device_map", "modality", "adapter", "quantization_config"),
    ),
    "Sampling": (SamplingParams, {}, (*SAMPLED[1:4], "min_p", "repetition_penalty", "min_tokens", "guidance_scale")),
    "RepetitionAware": (RepetitionAware, {}, ("window", "tau")),
    "methods": (lambda method: parse(method), {}, ("method",)),
}  # fmt: skip


@cache
def pipe(name: str) -> Any:
    return load(name)


@pytest.fixture
def without_decoding(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run public functions up to the first target pass, with models that are loaded only once."""

    def loaded(name: str, **options: Any) -> Any:
        return pipe(check_model(name, **options).name)

    monkeypatch.setattr(loading, "load", loaded)
    loading.clear_cached_pipelines()
    monkeypatch.setattr(GenerationStream, "steps", lambda self: iter(()))
    for stream in (ImageStream, SpeechStream, ChatStream):
        monkeypatch.setattr(stream, "result", lambda self: None)
    yield
    loading.clear_cached_pipelines()


def check_sentence(error: PolydraftError) -> None:
    text = str(error)
    assert text.endswith(".") and "\n" not in text and 20 < len(text) < 600, text[:200]


@pytest.mark.parametrize("function", PUBLIC)
def test_odd_argument_value_works_or_raises_polydraft_error(function: str, without_decoding: None) -> None:
    call, usual, names = PUBLIC[function]
    refused, raw = 0, []
    for name in names:
        for value in ODD:
            try:
                call(**usual | {name: value})
            except PolydraftError as error:
                check_sentence(error)
                refused += 1
            except Exception as error:  # noqa: BLE001  # raw exceptions are what this test looks for
                raw.append(f"{name}={format_value(value)}: {type(error).__name__}: {error!s:.80}")
    assert not raw and refused > len(ODD) / 4


def parameters() -> Iterator[str]:
    """Yield every parameter of every method with odd values."""
    for registry in REGISTRIES:
        for part in (*registry.drafters.values(), *registry.verifiers.values()):
            for name in part.parameters:
                for value in ("", "x", "-1", "1e400", "nan", "9" * 400, "10**30", "1,1", "0x10", "３"):
                    yield f"{part.name}({name}={value})"


def test_odd_method_parameter_works_or_raises_polydraft_error() -> None:
    refused = 0
    for method in parameters():
        try:
            parse(method)
        except PolydraftError as error:
            check_sentence(error)
            refused += 1
    assert refused > 100


@pytest.mark.parametrize("method", ["jacobi" + " " * 100_000 + "+", "(" * 100_000, "a+" * 100_000, 3, b"ar", ["ar"]])
def test_malformed_method_name_is_refused(method: Any) -> None:
    with pytest.raises(UnknownMethod, match="method=.* is not possible; it must be a string such as"):
        parse(method)
    with pytest.raises(UnknownMethod, match="is not possible"):
        load_card("tiny-latent").check_method(method)


NUMPY: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ("tiny-image", IMAGE, {"n": np.int64(2), "seed": np.int32(3)}, {"n": 2, "seed": 3}),
    ("tiny-image", IMAGE, {"n": 2, "seed": np.array([5, 9])}, {"n": 2, "seed": [5, 9]}),
    ("tiny-image", IMAGE, {"n": 2, "seed": torch.tensor([5, 9])}, {"n": 2, "seed": (5, 9)}),
    ("tiny-image", IMAGE, {"temperature": np.float32(0.5), "top_k": np.int16(7)}, {"temperature": 0.5, "top_k": 7}),
    ("tiny-image", IMAGE, {"prompt": np.array(["a cat"])}, {"prompt": ["a cat"]}),
    ("tiny-speech", SPEECH, {"seed": np.int64(3), "speed": np.float64(1.5)}, {"seed": 3, "speed": 1.5}),
    ("tiny-vlm", CHAT, {"max_new_tokens": np.int64(7), "stop": None}, {"max_new_tokens": 7}),
    ("tiny-vlm", CHAT, {"min_new_tokens": torch.tensor(2), "stop": ["x"]}, {"min_new_tokens": 2, "stop": "x"}),
    ("tiny-vlm", CHAT, {"max_pixels": np.int64(2000)}, {"max_pixels": 2000}),
    ("tiny-vlm", CHAT, {"seed": np.uint8(3), "max_new_tokens": 10**30}, {"seed": 3, "max_new_tokens": 10**9}),
]  # fmt: skip


@pytest.mark.parametrize(("model", "usual", "odd", "plain"), NUMPY, ids=range(len(NUMPY)))
def test_numpy_and_torch_numbers_equal_python_numbers(
    model: str, usual: dict[str, Any], odd: dict[str, Any], plain: dict[str, Any]
) -> None:
    actual, expected = pipe(model).run(**usual | odd), pipe(model).run(**usual | plain)
    for one, other in zip(actual.prompts, expected.prompts, strict=True):
        assert (one.branch_token_ids, one.seed, one.max_new_tokens, one.sampling_params) == (
            other.branch_token_ids, other.seed, other.max_new_tokens, other.sampling_params,
        )  # fmt: skip
        assert type(one.seed) is int and type(one.max_new_tokens) is int
    assert getattr(actual, "stops", None) == getattr(expected, "stops", None)


def test_load_accepts_path_and_torch_dtype_and_device(tmp_path: Path) -> None:
    found = load(Path("tiny-vlm"), dtype=torch.float32, device=torch.device("cpu"))
    assert found.card.name == "tiny-vlm" and found.dtype is torch.float32
    assert load_card(found.card.path).path == load_card(str(found.card.path)).path
    for wrong, options in ((3, {}), ("tiny-vlm", {"dtype": torch.int8}), ("tiny-vlm", {"device": 0})):
        with pytest.raises(PolydraftError) as refused:
            load(wrong, **options)  # type: ignore[arg-type]
        check_sentence(refused.value)


EXTREMES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"top_k": 10**30}, {}),
    ({"top_k": 2**63}, {}),
    ({"temperature": 1e300}, {"temperature": 1e30}),
    ({"temperature": 5e-324}, {"temperature": 1e-6}),
    ({"top_p": 5e-324}, {"top_k": 1}),
    ({"min_p": 1 - 1e-16}, {"top_k": 1}),
    ({"repetition_penalty": 1e300}, {"repetition_penalty": 1e6}),
    ({"repetition_penalty": 5e-324}, {"repetition_penalty": 1e-6}),
    ({"guidance_scale": 1e300}, {}),
]


@pytest.mark.parametrize(("extreme", "like"), EXTREMES, ids=[str(extreme) for extreme, _ in EXTREMES])
def test_extreme_sampling_params_give_valid_distribution(extreme: dict[str, Any], like: dict[str, Any]) -> None:
    mask = torch.ones(1, 9, dtype=torch.bool)
    mask[0, 8] = False
    logits = torch.linspace(-40, 50, 9)[None, None]
    one = torch.ones(1, 1, dtype=torch.long)
    history = GenerationContext(one, one[0], 2 * one[None], one - 1, one, one[0])
    tensors = [SamplingTensors.from_params([SamplingParams(**params)], "cpu") for params in (extreme, like)]
    probs = [Sampler(mask)(logits, each, history).probs for each in tensors]
    assert probs[0].isfinite().all() and torch.equal(*probs) and probs[0][0, 0, 8] == 0


def test_huge_min_tokens_fits_tensors() -> None:
    params = SamplingParams(min_tokens=10**30, guidance_scale=1e300, temperature=0)
    tensors = SamplingTensors.from_params([params], "cpu")
    assert tensors.min_tokens.item() == 2**31 - 1 and tensors.guidance_scale.isfinite().all()


@pytest.mark.parametrize(
    ("argument", "value", "words"),
    [
        ("n", 10**9, "n=1000000000 is not possible; it must be a whole number from 1 to 10000"),
        ("n", True, "n=True is not possible"),
        ("seed", "7", "seed='7' is not possible; it must be a whole number from 0, or a list"),
        ("seed", [1, 2], "seed=\\[1, 2\\] is not possible; it must be a whole number from 0, or a list of 1"),
        ("seed", 2**63, "seed=9223372036854775808 is not possible"),
        ("temperature", "hot", "temperature='hot' is not possible; it must be a number"),
        ("partial_images", 10**30, "it must be a whole number from 0 to 256"),
        ("size", 512, "size=512 is not possible; it must be a string such as '512x256'"),
        ("on_step", 3, "on_step=3 is not possible; it must be a function"),
    ],
)
def test_argument_error_names_argument_and_allowed_values(argument: str, value: Any, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        pipe("tiny-image")("a cat", **{argument: value})


def test_prompt_of_wrong_type_is_refused() -> None:
    with pytest.raises(PromptError, match="the prompt is a int; give a string"):
        pipe("tiny-image").run([3])
    with pytest.raises(InvalidArgument, match="prompt=b'a cat' is not possible; it must be a string"):
        pipe("tiny-image").run(b"a cat")


def test_job_with_wrong_argument_type_records_typed_error(tmp_path: Path) -> None:
    for arguments in ({"text": 3}, {"text": "Yes.", "seed": "x"}, {"text": "Yes.", "voice": [1]}):
        record = jobs.do(jobs.BatchJob("a", "speech", arguments), tmp_path)
        assert record["error"]["type"] in ("PromptError", "InvalidArgument"), record
