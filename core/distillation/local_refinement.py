"""Training of local refinement models: on sequences alone, without a pass of the target over them.

student = LocalRefinementModel(target.config, row=16)
distil(partial(neighbour_cross_entropy, target), student, source, minutes=5, folder=out)
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from polydraft.core.distillation.examples import Examples
from polydraft.core.drafters.jacobi.local_refinement import LocalRefinementModel
from polydraft.core.model.precision import mixed_precision
from polydraft.core.target.causal import CausalTarget

MAX_TOKENS = 2048  # codebook tokens per step, since each costs logits over the vocabulary


def neighbour_cross_entropy(target: CausalTarget, student: LocalRefinementModel, examples: Examples) -> Tensor:
    """Return the mean cross-entropy in nats of codebook tokens, each predicted from its neighbours in the image.

    A random sample of at most MAX_TOKENS generated tokens is used; tokens of a low-resolution preview before the image
    are not among them. The target contributes its embeddings and its LM head, and does not run.

    Args:
        target (CausalTarget): Target that generated the sequences.
        student (LocalRefinementModel): Network that predicts a token from K neighbours.
        examples (Examples): Sequences, whose loss mask marks the positions before generated tokens.
    """
    # [B, L] each; shifted by one, since the loss mask marks the position before every generated token
    ids, is_generated = examples.ids, F.pad(examples.loss_mask[:, :-1], (1, 0))
    output_start = is_generated.int().argmax(1, keepdim=True)  # [B, 1] index of the first generated token
    positions = torch.arange(ids.shape[1], device=ids.device) - output_start  # [B, L] counted from output_start
    sequences, indices = (is_generated & (positions >= student.num_preview_tokens)).nonzero(as_tuple=True)
    sample = torch.randperm(len(sequences), device=ids.device)[:MAX_TOKENS]
    sequences, indices = sequences[sample], indices[sample]  # [M] each: sequence and index of every sampled token
    with torch.no_grad():
        # [M, K] sequence index of the K neighbours; those before the sequence are clamped, and masked below
        neighbour_indices = (indices[:, None] - student.neighbour_offsets(ids.device)).clamp(min=0)
        neighbours = ids[sequences[:, None], neighbour_indices]  # [M, K] token ids
        # the embeddings of neighbours outside of the image are set to zero
        embeddings = target.embed(neighbours) * student.neighbour_mask(positions[sequences, indices])[..., None]
    with mixed_precision(ids.device):
        projected = [
            student.project_neighbour(index, neighbour_embeddings)
            for index, neighbour_embeddings in enumerate(embeddings.unbind(1))
        ]
        # the student maps the sum of the projected neighbours to features; `says` is its output layer to size D
        hidden_states = student.says(student(torch.stack(projected).sum(0)))  # [M, D]
        logits = target.compute_logits(hidden_states.to(target.model.dtype))
    return F.cross_entropy(logits.float(), ids[sequences, indices])
