"""Parallel image rows against a slow reference implementation; with full lead they equal plain decoding."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from polydraft.core.decode import Method, add_requests, decode_step, remove_requests, start_batch
from polydraft.core.drafters.base import NoDrafter
from polydraft.core.drafters.jacobi.parallel_rows import ParallelRowsDrafter
from polydraft.core.errors import InvalidArgument, UnsupportedMethod
from polydraft.core.methods.registry import IDS, build, parse
from polydraft.core.methods.spec import IMAGE_ROWS, MethodContext
from polydraft.core.sampling.context import GenerationContext
from polydraft.core.sampling.noise import Noise
from polydraft.core.sampling.params import SamplingParams
from polydraft.core.sampling.sampler import Sampler
from polydraft.core.target.causal import CausalTarget, PromptInputs
from polydraft.core.verifiers import rules
from polydraft.core.verifiers.parallel_rows import ParallelRowsVerifier
from polydraft.core.verifiers.shared_noise import SharedNoiseVerifier

from .conftest import CODES, SIZES, VOCAB, with_sampling

WIDE, HIGH = 5, 4
FEW = torch.zeros(1, VOCAB, dtype=torch.bool)
FEW[:, 20:23] = True  # of three codes a guess is often right
TWO = FEW.clone()
TWO[:, 22] = False


def shallow() -> LlamaForCausalLM:
    """Build a model of one layer: keys and values of a token depend on its id and position alone, in any pass."""
    torch.manual_seed(3)
    return LlamaForCausalLM(LlamaConfig(**(SIZES | {"num_hidden_layers": 1}))).eval()


def method(drafter: object, verifier: object, mask: Tensor | None = FEW, guided: bool = False) -> Method:
    return Method("tested", CausalTarget(shallow(), guided=guided), drafter, verifier, Sampler(mask))  # type: ignore[arg-type]


def rows(**fields: int | str) -> ParallelRowsDrafter:
    return ParallelRowsDrafter(**({"row_length": WIDE, "allowed": FEW[0], "lead": 2, "rows": 9, "window": 2} | fields))  # type: ignore[arg-type]


def pictures(count: int = 3, budget: int = WIDE * HIGH, sampling: SamplingParams | None = None) -> list[PromptInputs]:
    texts = [(1, 2, 3, 4), (1, 9), (1, 7, 7, 8, 5, 6, 11)]
    return [
        PromptInputs((texts[row % 3], (1, 6)), budget, 40 + row, sampling_params=sampling or SamplingParams())
        for row in range(count)
    ]


@dataclass
class ReferenceDecoder:
    """Reference that follows the rule token by token, without a KV cache."""

    model: LlamaForCausalLM
    prompt: PromptInputs
    lead: int
    open_rows: int
    window: int

    def choice(self, seen: list[tuple[int, int]], place: int) -> int:
        """Sample the token at `place` with shared noise, given the ids at places `seen`."""
        text = list(self.prompt.branch_token_ids[0])
        ids = torch.tensor([text + [code for _, code in seen]])
        at = torch.tensor([[*range(len(text)), *(len(text) + where for where, _ in seen)]])
        whole = torch.ones_like(ids)  # without a mask, gaps between positions are taken for ends of sequences
        logits = self.model(input_ids=ids, position_ids=at, attention_mask=whole, use_cache=False).logits[0, -1]
        none = torch.zeros(1, dtype=torch.long)
        noise = Noise(torch.tensor([self.prompt.seed]), none, none.clone(), none.bool(), [1.0], VOCAB, True)
        return int((logits.masked_fill(~FEW[0], -torch.inf) + noise.gumbel_at(torch.tensor([[place]]))[0, 0]).argmax())

    def draw(self) -> list[int]:
        picture: dict[int, int] = {}
        guesses: dict[int, int] = {}
        settled, committed = [0] * HIGH, 0
        while committed < WIDE * HIGH:
            first, before = committed // WIDE, list(settled)
            filled, computed = self.current_ids(picture, guesses, before), set[int]()
            for row in range(first, min(first + self.open_rows, HIGH)):
                going = True
                for x in range(before[row], min(before[row] + self.window + 1, self.room(before, first, row))):
                    place = row * WIDE + x
                    choice = self.choice(self.sees(filled, before, first, row, x), place)
                    if not going:
                        guesses[place] = choice
                        continue
                    picture[place], settled[row] = choice, x + 1
                    going = filled[place] == choice and x < before[row] + self.window
                    if going:
                        computed.add(place)
            committed = first * WIDE + settled[first]
            if settled[first] == WIDE and committed - 1 in computed and first + 1 < HIGH:
                committed += settled[first + 1]
        return [picture[place] for place in range(WIDE * HIGH)]

    def room(self, settled: list[int], first: int, row: int) -> int:
        """Return how many places of a row may be generated."""
        return WIDE if row == first else max(0, settled[row - 1] - self.lead + 1)

    def current_ids(self, picture: dict[int, int], guesses: dict[int, int], settled: list[int]) -> list[int]:
        """Return the id of every place: settled, guessed, or copied from above (first row: the last settled one)."""
        found: list[int] = []
        for place in range(WIDE * HIGH):
            above = found[place - WIDE] if place >= WIDE else None
            left = picture[settled[0] - 1] if settled[0] else int(FEW[0].nonzero()[0])
            found.append(picture.get(place, guesses.get(place, left if above is None else above)))
        return found

    def sees(self, filled: list[int], settled: list[int], first: int, row: int, x: int) -> list[tuple[int, int]]:
        """List the places that column x of `row` attends to: settled places above, and the row's own up to x.

        A row that begins also attends to the guesses of the row above, and to its last place."""
        seen = [line * WIDE + at for line in range(row) for at in range(settled[line])]
        if x == 0 and row and settled[row - 1] < WIDE:
            begun = settled[row - 1]
            room = self.room(settled, first, row - 1)
            guessed = [(row - 1) * WIDE + at for at in range(begun, min(begun + self.window, room))]
            seen = list(dict.fromkeys([*seen, *guessed, row * WIDE - 1]))
        seen += [row * WIDE + at for at in range(x)]
        return [(place, filled[place]) for place in seen]


def test_rows_settle_as_reference_implementation(run):
    for lead, open_rows, window in ((1, 3, 2), (2, 9, 3)):
        prompts, drafter = pictures(2), rows(lead=lead, rows=open_rows, window=window)
        for prompt, output in zip(prompts, run(method(drafter, ParallelRowsVerifier()), prompts).outputs, strict=True):
            with torch.inference_mode():
                slow = ReferenceDecoder(shallow(), prompt, lead, drafter.max_open_rows, window).draw()
            assert output.tolist() == slow, (lead, open_rows, window)


@pytest.mark.parametrize("guidance", [1.0, 2.0])
@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(temperature=0), SamplingParams(top_k=2)])
def test_full_lead_equals_plain_decoding(run, sampling, guidance):
    prompts, guided = with_sampling(pictures(), sampling, guidance), guidance != 1
    plain = run(method(NoDrafter(), SharedNoiseVerifier(), TWO, guided), prompts)
    found = run(method(rows(lead=WIDE, window=4), ParallelRowsVerifier(), TWO, guided), prompts)
    assert found.same(plain)
    assert found.tau > 1.5


def test_full_lead_equals_plain_decoding_in_deep_models(lab, run):
    for family in ("llama", "mistral", "gemma"):
        made = lab(torch.float32, family)
        prompts = [replace(prompt, max_new_tokens=17) for prompt in made.prompts]
        plain = run(made.method(mask=FEW), prompts)
        found = run(made.method(rows(lead=WIDE, window=4), False, ParallelRowsVerifier(), mask=FEW), prompts)
        assert found.same(plain), family
        assert found.tau > 1.5


def test_wrong_row_causal_mask_is_detected(run, monkeypatch):
    honest, prompts = ParallelRowsDrafter.row_causal_mask, pictures()
    plain = run(method(NoDrafter(), SharedNoiseVerifier()), prompts)
    open_ = run(method(rows(), ParallelRowsVerifier()), prompts)

    def short(self, begun, settled, slots, lines):  # not its own left neighbour
        every = torch.arange(self.max_open_rows * self.row_length + 2)
        return honest(self, begun, settled, slots, lines) & (every != slots[..., None] - 1)

    def guesses(self, begun, settled, slots, lines):  # whatever was written before it, by whichever row
        every = torch.arange(self.max_open_rows * self.row_length + 2)
        return honest(self, begun, settled, slots, lines) | (every <= slots[..., None])

    monkeypatch.setattr(ParallelRowsDrafter, "row_causal_mask", short)
    assert not run(method(rows(lead=WIDE, window=4), ParallelRowsVerifier()), prompts).same(plain)
    monkeypatch.setattr(ParallelRowsDrafter, "row_causal_mask", guesses)
    assert not run(method(rows(), ParallelRowsVerifier()), prompts).same(open_)


def test_open_rows_save_passes_and_count_correctly(run):
    prompts = pictures(9)
    alone = run(method(rows(lead=WIDE), ParallelRowsVerifier()), prompts)
    for lead in (1, 2, 3):
        found = run(method(rows(lead=lead), ParallelRowsVerifier()), prompts)
        assert found.tau > alone.tau
        for output, stats in zip(found.outputs, found.batch.stats.values(), strict=True):
            assert len(output) == stats.tokens == WIDE * HIGH
            assert 0 < stats.accepted <= stats.drafted
            assert stats.accepted < stats.tokens  # every open row takes a choice of its own in every pass
            assert stats.guarantee == "lossy"


def test_open_rows_are_independent_of_batch_changes(run):
    prompts, way = pictures(4), method(rows(), ParallelRowsVerifier())
    alone = [run(way, [prompt]).outputs[0] for prompt in prompts]
    batch = start_batch(way, prompts[:2], ids=[0, 1])
    decode_step(way, batch)
    add_requests(way, batch, prompts[2:], ids=[2, 3])
    decode_step(way, batch)
    remove_requests(batch, {0: "stopped"})
    while len(batch):
        decode_step(way, batch)
    for request, picture in zip(batch.requests_in_order(), alone, strict=True):
        assert request.ids == picture[: len(request.ids)].tolist()
    assert [len(request.ids) for request in batch.requests_in_order()][1:] == [WIDE * HIGH] * 3


@pytest.mark.parametrize("budget", [1, WIDE - 1, WIDE, 2 * WIDE + 3])
@pytest.mark.parametrize("init", ["above", "left"])
def test_images_end_at_their_last_token(run, budget, init):
    found = run(method(rows(init=init), ParallelRowsVerifier()), pictures(2, budget))
    assert [len(output) for output in found.outputs] == [budget] * 2
    assert found.reasons == ["length"] * 2


def test_preview_tokens_are_generated_in_order(run):
    """Check that its tokens are those of plain decoding, and that the rows of the image after it begin correctly."""
    prompts = pictures(2, 7 + 2 * WIDE)
    plain = run(method(NoDrafter(), SharedNoiseVerifier()), prompts)
    whole = run(method(rows(preview=7, lead=WIDE), ParallelRowsVerifier()), prompts)
    assert whole.same(plain)
    open_ = run(method(rows(preview=7), ParallelRowsVerifier()), prompts)
    assert open_.tau > whole.tau
    for one, other in zip(open_.outputs, plain.outputs, strict=True):
        assert torch.equal(one[: 7 + WIDE], other[: 7 + WIDE])


def test_row_ends_follow_grammar(run):
    """Check rows of four tokens and their end, which is the only id allowed there."""
    end = torch.arange(VOCAB) == 30

    def slot(history: GenerationContext) -> Tensor:
        return ((history.positions + 1) % WIDE == 0).long()

    for lead in (1, 2, WIDE):
        way = method(rows(lead=lead), ParallelRowsVerifier())
        way = replace(way, sampler=Sampler(torch.stack([FEW[0], end]), state_fn=slot, max_forced_run=1))
        for output in run(way, pictures()).outputs:
            assert ((output == 30) == (torch.arange(WIDE * HIGH) % WIDE == WIDE - 1)).all()
        plain = replace(way, drafter=NoDrafter(), verifier=SharedNoiseVerifier())
        assert lead < WIDE or run(way, pictures()).same(run(plain, pictures()))


def test_match_rule_on_open_rows_accepts_more(run):
    near = torch.stack([torch.roll(torch.arange(20, 23), shift)[1:] for shift in (0, -1, -2)])
    table = torch.full((VOCAB, 2), -1)
    table[20:23] = near
    found = run(method(rows(), ParallelRowsVerifier(rules.Lantern(table, delta=0.9))), pictures())
    assert found.tau > run(method(rows(), ParallelRowsVerifier()), pictures()).tau


def test_parallel_rows_method_by_name():
    everything = torch.ones(VOCAB, dtype=torch.bool)
    target = CausalTarget(shallow())
    context = MethodContext("m", target, everything, row_length=WIDE, codebook=CODES)
    choice = parse("pjd(lead=3)")
    assert choice.guarantee == "lossy" and choice.name == "pjd(lead=3)"
    drafter, verifier = build(choice, context)
    assert isinstance(drafter, ParallelRowsDrafter) and drafter.lead == 3 and isinstance(verifier, ParallelRowsVerifier)
    assert build(parse("pjd+lantern(k=9,delta=0.3)"), context)[1].match_rule is not None
    with pytest.raises(UnsupportedMethod, match="row-causal"):
        parse("pjd+tape")
    with pytest.raises(UnsupportedMethod, match="cannot verify"):
        parse("pjd+sps")
    with pytest.raises(UnsupportedMethod, match="rows of an image"):
        build(choice, replace(context, row_length=0))
    assert "pjd" in IDS.available([], (IMAGE_ROWS,)) and "pjd" not in IDS.available([])
    assert build(choice, replace(context, num_preview_tokens=7))[0].preview == 7
    with pytest.raises(InvalidArgument, match="above, left"):
        rows(init="random")
