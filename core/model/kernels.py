"""Linear layers for inference: fewer products, and on CPUs packed ones whose bits do not depend on the batch.

    prepare(model)     # in place

Layers that read the same tensor are one product. On accelerators that is all, and their weights are laid end to end; on
GPUs it is one of our own (`fused.py`). On CPUs oneDNN's products sum in an order that depends on how many rows there
are, so a token's logits would change in the last bit with the batch and the draft around it, and identity with plain
decoding would end at the first near tie. Which numbers of rows are summed alike is tried, a shape, on the machine at
hand; products are cut into blocks of so many, and a single row gets a second one where it needs it. Weights of fp32 and
bf16 are laid out once as the kernel wants them, where `nn.Linear` does so in every call, and those that nobody trains
are kept in that layout alone. Where oneDNN does not take bf16 (AVX2 alone) they are laid out in fp32, and a product is
rounded to bf16.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polydraft.core.model import fused

BLOCK = 32  # rows that weights are laid out for (one AMX tile pair)
ROWS = (1, 2, 3, 5, 8, 16, 17, 32, 33, 64, 256)  # that are tried; each leaves a kernel of half a megabyte
OUTPUTS = 1 << 13  # that are tried at most
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
        self.dtype, self.laid = weight.dtype, laid_out(weight.dtype)
        weight = weight.to(self.laid)
        biases = [member.bias for member in self.members if member.bias is not None]
        self.bias = torch.cat([bias.detach() for bias in biases]).to(self.laid) if biases else None
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight, BLOCK)
        self.inputs, self.versions = weight.shape[1], self.current()
        self.fewest, self.most = alike(*weight.shape, weight.dtype)

    def current(self) -> list[tuple[int, torch.dtype]]:
        """What changes when weights are trained on, or converted."""
        weights = [parameters["weight"] for parameters in self.trainable]
        return [(weight._version, weight.dtype) for weight in weights]  # type: ignore[union-attr]

    def let_go(self) -> None:
        """From now on the weights are in the packed layout alone, unless someone trains or shares them."""
        if not any(member.weight.requires_grad for member in self.members):
            self.trainable, self.versions = [], []
            for member in self.members:
                member.weight = nn.Parameter(member.weight.to("meta"), requires_grad=False)

    def unpacked(self, place: int) -> Tensor:
        """The weight of member `place` as it was."""
        weight = self.members[place].weight
        return self.packed.to_dense().split(self.sizes)[place].to(self.dtype) if weight.is_meta else weight

    def of(self, place: int, input: Tensor) -> Tensor:
        """What member `place` makes of `input`."""
        if not self.last:
            return self.whole(input)
        if place == 0 or self.input is not input:
            self.input, self.parts = input, self.whole(input).split(self.sizes, -1)
        part = self.parts[place]
        if place == self.last:
            self.input, self.parts = None, ()
        return part

    def whole(self, input: Tensor) -> Tensor:
        """What all members make of `input`, side by side."""
        if self.versions != self.current():
            self.pack()
        rows = input.shape[:-1].numel()
        if self.fewest <= rows <= self.most:
            return self.block(input)
        flat = input.reshape(rows, input.shape[-1])
        if rows < self.fewest:
            made = self.block(F.pad(flat, (0, 0, 0, self.fewest - rows)))[:rows]
        else:
            made = torch.cat([self.block(part) for part in flat.tensor_split(-(-rows // self.most))])
        return made.view(*input.shape[:-1], made.shape[-1])

    def block(self, rows: Tensor) -> Tensor:
        if self.laid == self.dtype == rows.dtype:
            return product(rows, self.packed, self.bias)
        return product(rows.to(self.laid), self.packed, self.bias).to(self.dtype)


def product(rows: Tensor, packed: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(rows, packed, bias, "none", [], "")


def laid_out(dtype: torch.dtype) -> torch.dtype:
    """The type that weights of `dtype` are multiplied in here."""
    return dtype if dtype == torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported() else torch.float32


@lru_cache(maxsize=256)
def alike(outputs: int, inputs: int, dtype: torch.dtype) -> tuple[int, int]:
    """The fewest and the most rows between which a row has the same bits whatever the number of rows.

    Tried on sums that all but cancel: what is left of them is what rounding left, which another order shows.
    """
    generator = torch.Generator().manual_seed(0)
    outputs, order = min(outputs, OUTPUTS), torch.randperm(inputs, generator=generator)
    weight, x = (torch.randn(size, inputs - inputs // 2, generator=generator) for size in (outputs, ROWS[-1]))
    weight = torch.cat([weight, -weight], 1)[:, :inputs][:, order].to(dtype).contiguous()
    x = torch.cat([x, x], 1)[:, :inputs][:, order].to(dtype).contiguous()
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, BLOCK)
    usual = torch.cat([product(part, packed) for part in x.split(8)])  # drafts have about so many nodes
    apart = [count for count in ROWS if not torch.equal(product(x[:count], packed), usual[:count])]
    fewest = 1 + max((count for count in apart if count < 8), default=0)
    most = max(count for count in ROWS if count < min((count for count in apart if count > 8), default=ROWS[-1] + 1))
    return fewest, most


class InferenceLinear(nn.Linear):
    """An `nn.Linear` whose inference is its share of a `Product`; training is left as it was."""

    product: Product
    place: int

    def forward(self, input: Tensor) -> Tensor:  # named as in nn.Linear
        if torch.is_inference_mode_enabled():
            return self.product.of(self.place, input)
        return F.linear(input, self.product.unpacked(self.place), self.bias)


class FusedLinear(nn.Linear):
    """An `nn.Linear` whose inference is a product of `fused.py`."""

    def forward(self, input: Tensor) -> Tensor:  # named as in nn.Linear
        times = fused.product if torch.is_inference_mode_enabled() else F.linear
        return times(input, self.weight, self.bias)


def together(members: list[nn.Linear]) -> Callable[[Tensor], Tensor]:
    """What layers that read the same tensor make of it in inference, side by side; one product where prepared."""
    products = {id(getattr(member, "product", member)) for member in members}
    if len(products) == 1 and isinstance(first := members[0], InferenceLinear) and first.product.members == members:
        return first.product.whole
    if len(members) > 1 and (whole := end_to_end(members)) is not None:
        times = fused.product if fused.serves(whole[0]) else F.linear
        return lambda input: times(input, *whole)
    return lambda input: torch.cat([member(input) for member in members], -1)


def end_to_end(members: list[nn.Linear]) -> tuple[Tensor, Tensor | None] | None:
    """Weight and bias of all members in one, if `lay_end_to_end` laid them so."""
    if not all(is_dense(member.weight) for member in members):
        return None
    weight = in_one([member.weight for member in members])
    biases = [member.bias for member in members if member.bias is not None]
    bias = in_one(biases) if biases else None
    return None if weight is None or (biases and bias is None) else (weight, bias)


def in_one(parts: Sequence[Tensor]) -> Tensor | None:
    """What `parts` are parts of, if they lie end to end in it."""
    first = parts[0]
    storage, following = first.untyped_storage().data_ptr(), first.data_ptr()
    for part in parts:
        if part.is_meta or (part.untyped_storage().data_ptr(), part.data_ptr()) != (storage, following):
            return None
        following += part.numel() * part.itemsize
    return first.detach().as_strided((sum(len(part) for part in parts), *first.shape[1:]), first.stride())


def lay_end_to_end(members: list[nn.Linear]) -> None:
    """Give members whose weights are their own alone parts of one weight."""
    for name in ("weight", "bias"):
        parts = [getattr(member, name) for member in members]
        if parts[0] is not None:
            whole = torch.cat([part.detach() for part in parts])
            for member, part in zip(members, whole.split([len(part) for part in parts]), strict=True):
                setattr(member, name, nn.Parameter(part, requires_grad=False))


def prepare(model: nn.Module) -> None:
    """Make every linear layer of a CPU model an `InferenceLinear`; see `Product` for where its weights are then. On
    accelerators layers that read the same tensor have one weight, unless someone trains or shares theirs."""
    owners: dict[int, int] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    for module in list(model.modules()):
        for members in layers(module):
            shared = any(owners[id(member.weight)] > 1 for member in members)  # tied to the embeddings
            if members[0].weight.device.type != "cpu":
                trained = any(member.weight.requires_grad for member in members)
                if len(members) > 1 and not (shared or trained) and end_to_end(members) is None:
                    lay_end_to_end(members)
                for member in members:
                    if fused.serves(member.weight):
                        member.__class__ = FusedLinear
                continue
            product = Product(members)
            for place, member in enumerate(members):
                member.__class__ = InferenceLinear
                member.product, member.place = product, place  # type: ignore[assignment]
            if not shared:
                product.let_go()
    return_freed()


def layer(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    """A linear layer of these, prepared for inference."""
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    made.load_state_dict({"weight": weight} | ({} if bias is None else {"bias": bias}), assign=True)
    prepare(made.requires_grad_(False))
    return made


def return_freed() -> None:
    """Give back to the system what the layouts before left behind, where the C library can."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return


