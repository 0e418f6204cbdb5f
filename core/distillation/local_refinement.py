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
    """Return the mean cross-entropy in nats of an image's codebook tokens, given their neighbours."""
    ids, is_generated = examples.ids, F.pad(examples.loss_mask[:, :-1], (1, 0))
    first = is_generated.int().argmax(1, keepdim=True)  # where the generated tokens begin
    positions = torch.arange(ids.shape[1], device=ids.device) - first
    rows, columns = (is_generated & (positions >= student.num_preview_tokens)).nonzero(as_tuple=True)
    chosen = torch.randperm(len(rows), device=ids.device)[:MAX_TOKENS]
    rows, columns = rows[chosen], columns[chosen]
    with torch.no_grad():
        neighbours = ids[rows[:, None], (columns[:, None] - student.neighbour_offsets(ids.device)).clamp(min=0)]
        embeddings = target.embed(neighbours) * student.neighbour_mask(positions[rows, columns])[..., None]
    with mixed_precision(ids.device):
        projected = [student.project_neighbour(index, part) for index, part in enumerate(embeddings.unbind(1))]
        hidden_states = student.says(student(torch.stack(projected).sum(0)))
        logits = target.compute_logits(hidden_states.to(target.model.dtype))
    return F.cross_entropy(logits.float(), ids[rows, columns])
