"""Keyword argument by which transformers modules take a KV cache."""

from __future__ import annotations

import pytest
from torch import nn

from polydraft.core.model.cache import KVCache, cache_kwarg


class Newer(nn.Module):
    def forward(self, inputs_embeds, cache=None, **others):
        return cache


class Older(nn.Module):
    def forward(self, inputs_embeds, past_key_values=None, **others):
        return past_key_values


@pytest.mark.parametrize("kind", [Newer, Older])
def test_cache_kwarg_has_the_parameter_name_of_module(kind):
    module, cache = kind(), KVCache(1)
    assert module(None, **cache_kwarg(cache, module)) is cache
