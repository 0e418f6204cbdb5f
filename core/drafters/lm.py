"""An independent small LM as drafter, its candidates ranked with the noise the target will use.

A chain (width 1) or a tree. Ranking by `log q + g` is sampling without replacement that agrees with the target as
often as q does (arXiv 2408.07978); the tree grows by the estimated acceptance of whole paths, so no child outranks its
parent.
Independent drafters: Leviathan et al. 2023 (arXiv 2211.17192), Chen et al. 2023 (arXiv 2302.01318).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from polydraft.core.cache import SlotCache
from polydraft.core.draft import Draft
from polydraft.core.sampling import History, Sampler
from polydraft.core.state import State
from polydraft.core.tape import NoiseTape
from polydraft.core.target import CausalTarget, Prompt, keep_path
from polydraft.core.verdict import Verdict


@dataclass
class OwnCache:
    """The drafter's keys and values; `behind[b]` is 1 where the token before the root has none yet.

    grown: `[B, N]`, in which order the nodes of the last tree were grown, and so cached; None after a chain.
    """

    cache: SlotCache
    offsets: Tensor
    behind: list[int]
    grown: Tensor | None = None


class LMDrafter:
    """depth: longest path; width: live nodes a level (1 is a chain).

    spread: scale of the logit error between drafter and target; `softmax((log q + g) / spread)` is the estimated
    acceptance of a child.
    """

    def __init__(
        self, model: PreTrainedModel, target: CausalTarget, *, depth: int = 6, width: int = 1, spread: float = 1.0
    ) -> None:
        self.network = CausalTarget(model, capacity=target.capacity, guidance_scale=target.guidance_scale, narrowest=1)
        self.reach, self.width, self.spread = depth, width, spread

    @property
    def nodes(self) -> int:
        return self.reach * self.width

    def begin(self, prompts: list[Prompt]) -> OwnCache:
        state = self.network.prefill(prompts)
        return OwnCache(state.cache, state.offsets, [0] * len(prompts))

    def draft(self, state: State, drafts: OwnCache, sampler: Sampler, tape: NoiseTape) -> Draft:
        noise = tape.window(state.generated, self.reach)
        own = replace(state, cache=drafts.cache, offsets=drafts.offsets)
        law = self.law_at_root(own, drafts.behind, sampler)
        if self.width == 1:
            return self.chain(own, sampler, law, noise)
        tree = self.tree(own, sampler, law, noise)
        likeliest = torch.full((len(state),), (self.reach - 1) * self.width, device=state.tokens.device)
        tree, drafts.grown = tree.led_by(likeliest)  # in front, where its bits are plain decoding's
        return tree

    def law_at_root(self, own: State, behind: list[int], sampler: Sampler) -> Tensor:
        """`[B, 1, V]` after the root; rows that are a token behind catch up in the same pass."""
        late = torch.tensor(behind, device=own.tokens.device)[:, None]
        root = torch.tensor(own.lengths, device=own.tokens.device)[:, None] - 1
        columns = torch.arange(1 + max(behind), device=own.tokens.device)
        ids = own.tokens.gather(1, (root - late + columns).clamp(max=own.tokens.shape[1] - 1))
        causal = (columns[:, None] >= columns).expand(len(own), -1, -1)
        features = self.network.tree_pass(
            own.cache, own.branches, ids, causal, columns.expand(len(own), -1), own.cached() - late
        )
        features = features.view(len(own), own.branches, len(columns), -1)
        at_root = late[:, None, :, None].expand(-1, own.branches, 1, features.shape[-1])
        logits = self.network.combine(self.network.head(features.gather(2, at_root)))
        lineage = torch.ones(len(own), 1, 1, dtype=torch.bool, device=ids.device)
        return sampler(logits, self.history(own, own.roots(), lineage, 0))

    def chain(self, own: State, sampler: Sampler, law: Tensor, noise: Tensor) -> Draft:
        """One branch: the winner under the shared noise at every position."""
        nodes = [own.roots()]
        for depth in range(self.reach):
            if depth:
                law = self.extend(own, sampler, nodes, Draft.of_chain(torch.cat(nodes[1:], 1)))
            nodes.append((law + noise[:, depth : depth + 1]).argmax(-1))
        return Draft.of_chain(torch.cat(nodes[1:], 1), passes=self.reach)

    def tree(self, own: State, sampler: Sampler, law: Tensor, noise: Tensor) -> Draft:
        """`width` nodes a level: the best children of the live nodes by the path's estimated acceptance."""
        rows = len(own)
        nodes, parents = [own.roots()], list[Tensor]()
        path_score = law.new_zeros(rows, 1)
        for depth in range(self.reach):
            if depth:
                law = self.extend(own, sampler, nodes, self.grown(nodes, parents))
            estimate = ((law + noise[:, depth : depth + 1]) / self.spread).log_softmax(-1)
            best, ids = estimate.topk(self.width, -1)
            score, picked = (path_score[..., None] + best).flatten(1).topk(self.width, 1)
            above = (depth - 1) * self.width  # the first node of the level above; the root is -1
            parents.append(above + picked // self.width if depth else torch.full_like(picked, -1))
            nodes.append(ids.flatten(1).gather(1, picked))
            path_score = score
        return self.grown(nodes, parents, passes=self.reach)

    @staticmethod
    def grown(nodes: list[Tensor], parents: list[Tensor], passes: int = 0) -> Draft:
        """The tree so far; `nodes[0]` is the root."""
        tokens = torch.cat(nodes[1:], 1)
        return Draft(tokens, torch.cat(parents, 1), torch.ones_like(tokens, dtype=torch.bool), passes=passes)

    def extend(self, own: State, sampler: Sampler, nodes: list[Tensor], tree: Draft) -> Tensor:
        """Law `[B, C, V]` after the newest level of `tree`, whose tokens are `nodes[-1]` `[B, C]`."""
        newest = nodes[-1]
        lineage = tree.lineage[:, -newest.shape[1] :]
        features = self.network.tree_pass(own.cache, own.branches, newest, lineage, tree.depth, own.cached())
        features = features.view(len(own), own.branches, newest.shape[1], -1)
        logits = self.network.combine(self.network.head(features))
        return sampler(logits, self.history(own, torch.cat(nodes, 1), lineage, len(nodes) - 1))

    @staticmethod
    def history(own: State, nodes: Tensor, lineage: Tensor, depth: int) -> History:
        t = torch.tensor(own.generated, device=nodes.device)[:, None] + depth
        return History(own.tokens, own.valid(), nodes, lineage, t.expand(-1, lineage.shape[1]))

    def observe(self, state: State, drafts: OwnCache, draft: Draft, law: Tensor, verdict: Verdict) -> None:
        """Keep the keys and values of the accepted path; the deepest node never had any."""
        if not draft.chain:
            counts = torch.tensor(verdict.counts, device=drafts.offsets.device)[:, None]
            assert drafts.grown is not None
            path = torch.where(verdict.path < 0, -1, drafts.grown.gather(1, verdict.path.clamp(min=0)))
            keep_path(drafts.cache, state.branches, state.cached() - counts, path)
        drafts.behind = [int(accepted == self.reach) for accepted in verdict.accepted]

    def select(self, drafts: OwnCache, rows: list[int]) -> OwnCache:
        branches = drafts.offsets.shape[1]
        physical = [row * branches + branch for row in rows for branch in range(branches)]
        return OwnCache(
            drafts.cache.select(torch.tensor(physical, dtype=torch.long, device=drafts.offsets.device)),
            drafts.offsets[rows], [drafts.behind[row] for row in rows],
        )  # fmt: skip

    def concat(self, drafts: list[OwnCache]) -> OwnCache:
        return OwnCache(
            SlotCache.concat([d.cache for d in drafts]), torch.cat([d.offsets for d in drafts]),
            [late for d in drafts for late in d.behind],
        )  # fmt: skip
