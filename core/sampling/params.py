"""Sampling parameters: what a user sets per request, and the same for a batch as tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from polydraft.core.batched_state import BatchedState
from polydraft.core.checks.arguments import argument_error, to_integer, to_real

MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-6, 1e30  # more extreme ones sample the same, and logits are still finite here
MAX_FACTOR = 1e6  # largest repetition penalty and guidance scale; larger ones change nothing
MAX_TOKENS = 2**31 - 1  # of a vocabulary or a sequence; larger numbers have no further effect
MAX_REPEAT_WINDOW = 1024  # tokens that repetition-aware sampling looks back at


@dataclass(frozen=True)
class RepetitionAware:
    """Repetition-aware sampling: resample tokens that occur at least `tau * window` times among the last `window`.

    CosyVoice; Chen et al. 2024, VALL-E 2 (arXiv 2406.05370), repetition-aware sampling.
    """

    window: int = 10
    tau: float = 0.1
    banned: bool = False  # the second draw, from the unfiltered distribution, excludes the token

    def __post_init__(self) -> None:
        """Convert the fields to plain Python numbers.

        Raises:
            InvalidArgument: a field is outside its range.
        """
        object.__setattr__(self, "window", to_integer("window", self.window, 1, MAX_REPEAT_WINDOW))
        object.__setattr__(self, "tau", to_real("tau", self.tau))
        if not 0 < self.tau <= 1:
            raise argument_error("tau", self.tau, "above 0 and at most 1")


# predicate of allowed values, and its description in error messages
REAL_RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    "temperature": (lambda value: 0 <= value < float("inf"), "0 or more (0 is greedy)"),
    "top_p": (lambda value: 0 < value <= 1, "above 0 and at most 1"),
    "min_p": (lambda value: 0 <= value < 1, "at least 0 and below 1"),
    "repetition_penalty": (lambda value: 0 < value < float("inf"), "above 0 (1 is off)"),
    "guidance_scale": (lambda value: 0 <= value < float("inf"), "0 or more (1 is off)"),
}


@dataclass(frozen=True)
class SamplingParams:
    """Sampling parameters of one request."""

    temperature: float = 1.0  # 0 is greedy
    top_k: int = 0  # 0 is off
    top_p: float = 1.0  # 1 is off
    min_p: float = 0.0  # 0 is off
    repetition_penalty: float = 1.0  # 1 is off
    min_tokens: int = 0  # stop tokens cannot be sampled before this many tokens
    repetition_aware: RepetitionAware | None = None
    # s of u + s (c - u) over conditional and unconditional logits (Ho and Salimans 2022); 1 is the conditional alone
    guidance_scale: float = 1.0
    log_probs: bool = False  # keep the log probabilities of generated tokens

    def __post_init__(self) -> None:
        """Convert the fields to plain Python numbers.

        Raises:
            InvalidArgument: a field is outside its range.
        """
        for name in ("top_k", "min_tokens"):  # `object.__setattr__`, because the dataclass is frozen
            object.__setattr__(self, name, to_integer(name, getattr(self, name)))
        for name, (is_possible, allowed) in REAL_RANGES.items():
            value = getattr(self, name)
            number = to_real(name, value)
            if not is_possible(number):
                raise argument_error(name, value, allowed)
            object.__setattr__(self, name, number)

    @property
    def greedy(self) -> bool:
        """Return True at temperature 0."""
        return self.temperature == 0


OFF = SamplingParams(temperature=1.0)  # parameters that leave the model's distribution as it is
FILTERS = ("top_k", "top_p", "min_p")


@dataclass
class SamplingTensors(BatchedState):
    """Sampling parameters of a batch: `params` on the host, and their values as tensors `[B]` on the device.

    Greedy batch rows have temperature 1, so that logits can be divided by it.
    """

    params: list[SamplingParams]
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    repetition_penalty: Tensor
    min_tokens: Tensor
    guidance_scale: Tensor
    greedy: Tensor
    repeat_window: Tensor  # window of repetition-aware sampling; 0 is off
    repeat_tau: Tensor
    repeat_banned: Tensor

    @staticmethod
    def from_params(params: list[SamplingParams], device: torch.device | str) -> SamplingTensors:
        """Build the tensors `[B]` of a batch from the sampling parameters of its B batch rows."""
        values = {name: [clamp_param(name, getattr(row, name)) for row in params] for name in SHARED_PARAMS}
        # greedy rows get temperature 1, because logits are divided by it
        values["temperature"] = [1.0 if row.greedy else clamp_param("temperature", row.temperature) for row in params]
        values["greedy"] = [row.greedy for row in params]
        repetition_aware = [row.repetition_aware for row in params]
        values["repeat_window"] = [0 if setting is None else setting.window for setting in repetition_aware]
        # where repetition-aware sampling is off (window 0), the other two are not read
        values["repeat_tau"] = [1.0 if setting is None else setting.tau for setting in repetition_aware]
        values["repeat_banned"] = [setting is not None and setting.banned for setting in repetition_aware]
        tensors = {name: torch.tensor(values[name], dtype=DTYPES[name], device=device) for name in values}
        return SamplingTensors(list(params), **tensors)

    @property
    def distinct_params(self) -> Iterable[SamplingParams]:
        """Return the distinct objects among `params`, of which most batches have one, to check each only once."""
        return {id(row): row for row in self.params}.values()

    def uses(self, name: str) -> bool:
        """Return True if any batch row has a value of the parameter `name` that changes its distribution.

        `OFF` has the values that leave distributions as they are.
        """
        return any(getattr(row, name) != getattr(OFF, name) for row in self.distinct_params)

    @property
    def all_greedy(self) -> bool:
        """Return True if every batch row is greedy (temperature 0)."""
        return all(row.greedy for row in self.distinct_params)

    @property
    def max_repeat_window(self) -> int:
        """Return the longest window of repetition-aware sampling in the batch; 0 if no batch row uses it."""
        return max((row.repetition_aware.window for row in self.distinct_params if row.repetition_aware), default=0)


def clamp_param(name: str, value: float) -> float:
    """Return the value of parameter `name`, clamped so that logits stay finite and the tensor's type can hold it."""
    least, most = VALUE_RANGES.get(name, (0, 1))
    return min(max(value, least), most)


VALUE_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (MIN_TEMPERATURE, MAX_TEMPERATURE), "repetition_penalty": (1 / MAX_FACTOR, MAX_FACTOR),
    "guidance_scale": (0, MAX_FACTOR), "top_k": (0, MAX_TOKENS), "min_tokens": (0, MAX_TOKENS),
}  # fmt: skip
DTYPES = {
    **dict.fromkeys(("temperature", "top_p", "min_p", "repetition_penalty", "guidance_scale"), torch.float32),
    **dict.fromkeys(("top_k", "min_tokens", "repeat_window"), torch.long),
    **dict.fromkeys(("greedy", "repeat_banned"), torch.bool),
    "repeat_tau": torch.float64,  # tau * window is compared with whole numbers
}
HOST_PARAMS = ("repetition_aware", "log_probs")  # whose values are no tensors of their own
# fields of both SamplingParams and SamplingTensors
SHARED_PARAMS = tuple(field.name for field in fields(SamplingParams) if field.name not in HOST_PARAMS)
