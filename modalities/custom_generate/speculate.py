"""The callable that makes transformers' `generate` speculative.

    from polydraft import speculate
    model.generate(**inputs, custom_generate=speculate())
    model.generate(**inputs, do_sample=True, custom_generate=speculate("eagle2", drafter="eagle-folder", seed=7))

`generate` prepares inputs, processors and stopping criteria as always; here is only the loop that it would run. The
model is read where it lies and is left as it was.
"""

from __future__ import annotations

import inspect
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.generation.configuration_utils import GenerationMode

from polydraft.core.checks.arguments import to_callback, to_integer, to_optional
from polydraft.core.decode import Batch, Method, StepResult, decode_step, start_batch
from polydraft.core.errors import InvalidArgument
from polydraft.core.methods.spec import MethodSpec
from polydraft.core.sampling.params import SamplingParams
from polydraft.core.sampling.sampler import Sampler
from polydraft.core.stats import DecodeStats
from polydraft.core.stopping import StopPoint, stop_requests
from polydraft.modalities.custom_generate.borrowed import BorrowedModel, describe_structure
from polydraft.modalities.custom_generate.output import ScoreRecorder, build_output, pad_sequences
from polydraft.modalities.custom_generate.prefill import BatchPrompts
from polydraft.modalities.custom_generate.processors import (
    LockstepProcessors,
    NodeProcessors,
    needs_plain_decoding,
    split_processors,
)
from polydraft.modalities.custom_generate.stopping import RowCriteria
from polydraft.modalities.given_drafters import Drafters, LoadedDrafter, to_drafters
from polydraft.modalities.pipeline import MAX_SEED

GUARANTEES = ("identical", "exact", "lossy")  # the strongest first
PLAIN = "ar"  # plain decoding
UNSUPPORTED_OUTPUTS = ("output_attentions", "output_hidden_states")
UNSUPPORTED_MODES = (
    GenerationMode.CONTRASTIVE_SEARCH, GenerationMode.DOLA_GENERATION, GenerationMode.CONSTRAINED_BEAM_SEARCH,
)  # fmt: skip
MAX_FRAMES = 6  # between `generate` and the loop: decorators
locks: WeakKeyDictionary[Any, threading.RLock] = WeakKeyDictionary()  # of models and speculations, by identity
locks_lock: AbstractContextManager[bool] = threading.Lock()


def speculate(
    method: str = "auto", *, drafter: Drafters | None = None, seed: int | None = 0, guarantee: str = "identical",
    on_step: Callable[[StepResult], None] | None = None, takeover: bool = False, tokenizer: Any = None,
) -> Speculation:  # fmt: skip
    """Return a callable for `model.generate(custom_generate=…)` that drafts tokens and verifies them in one pass.

    It serves causal, vision-language and speech-recognising models of transformers, and may be kept for further calls:
    then drafters keep what they have learnt.

    Args:
        method (str): A decoding method; "auto" measures all drafters that the model has, given ones too.
        drafter (Drafters | None): Folder or repository of a drafter, a small language model of transformers, alone or
            with its tokenizer as `(model, tokenizer)`, or several of different kinds.
        seed (int | None): Of sampled tokens, row b has `seed + b`; None takes one from torch's generator, so that
            `torch.manual_seed` governs it.
        guarantee (str): The weakest that the method may have: "identical" (the tokens of plain decoding with the same
            seed, where two logits are not equal up to rounding), "exact" (their distribution) or "lossy".
        on_step (Callable | None): Is called with every pass.
        takeover (bool): Lay the model's weights out for this machine's kernels, instead of reading them where they
            are; larger drafts become faster. The model is changed for good: it can be decoded and run, and not be
            trained or saved.
        tokenizer (Any): The model's, where a draft model has another vocabulary; None is the one of the folder that the
            model was loaded from.

    Raises:
        InvalidArgument: An argument is impossible.
    """
    return Speculation(method, drafter, seed, guarantee, on_step, takeover, tokenizer)