def weight_of(layer: nn.Module) -> Tensor:
    """The weight of a linear layer, however it is kept."""
    weight = layer.product.unpacked(layer.place) if isinstance(layer, InferenceLinear) else layer.weight
    return weight.detach()  # type: ignore[operator]


def layers(module: nn.Module) -> list[list[nn.Linear]]:
    """The plain linear layers right under `module` (or itself), those that read the same tensor side by side."""
    found = {name: child for name, child in module.named_children() if plain(child)}
    if plain(module):
        found[""] = module
    groups = [[found.pop(name) for name in names] for names in TOGETHER if all(name in found for name in names)]
    alike = [group for group in groups if len({(member.bias is None, member.weight.device) for member in group}) == 1]
    apart = [[member] for group in groups if group not in alike for member in group]
    return alike + apart + [[child] for child in found.values()]  # type: ignore[return-value]


def is_dense(weight: Tensor) -> bool:
    """Return whether a weight lies in memory as numbers of its dtype; quantised ones of torchao only say so."""
    return type(weight) in (nn.Parameter, Tensor)


def plain(module: nn.Module) -> bool:
    """Whether `module` is a linear layer that is served here, and nothing more, as a quantised one would be."""
    if type(module) is not nn.Linear or "forward" in vars(module) or module._parameters.get("weight") is None:
        return False
    kind, dtype = module.weight.device.type, module.weight.dtype
    if kind == "meta" or not is_dense(module.weight) or not dtype.is_floating_point:
        return False
    if kind != "cpu":
        return not hasattr(module, "_hf_hook")
    return dtype in (torch.bfloat16, torch.float32) and torch.backends.mkldnn.is_available()
