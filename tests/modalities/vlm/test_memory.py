"""A head trains where its target's features do not fit: memory is capped by the system, not only looked at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from .conftest import TEXT, VISION, llava

WIDTH, PICTURES, GROUPS = 1024, 4, 40
CAP = 400 << 20  # bytes that a process may take beyond what it has when the target is loaded
TRAIN = """
import json, resource, sys
from pathlib import Path
from polydraft.apps.train import drafter, samples
from polydraft.apps.train.own import lessons
from polydraft.modalities import loading

target, data, out, cap, groups, cache = *sys.argv[1:4], *map(int, sys.argv[4:])
load, more, lessons.MOST = loading.load, lessons.OwnLessons.prompts, 2
drafter.DRAW, drafter.ROWS = 1e6, 1
drafter.TOGETHER = lessons.TOGETHER = samples.TOGETHER = 2
features = []

def capped(name):
    pipe = load(name, dtype="float32")
    pipe.target()
    held = int(next(line for line in open("/proc/self/status") if line.startswith("VmData")).split()[1]) << 10
    resource.setrlimit(resource.RLIMIT_DATA, (held + cap, resource.RLIM_INFINITY))
    return pipe

loading.load = capped
lessons.OwnLessons.prompts = lambda self, index: more(self, index) if index < groups else []
remember = drafter.Samples.remember
drafter.Samples.remember = lambda self: (features.append(self.bytes_seen), remember(self))
report = drafter.run(target, "eagle", Path(out), 1e-3, data=data, cache=cache)
print(json.dumps(report.to_dict() | {"bytes": features}))
"""


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wide features of hundreds of positions, which cost little to compute."""
    torch.manual_seed(3)
    folder = tmp_path_factory.mktemp("wide")
    text = TEXT | {"hidden_size": WIDTH, "num_hidden_layers": 2, "max_position_embeddings": 1024}
    llava(folder, text, VISION | {"patch_size": 2})
    return folder


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux caps the memory of a process so")
def test_a_head_trains_in_less_memory_than_its_targets_features_take(wide: Path, tmp_path: Path):
    """Peak memory stated by the card: what the target takes, and less than its features take beyond that."""
    for place in range(PICTURES):
        noise = np.random.default_rng(place).integers(0, 255, (56, 56, 3), dtype=np.uint8)
        Image.fromarray(noise).save(tmp_path / f"{place}.png")
    arguments = [str(wide), str(tmp_path), str(tmp_path / "out"), str(CAP), str(GROUPS), "20"]
    done = subprocess.run(
        [sys.executable, "-c", TRAIN, *arguments], capture_output=True, text=True, timeout=600,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[3] / "src")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout)
    (features,) = report["bytes"]
    assert features > 1.4 * CAP and report["steps"] >= 1 and report["features"] == "cached on disk"
    assert not (tmp_path / "out" / "samples" / "features").exists()
    assert "peak memory" in (tmp_path / "out" / "README.md").read_text()
