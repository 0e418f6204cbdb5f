"""Order of downloads: JSON to describe and to refuse, weights after all checks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import polydraft
from polydraft.modalities import model_card
from polydraft.modalities.hub import DESCRIPTION_PATTERNS, FILE_PATTERNS, to_hub_options
from polydraft.modalities.loading import load
from polydraft.modalities.model_card import load_card

from ..apps.command_line import assert_refused, run

NAME = "somebody/SmolVLM-test"


@pytest.fixture
def fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str]]]:
    """Fake a hub with a vision-language model and drafters; return the calls that fetch files."""
    calls: list[tuple[str, list[str]]] = []
    for name, kind in ((NAME, "smolvlm"), ("somebody/drafter", "polydraft-hydra"), ("somebody/bert", "polydraft-x")):
        (tmp_path / "hub" / name).mkdir(parents=True)
        (tmp_path / "hub" / name / "config.json").write_text(json.dumps({"model_type": kind}))

    def snapshot(name: str, allow_patterns: list[str], **_: Any) -> str:
        calls.append((name, allow_patterns))
        return str(tmp_path / "hub" / name)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    model_card._load_card.cache_clear()
    return calls


def test_describing_a_repository_fetches_no_weights(fetched: list[tuple[str, list[str]]]) -> None:
    done = run("models", NAME)
    assert done.exit_code == 0 and "SmolVLM" in done.stdout, done.stderr
    assert fetched == [(NAME, DESCRIPTION_PATTERNS)]
    assert not any("safetensors" in pattern for pattern in DESCRIPTION_PATTERNS)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--dtype", "bf8"], "bf8"),
        (["--device", "abacus"], "abacus"),
        (["--method", "warp"], "warp"),
        (["--method", "eagle2"], "drafter"),
        (["--method", "lantern"], "codebook"),
        (["--drafter", "nowhere"], "drafter"),
        (["--drafter", "somebody/bert"], "drafter"),
        (["--map", "missing/x.png"], "missing"),
        (["--seed", "-1"], "seed"),
        (["--temperature", "-1"], "temperature"),
        (["--max-new-tokens", "8", "--min-new-tokens", "9"], "min_new_tokens"),
    ],
)
def test_wrong_option_is_refused_before_fetching_weights(
    options: list[str], word: str, fetched: list[tuple[str, list[str]]]
) -> None:
    Path("a.png").write_bytes(Path(__file__).parents[2].joinpath("assets/models/tiny-vlm/curves.png").read_bytes())
    assert_refused(run("chat", "a.png", "What is this?", "--model", NAME, *options), word)
    assert all(patterns == DESCRIPTION_PATTERNS for _, patterns in fetched)


@pytest.mark.parametrize(
    ("function", "arguments", "word"),
    [
        ("load", {"dtype": "bf8"}, "bf8"),
        ("load", {"device": "abacus"}, "abacus"),
        ("load", {"method": "warp"}, "warp"),
        ("load", {"method": "eagle2"}, "needs a drafter"),
        ("load", {"modality": "speech"}, "not for speech"),
        ("chat", {"image": None, "question": "Why?", "dtype": "bf8"}, "bf8"),
        ("chat", {"image": None, "question": "Why?", "method": "eagle2"}, "needs a drafter"),
        ("chat", {"image": None, "question": "Why?", "top_p": 2.0}, "top_p"),
        ("chat", {"image": None, "question": "Why?", "seed": -1}, "seed"),
        ("generate_image", {"prompt": ""}, "prompt"),
        ("generate_image", {"prompt": "a cat", "n": 0}, "n=0"),
        ("generate_image", {"prompt": "a cat", "n": 2, "seed": [1]}, "seed"),
        ("generate_image", {"prompt": "a cat", "min_p": -1.0}, "min_p"),
        ("generate_speech", {"text": "Yes.", "speed": 9.0}, "speed"),
        ("generate_speech", {"text": "<speak>Yes.</speak>"}, "SSML"),
        ("generate_speech", {"text": "Yes.", "seed": -1}, "seed"),
    ],
)
def test_functions_refuse_before_fetching_weights(
    function: str, arguments: dict[str, Any], word: str, fetched: list[tuple[str, list[str]]]
) -> None:
    call, model = getattr(polydraft, function), {"name" if function == "load" else "model": NAME}
    with pytest.raises(polydraft.PolydraftError, match=word):
        call(**model, **arguments)
    assert all(patterns == DESCRIPTION_PATTERNS for _, patterns in fetched)


def test_weights_are_fetched_after_all_checks(fetched: list[tuple[str, list[str]]]) -> None:
    with pytest.raises(polydraft.WeightsError):  # the fake hub has no weights
        load(NAME, drafter="somebody/drafter", method="hydra", dtype="float32")
    assert fetched[0] == (NAME, DESCRIPTION_PATTERNS) and fetched[-1] == (NAME, FILE_PATTERNS)
    assert ("somebody/drafter", DESCRIPTION_PATTERNS) in fetched


def test_codec_is_fetched_only_with_weights(tmp_path: Path, fetched: list[tuple[str, list[str]]]) -> None:
    tokenizer = {"added_tokens": [{"content": f"<custom_token_{number}>"} for number in (2, 10)]}
    for name in ("somebody/orpheus", "hubertsiuzdak/snac_24khz"):
        folder = tmp_path / "hub" / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text('{"model_type": "llama"}')
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    card = load_card("somebody/orpheus")
    assert fetched == [("somebody/orpheus", DESCRIPTION_PATTERNS)]
    assert card.fetch_weights().codec == tmp_path / "hub/hubertsiuzdak/snac_24khz"
    assert [name for name, _ in fetched[1:]] == ["somebody/orpheus", "hubertsiuzdak/snac_24khz"]


@pytest.fixture
def hub_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """Fake a hub with a language model, a drafter and an adapter; return repositories with the options of the hub."""
    calls: list[tuple[str, dict[str, Any]]] = []
    for name, config in (
        ("somebody/llama", {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}),
        ("somebody/drafter", {"model_type": "polydraft-hydra"}),
    ):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    (tmp_path / "somebody/lora").mkdir()
    (tmp_path / "somebody/lora/adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "lora_alpha": 1}))
    (tmp_path / "somebody/lora/adapter_model.safetensors").write_bytes(b"")

    def snapshot(name: str, allow_patterns: list[str], ignore_patterns: list[str], **options: Any) -> str:
        calls.append((name, options))
        return str(tmp_path / name)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    model_card._load_card.cache_clear()
    return calls


def test_revision_reaches_the_model_alone(hub_options: list[tuple[str, dict[str, Any]]], tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"token": "hf_secret", "cache_dir": tmp_path, "local_files_only": True}
    with pytest.raises(polydraft.WeightsError):  # the fake hub has no weights
        load("somebody/llama", revision="v2", drafter="somebody/drafter", adapter="somebody/lora", **arguments)
    options = arguments | {"cache_dir": str(tmp_path)}
    seen = dict(hub_options)
    assert seen == {
        "somebody/llama": {"revision": "v2"} | options,
        "somebody/drafter": {"revision": None} | options,
        "somebody/lora": {"revision": None} | options,
    }
    assert all(given == seen[name] for name, given in hub_options)  # of the description as of the weights


def test_cards_differ_by_revision_and_hide_token(hub_options: list[tuple[str, dict[str, Any]]]) -> None:
    for revision in ("v1", "v2", "v1"):
        card = load_card("somebody/llama", hub_options=to_hub_options(revision=revision, token="hf_secret"))
        assert card.hub_options.revision == revision
        assert "hf_secret" not in repr(card)  # a card may be logged
    assert [given["revision"] for _, given in hub_options] == ["v1", "v2"]


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("somebody/llama", {"revision": 3}, "revision=3 is not possible"),
        ("somebody/llama", {"token": 3}, "token='int' is not possible"),
        ("somebody/llama", {"cache_dir": 3}, "cache_dir=3 is not possible"),
        ("somebody/llama", {"local_files_only": "yes"}, "local_files_only='yes' is not possible"),
        ("tiny-image", {"revision": "v2"}, "model 'tiny-image' is none; leave out revision"),
        ("whisper-base", {"revision": "v2"}, "model 'whisper-base' is none; leave out revision"),
    ],
)
def test_impossible_hub_argument_is_refused(
    name: str, arguments: dict[str, Any], message: str, hub_options: list[tuple[str, dict[str, Any]]]
) -> None:
    with pytest.raises(polydraft.InvalidArgument, match=message):
        load(name, **arguments)
    assert hub_options == []
