"""Order of downloads: JSON to describe and to refuse, weights after all checks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import polydraft
from polydraft.modalities import model_card
from polydraft.modalities.hub import DESCRIPTION_PATTERNS, FILE_PATTERNS
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
