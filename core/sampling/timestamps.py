"""Whisper's rules for timestamp tokens (Radford et al. 2022, arXiv 2212.04356, section 2.3 and the published code).

    rules = TimestampRules(first_timestamp_id=50_364, end_id=50_257, no_timestamps_id=50_363, max_initial_index=50)
    logits = rules.apply_(constraints(logits, None, context), context, enabled)

They come after the constraints of the checkpoint (suppressed ids, ids that are not generated first) and before the
temperature: transformers 5.24 (`WhisperGenerationMixin._retrieve_logit_processors` and
`GenerationMixin._get_logits_processor`) applies repetition penalty, n-grams, bad words and the forced last token, then
no-speech detection, ids suppressed first, suppressed ids, these rules, then temperature, top-k, top-p and min-p. The
order counts, because the last rule sums the probabilities of ids that are not suppressed yet.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polydraft.core.batched_state import cached_arange
from polydraft.core.draft import all_equal_without_sync
from polydraft.core.sampling.context import GenerationContext


@dataclass(frozen=True)
class TimestampRules:
    """Logits processor that lets Whisper generate well-formed timestamps, equal to transformers' at every node.

    Of the tokens generated after the prompt, all ids from `first_timestamp_id` on are timestamps:

    - the id that switches timestamps off is never generated;
    - timestamps come in pairs, except directly before the end; text follows a pair;
    - timestamps never decrease, and a pair that is closed is followed by a later one, so no segment is empty;
    - the first token is a timestamp, at most `max_initial_index` steps after the window's start;
    - where timestamps together are more likely than the likeliest other id, a timestamp is generated.

    All of it depends on a node's own path alone, so the nodes of a tree get the distribution of plain decoding.
    """

    first_timestamp_id: int  # of 0.00 s; every id from it on is a timestamp
    end_id: int  # end of the text; ids below it are text, those up to the first timestamp are control tokens
    no_timestamps_id: int  # switches timestamps off
    max_initial_index: int | None = None  # largest first timestamp, in steps from the start; None allows any

    def apply_(self, logits: Tensor, context: GenerationContext, enabled: Tensor | None = None) -> Tensor:
        """Set the logits of forbidden ids to -inf in place.

        Args:
            logits (Tensor): `[B, T, V]` of T scored positions, after all constraints, before temperature and filters.
            context (GenerationContext): tokens before every scored position.
            enabled (Tensor | None): `[B]` bool, rows that generate timestamps; the others keep their logits. None
                enables all rows.

        Returns:
            Tensor: `logits` itself.
        """
        first = self.first_timestamp_id
        is_on = torch.ones_like(context.positions, dtype=torch.bool) if enabled is None else enabled[:, None]
        last_is_timestamp, previous_is_timestamp = (context.last_generated(2) >= first).unbind(-1)
        previous_is_timestamp = previous_is_timestamp | (context.positions < 2)  # the first timestamp has no partner
        is_paired = is_on & last_is_timestamp & previous_is_timestamp
        is_single = is_on & last_is_timestamp & ~previous_is_timestamp  # its partner or the end comes next
        is_initial = is_on & (context.positions == 0)
        # the partner of a single timestamp may be equal to it, so that a segment starts where the one before ends
        least = context.last_generated_from(first) + (~is_single).long()  # [B, T]; 0 before the first timestamp

        words, controls, timestamps = logits.tensor_split((self.end_id, first), -1)  # views
        timestamp_ids = cached_arange(logits.shape[-1], logits.device)[first:]
        is_forbidden = is_on[..., None] & (timestamp_ids < least[..., None]) | is_paired[..., None]
        if self.max_initial_index is not None:
            is_forbidden |= is_initial[..., None] & (timestamp_ids > first + self.max_initial_index)
        timestamps.masked_fill_(is_forbidden, -torch.inf)
        logits[..., self.no_timestamps_id].masked_fill_(is_on, -torch.inf)

        # the likeliest other id, of those that the rules before allow
        best_word = words.amax(-1).masked_fill(is_single | is_initial, -torch.inf)
        best_control = controls.amax(-1).masked_fill(is_initial, -torch.inf)
        is_likelier = timestamps.float().logsumexp(-1) > torch.maximum(best_word, best_control)
        without_controls = is_initial | (is_on & is_likelier)
        without_words = without_controls | is_single
        if all_equal_without_sync(without_words) is not False:  # most passes have none
            words.masked_fill_(without_words[..., None], -torch.inf)
            controls.masked_fill_(without_controls[..., None], -torch.inf)
        return logits
