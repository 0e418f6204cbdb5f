"""`polydraft bench text`: one true run, which prompts and what knowledge a figure rests on, and other engines."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from polydraft.apps.bench.text import contenders, speed
from polydraft.apps.bench.text.contenders import Engine, LearningMethod, PromptContender, missing_part
from polydraft.apps.bench.text.plan import Plan
from polydraft.apps.bench.text.result import TextSetting
from polydraft.apps.bench.text.speed import split_prompts
from polydraft.apps.data.text_prompts import KINDS, NUM_PROMPTS, PASSAGE_KINDS, prompt_file, text_prompts
from polydraft.apps.data.user_requests import build_question_prompts, read_questions
from polydraft.apps.measure.peers.generate import generate
from polydraft.apps.measure.peers.llama_cpp import LlamaCpp
from polydraft.apps.measure.peers.openvino import OpenVINO
from polydraft.apps.measure.rounds import CACHE, no_cache_folder, time_rounds
from polydraft.apps.measure.table import PEER
from polydraft.apps.measure.timing import Run
from polydraft.core.folders.cache import cache_folder
from polydraft.modalities.loading import load
from polydraft.modalities.text.pipeline import TextPipeline

from ....modalities.text import conftest as models
from ...command_line import assert_refused, run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny Llama that a passage fits into."""
    made = tmp_path_factory.mktemp("llama")
    with pytest.MonkeyPatch.context() as patch:
        model_class, config_class, more = models.MODELS["llama"]
        longer = more | {"max_position_embeddings": 2048}
        patch.setitem(models.MODELS, "llama", (model_class, config_class, longer))
        models.write_model(made, "llama")
    return made


@pytest.fixture(scope="module")
def pipe(folder: Path) -> TextPipeline:
    loaded: TextPipeline = load(folder, dtype="float32")
    return loaded


