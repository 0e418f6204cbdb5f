"""What a cache is called where transformers' modules take it."""

from __future__ import annotations

import pytest
from torch import nn

from polydraft.core.model.cache import SlotCache, over


class Newer(nn.Module):
    def forward(self, inputs_embeds, cache=None, **others):
        return cache


class Older(nn.Module):
    def forward(self, inputs_embeds, past_key_values=None, **others):
        return past_key_values


@pytest.mark.parametrize("kind", [Newer, Older])
def test_a_module_gets_the_cache_under_the_name_it_has_there(kind):
    module, cache = kind(), SlotCache(1)
    assert module(None, **over(cache, module)) is cache
