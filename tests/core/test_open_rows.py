"""Rows of a picture drawn at once settle what a slow reading of the rule says; whole rows are plain decoding."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from polydraft.core.decode import Method, join, leave, start, step
from polydraft.core.drafters.base import NoDrafter
from polydraft.core.drafters.jacobi.rows import RowDrafter
from polydraft.core.errors import InvalidArgument, UnsupportedMethod
from polydraft.core.law.history import History
from polydraft.core.law.noise import Noise
from polydraft.core.law.sampling import Sampler, Sampling
from polydraft.core.methods.method import ROWS, MethodContext
from polydraft.core.methods.registry import IDS, build, parse
from polydraft.core.target import CausalTarget, Prompt
from polydraft.core.verify import rules
from polydraft.core.verify.rows import RowVerifier
from polydraft.core.verify.tape import TapeVerifier

from .conftest import CODES, SIZES, VOCAB, chosen

WIDE, HIGH = 5, 4
FEW = torch.zeros(1, VOCAB, dtype=torch.bool)
FEW[:, 20:23] = True  # of three codes a guess is often right
TWO = FEW.clone()
TWO[:, 22] = False


def shallow() -> LlamaForCausalLM:
    """Of one layer: keys and values of a code depend on its own id and place alone, whichever pass computed them."""
    torch.manual_seed(3)
    return LlamaForCausalLM(LlamaConfig(**(SIZES | {"num_hidden_layers": 1}))).eval()


def method(drafter: object, verifier: object, mask: Tensor | None = FEW, guided: bool = False) -> Method:
    return Method("tested", CausalTarget(shallow(), guided=guided), drafter, verifier, Sampler(mask))  # type: ignore[arg-type]


def rows(**fields: int | str) -> RowDrafter:
    return RowDrafter(**({"row": WIDE, "allowed": FEW[0], "lead": 2, "rows": 9, "window": 2} | fields))  # type: ignore[arg-type]


def pictures(count: int = 3, budget: int = WIDE * HIGH, sampling: Sampling | None = None) -> list[Prompt]:
    texts = [(1, 2, 3, 4), (1, 9), (1, 7, 7, 8, 5, 6, 11)]
    return [Prompt((texts[row % 3], (1, 6)), budget, 40 + row, sampling=sampling or Sampling()) for row in range(count)]


@dataclass
class Slowly:
    """The rule read code by code, without a cache: for every place the model reads what the place may see."""

    model: LlamaForCausalLM
    prompt: Prompt
    lead: int
    open_rows: int
    window: int

    def choice(self, seen: list[tuple[int, int]], place: int) -> int:
        """What the tape draws at `place` behind ids at places `seen`."""
        text = list(self.prompt.branches[0])
        ids = torch.tensor([text + [code for _, code in seen]])
        at = torch.tensor([[*range(len(text)), *(len(text) + where for where, _ in seen)]])
        whole = torch.ones_like(ids)  # without a mask, gaps between positions are taken for ends of sequences
        logits = self.model(input_ids=ids, position_ids=at, attention_mask=whole, use_cache=False).logits[0, -1]
        none = torch.zeros(1, dtype=torch.long)
        noise = Noise(torch.tensor([self.prompt.seed]), none, none.clone(), none.bool(), [1.0], VOCAB, True)
        return int((logits.masked_fill(~FEW[0], -torch.inf) + noise.tape(torch.tensor([[place]]))[0, 0]).argmax())

    def draw(self) -> list[int]:
        picture: dict[int, int] = {}
        guesses: dict[int, int] = {}
        settled, committed = [0] * HIGH, 0
        while committed < WIDE * HIGH:
            first, before = committed // WIDE, list(settled)
            filled, computed = self.filled(picture, guesses, before), set[int]()
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
        """Places of a row that may be drawn."""
        return WIDE if row == first else max(0, settled[row - 1] - self.lead + 1)

    def filled(self, picture: dict[int, int], guesses: dict[int, int], settled: list[int]) -> list[int]:
        """What every place holds: settled, guessed, or as above it; in the first row as the last one settled."""
        found: list[int] = []
        for place in range(WIDE * HIGH):
            above = found[place - WIDE] if place >= WIDE else None
            left = picture[settled[0] - 1] if settled[0] else int(FEW[0].nonzero()[0])
            found.append(picture.get(place, guesses.get(place, left if above is None else above)))
        return found

    def sees(self, filled: list[int], settled: list[int], first: int, row: int, x: int) -> list[tuple[int, int]]:
        """What the choice at column x of `row` follows: the rows above as far as settled, its own up to x; of a row
        that begins, the row above with what that guesses, and its last."""
        seen = [line * WIDE + at for line in range(row) for at in range(settled[line])]
        if x == 0 and row and settled[row - 1] < WIDE:
            begun = settled[row - 1]
            room = self.room(settled, first, row - 1)
            guessed = [(row - 1) * WIDE + at for at in range(begun, min(begun + self.window, room))]
            seen = list(dict.fromkeys([*seen, *guessed, row * WIDE - 1]))
        seen += [row * WIDE + at for at in range(x)]
        return [(place, filled[place]) for place in seen]


def test_rows_settle_what_the_rule_says(run):
    for lead, open_rows, window in ((1, 3, 2), (2, 9, 3)):
        prompts, drafter = pictures(2), rows(lead=lead, rows=open_rows, window=window)
        for prompt, output in zip(prompts, run(method(drafter, RowVerifier()), prompts).outputs, strict=True):
            with torch.inference_mode():
                slow = Slowly(shallow(), prompt, lead, drafter.rows, window).draw()
            assert output.tolist() == slow, (lead, open_rows, window)


@pytest.mark.parametrize("guidance", [1.0, 2.0])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0), Sampling(top_k=2)])
def test_whole_rows_are_plain_decoding(run, sampling, guidance):
    prompts, guided = chosen(pictures(), sampling, guidance), guidance != 1
    plain = run(method(NoDrafter(), TapeVerifier(), TWO, guided), prompts)
    found = run(method(rows(lead=WIDE, window=4), RowVerifier(), TWO, guided), prompts)
    assert found.same(plain)
    assert found.tau > 1.5


def test_whole_rows_are_plain_decoding_in_deep_and_sliding_models(lab, run):
    for family in ("llama", "mistral", "gemma"):
        made = lab(torch.float32, family)
        prompts = [replace(prompt, budget=17) for prompt in made.prompts]
        plain = run(made.method(mask=FEW), prompts)
        found = run(made.method(rows(lead=WIDE, window=4), False, RowVerifier(), mask=FEW), prompts)
        assert found.same(plain), family
        assert found.tau > 1.5


def test_a_mask_that_hides_or_shows_too_much_is_caught(run, monkeypatch):
    honest, prompts = RowDrafter.sees, pictures()
    plain = run(method(NoDrafter(), TapeVerifier()), prompts)
    open_ = run(method(rows(), RowVerifier()), prompts)

    def short(self, begun, settled, slots, lines):  # not its own left neighbour
        every = torch.arange(self.rows * self.row + 2)
        return honest(self, begun, settled, slots, lines) & (every != slots[..., None] - 1)

    def guesses(self, begun, settled, slots, lines):  # whatever was written before it, by whichever row
        every = torch.arange(self.rows * self.row + 2)
        return honest(self, begun, settled, slots, lines) | (every <= slots[..., None])

    monkeypatch.setattr(RowDrafter, "sees", short)
    assert not run(method(rows(lead=WIDE, window=4), RowVerifier()), prompts).same(plain)
    monkeypatch.setattr(RowDrafter, "sees", guesses)
    assert not run(method(rows(), RowVerifier()), prompts).same(open_)


def test_open_rows_take_fewer_passes_and_are_counted_right(run):
    prompts = pictures(9)
    alone = run(method(rows(lead=WIDE), RowVerifier()), prompts)
    for lead in (1, 2, 3):
        found = run(method(rows(lead=lead), RowVerifier()), prompts)
        assert found.tau > alone.tau
        for output, stats in zip(found.outputs, found.batch.stats.values(), strict=True):
            assert len(output) == stats.tokens == WIDE * HIGH
            assert 0 < stats.accepted <= stats.drafted
            assert stats.accepted < stats.tokens  # every open row takes a choice of its own in every pass
            assert stats.guarantee == "lossy"


def test_rows_alone_beside_others_joining_and_leaving_are_the_same(run):
    prompts, way = pictures(4), method(rows(), RowVerifier())
    alone = [run(way, [prompt]).outputs[0] for prompt in prompts]
    batch = start(way, prompts[:2], ids=[0, 1])
    step(way, batch)
    join(way, batch, prompts[2:], ids=[2, 3])
    step(way, batch)
    leave(batch, {0: "stopped"})
    while len(batch):
        step(way, batch)
    for request, picture in zip(batch.in_order(), alone, strict=True):
        assert request.ids == picture[: len(request.ids)].tolist()
    assert [len(request.ids) for request in batch.in_order()][1:] == [WIDE * HIGH] * 3


@pytest.mark.parametrize("budget", [1, WIDE - 1, WIDE, 2 * WIDE + 3])
@pytest.mark.parametrize("init", ["above", "left"])
def test_pictures_end_where_they_should(run, budget, init):
    found = run(method(rows(init=init), RowVerifier()), pictures(2, budget))
    assert [len(output) for output in found.outputs] == [budget] * 2
    assert found.reasons == ["length"] * 2


def test_a_preview_is_drawn_in_its_order(run):
    """Its tokens are plain decoding's, and rows of the picture behind it begin where they should."""
    prompts = pictures(2, 7 + 2 * WIDE)
    plain = run(method(NoDrafter(), TapeVerifier()), prompts)
    whole = run(method(rows(preview=7, lead=WIDE), RowVerifier()), prompts)
    assert whole.same(plain)
    open_ = run(method(rows(preview=7), RowVerifier()), prompts)
    assert open_.tau > whole.tau
    for one, other in zip(open_.outputs, plain.outputs, strict=True):
        assert torch.equal(one[: 7 + WIDE], other[: 7 + WIDE])