class Speculation:
    """Decoding loop for `custom_generate`, with the arguments of `speculate`.

    `stats` are the statistics of the last call.
    """

    def __init__(
        self, method: str, drafter: Drafters | None, seed: int | None, guarantee: str,
        on_step: Callable[[StepResult], None] | None, takeover: bool, tokenizer: Any = None,
    ) -> None:  # fmt: skip
        if guarantee not in GUARANTEES:
            raise InvalidArgument(f"guarantee={guarantee!r} is not possible; use one of {', '.join(GUARANTEES)}.")
        self.drafters: tuple[str | LoadedDrafter, ...] = to_drafters(drafter)
        self.tokenizer: Any = getattr(tokenizer, "tokenizer", tokenizer)  # a processor has one
        self.method: str = method
        self.guarantee: str = guarantee
        self.takeover: bool = bool(takeover)
        self.seed: int | None = to_optional(to_integer, "seed", seed, 0, MAX_SEED)
        self.on_step: Callable[[StepResult], None] | None = to_optional(to_callback, "on_step", on_step)
        self.borrowed: BorrowedModel | None = None
        self.last_stats: DecodeStats | None = None

    @property
    def stats(self) -> DecodeStats:
        """Return the statistics of the last call.

        Raises:
            InvalidArgument: There was none.
        """
        if self.last_stats is None:
            raise InvalidArgument(
                "nothing has been generated yet; pass this as custom_generate to model.generate first."
            )
        return self.last_stats

    def __repr__(self) -> str:
        drafters = [str(drafter) for drafter in self.drafters]
        return f"speculate({self.method!r}, drafter={drafters!r}, seed={self.seed})"

    def borrow(self, model: PreTrainedModel) -> BorrowedModel:
        """Return the methods over a model; those of the last model are kept while its structure is the same."""
        if self.borrowed is None or self.borrowed.structure != describe_structure(model):
            self.borrowed = BorrowedModel(model, self.drafters, self.tokenizer, takes_over=self.takeover)
        return self.borrowed

    def check_method(self, pipe: BorrowedModel, name: str) -> MethodSpec:
        """Return the specification of a method of a model.

        Raises:
            InvalidArgument: Its guarantee is weaker than what is asked for.
        """
        spec = pipe.check_method(name)
        if GUARANTEES.index(spec.guarantee) > GUARANTEES.index(self.guarantee):
            raise InvalidArgument(
                f"method {spec.name!r} is {spec.guarantee} and guarantee={self.guarantee!r} is asked for; give "
                f"guarantee={spec.guarantee!r} or another method."
            )
        return spec

    @torch.no_grad()
    def __call__(
        self, model: PreTrainedModel, input_ids: Tensor | None = None, logits_processor: Any = None,
        stopping_criteria: Any = None, generation_config: Any = None, synced_gpus: bool | None = None,
        streamer: Any = None, tokenizer: Any = None, **model_kwargs: Any,
    ) -> Any:  # fmt: skip
        """Generate as `generate` does, which calls this.

        Called with what `generate` itself is given, it has `generate` prepare that. Calls of several threads wait for
        each other where they share the model or this object.

        Args:
            model (PreTrainedModel): The model.
            input_ids (Tensor | None): `[B, L]` prompts, padded on the left.
            logits_processor (LogitsProcessorList): As `generate` has prepared them.
            stopping_criteria (StoppingCriteriaList): As `generate` has prepared them.
            generation_config (GenerationConfig): As `generate` has prepared it.
            synced_gpus (bool | None): Whether processes run passes together, which is not supported.
            streamer (Any): Is given tokens as they are committed.
            tokenizer (Any): For stop strings.
            model_kwargs (Any): Further inputs of the model's forward.

        Returns:
            Tensor | ModelOutput: Sequences `[B, L']`, or what `return_dict_in_generate` asks for.

        Raises:
            InvalidArgument: Something is asked for that cannot be drafted.
            UnsupportedModel: The model computes something unknown.
        """
        if not hasattr(generation_config, "_eos_token_tensor"):  # unprepared, as a folder's `generate.py` gets it
            prepare: Any = model.generate
            return prepare(
                input_ids=input_ids, logits_processor=logits_processor, stopping_criteria=stopping_criteria,
                generation_config=generation_config, synced_gpus=synced_gpus, streamer=streamer, tokenizer=tokenizer,
                custom_generate=self, **model_kwargs,
            )  # fmt: skip
        streamer = streamer if streamer is not None else streamer_of_caller()
        check_generation_config(generation_config, synced_gpus)
        assert input_ids is not None
        with locked(self, model, *(each.model for each in self.drafters if isinstance(each, LoadedDrafter))):
            return self.generate(
                model, input_ids, logits_processor, stopping_criteria, generation_config, streamer, model_kwargs
            )

    def generate(
        self, model: PreTrainedModel, input_ids: Tensor, logits_processor: Any, stopping_criteria: Any,
        generation_config: Any, streamer: Any, model_kwargs: dict[str, Any],
    ) -> Any:  # fmt: skip
        """Generate from what `generate` has prepared; arguments as of a call."""
        processors, sampling_params = split_processors(logits_processor, generation_config.do_sample)
        pipe = self.borrow(model)
        plain_for = [each for each in processors if needs_plain_decoding(each, input_ids, pipe.vocab_size)]
        if plain_for and self.method != PLAIN:
            warn_of_plain_decoding(plain_for[0])
        spec = self.check_method(pipe, PLAIN if plain_for else self.method)
        with pipe.evaluation_mode():
            pipe.check_model()
            prompts = BatchPrompts.from_call(model, input_ids, model_kwargs)
            with pipe.loan, torch.inference_mode():
                method = pipe.method(spec)
                run = GenerateRun(self, method, prompts, processors, stopping_criteria, generation_config, streamer)
                run.decode(sampling_params)
        self.last_stats = DecodeStats.sum_rows(run.stats)
        sequences = pad_sequences(input_ids, run.generated, run.pad_token_id)
        if streamer is not None:
            streamer.end()
        return build_output(
            sequences, run.recorder, generation_config, model.config.is_encoder_decoder, self.stats
        )

    def seeds(self, count: int) -> list[int]:
        """Return a seed for every row."""
        first = int(torch.randint(2**62, ())) if self.seed is None else self.seed
        return [(first + row) % (MAX_SEED + 1) for row in range(count)]


