"""Linear layers of a model that stays its owner's: while they are lent, the C library reads their weights in place.

    linears = LentLinears(decoder_linears(model))
    with linears:
        ...                                    # they are `PackedLinear`s, whose weights are held once
    # and now `nn.Linear`s as before
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from polydraft.core.model.linear import PackedLinear, PackedLinearGroup, fusable_groups, is_supported_linear
from polydraft.core.native.library import Library, library
from polydraft.core.native.weights import InPlaceWeight


class InPlaceLinearGroup(PackedLinearGroup):
    """Linear layers that read the same tensor, whose weights are read in place."""

    weight: InPlaceWeight

    def __init__(self, members: list[nn.Linear], native: Library) -> None:
        self.native: Library = native
        super().__init__(members)

    def pack(self) -> None:
        """Point to the members' weights, which may be trained or replaced while they are not lent."""
        self.trainable_parameters: list[dict[str, nn.Parameter | None]] = []
        self.packed_versions: list[tuple[int, torch.dtype]] = []
        self.weight = InPlaceWeight(self.native, *self.weights_and_biases())

    def refresh(self) -> None:
        """Point to the members' present weights and biases; what points to `weight` stays valid."""
        self.weight.point_to(*self.weights_and_biases())


class LentLinears:
    """Linear layers that are `PackedLinear`s while they are lent; those that cannot be read in place stay as they are.

    Args:
        groups (Iterable[list[nn.Linear]]): Layers that read the same tensor, in the order in which they are called.
    """

    def __init__(self, groups: Iterable[list[nn.Linear]]) -> None:
        native = library()
        lendable = [] if native is None else [members for members in groups if all(map(can_be_lent, members))]
        self.groups: list[InPlaceLinearGroup] = [InPlaceLinearGroup(members, native) for members in lendable]  # type: ignore[arg-type]

    def __enter__(self) -> None:
        for group in self.groups:
            group.refresh()
            for index, member in enumerate(group.members):
                vars(member).update(group=group, index=index)  # in a tenth of the time of an assignment to a module
                member.__class__ = PackedLinear

    def __exit__(self, *_error: object) -> None:
        for group in self.groups:
            for member in group.members:
                member.__class__ = nn.Linear
                vars(member).pop("group", None)
                vars(member).pop("index", None)


def can_be_lent(linear: nn.Module) -> bool:
    """Return whether the C library computes what a linear layer does, and can read its weight in place."""
    has_hooks = linear._forward_hooks or linear._forward_pre_hooks
    return is_supported_linear(linear) and not has_hooks and linear.weight.is_contiguous()  # type: ignore[operator]


def decoder_linears(backbone: nn.Module, lm_head: nn.Module) -> list[list[nn.Linear]]:
    """Return the linear layers of a decoder and of its LM head, grouped by the tensor that they read."""
    parents = [module for module in backbone.modules() if type(module) is not nn.Linear]  # which come as children
    return [members for module in (*parents, lm_head) for members in fusable_groups(module)]
