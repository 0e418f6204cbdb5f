"""Linear layers for inference in bf16 on CPUs: fewer and packed products, and bits that do not depend on the batch.

    prepare(model)     # in place; nothing to do on accelerators or in fp32

oneDNN's bf16 product sums more than 256 inputs in one order up to 32 rows and in others above, so a token's logits
would change in the last bit with the batch and the draft around it, and identity with plain decoding would end at the
first near tie. Such products are therefore cut into blocks of at most 32 rows. Weights are laid out once as the kernel
wants them, where `nn.Linear` does so in every call, and layers that read the same tensor are one product.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

BLOCK = 32  # the most rows summed in one order (one AMX tile pair)
WHOLE = 256  # the most inputs summed in one order whatever the rows
TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))  # names of layers that read the same tensor


class Product:
    """The linear layers `members`, computed at once when the first of them is called."""

    def __init__(self, members: list[nn.Linear]) -> None:
        self.members, self.sizes = members, [member.out_features for member in members]
        self.last = len(members) - 1
        self.input: Tensor | None = None
        self.parts: tuple[Tensor, ...] = ()
        self.pack()

    def pack(self) -> None:
        # weights made in inference mode cannot be trained on, and count nothing
        self.trainable = [member._parameters for member in self.members if not member.weight.is_inference()]
        weight = torch.cat([member.weight.detach() for member in self.members])
        biases = [member.bias for member in self.members if member.bias is not None]
        self.bias = torch.cat([bias.detach() for bias in biases]) if biases else None
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight, BLOCK)
        self.inputs, self.versions = weight.shape[1], self.current()

    def current(self) -> list[int]:
        """Counts that move when weights are trained on."""
        return [parameters["weight"]._version for parameters in self.trainable]  # type: ignore[union-attr]

    def of(self, place: int, input: Tensor) -> Tensor:
        """What member `place` makes of `input`."""
        if place == 0 or self.input is not input:
            if self.versions != self.current():
                self.pack()
            whole = self.compute(input)
            if not self.last:
                return whole
            self.input, self.parts = input, whole.split(self.sizes, -1)
        part = self.parts[place]
        if place == self.last:
            self.input, self.parts = None, ()
        return part

    def compute(self, input: Tensor) -> Tensor:
        rows = input.shape[:-1].numel()
        if rows <= BLOCK or self.inputs <= WHOLE:
            return self.block(input)
        parts = input.reshape(rows, -1).tensor_split(-(-rows // BLOCK))
        return torch.cat([self.block(part) for part in parts]).view(*input.shape[:-1], -1)

    def block(self, rows: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(rows, self.packed, self.bias, "none", [], "")


class InferenceLinear(nn.Linear):
    """An `nn.Linear` whose inference is its share of a `Product`; training is left as it was."""

    product: Product
    place: int

    def forward(self, input: Tensor) -> Tensor:  # named as in nn.Linear
        return self.product.of(self.place, input) if torch.is_inference_mode_enabled() else super().forward(input)


def prepare(model: nn.Module) -> None:
    """Make every linear layer of a bf16 CPU model an `InferenceLinear`; weights stay where they are."""
    for module in list(model.modules()):
        for members in layers(module):
            product = Product(members)
            for place, member in enumerate(members):
                member.__class__ = InferenceLinear
                member.product, member.place = product, place  # type: ignore[assignment]


def layers(module: nn.Module) -> list[list[nn.Linear]]:
    """The plain linear layers right under `module` (or itself), those that read the same tensor side by side."""
    found = {name: child for name, child in module.named_children() if plain(child)}
    if plain(module):
        found[""] = module
    groups = [[found.pop(name) for name in names] for names in TOGETHER if all(name in found for name in names)]
    alike = [group for group in groups if len({member.bias is None for member in group}) == 1]
    apart = [[member] for group in groups if group not in alike for member in group]
    return alike + apart + [[child] for child in found.values()]  # type: ignore[return-value]


def plain(module: nn.Module) -> bool:
    """Whether `module` is a linear layer in bf16 on a CPU that oneDNN serves."""
    if type(module) is not nn.Linear or not torch.backends.mkldnn.is_available():
        return False
    return module.weight.device.type == "cpu" and module.weight.dtype == torch.bfloat16