def warn_of_plain_decoding(processor: Any) -> None:
    """Warn that a call does not draft because of a processor."""
    name = getattr(processor, "__name__", type(processor).__name__)
    warnings.warn(
        f"{name} cannot be called at drafted tokens (it keeps state, reads other rows, or cannot be copied to tell), "
        "so this call is decoded without drafts; a LogitsProcessor class without state drafts.",
        stacklevel=2,
    )


@contextmanager
def locked(*owners: Any) -> Iterator[None]:
    """Keep other threads from decoding with these objects."""
    with ExitStack() as stack:
        for owner in owners:
            with locks_lock:
                lock = locks.setdefault(owner, threading.RLock())
            stack.enter_context(lock)
        yield


class GenerateRun:
    """One call of `generate`: its rows until the last has ended."""

    def __init__(
        self, owner: Speculation, method: Method, prompts: BatchPrompts, processors: list[Any], criteria: Any,
        generation_config: Any, streamer: Any,
    ) -> None:  # fmt: skip
        self.owner: Speculation = owner
        self.prompts: BatchPrompts = prompts
        self.streamer: Any = streamer
        self.eos_token_ids: list[int] = token_ids_of(generation_config._eos_token_tensor)
        self.pad_token_id: int = (token_ids_of(generation_config._pad_token_tensor) or [0])[0]
        self.max_new_tokens: int = generation_config.max_length - prompts.padded_ids.shape[1]
        self.criteria: RowCriteria = RowCriteria(criteria, prompts.padded_ids)
        self.processors: NodeProcessors | None = None
        if processors:
            kind = LockstepProcessors if method.name == PLAIN else NodeProcessors
            self.processors = kind(processors, prompts.padded_ids, self.pad_token_id)
        num_rows = len(prompts.padded_ids)
        self.generated: list[list[int]] = [[] for _ in range(num_rows)]
        self.stats: list[DecodeStats] = []
        self.num_streamed: int = 0
        wants_scores = generation_config.output_scores or generation_config.output_logits
        self.recorder: ScoreRecorder | None = None
        sampler = Sampler(stop_token_mask=self.stop_token_mask(method), constraints=self.processors)
        if generation_config.return_dict_in_generate and wants_scores:
            self.recorder = ScoreRecorder(method.verifier, num_rows)
            sampler = self.recorder.record(sampler)
            method = replace(method, verifier=self.recorder)
        self.method: Method = replace(method, sampler=sampler)

    def stop_token_mask(self, method: Method) -> Tensor | None:
        """Return the mask `[V]` of ids that end a row, None without any."""
        if not self.eos_token_ids:
            return None
        mask = torch.zeros(method.target.vocab_size, dtype=torch.bool, device=method.target.device)
        mask[[token for token in self.eos_token_ids if 0 <= token < len(mask)]] = True
        return mask

    def decode(self, sampling_params: SamplingParams) -> None:
        """Decode all rows."""
        seeds = self.owner.seeds(len(self.generated))
        batch = start_batch(self.method, self.prompts.inputs(self.max_new_tokens, seeds, sampling_params))
        self.generated = [request.ids for request in batch.requests_in_order()]  # lists that every pass extends
        while len(batch):
            rows = [request.id for request in batch.running]
            if self.processors is not None:
                self.processors.begin_pass(rows)
            result = self.stop_rows(batch, decode_step(self.method, batch))
            batch.raise_errors()
            if self.recorder is not None:
                self.recorder.keep(rows, result.num_committed)
            self.stream(batch)
            if self.owner.on_step is not None:
                self.owner.on_step(result)
        for request in batch.requests_in_order():
            self.method.drafter.finish(request.prompt_end, request.ids)
            request.stats.set_times(batch.timer)
        self.stats = list(batch.stats.values())

    def stop_rows(self, batch: Batch, result: StepResult) -> StepResult:
        """Stop rows where a criterion says so, and return the pass without what is behind."""
        stops: dict[int, StopPoint] = {}
        for row, num_before in zip(result.requests, result.num_generated_before, strict=True):
            length = self.criteria.stop_length(row, batch.requests[row].ids, num_before)
            if length is not None:
                stops[row] = StopPoint("stop", length)
        return stop_requests(batch, result, stops)

    def stream(self, batch: Batch) -> None:
        """Give the streamer the tokens that all rows have, `[B]` each, as without drafts."""
        if self.streamer is None:
            return
        running = {request.id for request in batch.running}
        ready = min((len(self.generated[row]) for row in running), default=max(map(len, self.generated)))
        for index in range(self.num_streamed, ready):
            tokens = [ids[index] if index < len(ids) else self.pad_token_id for ids in self.generated]
            self.streamer.put(torch.tensor(tokens))
        self.num_streamed = max(self.num_streamed, ready)


