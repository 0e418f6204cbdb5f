"""Same seed, same answer: every drafter against plain decoding, and plain decoding against transformers' own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.functional import pad
from transformers import LlamaConfig, LlamaForCausalLM

from polydraft.core.decode import Method, decode, join, start, step
from polydraft.core.drafters.base import NoDrafter
from polydraft.core.drafters.heads.medusa import MedusaHeads, MultiTokenDrafter
from polydraft.core.drafters.jacobi.window import Initial, JacobiDrafter
from polydraft.core.drafters.lookup import LookupDrafter
from polydraft.core.drafters.network.eagle import EagleDrafter, EagleNetwork
from polydraft.core.drafters.network.lm import LMDrafter
from polydraft.core.drafters.oracle import OracleDrafter
from polydraft.core.drafters.tree.plans import Dynamic, Rank, Static
from polydraft.core.law.sampling import Sampler, Sampling
from polydraft.core.target import Prompt
from polydraft.core.verify.tape import TapeVerifier
from polydraft.modalities.vlm.conversation import conversations
from polydraft.modalities.vlm.pipeline import VLMPipeline
from polydraft.modalities.vlm.target import PER_TOKEN, target_of

from ...covering import every_pair
from .conftest import MAKERS, SHAPES, TEXT, asked, generated, method, oracle, picture, run

SETTINGS = {"greedy": Sampling(temperature=0), "sampled": Sampling(top_k=50, repetition_penalty=1.2)}


def drafters(pipe: VLMPipeline, recorded: list[list[int]]) -> dict[str, Any]:
    """Every drafter there is; networks are untrained, oracles replay `recorded` with errors planted everywhere."""
    config, vocab = pipe.target_model.config.get_text_config(), pipe.mask.shape[1]
    torch.manual_seed(7)
    student = LlamaForCausalLM(LlamaConfig(vocab_size=vocab, **TEXT)).to(pipe.dtype)
    eagle, heads = (kind(config).to(pipe.dtype) for kind in (EagleNetwork, MedusaHeads))
    return {
        "oracle chain": oracle(recorded, vocab, 1),
        "oracle tree": oracle(recorded, vocab, 3),
        "pld": LookupDrafter(allowed=pipe.allowed),
        "jacobi": JacobiDrafter(6, Initial("left-law", pipe.allowed, 1)),
        "draft": lambda target: LMDrafter(student, target, Dynamic(2, 2, 4), Rank(), pipe.unread),
        "eagle": lambda target: EagleDrafter(eagle, target, Static(2, 5), Rank()),
        "eagle2": lambda target: EagleDrafter(eagle, target, Dynamic(3, 2, 6), Rank()),
        "medusa": lambda target: MultiTokenDrafter(heads, target, Static(3, 6), Rank()),
    }


@pytest.mark.parametrize(
    ("family", "dtype", "setting"), every_pair(MAKERS, ("float32", "bfloat16"), ("sampled", "greedy"))
)
def test_every_drafter_equals_plain_decoding(pipe_of, family, dtype, setting):
    pipe = pipe_of(family, dtype)
    prompts = asked(pipe, sampling=SETTINGS[setting])
    plain, reasons, tau = run(method(pipe), prompts)
    assert tau == 1 and len({tuple(row[:8]) for row in plain}) == 3
    assert run(method(pipe), prompts[1:2])[0] == plain[1:2], "a row depends on its neighbours"
    for name, drafter in drafters(pipe, plain).items():
        if (dtype, setting) == ("bfloat16", "greedy") and not name.startswith("oracle"):
            continue  # nothing that the other three settings have not seen
        drafted, why, tau = run(method(pipe, drafter), prompts)
        assert (drafted, why) == (plain, reasons), name
        assert tau > 1.5 or not name.startswith("oracle"), "too little was accepted for equality to mean anything"


@pytest.mark.parametrize("family", MAKERS)
def test_greedy_equals_generate(pipe_of, family):
    """In fp64 there are no near-ties, so equality is strict."""
    pipe = pipe_of(family, "float64")
    prompts = asked(pipe, sampling=SETTINGS["greedy"])
    plain, _, _ = run(method(pipe), prompts)
    assert plain == [generated(pipe, prompt) for prompt in prompts]
    drafted, _, tau = run(method(pipe, oracle(plain, pipe.mask.shape[1], 3)), prompts)
    assert drafted == plain and tau > 1.5


@pytest.mark.parametrize("family", ["llava", "gemma3", "qwen2_5_vl"])
def test_an_end_inside_an_accepted_run_is_the_end(pipe_of, family):
    pipe = pipe_of(family)
    prompts = asked(pipe)
    free, _, _ = run(method(pipe), prompts)
    eos = frozenset({free[0][9], free[2][4]})
    plain, reasons, _ = run(method(pipe, eos=eos), prompts)
    assert reasons.count("eos") >= 2 and len(plain[0]) <= 10 and plain[0][-1] in eos
    always = OracleDrafter(dict(enumerate(map(torch.tensor, free))), pipe.mask.shape[1], reach=6, acceptance=1.0)
    assert run(method(pipe, always, eos=eos), prompts)[:2] == (plain, reasons)


@pytest.mark.parametrize("family", ["llava", "qwen3_vl"])
def test_rows_that_join_late_change_nothing(pipe_of, family):
    """Their rotary coordinates come with them."""
    pipe = pipe_of(family)
    prompts = asked(pipe)
    plain, _, _ = run(method(pipe), prompts)
    how = method(pipe, oracle(plain, pipe.mask.shape[1], 3))
    batch = start(how, prompts[:1], ids=[0])
    for _ in range(2):
        step(how, batch)
    join(how, batch, prompts[1:], ids=[1, 2])
    for _ in decode(how, batch):
        pass
    assert [output.tolist() for output in batch.outputs()] == plain


@pytest.mark.parametrize("name", ["sjd", "sjd-maximal"])
def test_published_jacobi_decodes_too(pipe_of, name):
    """Another sampler of the same law: other tokens, and never a placeholder."""
    pipe = pipe_of("llava")
    choice = pipe.checked(name)
    outputs, _, _ = run(pipe.method(choice), asked(pipe))
    assert choice.guarantee == "exact"
    assert not {token for row in outputs for token in row} & set(pipe.placeholders)


def test_a_drafter_without_eyes_drops_pictures(pipe_of):
    """Its rows hold the text and nothing else, in order."""
    pipe = pipe_of("pixtral")
    prompts = asked(pipe)
    student = LlamaForCausalLM(LlamaConfig(vocab_size=pipe.mask.shape[1], **TEXT))
    drafter = LMDrafter(student, pipe.target(), Dynamic(2), Rank(), pipe.unread)
    with torch.inference_mode():
        read, entries = drafter.reader.prompt(drafter.target.prefill(drafter.target.empty(), prompts))
    for row, prompt in enumerate(prompts):
        text = [token for token in prompt.branches[0] if token not in pipe.placeholders]
        assert len(text) < len(prompt.branches[0])
        assert read[row, : len(text)].equal(student.get_input_embeddings()(torch.tensor(text)))
        assert entries[row].item() == len(text) - 1


@pytest.mark.parametrize("shown", [True, False])
@pytest.mark.parametrize("family", ["llava", "gemma3", "qwen3_vl"])
def test_guidance_reads_every_branch_by_itself(pipe_of, family, shown):
    """Whether or not the unconditional branch sees the picture; greedy tokens are those of two whole forwards."""
    pipe, sampling = pipe_of(family, "float64"), Sampling(temperature=0, guidance_scale=3.0)
    asked = [(SHAPES[0], "What is this?", "Hm."), (SHAPES[1], "Why?", "And what is that?")]
    target = target_of(pipe.target_model, guided=True, context=pipe.context)
    prompts, apart = [], []
    for seed, (shape, question, other) in enumerate(asked):
        about = picture(*shape, seed)
        texts = [(about, question), (about if shown else None, other)]
        apart.append([pipe.prompts(conversations(*text, None), [0], 8, sampling)[0] for text in texts])
        prompts.append(replace(apart[-1][0], branches=tuple(prompt.branches[0] for prompt in apart[-1])))
    plain, _, _ = run(Method("tested", target, NoDrafter(), TapeVerifier(), Sampler(pipe.mask)), prompts)
    assert plain == [two_forwards(pipe, *branches) for branches in apart]
    replayed = Method("tested", target, oracle(plain, target.vocab, 3), TapeVerifier(), Sampler(pipe.mask))
    drafted, _, tau = run(replayed, prompts)
    assert drafted == plain and tau > 1.5


def two_forwards(pipe: VLMPipeline, conditional: Prompt, unconditional: Prompt) -> list[int]:
    """Guided greedy decoding by the model's own forward, which reads everything again for every token."""
    said: list[int] = []
    while len(said) < conditional.budget:
        logits = []
        for prompt in (conditional, unconditional):
            inputs = {
                name: value.to(pipe.dtype) if value.is_floating_point() else value
                for name, value in prompt.inputs.items()
            }
            for name in inputs.keys() & set(PER_TOKEN):
                inputs[name] = pad(inputs[name], (0, len(said)))
            ids = torch.tensor([[*prompt.branches[0], *said]])
            with torch.inference_mode():
                logits.append(pipe.target_model(input_ids=ids, **inputs, use_cache=False).logits[0, -1].float())
        mixed = logits[1] + conditional.sampling.guidance_scale * (logits[0] - logits[1])
        said.append(int(mixed.masked_fill(~pipe.mask[0], -torch.inf).argmax()))
    return said
