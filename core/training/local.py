"""How a local network learns what stands next to what: on sequences alone, without the target's pass over them.

distil(partial(surprise, target), LocalNetwork(target.config, row=16), source, minutes=5, folder=out)
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from polydraft.core.drafters.jacobi.local import LocalNetwork
from polydraft.core.model.precision import mixed
from polydraft.core.target import CausalTarget
from polydraft.core.training.examples import Examples

MOST = 2048  # codes a step: each costs a law over the vocabulary


def surprise(target: CausalTarget, student: LocalNetwork, examples: Examples) -> Tensor:
    """Mean nats of a picture's codes, given their neighbours."""
    ids, judged = examples.ids, F.pad(examples.judged[:, :-1], (1, 0))
    first = judged.int().argmax(1, keepdim=True)  # what is generated begins there
    t = torch.arange(ids.shape[1], device=ids.device) - first
    rows, at = (judged & (t >= student.preview)).nonzero(as_tuple=True)
    chosen = torch.randperm(len(rows), device=ids.device)[:MOST]
    rows, at = rows[chosen], at[chosen]
    with torch.no_grad():
        around = ids[rows[:, None], (at[:, None] - student.offsets(ids.device)).clamp(min=0)]
        seen = target.embed(around) * student.there(t[rows, at])[..., None]
    with mixed(ids.device):
        told = torch.stack([student.tells(*neighbour) for neighbour in enumerate(seen.unbind(1))]).sum(0)
        said = target.head(student.says(student(told)).to(target.model.dtype))
    return F.cross_entropy(said.float(), ids[rows, at])
