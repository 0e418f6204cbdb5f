"""Decodes prompts of a JSON line with the checkout that PYTHONPATH names: `polydraft bench against` starts it twice.

PYTHONPATH=CHECKOUT/src python -P worker.py MODEL

Lines it reads are [method, prompts, settings], and those it writes [seconds, tokens, passes]. It asks that checkout for
nothing but its public face, which commits far apart have in common.
"""

import json
import sys
from typing import Any

from polydraft import load

if __name__ == "__main__":
    pipe: Any = load(sys.argv[1])
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        method, prompts, settings = json.loads(line)
        results = [pipe(*prompt, method=method, seed=seed, **settings) for seed, prompt in enumerate(prompts)]
        stats = [result.stats for result in results]
        made = (sum(getattr(one, name) for one in stats) for name in ("decode_seconds", "tokens", "target_passes"))
        print(json.dumps(list(made)), flush=True)
