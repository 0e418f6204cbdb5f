"""EAGLE: one decoder layer that predicts the target's next hidden state.

Position i takes the target's hidden state of token i and the embedding of token i + 1, and predicts the hidden state of
token i + 1; the target's LM head turns it into draft logits. While a tree is grown the layer runs on its own
predictions; committed tokens are processed again with the target's true hidden states.
Li et al. 2024, EAGLE (arXiv 2401.15077), section 4; EAGLE-2 (arXiv 2406.16858) grows dynamic trees.

There are three ways to process positions of an image: "features" treats them as any others, "embeddings" feeds the
layer the image embeddings and bypasses `fuse` (MSD), and "dropped" leaves them out.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from polydraft.core.drafters.network import published_eagle
from polydraft.core.drafters.network.base import (
    DrafterModel,
    DraftHead,
    NetworkDrafter,
    TokenLookup,
    build_decoder,
    build_layers,
    count_until,
    embedding_tables,
    layer_config,
    move_to_front,
    table_lookup,
)
from polydraft.core.drafters.network.state import DrafterNetwork, HeadInput, prompt_embeddings
from polydraft.core.drafters.tree.shapes import CandidateRanking, TreeShape
from polydraft.core.errors import InvalidArgument
from polydraft.core.model.decoder import TreeFrontier
from polydraft.core.model.linear import build_linear, dense_weight, fuse_linears
from polydraft.core.target.causal import CausalTarget, PrefillOutput

IMAGE_MODES = ("features", "embeddings", "dropped")


class EagleModel(DrafterModel):
    """EAGLE head: `fuse` [embedding, hidden state] → D, then one decoder layer of the target's architecture.

    It has no embeddings and no LM head: those of the target are used.

    Args:
        target_config (Any): Text configuration of the target.
        pictures (str): How positions of an image are processed, one of IMAGE_MODES; see the module's docstring.
        bias (bool): Whether `fuse` has a bias.
        normed (bool): Whether the layer normalises its input and its output.
        shape (dict[str, Any] | None): Fields of the layer's configuration that differ from the target's.
        words (list[int] | None): Token ids that may be drafted; None for all.
    """

    kind: ClassVar[str] = "eagle"
    title: ClassVar[str] = "EAGLE head"

    def __init__(
        self, target_config: Any, pictures: str = "features", bias: bool = True, normed: bool = True,
        shape: dict[str, Any] | None = None, words: list[int] | None = None,
    ) -> None:  # fmt: skip
        """Create untrained weights; `words` and `pictures` are names of stored settings (token ids, image mode)."""
        super().__init__(target_config, pictures=pictures, bias=bias, normed=normed, shape=shape or {})
        if pictures not in IMAGE_MODES:
            raise InvalidArgument(f"pictures={pictures!r} is not possible; use one of {', '.join(IMAGE_MODES)}.")
        self.image_mode = pictures
        self.restrict_vocab(words)
        self.config: Any = layer_config(target_config, 1, **shape or {})
        size = self.config.hidden_size
        self.fuse: nn.Linear = nn.Linear(2 * size, size, bias=bias)
        self.layer: PreTrainedModel = build_layers(self.config)
        if not normed:
            self.layer.norm = self.layer.layers[0].input_layernorm = nn.Identity()

    @classmethod
    def from_folder(cls, folder: Path, target: PreTrainedModel) -> Self:
        """Load a head saved by `save_pretrained`, or a checkpoint that EAGLE's authors published."""
        if not published_eagle.is_published_head(folder):
            return super().from_folder(folder, target)
        settings, weights = published_eagle.load_published_head(folder, target.config.get_text_config().hidden_size)
        return cls.from_weights(target, settings, weights, folder / published_eagle.WEIGHTS_FILE)

    def fuse_inputs(self, embeddings: Tensor, hidden_states: Tensor) -> Tensor:
        """Return `fuse` of `embeddings` of tokens i + 1 and `hidden_states` of tokens i; all three `[..., C, D]`.

        `fuse` is a linear layer from the concatenated pair, 2 D numbers, to D. C is the number of tokens.
        """
        return self.fuse(torch.cat([embeddings, hidden_states.to(embeddings.dtype)], -1))

    def layer_inputs(self, embeddings: Tensor, hidden_states: Tensor, image_mask: Tensor | None) -> Tensor:
        """Return the inputs of the EAGLE head's decoder layer for whole sequences, `[B, C, D]`.

        The input at index i is `fuse_inputs` of the embedding of token i + 1 and the hidden state of token i: their
        concatenation, mapped from 2 D to D by the linear layer `fuse`. In the image mode "embeddings" the input for a
        token of an image is its embedding alone, as in MSD: it comes from the vision encoder and is not predicted from
        the hidden state before it, so there is nothing to fuse.

        Args:
            embeddings (Tensor): [B, C, D] input embeddings of tokens i + 1; of images those of the vision encoder.
            hidden_states (Tensor): [B, C, D] target hidden states of tokens i.
            image_mask (Tensor | None): [B, C] bool, tokens i + 1 that belong to images; None if there are none.
        """
        inputs = self.fuse_inputs(embeddings, hidden_states)
        if image_mask is None or self.image_mode != "embeddings":
            return inputs
        return torch.where(image_mask[..., None], embeddings.to(inputs.dtype), inputs)


