"""Linear layers for inference: fused projections, and on CPUs packed weights and batch-invariant results.

    prepare_linears(model)     # in place

Layers that read the same tensor, such as q_proj, k_proj and v_proj, are computed as one product. On accelerators their
weights become parts of one weight, and on GPUs the product is one of our own kernels (`triton_ops.py`).

On CPUs weights of fp32 and bf16 are laid out once as the kernel reads them, and of frozen weights only that copy is
kept. A row's bits do not depend on the number of rows. The kernel is our own C library's (`core/native`), or oneDNN's
(`onednn_weights.py`) where that is not used.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polydraft.core.model import triton_ops
from polydraft.core.model.onednn_weights import OneDnnWeight
from polydraft.core.native.library import library
from polydraft.core.native.weights import NativeWeight, PanelWeight

PackedWeight: TypeAlias = OneDnnWeight | NativeWeight
FUSABLE_NAMES = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))  # layers that read the same tensor


class PackedLinearGroup:
    """Linear layers that read the same tensor, with one packed weight.

    The outputs of all members are computed when the first member is called.
    """

    def __init__(self, members: list[nn.Linear]) -> None:
        """Pack the weights of `members`, which are called in this order."""
        self.members: list[nn.Linear] = members
        self.output_sizes: list[int] = [member.out_features for member in members]
        self.last_index: int = len(members) - 1
        self.cached_input: Tensor | None = None  # the tensor that `cached_outputs` were computed from
        self.cached_outputs: tuple[Tensor, ...] = ()
        self.pack()

    def pack(self) -> None:
        """Pack the members' present weights and biases, concatenated, and note their versions."""
        # Weights made in inference mode cannot be trained on, and have no version counter. Dictionaries of parameters
        # are kept instead of weights, since a conversion of the module may replace the weight.
        self.trainable_parameters: list[dict[str, nn.Parameter | None]]
        self.trainable_parameters = [member._parameters for member in self.members if not member.weight.is_inference()]
        weights, biases = self.weights_and_biases()
        self.weight: PackedWeight
        self.packed_versions: list[tuple[int, torch.dtype]]
        self.weight, self.packed_versions = pack_weights(weights, biases), self.weight_versions()

    def weights_and_biases(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return the members' weights, and their biases: zeros for a member without one, none if no member has one."""
        weights = [member.weight.detach() for member in self.members]
        if all(member.bias is None for member in self.members):
            return weights, []
        return weights, [
            weight.new_zeros(len(weight)) if member.bias is None else member.bias.detach()
            for member, weight in zip(self.members, weights, strict=True)
        ]

    def weight_versions(self) -> list[tuple[int, torch.dtype]]:
        """Return version counter and dtype of every trainable weight and bias; updates and conversions change them."""
        return [
            (parameter._version, parameter.dtype)
            for parameters in self.trainable_parameters
            for parameter in parameters.values()
            if parameter is not None
        ]

    def drop_unpacked(self) -> None:
        """Free the members' unpacked weights, unless one of them is trainable; only the packed copy is left."""
        if not any(member.weight.requires_grad for member in self.members):
            self.trainable_parameters, self.packed_versions = [], []
            for member in self.members:
                member.weight = nn.Parameter(member.weight.to("meta"), requires_grad=False)

    def unpacked_weight(self, index: int) -> Tensor:
        """Return the weight of member `index` in its original layout and dtype."""
        weight = self.members[index].weight
        if not weight.is_meta:
            return weight
        return self.weight.unpacked()[index]

    def member_output(self, index: int, input: Tensor) -> Tensor:
        """Return the output of member `index` for `input` `[..., K]`, K input features.

        The outputs of all members are computed when the first is called, and kept until the last is called with the
        same tensor.
        """
        if not self.last_index:  # the only member
            return self.forward(input)
        if index == 0 or self.cached_input is not input:
            self.cached_input, self.cached_outputs = input, self.forward(input).split(self.output_sizes, -1)
        part = self.cached_outputs[index]
        if index == self.last_index:
            self.cached_input, self.cached_outputs = None, ()
        return part

    def forward(self, input: Tensor) -> Tensor:
        """Return the outputs of all members, concatenated: `[..., K]`, K input features, to `[..., sum of outputs]`."""
        return self.current_weight().product(input)

    def current_weight(self) -> PackedWeight:
        """Return the packed weight, packed anew if a trainable weight has changed since."""
        if self.is_stale():
            self.pack()
        return self.weight

    def is_stale(self) -> bool:
        """Return whether a trainable weight has changed since it was packed."""
        return self.packed_versions != self.weight_versions()


def pack_weights(weights: Sequence[Tensor], biases: Sequence[Tensor]) -> PackedWeight:
    """Return weights `[N, K]` and biases `[N]` (as many or none) in the layout that this machine's kernel reads."""
    native = library()
    return OneDnnWeight(weights, biases) if native is None else PanelWeight(native, weights, biases)


class PackedLinear(nn.Linear):
    """An `nn.Linear` that uses the packed weights of its group in inference mode; training is unchanged."""

    group: PackedLinearGroup
    index: int  # in `group.members`

    def forward(self, input: Tensor) -> Tensor:  # parameter name of nn.Linear
        """Return `input @ weight.T + bias`, `[..., K]` to `[..., N]`."""
        if torch.is_inference_mode_enabled():
            return self.group.member_output(self.index, input)
        return F.linear(input, self.group.unpacked_weight(self.index), self.bias)


class TritonLinear(nn.Linear):
    """An `nn.Linear` that uses our Triton kernel in inference mode."""

    def forward(self, input: Tensor) -> Tensor:  # parameter name of nn.Linear
        """Return `input @ weight.T + bias`, `[..., K]` to `[..., N]`."""
        linear = triton_ops.linear if torch.is_inference_mode_enabled() else F.linear
        return linear(input, self.weight, self.bias)


def packed_group(members: Sequence[nn.Module]) -> PackedLinearGroup | None:
    """Return the group whose one weight `prepare_linears` has made of exactly these layers; None if there is none."""
    first = members[0]
    return first.group if isinstance(first, PackedLinear) and first.group.members == list(members) else None


def native_weight(linear: nn.Module) -> NativeWeight | None:
    """Return the weight of a linear layer as the C library reads it; None if it is not packed, alone and so."""
    group = packed_group([linear])
    weight = None if group is None else group.current_weight()
    return weight if isinstance(weight, NativeWeight) else None


def fuse_linears(members: list[nn.Linear]) -> Callable[[Tensor], Tensor]:
    """Return a function of a tensor `[..., K]` that returns the outputs of all `members`, concatenated.

    It is one matrix product if `prepare_linears` has joined the members' weights, else one per member.
    """
    if (group := packed_group(members)) is not None:  # on CPUs
        return group.forward
    if len(members) > 1 and (fused := contiguous_weight_and_bias(members)) is not None:
        linear = triton_ops.linear if triton_ops.is_supported_weight(fused[0]) else F.linear
        return lambda input: linear(input, *fused)
    return lambda input: torch.cat([member(input) for member in members], -1)


def contiguous_weight_and_bias(members: list[nn.Linear]) -> tuple[Tensor, Tensor | None] | None:
    """Return views of all members' weights and biases as one weight `[sum of N, K]` and bias `[sum of N]`.

    Each member maps K input features to N output features.

    Returns:
        None unless `make_contiguous` has made them slices of one tensor; the bias is None if no member has one.
    """
    if not all(is_dense(member.weight) for member in members):  # quantised weights cannot be joined
        return None
    weight = contiguous_parent([member.weight for member in members])
    biases = [member.bias for member in members if member.bias is not None]
    bias = contiguous_parent(biases) if biases else None
    return None if weight is None or (biases and bias is None) else (weight, bias)


def contiguous_parent(parts: Sequence[Tensor]) -> Tensor | None:
    """Return the tensor that `parts` are consecutive slices of along dimension 0, or None if they are not."""
    first = parts[0]
    storage, next_address = first.untyped_storage().data_ptr(), first.data_ptr()
    for part in parts:  # each must be in the same storage, and begin where the one before ends
        if part.is_meta or (part.untyped_storage().data_ptr(), part.data_ptr()) != (storage, next_address):
            return None
        next_address += part.numel() * part.itemsize
    return first.detach().as_strided((sum(len(part) for part in parts), *first.shape[1:]), first.stride())


def make_contiguous(members: list[nn.Linear]) -> None:
    """Replace the members' weights by consecutive slices of one tensor, and their biases by slices of another."""
    for name in ("weight", "bias"):
        parameters = [getattr(member, name) for member in members]
        if parameters[0] is not None:  # None: no bias; either all members have one or none has (`fusable_groups`)
            joined = torch.cat([parameter.detach() for parameter in parameters])
            slices = joined.split([len(parameter) for parameter in parameters])
            for member, part in zip(members, slices, strict=True):
                setattr(member, name, nn.Parameter(part, requires_grad=False))


def prepare_linears(model: nn.Module) -> None:
    """Prepare all linear layers of a model for inference, in place.

    On CPUs they become `PackedLinear`. Of weights that are neither trainable nor shared with another module, only the
    packed copy is kept. On accelerators layers that read the same tensor get one weight, unless theirs are trainable or
    shared, and on GPUs they become `TritonLinear`.
    """
    num_owners: dict[int, int] = {}  # modules that have a parameter, by its id
    for module in model.modules():
        for parameter in module._parameters.values():
            num_owners[id(parameter)] = num_owners.get(id(parameter), 0) + 1
    for module in list(model.modules()):
        for members in fusable_groups(module):
            # the weight is a parameter of two modules, as where the LM head is tied to the embeddings
            is_shared = any(num_owners[id(member.weight)] > 1 for member in members)
            if members[0].weight.device.type != "cpu":
                is_trainable = any(member.weight.requires_grad for member in members)
                is_frozen = not (is_shared or is_trainable)
                if len(members) > 1 and is_frozen and contiguous_weight_and_bias(members) is None:
                    make_contiguous(members)
                for member in members:
                    if triton_ops.is_supported_weight(member.weight):
                        member.__class__ = TritonLinear
                continue
            group = pack_group(members)
            if not is_shared:
                group.drop_unpacked()
    return_freed_memory()


def pack_group(members: list[nn.Linear]) -> PackedLinearGroup:
    """Make layers that read the same tensor `PackedLinear`s of one group, and return it."""
    group = PackedLinearGroup(members)
    for index, member in enumerate(members):
        member.__class__ = PackedLinear
        member.group, member.index = group, index  # type: ignore[assignment]
    return group


def build_linear(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    """Return a linear layer of K input and N output features, prepared for inference, for a weight `[N, K]`.

    The bias is `[N]`, or None.
    """
    # "meta" tensors have no memory; loading with `assign` then uses the given tensors without a copy
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    linear.load_state_dict({"weight": weight} | ({} if bias is None else {"bias": bias}), assign=True)
    prepare_linears(linear.requires_grad_(False))
    return linear


def return_freed_memory() -> None:
    """Return memory that the C library has freed but kept to the operating system (glibc only)."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return


def dense_weight(module: nn.Module) -> Tensor:
    """Return the weight `[N, K]` of a linear layer in its original layout, also if only a packed copy is left."""
    weight = module.group.unpacked_weight(module.index) if isinstance(module, PackedLinear) else module.weight
    return weight.detach()  # type: ignore[operator]


def fusable_groups(module: nn.Module) -> list[list[nn.Linear]]:
    """Return the supported linear layers directly under `module`, grouped by the tensor that they read.

    Which layers read the same tensor is known by their names (`FUSABLE_NAMES`); every other layer is a group of one.
    `module` itself is a group if it is a supported linear layer.
    """
    linears = {name: child for name, child in module.named_children() if is_supported_linear(child)}
    if is_supported_linear(module):
        linears[""] = module
    groups = [
        [linears.pop(name) for name in names] for names in FUSABLE_NAMES if all(name in linears for name in names)
    ]
    # members with and without bias, or on several devices, cannot share a product
    uniform = [group for group in groups if len({(member.bias is None, member.weight.device) for member in group}) == 1]
    separate = [[member] for group in groups if group not in uniform for member in group]
    return uniform + separate + [[linear] for linear in linears.values()]  # type: ignore[return-value]


def is_dense(weight: Tensor) -> bool:
    """Return whether a weight is stored as numbers of its dtype; quantised weights of torchao only appear to be."""
    return type(weight) in (nn.Parameter, Tensor)


def is_supported_linear(module: nn.Module) -> bool:
    """Return whether `module` is an unmodified `nn.Linear` of a supported dtype and device."""
    if type(module) is not nn.Linear or "forward" in vars(module) or module._parameters.get("weight") is None:
        return False
    device_type, dtype = module.weight.device.type, module.weight.dtype
    if device_type == "meta" or not is_dense(module.weight) or not dtype.is_floating_point:
        return False
    if device_type != "cpu":  # a hook of accelerate moves the layer's inputs between devices, which fusing would skip
        return not hasattr(module, "_hf_hook")
    return dtype in (torch.bfloat16, torch.float32) and (torch.backends.mkldnn.is_available() or library() is not None)
