"""CTC head: a transcript read off the encoder's output in one step, from which drafts are copied.

    model = CTCModel.from_folder(folder, target)
    drafter = CTCDrafter(model, allowed, reach=16)

Connectionist temporal classification (Graves et al. 2006) gives every stretch of the sound a token or a blank; repeats
are merged and blanks dropped. Whisper's decoder writes the transcript, which is its own whatever the head reads; where
both agree it does so many tokens a pass (for language models Wen et al. 2024, arXiv 2412.00061).
"""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polydraft.core.drafters.hypothesis import EditCosts, Hypothesis, HypothesisDrafter
from polydraft.core.drafters.network.base import DrafterModel
from polydraft.core.target.causal import PrefillOutput


class CTCModel(DrafterModel):
    """CTC head on an encoder: `stride` positions side by side → `width` → a context of neighbours → tokens.

    Args:
        target_config (Any): Text configuration of the target.
        words (list[int]): Token ids that it can read; any other is read as one of them.
        stride (int): Positions of the encoder that make one of the head, at most one token each.
        width (int): Features of a position.
        context (int): Positions that every one is mixed with, itself in the middle.
        dropout (float): Share of the features that is dropped after every layer in training.
    """

    kind: ClassVar[str] = "ctc"
    title: ClassVar[str] = "CTC head"

    def __init__(
        self, target_config: Any, words: list[int], stride: int = 4, width: int = 512, context: int = 7,
        dropout: float = 0.2,
    ) -> None:  # fmt: skip
        """Create untrained weights."""
        super().__init__(
            target_config, words=words, stride=stride, width=width, context=context, dropout=dropout
        )  # fmt: skip
        self.restrict_vocab(words)
        self.stride = stride
        self.join: nn.Linear = nn.Linear(stride * target_config.hidden_size, width)
        self.mix: nn.Conv1d = nn.Conv1d(width, width, context, padding=context // 2, groups=width)
        self.inner: nn.Linear = nn.Linear(width, width)
        self.dropout: nn.Dropout = nn.Dropout(dropout)
        self.norm: nn.LayerNorm = nn.LayerNorm(width)
        self.output: nn.Linear = nn.Linear(width, len(words) + 1)  # the last output is the blank

    def forward(self, encoder_states: Tensor) -> Tensor:
        """Return the logits `[B, P, K + 1]` of P positions, K words and the blank, for encoder outputs `[B, S, D]`."""
        padding = -encoder_states.shape[1] % self.stride
        joined = F.pad(encoder_states, (0, 0, 0, padding)).unflatten(1, (-1, self.stride)).flatten(2)
        hidden = self.dropout(F.gelu(self.join(joined)))
        hidden = hidden + self.dropout(F.gelu(self.mix(hidden.transpose(1, 2)).transpose(1, 2)))
        hidden = hidden + self.dropout(F.gelu(self.inner(hidden)))
        logits: Tensor = self.output(self.norm(hidden))
        return logits

    def read(self, encoder_states: Tensor) -> Hypothesis:
        """Return the tokens on the likeliest path of one encoder output `[S, D]`."""
        words = self.vocab_subset or []
        logits = self(encoder_states[None].to(self.output.bias.dtype))[0].float()
        probs, best = (values.tolist() for values in logits.softmax(-1).max(-1))
        tokens, token_probs = [], []
        for index, run in groupby(zip(best, probs, strict=True), key=itemgetter(0)):
            if index != len(words):
                tokens.append(words[index])
                token_probs.append(max(prob for _, prob in run))
        return Hypothesis(torch.tensor(tokens, dtype=torch.long), torch.tensor(token_probs))


class CTCDrafter(HypothesisDrafter):
    """Drafter of what the CTC head reads, unless a prompt brings a hypothesis of its own.

    Args:
        model (CTCModel): The head.
        allowed (Tensor): `[V]` bool, ids that may be drafted.
        reach (int): Most tokens of a draft.
        pairs_from (int | None): See `HypothesisDrafter`.
    """

    # Words that the head does not know are missing in what it reads; hardly a word is in it that was not said.
    edits: EditCosts = EditCosts(replaced=3, inserted=2, left_out=5, jump=20)

    def __init__(self, model: CTCModel, allowed: Tensor, reach: int = 16, pairs_from: int | None = None) -> None:
        super().__init__(allowed, reach, pairs_from)
        self.model: CTCModel = model.eval()

    def hypotheses(self, prompts: PrefillOutput) -> list[Hypothesis]:
        """Return the hypotheses of new sequences; those without are read off the sound, one at a time.

        Kernels may sum in another order for several, and what is drafted for a row must not depend on others.
        """
        given = super().hypotheses(prompts)
        if prompts.encoder_states is None:
            return given
        return [
            hypothesis if len(hypothesis.tokens) else self.model.read(states)
            for hypothesis, states in zip(given, prompts.encoder_states, strict=True)
        ]
