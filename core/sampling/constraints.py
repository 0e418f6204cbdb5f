"""Constraints from a checkpoint's generation_config that apply besides its grammar.

    Constraints.from_ids(vocab_size, device, bad_words=[[7, 8]], no_repeat_ngram=3)
    logits = constraints(logits, grammar_bias, context)

They are applied in the order of transformers' logits processors: repeated n-grams, bad words, the forced last token,
suppressed ids, rules for timestamps. Each is a function of a node's own path, so the nodes of a tree get the
distribution that plain decoding would have there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from polydraft.core.draft import all_equal_without_sync
from polydraft.core.sampling.context import GenerationContext
from polydraft.core.sampling.timestamps import TimestampRules


class PathConstraints(Protocol):
    """Logits processors that are functions of a node's own path."""

    @property
    def depends_on_history(self) -> bool:
        """Return True if any of them depends on tokens or positions that came before."""

    def __call__(self, logits: Tensor, grammar_bias: Tensor | None, context: GenerationContext | None) -> Tensor:
        """Return the processed logits `[B, T, V]`, with arguments as `Constraints`."""


@dataclass(frozen=True)
class Constraints:
    """Logits processors of a checkpoint; None and 0 turn one off."""

    no_repeat_ngram: int = 0  # no n-gram of this size occurs twice in prompt and answer
    # [G, W] ids before the last of each of G bad words (sequences of ids), latest first, padded with -1 to the longest
    bad_word_prefixes: Tensor | None = None
    bad_word_ends: Tensor | None = None  # [G] last id of every bad word
    forced_last: Tensor | None = None  # [V] bool, the only ids that may be a row's last token
    suppressed: Tensor | None = None  # [V] bool, ids that are never generated
    begin_suppressed: Tensor | None = None  # [V] bool, ids that are not generated first
    timestamps: TimestampRules | None = None  # of rows whose prompt does not switch timestamps off

    @staticmethod
    def from_ids(
        vocab_size: int, device: torch.device | str, *, no_repeat_ngram: int = 0,
        bad_words: Sequence[Sequence[int]] = (), forced_last: Iterable[int] = (), suppressed: Iterable[int] = (),
        begin_suppressed: Iterable[int] = (),
    ) -> Constraints | None:  # fmt: skip
        """Build constraints from the settings of a checkpoint's generation_config; return None if all are off.

        Args:
            vocab_size (int): V.
            device (torch.device | str): device of the masks.
            no_repeat_ngram (int): size of n-grams that must not occur twice; 0 is off.
            bad_words (Sequence[Sequence[int]]): token id sequences that are never generated.
            forced_last (Iterable[int]): the only ids allowed as the last token of the budget.
            suppressed (Iterable[int]): ids that are never generated.
            begin_suppressed (Iterable[int]): ids that are not generated first.
        """

        def make_vocab_mask(ids: Iterable[int]) -> Tensor | None:
            """Return the mask `[V]` of `ids`, None if there are none."""
            unique_ids = sorted(set(ids))
            if not unique_ids:
                return None
            return torch.isin(torch.arange(vocab_size), torch.tensor(unique_ids)).to(device)

        prefixes = ends = None
        if bad_words:
            max_len = max(len(word) for word in bad_words) - 1
            # of every word, all ids but the last, latest first, then -1 up to `max_len` ids
            reversed_prefixes = [[*word[-2::-1], *[-1] * (max_len - len(word) + 1)] for word in bad_words]
            prefixes = torch.tensor(reversed_prefixes, dtype=torch.long, device=device).view(len(bad_words), max_len)
            ends = torch.tensor([word[-1] for word in bad_words], device=device)
        constraints = Constraints(
            no_repeat_ngram, prefixes, ends, make_vocab_mask(forced_last), make_vocab_mask(suppressed),
            make_vocab_mask(begin_suppressed),
        )  # fmt: skip
        # `suppressed` is the only constraint that does not depend on history
        return constraints if constraints.depends_on_history or constraints.suppressed is not None else None

    @property
    def depends_on_history(self) -> bool:
        """Return True if any constraint depends on tokens or positions that came before."""
        parts = (self.bad_word_prefixes, self.forced_last, self.begin_suppressed, self.timestamps)
        return self.no_repeat_ngram > 0 or any(part is not None for part in parts)

    def __call__(self, logits: Tensor, grammar_bias: Tensor | None, context: GenerationContext | None) -> Tensor:
        """Return the logits `[B, T, V]` with those of forbidden ids at -inf.

        Args:
            logits (Tensor): `[B, T, V]` of T scored positions; may be changed in place.
            grammar_bias (Tensor | None): 0 for ids that the grammar allows, -inf for others, broadcastable to `logits`.
            context (GenerationContext | None): tokens before every scored position; may be None if no constraint
                depends on history.
        """
        vocab_size = logits.shape[-1]
        if context is not None:  # it is None only if the constraints inside are all off
            if self.no_repeat_ngram:
                repeated = repeated_ngram_mask(context, self.no_repeat_ngram, vocab_size)
                logits = logits.masked_fill(repeated, -torch.inf)
            if self.bad_word_prefixes is not None and self.bad_word_ends is not None:
                bad = bad_words_mask(context, self.bad_word_prefixes, self.bad_word_ends, vocab_size)
                logits = logits.masked_fill(bad, -torch.inf)
            if self.forced_last is not None:
                logits = force_last_token(logits, self.forced_last, grammar_bias, context)
        if self.suppressed is not None:
            logits = logits.masked_fill(self.suppressed, -torch.inf)
        if self.begin_suppressed is not None and context is not None:
            is_first = context.positions == 0
            if all_equal_without_sync(is_first) is not False:
                logits = logits.masked_fill(self.begin_suppressed & is_first[..., None], -torch.inf)
        if self.timestamps is not None and context is not None:
            has_timestamps = context.last_prompt_ids() != self.timestamps.no_timestamps_id
            logits = self.timestamps.apply_(logits, context, has_timestamps)
        return logits


