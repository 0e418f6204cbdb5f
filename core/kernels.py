"""Linear layers for inference in bf16 on CPUs: packed weights, and bits that do not depend on who shares a call.

    prepare(model)     # in place; nothing to do on accelerators or in fp32

oneDNN's bf16 product sums more than 256 inputs in one order up to 32 rows and in others above, so a token's logits
would change in the last bit with the batch and the draft around it, and identity with plain decoding would end at the
first near tie. Such products are therefore cut into blocks of at most 32 rows. Weights are laid out once as the kernel
wants them, where `nn.Linear` does so in every call.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

BLOCK = 32  # the most rows summed in one order (one AMX tile pair)
WHOLE = 256  # the most inputs summed in one order whatever the rows


class InferenceLinear(nn.Linear):
    """An `nn.Linear` whose inference uses packed weights, in blocks of rows; training is left as it was."""

    packed: Tensor
    packed_version: int

    def pack(self) -> None:
        self.packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach(), BLOCK)
        self.packed_version = self.weight._version

    def forward(self, input: Tensor) -> Tensor:  # named as in nn.Linear
        if not torch.is_inference_mode_enabled():
            return super().forward(input)
        if self.packed_version != self.weight._version:  # weights were trained on since
            self.pack()
        rows = input.shape[:-1].numel()
        if rows <= BLOCK or self.in_features <= WHOLE:
            return self.product(input)
        parts = input.reshape(rows, -1).tensor_split(-(-rows // BLOCK))
        return torch.cat([self.product(part) for part in parts]).view(*input.shape[:-1], -1)

    def product(self, rows: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(rows, self.packed, self.bias, "none", [], "")


def prepare(model: nn.Module) -> None:
    """Make every linear layer of a bf16 CPU model an `InferenceLinear`; weights stay where they are."""
    for module in model.modules():
        if type(module) is nn.Linear and on_cpu_in_bf16(module.weight):
            module.__class__ = InferenceLinear
            module.pack()  # type: ignore[operator]


def on_cpu_in_bf16(weight: Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype == torch.bfloat16 and torch.backends.mkldnn.is_available()
