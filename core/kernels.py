"""Matrix products whose bits do not depend on how many positions share a call.

    fix_order(model)     # in place; nothing to do on accelerators or in fp32

oneDNN's bf16 product sums more than 256 inputs in one order up to 32 rows and in others above, so a token's logits
would change in the last bit with the batch and the draft around it, and identity with plain decoding would end at the
first near tie. Such products are therefore cut into blocks of at most 32 rows.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

BLOCK = 32  # the most rows summed in one order (one AMX tile pair)
WHOLE = 256  # the most inputs summed in one order whatever the rows


class BlockedLinear(nn.Linear):
    """`nn.Linear` whose inference is done in blocks of rows; training is left as it was."""

    def forward(self, input: Tensor) -> Tensor:  # named as in nn.Linear
        rows = input.shape[:-1].numel()
        if rows <= BLOCK or not torch.is_inference_mode_enabled():
            return super().forward(input)
        # even parts: a part of one row would take yet another kernel
        parts = input.reshape(rows, -1).tensor_split(-(-rows // BLOCK))
        return torch.cat([super(BlockedLinear, self).forward(part) for part in parts]).view(*input.shape[:-1], -1)


def fix_order(model: nn.Module) -> None:
    """Give every linear layer of a bf16 CPU model one order of summation."""
    for module in model.modules():
        if type(module) is nn.Linear and module.in_features > WHOLE and on_cpu_in_bf16(module.weight):
            module.__class__ = BlockedLinear


def on_cpu_in_bf16(weight: Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype == torch.bfloat16