def bad_words_mask(context: GenerationContext, prefixes: Tensor, ends: Tensor, vocab_size: int) -> Tensor:
    """Return `[B, T, V]` bool: ids that would complete a bad word.

    Args:
        context (GenerationContext): tokens before each of T scored positions.
        prefixes (Tensor): `[G, W]` ids of each of G bad words before its last, latest first, padded with -1.
        ends (Tensor): `[G]` last id of every bad word.
        vocab_size (int): V.
    """
    last_ids = context.last_ids(prefixes.shape[1])  # [B, T, W], latest first
    # [B, T, G], the position follows all ids of the bad word but the last; padding matches any id
    is_complete = ((last_ids[:, :, None] == prefixes) | (prefixes < 0)).all(-1)
    return context.vocab_mask(ends.expand_as(is_complete), is_complete, vocab_size)


def repeated_ngram_mask(context: GenerationContext, size: int, vocab_size: int) -> Tensor:
    """Return `[B, T, V]` bool: ids that would repeat an n-gram, a sequence of `size` ids (Klein et al. 2017, OpenNMT).

    `context` has the tokens before each of T scored positions, prompt included; `vocab_size` is V.
    """
    num_positions, path_len = context.path_ids.shape[1:]
    # the ids of the path, and as many before it as an n-gram that ends on the path may begin earlier; latest first
    last_ids = context.last_ids(path_len + size - 1)
    prefix = last_ids[..., : size - 1]  # [B, T, size - 1] of the n-gram that the next id would complete, latest first

    def ids_after_prefix(ids: Tensor, valid: Tensor) -> Tensor:
        """Return `[B, T, V]` bool: ids that follow an occurrence of `prefix` in `ids`.

        `ids` `[B, T or 1, K]` are in the order of generation; `valid`, of the same shape, is False for padding.
        """
        num_windows = ids.shape[-1] - size + 1  # n-grams in `ids`, one starting at every index
        matches = valid[..., size - 1 :].expand(-1, num_positions, -1)  # [B, T, num_windows], of their last ids
        for offset in range(size - 1):  # id `offset` of every n-gram
            window_ids, window_valid = (values[..., offset : offset + num_windows] for values in (ids, valid))
            # `prefix` is in reverse order
            matches = matches & window_valid & (window_ids == prefix[..., size - 2 - offset, None])
        return context.vocab_mask(ids[..., size - 1 :].expand(-1, num_positions, -1), matches, vocab_size)

    # n-grams that end on the path of the scored position, then those within the committed ids; -1 is padding
    mask = ids_after_prefix(last_ids.flip(-1), last_ids.flip(-1) >= 0)
    if context.committed_ids.shape[1] < size:  # too few ids for an n-gram
        return mask
    return mask | ids_after_prefix(context.committed_ids[:, None], context.committed_mask()[:, None])


def force_last_token(
    logits: Tensor, forced_mask: Tensor, grammar_bias: Tensor | None, context: GenerationContext
) -> Tensor:
    """Allow only the ids of `forced_mask`, with equal logits, where the last token of the budget is sampled.

    Where the grammar allows none of them, the logits stay as they are.

    Args:
        logits (Tensor): `[B, T, V]` at T scored positions.
        forced_mask (Tensor): `[V]` bool.
        grammar_bias (Tensor | None): 0 for ids that the grammar allows, -inf for others, broadcastable to `logits`.
        context (GenerationContext): positions and budgets.

    Returns:
        Tensor: `[B, T, V]`.
    """
    forced_logits = torch.where(forced_mask, 0.0, -torch.inf).to(logits)
    if grammar_bias is not None:
        forced_logits = forced_logits + grammar_bias.to(logits)
    is_last = (context.positions == context.max_new_tokens[:, None] - 1)[..., None]
    is_last = is_last & forced_logits.isfinite().any(-1, keepdim=True)
    return torch.where(is_last, forced_logits, logits)
