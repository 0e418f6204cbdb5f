"""Model card of a drafter: its target, training data, held-out results, and how to load it."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import polydraft
from polydraft.apps.train.evaluation import DrafterEvaluation
from polydraft.modalities.hub import is_repository
from polydraft.modalities.output import write_text

FILE = "README.md"


@dataclass(frozen=True)
class Report:
    """Results of a training run."""

    target: str
    modality: str
    kind: str
    drafter: str
    data: str | None
    answers: int  # target sequences trained on
    held_out: int  # target sequences held out
    tokens: int  # of `answers`
    steps: int  # resumed runs included
    minutes: float  # resumed runs included
    held_out_loss: float  # nats
    features: str  # where the hidden states were kept
    peak_bytes: dict[str, int]  # peak memory of the process by device
    trial: DrafterEvaluation
    source: str  # training data in words
    load: str  # command that uses the drafter

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"trial": self.trial.to_dict()}

    @property
    def line(self) -> str:
        """Return the result in one line."""
        trial = self.trial
        sameness = "the same tokens as plain decoding" if trial.same else "other tokens than plain decoding"
        return (
            f"{self.drafter}: {self.kind}, {self.steps} steps on {self.answers} answers; on {trial.prompts} held-out "
            f"prompts τ {trial.tau:.2f}, S {trial.speedup.median:.2f} ({trial.speedup.low:.2f} to "
            f"{trial.speedup.high:.2f}), {sameness}{trial.doubt}"
        )


def write(report: Report, folder: Path) -> None:
    """Write `README.md` atomically."""
    trial = report.trial
    peak = ", ".join(f"{size / 1e9:.2f} GB ({name})" for name, size in report.peak_bytes.items())
    table = {
        "target": f"`{report.target}`", "kind": report.kind,
        "data": report.source,
        "examples": f"{report.answers} answers of the target, {report.tokens} tokens; {report.held_out} held out",
        "steps": f"{report.steps} in {report.minutes:.1f} minutes; loss {report.held_out_loss:.3f} nats held out",
        "τ on held-out prompts": f"{trial.tau:.2f} ({trial.prompts} prompts, {trial.tokens} tokens, `{trial.method}`)",
        "S on held-out prompts": (
            f"{trial.speedup.median:.2f}, from {trial.speedup.low:.2f} to {trial.speedup.high:.2f}, against plain "
            f"decoding of the same target in the same process, prefill apart{trial.doubt}"
        ),
        "tokens": f"{'the same as' if trial.same else 'other than'} plain decoding's ({trial.guarantee})",
        "peak memory": f"{peak}; the target's features were {report.features}",
        "made by": f"polydraft {polydraft.__version__}",
    }  # fmt: skip
    base = [f"base_model: {report.target}"] if is_repository(report.target) else []
    lines = [
        "---", "library_name: polydraft", *base, f"tags: [speculative-decoding, polydraft-{report.kind}]", "---", "",
        f"# Drafter ({report.kind}) for {Path(report.target).name}", "",
        "It guesses what its target says next; the target checks, so answers stay the target's own.", "",
        "| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in table.items()), "",
        "```bash", report.load, "```", "",
    ]  # fmt: skip
    write_text(folder / FILE, "\n".join(lines))


def peak_memory(device: torch.device) -> dict[str, int]:
    """Return the peak memory of this process in bytes by device; empty where the system does not report it."""
    found = {}
    if sys.platform != "win32":
        import resource

        size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        found["cpu"] = size if sys.platform == "darwin" else 1024 * size
    if device.type == "cuda":
        found["cuda"] = torch.cuda.max_memory_allocated(device)
    return found