class EagleDrafterNetwork(DrafterNetwork):
    """EAGLE head over a KV cache.

    Args:
        model (EagleModel): The head.
        target (CausalTarget): Target that the drafts are for.
        image_placeholder_mask (Tensor | None): [V] bool, token ids that stand for images in prompts.
    """

    def __init__(self, model: EagleModel, target: CausalTarget, image_placeholder_mask: Tensor | None = None) -> None:
        """Prepare the layer over a KV cache, and the target's LM head over the ids that may be drafted."""
        self.model: EagleModel = model.eval()
        self.image_placeholder_mask: Tensor | None = image_placeholder_mask
        super().__init__(build_decoder(model.layer, model.config), target)
        self.draft_head: DraftHead = DraftHead(model, target)

    def head(self, hidden_states: Tensor) -> Tensor:
        """Return the draft head's logits of `hidden_states` `[..., D]`: `[..., V]`, or over its vocabulary subset."""
        return self.draft_head(hidden_states)

    def embed_inputs(self, tokens: Tensor, hidden_states: Tensor) -> Tensor:
        """Return the layer's inputs `[B*R, C, D]` for tokens and the hidden states they were predicted from.

        Args:
            tokens (Tensor): [B, C] token ids.
            hidden_states (Tensor): [B, R, C, D] hidden states of the position before each token, for R guidance
                branches.
        """
        embeddings = self.target.embed(tokens)[:, None].expand(-1, hidden_states.shape[1], -1, -1)
        return self.model.fuse_inputs(embeddings, hidden_states).flatten(0, 1)

    def prompt_inputs(self, prompts: PrefillOutput) -> tuple[Tensor, Tensor]:
        """Return the layer's inputs for prompts.

        A prompt of L tokens has L - 1 inputs: each is the hidden state of a token with the embedding of the next.

        Args:
            prompts (PrefillOutput): Ids of the prompts, and what the target computed for them.

        Returns:
            tuple[Tensor, Tensor]: inputs [B*R, L - 1, D], without those of images in the image mode "dropped"; and the
                number of inputs of each prompt before the one with its root (last token), [B, R].
        """
        # L - 1 inputs, of which the last has the root; a prompt of one token has none
        ids, num_before_root = prompts.ids, (prompts.branch_lens - 2).clamp(min=0)
        hidden_states = prompts.hidden_states.flatten(0, 1)[:, :-1]  # [B*R, L - 1, D]
        is_image = None if self.image_placeholder_mask is None else self.image_placeholder_mask[ids[:, 1:]]
        inputs = self.model.layer_inputs(prompt_embeddings(self.target, prompts)[:, 1:], hidden_states, is_image)
        if is_image is None or self.model.image_mode != "dropped" or not inputs.shape[1]:
            return inputs, num_before_root
        # inputs of images go to the end, where they count as padding, and are not counted
        return move_to_front(~is_image, inputs)[0], num_before_root - count_until(is_image, num_before_root)


