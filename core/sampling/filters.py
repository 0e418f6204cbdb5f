"""Top-k, top-p and min-p filters with parameters per row (as transformers' warpers); no row changes another's bits.

apply_filters(logits, tensors)      # logits `[B, T, V]`, filtered ids at -inf
"""

from __future__ import annotations

import torch
from torch import Tensor

from polydraft.core.batched_state import cached_arange
from polydraft.core.sampling.params import SamplingTensors

LARGE_VOCAB = 1 << 15  # from this size on, CPUs avoid to sort a whole vocabulary or to search it id by id
TOPK_BLOCK = 128  # ids whose maximum is searched before the ids themselves


def apply_filters(logits: Tensor, tensors: SamplingTensors, min_p_scale: Tensor | None = None) -> Tensor:
    """Apply each batch row's top-k, then top-p, then min-p; greedy rows stay as they are.

    Args:
        logits (Tensor): `[B, T, V]` at T scored positions.
        tensors (SamplingTensors): sampling parameters of every batch row.
        min_p_scale (Tensor | None): `[B, T]` factor of min-p at every scored position; the likeliest id always stays.

    Returns:
        Tensor: `[B, T, V]`, filtered ids at -inf.
    """
    vocab_size, greedy = logits.shape[-1], tensors.greedy[:, None, None]
    kept = logits  # batch rows that do not use a filter get a threshold that no logit is below
    if tensors.uses("top_k"):
        # [B], V for batch rows without top-k; only the `max_k` largest logits are searched
        k = torch.where((tensors.top_k == 0) | tensors.greedy, vocab_size, tensors.top_k.clamp(max=vocab_size))
        max_k = min(vocab_size, max(params.top_k for params in tensors.distinct_params))
        top_logits = fast_topk(logits, max_k)[0]
        last_rank = (k.clamp(max=max_k) - 1)[:, None, None].expand(-1, logits.shape[1], -1)
        threshold = top_logits.gather(-1, last_rank)  # [B, T, 1], the k-th largest logit
        threshold = threshold.masked_fill((k > max_k)[:, None, None], -torch.inf)  # batch rows without top-k
        kept = kept.masked_fill(logits < threshold, -torch.inf)
    if tensors.uses("top_p"):
        mass = torch.where(greedy, 1.0, tensors.top_p[:, None, None])  # 1 keeps all ids
        kept = torch.where(top_p_mask(kept, mass), kept, -torch.inf)
    if tensors.uses("min_p"):
        min_p = tensors.min_p[:, None]
        min_p = min_p if min_p_scale is None else (min_p * min_p_scale).clamp(max=1)
        # log(min_p * largest probability), up to the constant that logits differ from log probabilities by
        threshold = kept.amax(-1, keepdim=True) + min_p.log()[..., None]
        kept = kept.masked_fill(kept < threshold.masked_fill(greedy, -torch.inf), -torch.inf)
    return kept


def fast_topk(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest of `values` `[..., V]` and their ids, `[..., k]` each, in descending order.

    On CPUs large vocabularies are searched in blocks: the k largest values are in the k blocks with the largest maxima,
    and block maxima are vectorised. The order of equal values is undefined.
    """
    vocab_size = values.shape[-1]
    # blocks are worth it only if the k blocks have at most a quarter of the vocabulary
    if values.device.type != "cpu" or vocab_size < LARGE_VOCAB or 4 * TOPK_BLOCK * k > vocab_size:
        values, ids = values.topk(k)
        return values, ids
    # ids in full blocks of TOPK_BLOCK ids; the few after them are always candidates
    num_in_blocks, all_ids = vocab_size - vocab_size % TOPK_BLOCK, cached_arange(vocab_size, values.device)
    block_maxima = values[..., :num_in_blocks].unflatten(-1, (-1, TOPK_BLOCK)).amax(-1)
    top_blocks = block_maxima.topk(k).indices  # [..., k]
    candidate_ids = (TOPK_BLOCK * top_blocks[..., None] + all_ids[:TOPK_BLOCK]).flatten(-2)
    remaining_ids = all_ids[num_in_blocks:]  # after the last full block
    candidate_ids = torch.cat([candidate_ids, remaining_ids.expand(*candidate_ids.shape[:-1], -1)], -1)
    top_values, index = values.gather(-1, candidate_ids).topk(k)
    return top_values, candidate_ids.gather(-1, index)


def top_p_mask(logits: Tensor, mass: Tensor) -> Tensor:
    """Return the nucleus of top-p: the fewest likeliest ids whose probability reaches p, and ids as likely as the last.

    Holtzman et al. 2020, section 3.1.

    Args:
        logits (Tensor): `[B, T, V]` at T scored positions.
        mass (Tensor): `[B, 1, 1]` p of every batch row; 1 keeps all ids.

    Returns:
        Tensor: `[B, T, V]` bool.
    """
    probs = logits.softmax(-1)
    if probs.device.type == "cpu" and probs.shape[-1] > LARGE_VOCAB:
        masses = mass.expand(*probs.shape[:2], 1).flatten()
        thresholds = [top_p_threshold(*position) for position in zip(probs.flatten(0, 1), masses, strict=True)]
        threshold = torch.stack(thresholds).view(*probs.shape[:2], 1)
    else:
        sorted_probs = probs.sort(-1, descending=True).values
        # an id is in the nucleus if likelier ids do not reach p yet
        in_nucleus = (sorted_probs.cumsum(-1) - sorted_probs < mass) & (sorted_probs > 0)
        # [B, T, 1], probability of the last id in the nucleus; NaN logits have none, so the first entry is taken
        threshold = sorted_probs.gather(-1, in_nucleus.sum(-1, keepdim=True).clamp(min=1) - 1)
    return probs >= threshold.masked_fill(mass == 1, 0)


def top_p_threshold(probs: Tensor, mass: Tensor) -> Tensor:
    """Return the smallest probability (0-dim) in the nucleus of `probs` `[V]`, without sorting all of them.

    `mass` (0-dim) is p of top-p. Non-negative floats are ordered as their bits are, so the upper 16 bits of a float32
    probability serve as the key of a histogram; only the probabilities of the key at which the sum reaches `mass` are
    sorted.
    """
    if probs[0].isnan():  # then all are, and none belongs to the nucleus
        return probs[0]
    keys = probs.view(torch.int16)[1::2].long()  # [V], the upper halves; below 2^15, since the sign bit is 0
    # sum of the probabilities of each key; flipped, bin i belongs to key 2^15 - 1 - i, so probabilities descend
    key_mass = torch.zeros(1 << 15, dtype=torch.double).scatter_add_(0, keys, probs.double()).flip(0)
    mass_before, mass = key_mass.cumsum(0) - key_mass, mass * key_mass.sum()  # float32 probs need not add up to 1
    # the bin at which the sum reaches `mass`: the last that is not empty and has less mass before it
    last_bin = torch.where((key_mass > 0) & (mass_before < mass), cached_arange(1 << 15, probs.device), 0).amax()
    bin_probs = probs[keys == (1 << 15) - 1 - last_bin].sort(descending=True).values
    in_nucleus = mass_before[last_bin] + bin_probs.double().cumsum(0) - bin_probs < mass
    return bin_probs[in_nucleus.sum().clamp(min=1) - 1]