def test_bench_reports_methods_and_engines(folder: Path, tmp_path: Path) -> None:
    done = run(
        "bench", "text", "--model", folder, "--methods", "auto,pld", "--kinds", "chat", "--temperatures", "1",
        "--rows", "1,2", "--prompts", "2", "--warm-ups", "1", "--tokens", "8", "--repeats", "1", "--peers",
        "--dtype", "float32", "--json", "-o", tmp_path,
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    value = json.loads(done.stdout)
    assert [(block["kind"], block["rows"]) for block in value["blocks"]] == [("chat", 1), ("chat", 2)]
    for block in value["blocks"]:
        rows = {row["method"]: row for row in block["methods"]}
        engines = {PEER, contenders.TRANSFORMERS_LOOKUP} if block["rows"] == 1 else {PEER}
        assert set(rows) == {"ar", "auto", "pld"} | engines
        for name in ("auto", "pld"):
            assert rows[name]["identical"] is True and rows[name]["over_fastest_peer"]["median"] > 0
            assert len(rows[name]["over_plain_by_batch"]) == 2 // block["rows"]
        assert sum(rows["auto"]["passes_by_drafter"].values()) > 0 and rows["ar"]["nodes_per_pass"] == 0
        assert rows[PEER]["tau"] is None and block["fastest_peer"] in engines
    assert any("--gguf" in reason or "polydraft[peers]" in reason for reason in value["left_out"])
    assert {path.name for path in tmp_path.iterdir()} == {"text.json", "text.md", "text.png"}
    table = (tmp_path / "text.md").read_text()
    assert "**temperature 1, 2 rows**" in table and "| chat | pld | yes |" in table and "first request" in table


def test_bench_times_questions_of_user_data(folder: Path, tmp_path: Path) -> None:
    texts = ["What is rain?", "Who are you?", "Why?", "Where is the sea?", "When?"]
    (tmp_path / "a.txt").write_text("\n".join(texts))
    done = run(
        "bench", "text", "--model", folder, "--data", tmp_path / "a.txt", "--methods", "pld", "--temperatures", "0",
        "--rows", "1,2", "--tokens", "4", "--repeats", "1", "--dtype", "float32", "--json",
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    blocks = json.loads(done.stdout)["blocks"]
    assert [(block["kind"], block["rows"]) for block in blocks] == [("data", 1), ("data", 2)]
    for block, batches in zip(blocks, (5, 2), strict=True):
        rows = {row["method"]: row for row in block["methods"]}
        assert set(rows) == {"ar", "pld", PEER} and rows["pld"]["identical"] is True
        assert len(rows["pld"]["over_plain_by_batch"]) == batches
    done = run("bench", "text", "--model", folder, "--data", tmp_path / "a.txt", "--warm-ups", "5")
    assert_refused(done, "more than the 5 prompts")


def test_first_questions_of_data_warm_up(pipe: TextPipeline, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("What is rain?\nWho are you?\nWhy?\n")
    requests = read_questions(str(tmp_path / "a.txt"), "text", None)
    plan, setting = Plan(None, 1, 4, 1, cold=False), TextSetting("data", 0.0, 1)
    counting, warming = split_prompts(pipe, setting, plan, requests)
    ids = [batch[0].branch_token_ids[0] for batch in [*warming, *counting]]
    assert ids == [prompt.branch_token_ids[0] for prompt in build_question_prompts(pipe, requests, 4)]
    assert (len(warming), len(counting)) == (1, 2)


def test_kinds_share_tables_of_a_setting() -> None:
    settings = speed.all_settings("chat,code", "0,1", "1,4")
    assert [(each.kind, each.title) for each in settings[:4]] == [
        ("chat", "temperature 0, 1 row"), ("code", "temperature 0, 1 row"), ("chat", "temperature 0, 4 rows"),
        ("code", "temperature 0, 4 rows"),
    ]  # fmt: skip
    assert len(settings) == 8


def test_rounds_rotate_contenders_and_forget() -> None:
    calls: list[str] = []

    def contender(name: str, learns: bool) -> PromptContender:
        def decode(batch: Any) -> Run:
            calls.append(f"{name}{batch}")
            return Run(1.0, batch)

        return PromptContender(name, decode, lambda: calls.append(f"-{name}"), learns)

    counting, warming = [1, 2], [8, 9]
    pair = [contender("a", learns=True), contender("b", learns=False)]
    rounds = time_rounds(pair, counting, warming, 2, cold=False)  # type: ignore[arg-type]
    assert " ".join(calls) == "-a -b a8 b8 a9 a1 b1 b2 a2 -a -b a8 a9 b1 a1 a2 b2"
    assert {name: [[run.tokens for run in turn] for turn in turns] for name, turns in rounds.items()} == {
        "a": [[1, 2], [1, 2]], "b": [[1, 2], [1, 2]]
    }  # fmt: skip
    calls.clear()
    time_rounds(pair[:1], counting, warming, 2, cold=True)  # type: ignore[arg-type]
    assert " ".join(calls) == "-a a8 -a a1 -a a2 -a -a a1 -a a2"


def test_bench_ignores_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(CACHE, str(tmp_path))
    with no_cache_folder():
        assert cache_folder() is None
    assert cache_folder() == tmp_path


@pytest.mark.parametrize("name", ["recycling", "suffix"])
def test_renewed_method_decodes_as_the_first_time(pipe: TextPipeline, name: str) -> None:
    (batch,), _ = split_prompts(pipe, TextSetting("chat", 0.0, 1), Plan(1, 0, 40, 1, cold=False))
    method = LearningMethod(pipe, name)
    first, second = method.decode(batch), method.decode(batch)
    method.renew()
    renewed = method.decode(batch)
    assert second.passes < first.passes == renewed.passes
    assert all(torch.equal(run.outputs[0], first.outputs[0]) for run in (second, renewed))


@pytest.mark.parametrize("rows", [1, 4, 16])
def test_prompts_come_once_and_warm_ups_apart(pipe: TextPipeline, rows: int) -> None:
    plan = Plan(12, 4, 8, 1, cold=False)
    for kind in KINDS:
        counting, warming = split_prompts(pipe, TextSetting(kind, 0.0, rows), plan)
        assert {len(batch) for batch in counting + warming} == {rows} and len(counting) * rows >= 12
        ids = [prompt.branch_token_ids[0] for batch in counting + warming for prompt in batch]
        assert len(set(ids)) == len(ids)


def test_first_dozen_prompts_share_no_text() -> None:
    for kind in KINDS:
        prompts = text_prompts(kind, NUM_PROMPTS)
        assert len(set(prompts)) == NUM_PROMPTS
        words = [set(prompt.split()) for prompt in prompts[:12]]
        if kind in PASSAGE_KINDS:
            assert max(len(a & b) / len(a) for a in words for b in words if a is not b) < 0.4
    passages = prompt_file()["passages"]
    assert all(150 <= len(passage["text"].split()) <= 400 for passage in passages)
    wrong, right = text_prompts("correction", 1)[0].split(), passages[0]["text"].split()
    assert 10 < sum(a != b for a, b in zip(wrong[-len(right) :], right, strict=True)) < 30


def test_padding_of_a_batch_is_no_token(pipe: TextPipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    (batch,), _ = split_prompts(pipe, TextSetting("chat", 0.0, 2), Plan(2, 0, 12, 1, cold=False))
    whole = generate(pipe, pipe.target_model, batch, 2)
    assert whole.tokens == 22 and [len(output) for output in whole.outputs] == [12, 12]
    end = next(token for token in whole.outputs[0][2:].tolist() if token not in whole.outputs[1].tolist())
    monkeypatch.setattr(pipe, "eos_token_ids", frozenset({end}))
    ended = generate(pipe, pipe.target_model, batch, 2)
    lengths = [len(output) for output in ended.outputs]
    assert lengths[0] < 12 == lengths[1] and ended.outputs[0][-1] == end and ended.tokens == sum(lengths) - 2


def test_missing_engines_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    engine = Engine("OpenVINO GenAI", lambda: lambda prompts: Run(1.0, 1), "openvino_genai")
    monkeypatch.setattr(contenders, "find_spec", lambda name: None)
    assert "polydraft[peers]" in missing_part(engine, tmp_path)
    monkeypatch.setattr(contenders, "find_spec", lambda name: object())
    assert "--gguf" in missing_part(engine, None) and missing_part(engine, tmp_path) == ""


def test_engines_leave_out_the_first_token(pipe: TextPipeline, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Run both adapters over stand-ins of their packages that report fixed times."""
    (batch,), _ = split_prompts(pipe, TextSetting("chat", 1.0, 1), Plan(1, 0, 40, 1, cold=False))
    asked: list[Any] = []
    monkeypatch.setitem(sys.modules, "xllamacpp", fake_llama_cpp(asked))
    llama = LlamaCpp(tmp_path, 128).decode(batch)
    assert (llama.seconds, llama.tokens) == (0.5, 10)
    assert asked[0]["prompt"] == list(batch[0].branch_token_ids[0]) and asked[0]["temperature"] == 1
    fake_openvino(monkeypatch, asked)
    peer = OpenVINO(tmp_path, {2}, lookup=True).decode(batch)
    assert (peer.seconds, peer.tokens) == (0.03, 6) and peer.outputs[0].tolist() == [5, 6, 7]
    assert asked[-1].do_sample and asked[-1].stop_token_ids == {2} and asked[-1].num_assistant_tokens == 5


def fake_llama_cpp(asked: list[Any]) -> ModuleType:
    """Return a stand-in for xllamacpp that took half a second for eleven tokens."""
    module: Any = ModuleType("xllamacpp")
    threads = SimpleNamespace(n_threads=0, poll=50)
    params = SimpleNamespace(model=SimpleNamespace(path=""), cpuparams=threads, cpuparams_batch=threads)
    timings = {"timings": {"predicted_ms": 500.0, "predicted_n": 11}}
    server = SimpleNamespace(handle_completions=lambda request: asked.append(request) or timings)
    module.CommonParams, module.Server = lambda: params, lambda params: server
    return module


def fake_openvino(monkeypatch: pytest.MonkeyPatch, asked: list[Any]) -> None:
    """Put stand-ins for OpenVINO in place: a prefill, and 30 ms later passes of four and two tokens have been made."""
    raw = SimpleNamespace(m_new_token_times=[100.0, 120.0, 130.0], m_batch_sizes=[1, 4, 2])
    result = SimpleNamespace(tokens=[[5, 6, 7]], perf_metrics=SimpleNamespace(raw_metrics=raw))
    engine: Any = ModuleType("openvino_genai")
    pipeline = SimpleNamespace(generate=lambda ids, config: asked.append(config) or result)
    engine.LLMPipeline, engine.GenerationConfig = lambda *given, **options: pipeline, SimpleNamespace
    tensors: Any = ModuleType("openvino")
    tensors.Tensor = lambda ids: ids
    for module in (engine, tensors):
        monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--kinds", "chat,sumary"), "did you mean 'summary'"),
        (("--kinds", ","), "no kind"),
        (("--rows", "0"), "--rows 0"),
        (("--rows", "20"), "more than the 32 prompts"),
        (("--temperatures", "hot"), "--temperatures hot"),
        (("--gguf", "nowhere.gguf"), "nowhere.gguf is no file"),
        (("--methods", "warp"), "warp"),
    ],
)
def test_invalid_arguments_are_refused_before_timing(folder: Path, words: tuple[str, ...], says: str) -> None:
    assert_refused(run("bench", "text", "--model", folder, *words), says)


def test_default_methods_include_those_of_drafters(pipe: TextPipeline) -> None:
    assert speed.default_methods(pipe) == "auto,history,suffix,recycling,pld"
    card = replace(pipe.card, manifest=pipe.card.manifest | {"drafters": {"eagle": "runs/eagle"}})
    trained = speed.default_methods(SimpleNamespace(card=card, registry=card.registry))  # type: ignore[arg-type]
    assert trained.startswith("auto,history,suffix,recycling,pld,eagle2")