class TableEagleNetwork(EagleDrafterNetwork):
    """EAGLE head for small vocabularies: the part of `fuse` that multiplies embeddings is a table lookup.

    The other part, `project_hidden`, multiplies hidden states; its output is the child state of a node.

    Args:
        model (EagleModel): The head.
        target (CausalTarget): Target that the drafts are for.
        image_placeholder_mask (Tensor | None): [V] bool, token ids that stand for images in prompts.
        project_embedding (TokenLookup): Lookup of what the embedding of a token adds to `fuse`.
        hidden_weight (Tensor): [D, D] columns of `fuse` that multiply hidden states.
    """

    def __init__(
        self, model: EagleModel, target: CausalTarget, image_placeholder_mask: Tensor | None,
        project_embedding: TokenLookup, hidden_weight: Tensor,
    ) -> None:  # fmt: skip
        """Split `fuse` into a lookup for embeddings and a matmul for hidden states."""
        super().__init__(model, target, image_placeholder_mask)
        self.project_embedding = project_embedding
        # fuse([e, h]) = W_e e + W_h h + b: the table has W_e e, this matmul adds W_h h + b
        self.project_hidden: Callable[[Tensor], Tensor] = fuse_linears([build_linear(hidden_weight, model.fuse.bias)])

    def embed_inputs(self, tokens: Tensor, hidden_states: Tensor) -> Tensor:
        """Return the layer's inputs `[B*R, C, D]` for tokens and the hidden states they were predicted from.

        Args:
            tokens (Tensor): [B, C] token ids.
            hidden_states (Tensor): [B, R, C, D] hidden states of the position before each token, for R guidance
                branches.
        """
        return self.child_inputs(tokens, self.project_hidden(hidden_states.to(self.decoder.dtype)))

    def child_inputs(self, tokens: Tensor, child_states: Tensor) -> Tensor:
        """Return the layer's inputs for draft tokens, `[B*R, W, D]`: the sum of both parts of `fuse`.

        Args:
            tokens (Tensor): [B, W] token ids.
            child_states (Tensor): [B, R, W, D] `project_hidden` of the hidden states the tokens were predicted from.
        """
        return (child_states + self.project_embedding(tokens)[:, None]).flatten(0, 1)

    def outputs(self, hidden_states: Tensor, frontier: TreeFrontier) -> HeadInput:
        """Return the layer's hidden states `[B*R, W, D]`, and as child states `project_hidden` of them."""
        return HeadInput(hidden_states, self.project_hidden(hidden_states), frontier)


class FusedHeadEagleNetwork(TableEagleNetwork):
    """`TableEagleNetwork` for linear LM heads: logits and child states are computed from hidden states in one matmul.

    Args:
        model (EagleModel): The head.
        target (CausalTarget): Target that the drafts are for.
        image_placeholder_mask (Tensor | None): [V] bool, token ids that stand for images in prompts.
        project_embedding (TokenLookup): Lookup of what the embedding of a token adds to `fuse`.
        hidden_weight (Tensor): [D, D] columns of `fuse` that multiply hidden states.
        head_weight (Tensor): [V, D] weight of the LM head.
    """

    def __init__(
        self, model: EagleModel, target: CausalTarget, image_placeholder_mask: Tensor | None,
        project_embedding: TokenLookup, hidden_weight: Tensor, head_weight: Tensor,
    ) -> None:  # fmt: skip
        """Stack the LM head `[V, D]` on the hidden half `[D, D]` of `fuse`, so that one matmul computes both.

        `fuse` is EAGLE's fully connected layer over [embedding, hidden state]. A drafted hidden state is the input of
        both: of the LM head for its token, and of the hidden half for the next draft step. The embedding half is
        `project_embedding`, a table by token id.
        """
        super().__init__(model, target, image_placeholder_mask, project_embedding, hidden_weight)
        self.num_logits: int = len(head_weight)
        # the LM head, which comes first, has no bias: zeros in front of that of `fuse`
        bias = None if model.fuse.bias is None else F.pad(model.fuse.bias.detach(), (self.num_logits, 0))
        # `fuse_linears` of one layer brings it into the packed form of the machine
        self.project_head_and_hidden: Callable[[Tensor], Tensor]
        self.project_head_and_hidden = fuse_linears([build_linear(torch.cat([head_weight, hidden_weight]), bias)])

    def outputs(self, hidden_states: Tensor, frontier: TreeFrontier) -> HeadInput:
        """Return the logits `[B*R, W, V]` in place of hidden states `[B*R, W, D]`, and the child states."""
        projected = self.project_head_and_hidden(hidden_states)  # [B*R, W, V + D]
        return HeadInput(projected[..., : self.num_logits], projected[..., self.num_logits :], frontier)

    def head(self, hidden_states: Tensor) -> Tensor:
        """Return the argument: it already holds the logits `[..., V]`, which `outputs` has computed."""
        return hidden_states