def test_ends_of_rows_stand_where_the_grammar_puts_them(run):
    """A row of four codes and its end, which is the only id allowed there."""
    end = torch.arange(VOCAB) == 30

    def slot(history: History) -> Tensor:
        return ((history.t + 1) % WIDE == 0).long()

    for lead in (1, 2, WIDE):
        way = method(rows(lead=lead), RowVerifier())
        way = replace(way, sampler=Sampler(torch.stack([FEW[0], end]), slot=slot, forced=1))
        for output in run(way, pictures()).outputs:
            assert ((output == 30) == (torch.arange(WIDE * HIGH) % WIDE == WIDE - 1)).all()
        plain = replace(way, drafter=NoDrafter(), verifier=TapeVerifier())
        assert lead < WIDE or run(way, pictures()).same(run(plain, pictures()))


def test_a_match_on_open_rows_accepts_more(run):
    near = torch.stack([torch.roll(torch.arange(20, 23), shift)[1:] for shift in (0, -1, -2)])
    table = torch.full((VOCAB, 2), -1)
    table[20:23] = near
    found = run(method(rows(), RowVerifier(rules.Lantern(table, delta=0.9))), pictures())
    assert found.tau > run(method(rows(), RowVerifier()), pictures()).tau


def test_the_method_by_name():
    everything = torch.ones(VOCAB, dtype=torch.bool)
    target = CausalTarget(shallow())
    context = MethodContext("m", target, everything, row=WIDE, codes=CODES)
    choice = parse("pjd(lead=3)")
    assert choice.guarantee == "lossy" and choice.name == "pjd(lead=3)"
    drafter, verifier = build(choice, context)
    assert isinstance(drafter, RowDrafter) and drafter.lead == 3 and isinstance(verifier, RowVerifier)
    assert build(parse("pjd+lantern(k=9,delta=0.3)"), context)[1].match is not None
    with pytest.raises(UnsupportedMethod, match="row-causal"):
        parse("pjd+tape")
    with pytest.raises(UnsupportedMethod, match="cannot judge"):
        parse("pjd+sps")
    with pytest.raises(UnsupportedMethod, match="rows of a picture"):
        build(choice, replace(context, row=0))
    assert "pjd" in IDS.available([], (ROWS,)) and "pjd" not in IDS.available([])
    assert build(choice, replace(context, preview=7))[0].preview == 7
    with pytest.raises(InvalidArgument, match="above, left"):
        rows(init="random")