def check_generation_config(config: Any, synced_gpus: bool | None) -> None:
    """Raise InvalidArgument for what cannot be drafted."""
    if (config.num_beams or 1) > 1:
        raise InvalidArgument(f"num_beams={config.num_beams} searches, and drafts are for one sequence; leave it out.")
    for name in UNSUPPORTED_OUTPUTS:
        if config.return_dict_in_generate and getattr(config, name):
            raise InvalidArgument(f"{name}=True is not known for drafted tokens; leave it out.")
    if (mode := config.get_generation_mode()) in UNSUPPORTED_MODES:
        raise InvalidArgument(f"{mode.value} is no mode of drafted decoding; ask for greedy decoding or sampling.")
    if synced_gpus:
        raise InvalidArgument("synced_gpus=True runs the same passes in several processes; leave it out.")


def token_ids_of(value: Tensor | None) -> list[int]:
    """Return the ids of a tensor that `generate` has prepared, none for None."""
    ids: list[int] = [] if value is None else value.reshape(-1).tolist()
    return ids


def streamer_of_caller() -> Any:
    """Return the streamer of the call of `generate` that calls, where it does not pass it on.

    transformers 5.24 gives a callable only what its own loop does not know (`_extract_generation_mode_kwargs`).
    """
    frame = inspect.currentframe()
    for _ in range(MAX_FRAMES):
        frame = None if frame is None else frame.f_back
        if frame is not None and frame.f_code.co_name == "generate" and "custom_generate" in frame.f_locals:
            return frame.f_locals.get("streamer")
    return None
