"""Any transformers vision-language model as a target, unforked.

Pictures are encoded once, and the model's own forward reads every prompt: where they are spliced in, which blocks see
both ways and what enters deeper layers is the model's business. Its keys and values are copied into our cache, rows are
joined there, and what follows is text: the decoder scores drafts as any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache

from polydraft.core.errors import PolydraftError, WeightsError
from polydraft.core.folders.faults import first_line
from polydraft.core.model.cache import SlotCache, over
from polydraft.core.state import State
from polydraft.core.system_errors import system_error
from polydraft.core.target import CausalTarget, Prefill, Prompt

FAILURES = (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RuntimeError)
PER_TOKEN = ("token_type_ids", "mm_token_type_ids")  # inputs of the text; all others are of the pictures


def image_token_ids(config: Any) -> set[int]:
    """Return ids that stand for pictures and moving ones, which a model's own forward need not look up."""
    named = (getattr(config, name, None) for name in ("image_token_id", "video_token_id"))
    return {token for token in named if token is not None}


class VisionTarget(CausalTarget):
    """Adapter over a transformers `…ForConditionalGeneration`; `Prompt.inputs` are its processor's, ids excepted.

    shifts: whether rotary coordinates are not slots.
    """

    shifts = False

    def unknown_id(self, ids: Iterable[int]) -> int | None:
        marks = image_token_ids(self.model.config)
        return super().unknown_id(token for token in ids if token not in marks)

    def read(self, state: State, prompts: list[Prompt], ids: Tensor, lengths: Tensor, rows: slice) -> Prefill:
        cache = state.cache
        cache.reach(ids.shape[1])
        features = torch.zeros(*ids.shape, self.config.hidden_size, dtype=self.model.dtype, device=self.device)
        embeddings, shifts = torch.zeros_like(features), torch.zeros(len(ids), dtype=torch.long, device=self.device)
        encoded: list[tuple[Mapping[str, Tensor], Any]] = []
        for row, length in enumerate(lengths.flatten().tolist()):
            own, read = ids[row, :length], self.inputs_of(prompts[row // self.branches], row % self.branches)
            pictures = {name: value for name, value in read.items() if name not in PER_TOKEN}
            text: dict[str, Any] = {  # what follows a processor's prompt is text
                name: pad(value, (0, length - value.shape[1])) for name, value in read.items() if name in PER_TOKEN
            }
            if pictures:
                text["mm_encoder_outputs"] = {"image": self.encoded(pictures, encoded)}
            text |= self.coordinates(own[None], pictures, shifts[row : row + 1])
            features[row, :length], embeddings[row, :length] = self.read_row(own, text, rows.start + row, cache)
        if self.shifts:
            cache.shift(shifts)
        return Prefill(ids, lengths, features.unflatten(0, lengths.shape), embeddings.unflatten(0, lengths.shape))

    def inputs_of(self, prompt: Prompt, branch: int) -> dict[str, Tensor]:
        """What one branch is read with; one that shows nothing, as an unconditional one may, without the pictures."""
        given = {name: self.at_home(value) for name, value in prompt.inputs.items()}
        if not branch or not given:
            return given
        ids = torch.tensor([prompt.branches[branch]], device=self.device)
        places = (ids == self.model.config.image_token_id).long()
        if not places.any():
            given = {name: value for name, value in given.items() if name in PER_TOKEN}
        return given | {name: places for name in PER_TOKEN if name in given}

    def own_logits(self, prompt: Prompt, path: list[int]) -> Tensor:
        ids = torch.tensor([[*prompt.branches[0], *path]], device=self.device)
        own = self.inputs_of(prompt, 0)
        own |= {name: pad(own[name], (0, len(path))) for name in PER_TOKEN if name in own}
        return self.model(input_ids=ids, **own, use_cache=False).logits[0, -len(path) - 1 :]

    def read_row(self, ids: Tensor, inputs: dict[str, Any], row: int, cache: SlotCache) -> tuple[Tensor, Tensor]:
        """Features and embeddings `[L, D]` of one prompt, ids `[L]`; its keys and values go to `row` of the cache."""
        heard: dict[str, Any] = {}
        hook = self.network.backbone.register_forward_pre_hook(
            lambda module, args, named: heard.update(named), with_kwargs=True
        )
        own = DynamicCache()  # without a configuration it forgets nothing, layers that slide included
        try:
            model = self.model.base_model
            with agreeing():
                output = model(input_ids=ids[None], **over(own, model), use_cache=True, **inputs)
        finally:
            hook.remove()
        cache.adopt(row, own)
        return output.last_hidden_state[0], heard["inputs_embeds"][0]

    def encoded(self, pictures: dict[str, Tensor], known: list[tuple[Mapping[str, Tensor], Any]]) -> Any:
        """What the vision tower makes of `pictures`; rows that ask about the same ones share it through `known`."""
        for others, output in known:
            if pictures.keys() == others.keys() and all(torch.equal(pictures[name], others[name]) for name in others):
                return output
        with agreeing():
            known.append((pictures, self.model.base_model.get_image_features(**pictures, return_dict=True)))
        return known[-1][1]

    def at_home(self, value: Tensor) -> Tensor:
        """On the model's device, and of its type if it is pixels."""
        return value.to(self.device, self.model.dtype if value.is_floating_point() else None)

    def coordinates(self, ids: Tensor, pictures: dict[str, Tensor], shift: Tensor) -> dict[str, Tensor]:
        """Rotary coordinates of ids `[1, L]` where they are not their slots; the answer's are `shift` `[1]` off."""
        return {}


class GridTarget(VisionTarget):
    """M-RoPE: pictures take rows and columns of rotary coordinates, text goes on behind the larger of the two."""

    shifts = True

    def coordinates(self, ids: Tensor, pictures: dict[str, Tensor], shift: Tensor) -> dict[str, Tensor]:
        types = (ids == self.model.config.image_token_id).int()
        positions, ahead = self.model.base_model.get_rope_index(
            ids, mm_token_type_ids=types, image_grid_thw=pictures.get("image_grid_thw")
        )
        shift += ahead[0]
        return {"position_ids": positions}


@contextmanager
def agreeing() -> Iterator[None]:
    """Say so where a model refuses what its own processor prepared.

    Raises:
        WeightsError: pictures are of another size, or their positions are not as many as the model makes of them.
    """
    try:
        yield
    except FAILURES as error:
        if isinstance(error, PolydraftError) or system_error(error, "the prompt cannot be read"):
            raise
        raise WeightsError(
            f"the model cannot read a prompt as its processor prepares it ({first_line(error)}); a field of its "
            "config.json, preprocessor_config.json or processor_config.json is wrong, download them again."
        ) from error


def target_of(model: PreTrainedModel, **options: Any) -> VisionTarget:
    """The adapter that fits `model`; options as for `CausalTarget`."""
    kind = GridTarget if hasattr(model.base_model, "get_rope_index") else VisionTarget
    return kind(model, **options)
