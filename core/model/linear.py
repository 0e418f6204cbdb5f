"""Linear layers for inference: fused projections, and on CPUs packed weights and batch-invariant results.

    prepare_linears(model)     # in place

Layers that read the same tensor, such as q_proj, k_proj and v_proj, are computed as one product. On accelerators their
weights become parts of one weight, and on GPUs the product is one of our own kernels (`triton_ops.py`).

On CPUs oneDNN's products sum in an order that depends on the number of rows: the last bits of a token's logits would
change with the batch and the draft around it, and would differ from plain decoding at the first near tie. Therefore the
range of row counts that are summed alike is measured on the machine at hand, once per shape; larger products are cut
into blocks of that size, and smaller ones are padded. Weights of fp32 and bf16 are packed once as the kernel wants
them, where `nn.Linear` does so in every call, and frozen ones are kept packed alone. Where oneDNN does not support bf16
(AVX2 alone) they are packed in fp32, and the result is rounded to bf16.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polydraft.core.model import triton_ops

PACK_BLOCK = 32  # rows that weights are packed for (one AMX tile pair)
PROBED_ROW_COUNTS = (1, 2, 3, 5, 8, 16, 17, 32, 33, 64, 256)  # each leaves a oneDNN kernel of half a megabyte
MAX_PROBED_OUTPUTS = 1 << 13
FUSABLE_NAMES = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))  # layers that read the same tensor


class PackedLinearGroup:
    """Packed weights of linear layers that read the same tensor, computed when the first of them is called."""

    def __init__(self, members: list[nn.Linear]) -> None:
        self.members, self.sizes = members, [member.out_features for member in members]
        self.last_index = len(members) - 1
        self.input: Tensor | None = None  # the tensor that `parts` are the outputs for
        self.parts: tuple[Tensor, ...] = ()
        self.pack()

    def pack(self) -> None:
        """Pack the members' present weights."""
        # weights made in inference mode cannot be trained on, and have no version counter
        self.trainable = [member._parameters for member in self.members if not member.weight.is_inference()]
        weight = torch.cat([member.weight.detach() for member in self.members])
        self.dtype, self.compute_dtype = weight.dtype, packed_dtype(weight.dtype)
        weight = weight.to(self.compute_dtype)
        biases = [member.bias for member in self.members if member.bias is not None]
        self.bias = torch.cat([bias.detach() for bias in biases]).to(self.compute_dtype) if biases else None
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight, PACK_BLOCK)
        self.inputs, self.versions = weight.shape[1], self.weight_versions()
        self.min_rows, self.max_rows = batch_invariant_rows(*weight.shape, weight.dtype)

    def weight_versions(self) -> list[tuple[int, torch.dtype]]:
        """Return values that change when a weight is trained on or converted."""
        weights = [parameters["weight"] for parameters in self.trainable]
        return [(weight._version, weight.dtype) for weight in weights]  # type: ignore[union-attr]

    def drop_unpacked(self) -> None:
        """Free the unpacked weights, keeping only the packed copy; trainable weights are kept."""
        if not any(member.weight.requires_grad for member in self.members):
            self.trainable, self.versions = [], []
            for member in self.members:
                member.weight = nn.Parameter(member.weight.to("meta"), requires_grad=False)

    def unpacked_weight(self, index: int) -> Tensor:
        """Return the weight of member `index` in its original layout and dtype."""
        weight = self.members[index].weight
        return self.packed.to_dense().split(self.sizes)[index].to(self.dtype) if weight.is_meta else weight

    def member_output(self, index: int, input: Tensor) -> Tensor:
        """Return the output of member `index`; all members' outputs are computed at the first one."""
        if not self.last_index:
            return self.forward(input)
        if index == 0 or self.input is not input:
            self.input, self.parts = input, self.forward(input).split(self.sizes, -1)
        part = self.parts[index]
        if index == self.last_index:
            self.input, self.parts = None, ()
        return part

    def forward(self, input: Tensor) -> Tensor:
        """Return the outputs of all members, concatenated along the last dimension."""
        if self.versions != self.weight_versions():
            self.pack()
        rows = input.shape[:-1].numel()
        if self.min_rows <= rows <= self.max_rows:
            return self.forward_block(input)
        flat = input.reshape(rows, input.shape[-1])
        if rows < self.min_rows:
            output = self.forward_block(F.pad(flat, (0, 0, 0, self.min_rows - rows)))[:rows]
        else:
            output = torch.cat([self.forward_block(part) for part in flat.tensor_split(-(-rows // self.max_rows))])
        return output.view(*input.shape[:-1], output.shape[-1])

    def forward_block(self, rows: Tensor) -> Tensor:
        """Return the outputs for a number of rows within the batch-invariant range."""
        if self.compute_dtype == self.dtype == rows.dtype:
            return packed_linear(rows, self.packed, self.bias)
        return packed_linear(rows.to(self.compute_dtype), self.packed, self.bias).to(self.dtype)


def packed_linear(rows: Tensor, packed: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return `rows @ weight.T + bias` of a packed weight."""
    return torch.ops.mkldnn._linear_pointwise(rows, packed, bias, "none", [], "")


def packed_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which weights of `dtype` are packed and multiplied on this machine."""
    return dtype if dtype == torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported() else torch.float32


@lru_cache(maxsize=256)
def batch_invariant_rows(outputs: int, inputs: int, dtype: torch.dtype) -> tuple[int, int]:
    """Measure the smallest and largest row count between which a row's result has the same bits.

    The probe sums all but cancel: what is left of them is rounding error, which shows another order of summation.
    """
    generator = torch.Generator().manual_seed(0)
    outputs, order = min(outputs, MAX_PROBED_OUTPUTS), torch.randperm(inputs, generator=generator)
    weight, x = (
        torch.randn(size, inputs - inputs // 2, generator=generator) for size in (outputs, PROBED_ROW_COUNTS[-1])
    )
    weight = torch.cat([weight, -weight], 1)[:, :inputs][:, order].to(dtype).contiguous()
    x = torch.cat([x, x], 1)[:, :inputs][:, order].to(dtype).contiguous()
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, PACK_BLOCK)
    reference = torch.cat([packed_linear(part, packed) for part in x.split(8)])  # drafts have about so many nodes
    different = [
        count for count in PROBED_ROW_COUNTS if not torch.equal(packed_linear(x[:count], packed), reference[:count])
    ]
    min_rows = 1 + max((count for count in different if count < 8), default=0)
    limit = min((count for count in different if count > 8), default=PROBED_ROW_COUNTS[-1] + 1)
    return min_rows, max(count for count in PROBED_ROW_COUNTS if count < limit)


class PackedLinear(nn.Linear):
    """An `nn.Linear` that uses the packed weights of its group in inference mode; training is unchanged."""

    group: PackedLinearGroup
    index: int

    def forward(self, input: Tensor) -> Tensor:  # parameter name of nn.Linear
        if torch.is_inference_mode_enabled():
            return self.group.member_output(self.index, input)
        return F.linear(input, self.group.unpacked_weight(self.index), self.bias)


class TritonLinear(nn.Linear):
    """An `nn.Linear` that uses our Triton kernel in inference mode."""

    def forward(self, input: Tensor) -> Tensor:  # parameter name of nn.Linear
        linear = triton_ops.linear if torch.is_inference_mode_enabled() else F.linear
        return linear(input, self.weight, self.bias)


def fuse_linears(members: list[nn.Linear]) -> Callable[[Tensor], Tensor]:
    """Return a function that concatenates the outputs of layers that read the same tensor.

    It is one product if `prepare_linears` grouped the members' weights.
    """
    groups = {id(getattr(member, "group", member)) for member in members}
    if len(groups) == 1 and isinstance(first := members[0], PackedLinear) and first.group.members == members:
        return first.group.forward
    if len(members) > 1 and (fused := contiguous_weight_and_bias(members)) is not None:
        linear = triton_ops.linear if triton_ops.is_supported_weight(fused[0]) else F.linear
        return lambda input: linear(input, *fused)
    return lambda input: torch.cat([member(input) for member in members], -1)


def contiguous_weight_and_bias(members: list[nn.Linear]) -> tuple[Tensor, Tensor | None] | None:
    """Return one weight and bias of all members, or None unless `make_contiguous` was applied to them."""
    if not all(is_dense(member.weight) for member in members):
        return None
    weight = contiguous_parent([member.weight for member in members])
    biases = [member.bias for member in members if member.bias is not None]
    bias = contiguous_parent(biases) if biases else None
    return None if weight is None or (biases and bias is None) else (weight, bias)


def contiguous_parent(parts: Sequence[Tensor]) -> Tensor | None:
    """Return the tensor that `parts` are consecutive slices of, or None if they are not."""
    first = parts[0]
    storage, next_address = first.untyped_storage().data_ptr(), first.data_ptr()
    for part in parts:
        if part.is_meta or (part.untyped_storage().data_ptr(), part.data_ptr()) != (storage, next_address):
            return None
        next_address += part.numel() * part.itemsize
    return first.detach().as_strided((sum(len(part) for part in parts), *first.shape[1:]), first.stride())


def make_contiguous(members: list[nn.Linear]) -> None:
    """Make the members' weights, and biases, consecutive slices of one tensor."""
    for name in ("weight", "bias"):
        parts = [getattr(member, name) for member in members]
        if parts[0] is not None:
            whole = torch.cat([part.detach() for part in parts])
            for member, part in zip(members, whole.split([len(part) for part in parts]), strict=True):
                setattr(member, name, nn.Parameter(part, requires_grad=False))


def prepare_linears(model: nn.Module) -> None:
    """Prepare all linear layers of a model for inference, in place.

    On CPUs they become `PackedLinear`, and weights that are neither trainable nor shared are kept packed alone. On
    accelerators layers that read the same tensor get one weight, unless theirs are trainable or shared, and on GPUs
    they become `TritonLinear`.
    """
    num_owners: dict[int, int] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            num_owners[id(parameter)] = num_owners.get(id(parameter), 0) + 1
    for module in list(model.modules()):
        for members in fusable_groups(module):
            is_shared = any(num_owners[id(member.weight)] > 1 for member in members)  # tied to the embeddings
            if members[0].weight.device.type != "cpu":
                is_trainable = any(member.weight.requires_grad for member in members)
                is_frozen = not (is_shared or is_trainable)
                if len(members) > 1 and is_frozen and contiguous_weight_and_bias(members) is None:
                    make_contiguous(members)
                for member in members:
                    if triton_ops.is_supported_weight(member.weight):
                        member.__class__ = TritonLinear
                continue
            group = PackedLinearGroup(members)
            for index, member in enumerate(members):
                member.__class__ = PackedLinear
                member.group, member.index = group, index  # type: ignore[assignment]
            if not is_shared:
                group.drop_unpacked()
    return_freed_memory()


def build_linear(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    """Return a linear layer of this weight and bias, prepared for inference."""
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    linear.load_state_dict({"weight": weight} | ({} if bias is None else {"bias": bias}), assign=True)
    prepare_linears(linear.requires_grad_(False))
    return linear


def return_freed_memory() -> None:
    """Return freed memory to the system, where the C library can."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return


def dense_weight(module: nn.Module) -> Tensor:
    """Return the weight of a linear layer as a dense tensor, also if only a packed copy is left."""
    weight = module.group.unpacked_weight(module.index) if isinstance(module, PackedLinear) else module.weight
    return weight.detach()  # type: ignore[operator]


def fusable_groups(module: nn.Module) -> list[list[nn.Linear]]:
    """Return the supported linear layers directly under `module` (or itself), grouped by the tensor that they read."""
    found = {name: child for name, child in module.named_children() if is_supported_linear(child)}
    if is_supported_linear(module):
        found[""] = module
    groups = [[found.pop(name) for name in names] for names in FUSABLE_NAMES if all(name in found for name in names)]
    uniform = [group for group in groups if len({(member.bias is None, member.weight.device) for member in group}) == 1]
    separate = [[member] for group in groups if group not in uniform for member in group]
    return uniform + separate + [[child] for child in found.values()]  # type: ignore[return-value]


def is_dense(weight: Tensor) -> bool:
    """Return whether a weight is stored as numbers of its dtype; quantised weights of torchao only appear to be."""
    return type(weight) in (nn.Parameter, Tensor)


def is_supported_linear(module: nn.Module) -> bool:
    """Return whether `module` is an unmodified `nn.Linear` of a supported dtype and device."""
    if type(module) is not nn.Linear or "forward" in vars(module) or module._parameters.get("weight") is None:
        return False
    kind, dtype = module.weight.device.type, module.weight.dtype
    if kind == "meta" or not is_dense(module.weight) or not dtype.is_floating_point:
        return False
    if kind != "cpu":
        return not hasattr(module, "_hf_hook")
    return dtype in (torch.bfloat16, torch.float32) and torch.backends.mkldnn.is_available()