def build_eagle_network(
    model: EagleModel, target: CausalTarget, image_placeholder_mask: Tensor | None
) -> EagleDrafterNetwork:
    """Return the fastest implementation of an EAGLE head for the target's vocabulary size and LM head.

    Args:
        model (EagleModel): The head.
        target (CausalTarget): Target that the drafts are for.
        image_placeholder_mask (Tensor | None): [V] bool, token ids that stand for images in prompts.
    """
    # the columns of `fuse` that multiply embeddings, and those that multiply hidden states, [D, D] each
    embedding_weight, hidden_weight = dense_weight(model.fuse).chunk(2, 1)
    tables = embedding_tables(target, [embedding_weight])
    network = EagleDrafterNetwork(model, target, image_placeholder_mask)
    if tables is None:  # the vocabulary is too large for a table
        return network
    arguments = model, target, image_placeholder_mask, table_lookup(tables[0]), hidden_weight
    head_weight = linear_head_weight(network.head, hidden_weight)
    return TableEagleNetwork(*arguments) if head_weight is None else FusedHeadEagleNetwork(*arguments, head_weight)


@torch.inference_mode()
def linear_head_weight(head: Callable[[Tensor], Tensor], like: Tensor) -> Tensor | None:
    """Return the weight `[V, D]` of an LM head if it is linear without bias, else None.

    The head is only known as a function, so its weight is read off unit vectors and checked on random inputs.

    Args:
        head (Callable[[Tensor], Tensor]): Function from hidden states [..., D] to logits [..., V].
        like (Tensor): [..., D] tensor whose last size, dtype and device are used for trial inputs.
    """
    size = like.shape[-1]
    generator = torch.Generator().manual_seed(0)
    probes = 100 * torch.randn(4, size, generator=generator).to(like)  # so large that a soft cap would show
    weight, logits = head(torch.eye(size).to(like)).T, head(probes)  # unit vectors give the columns of the weight
    error = (F.linear(probes, weight) - logits).abs().max()
    # 2 % allow for rounding in low precision; an input of zeros has logits only if there is a bias
    return weight if error <= 0.02 * logits.abs().max() and not head(torch.zeros_like(probes)).any() else None


class EagleDrafter(NetworkDrafter):
    """Drafter that grows trees with an EAGLE head.

    Args:
        model (EagleModel): The head.
        target (CausalTarget): Target that the drafts are for.
        tree_shape (TreeShape): Rule that decides which nodes a draft has.
        ranking (CandidateRanking): Ranking of the children of a node.
        image_placeholder_mask (Tensor | None): [V] bool, token ids that stand for images in prompts.
    """

    network: EagleDrafterNetwork

    def __init__(
        self, model: EagleModel, target: CausalTarget, tree_shape: TreeShape, ranking: CandidateRanking,
        image_placeholder_mask: Tensor | None = None,
    ) -> None:  # fmt: skip
        network = build_eagle_network(model, target, image_placeholder_mask)
        super().__init__(network, target, tree_shape, ranking, network.draft_head.vocab_subset)

    def head(self, hidden_states: Tensor) -> Tensor:
        """Return logits `[..., V]`, or over the vocabulary subset, for `HeadInput.hidden_states`."""
        return self.network.head(hidden_states)
