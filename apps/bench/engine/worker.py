"""Decodes prompts of a JSON line with the checkout that PYTHONPATH names: `polydraft bench against` starts it twice.

PYTHONPATH=CHECKOUT/src python -P worker.py MODEL

Lines it reads are [method, prompts, settings], and those it writes [seconds, tokens, passes]. It asks that checkout for
nothing but its public face, which commits far apart have in common.
"""

import json
import sys
from typing import TYPE_CHECKING, Any

from polydraft import load

if TYPE_CHECKING:
    from collections.abc import Generator

if __name__ == "__main__":
    pipe: Any = load(sys.argv[1])
    print(json.dumps("ready"), flush=True)
    line: str | Any
    for line in sys.stdin:
        method: Any
        prompts: Any
        settings: Any
        method, prompts, settings = json.loads(line)
        results: list[Any]
        results = [pipe(*prompt, method=method, seed=seed, **settings) for seed, prompt in enumerate(prompts)]
        stats: list[Any] = [result.stats for result in results]
        made: Generator[int, None, None]
        made = (sum(getattr(one, name) for one in stats) for name in ("decode_seconds", "tokens", "target_passes"))
        print(json.dumps(list(made)), flush=True)
