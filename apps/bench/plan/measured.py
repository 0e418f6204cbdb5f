"""Costs of a model on one machine, as a file: measured where the accelerator is, planned with anywhere.

measured.save(folder)                              # folder/measured.json
measured = MeasuredModel.from_file(folder / "measured.json")
measured.ways["drafted"].steps
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from polydraft.apps.bench.plan.capacity import ServiceCosts, StepCost
from polydraft.apps.measure import report
from polydraft.core.errors import DataUnavailable, PolydraftError
from polydraft.core.folders.fields import NumberRange, check_fields
from polydraft.core.folders.json_files import read_json

FORMAT, VERSION = "polydraft-measured-costs", 1
FILE = "measured.json"
WAYS = ("plain", "drafted")
SECONDS, COUNT = NumberRange(float, 0, 1e6), NumberRange(int, 1)
FIELDS: dict[str, Any] = {
    "shape": str, "dtype": str, "machine": str, "prompt": COUNT, "weights_bytes": NumberRange(float, 0),
    "row_bytes": NumberRange(float, 0), "ways": dict, "environment": dict,
}  # fmt: skip
WAY_FIELDS: dict[str, Any] = {
    "method": str, "max_rows": NumberRange(int, 1, 4096), "steps": list, "join_seconds": SECONDS,
    "publish_seconds": SECONDS, "outside_seconds": SECONDS,
    "tokens": list[COUNT],  # type: ignore[valid-type]
}  # fmt: skip
STEP_FIELDS = {
    "rows": NumberRange(float, 1, 4096), "nodes": NumberRange(float, 0), "seconds": NumberRange(float, 1e-9, 1e6),
    "tau": NumberRange(float, 1e-3, 1e4),
}  # fmt: skip


@dataclass(frozen=True)
class MeasuredModel:
    """Costs of one model on one machine, decoded plainly and drafted."""

    shape: str  # name of the shape or the embedded model
    dtype: str
    machine: str  # accelerator or processor
    prompt: int  # mean length of prompts, in tokens
    weights_bytes: float  # that a pass reads
    row_bytes: float  # keys and values of a row at the end of its answer
    ways: Mapping[str, ServiceCosts]  # "plain" and "drafted"
    environment: Mapping[str, Any]  # of the measurement

    def to_dict(self) -> dict[str, Any]:
        """Return the contents of the file."""
        return {"format": FORMAT, "version": VERSION} | asdict(self)

    def save(self, folder: Path) -> None:
        """Write `measured.json` into `folder`."""
        report.write(folder, FILE, json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n")

    @classmethod
    def from_file(cls, file: Path) -> MeasuredModel:
        """Return the costs in a file that `save` wrote.

        Raises:
            DataUnavailable: There is no such file, or it holds something else.
        """
        if not file.is_file():
            raise DataUnavailable(
                f"{file} is no file; give what `polydraft bench plan --shape small --rate 1 -o FOLDER` wrote."
            )
        try:
            return cls._parse(read_json(file), file)
        except PolydraftError as error:
            reason = str(error).removeprefix(f"{file} ").rstrip(".").partition("; ")[0]
            raise DataUnavailable(f"{file} holds no measured costs ({reason}); measure them again.") from error

    @classmethod
    def _parse(cls, value: dict[str, Any], file: Path) -> MeasuredModel:
        """Return the costs in the contents of a file; raise PolydraftError for anything else."""
        if value.get("format") != FORMAT or value.get("version") != VERSION:
            raise DataUnavailable(f"its format is not {FORMAT} of version {VERSION}.")
        require(value, FIELDS, file)
        if set(value["ways"]) != set(WAYS):
            raise DataUnavailable(f"its ways are not {' and '.join(WAYS)}.")
        ways = {name: parse_costs(value["ways"][name], file) for name in WAYS}
        return cls(**{name: value[name] for name in FIELDS} | {"ways": ways})


def parse_costs(value: Any, file: Path) -> ServiceCosts:
    """Return the costs of one way to decode; raise PolydraftError for anything else."""
    require(value, WAY_FIELDS, file)
    if not value["tokens"]:
        raise DataUnavailable("it has no lengths of answers.")
    steps = []
    for step in value["steps"]:
        require(step, STEP_FIELDS, file)
        steps.append(StepCost(**{name: step[name] for name in STEP_FIELDS}))
    rows = [step.rows for step in steps]
    if not rows or rows != sorted(set(rows)):
        raise DataUnavailable("the rows of its steps do not ascend.")
    given = {name: value[name] for name in WAY_FIELDS}
    return ServiceCosts(**given | {"steps": tuple(steps), "tokens": tuple(value["tokens"])})


def require(value: Any, fields: Mapping[str, Any], file: Path) -> None:
    """Raise PolydraftError unless `value` is an object whose fields are there and of the right types."""
    if not isinstance(value, dict):
        raise DataUnavailable("a value stands where an object is expected.")
    if missing := sorted(fields.keys() - value.keys()):
        raise DataUnavailable(f"{missing[0]} is missing.")
    check_fields(value, fields, file)
