"""Work of every block of `polydraft bench text`, and how many batches it makes."""

from __future__ import annotations

from dataclasses import dataclass

from polydraft.apps.data.text_prompts import NUM_PROMPTS
from polydraft.core.errors import InvalidArgument


@dataclass(frozen=True)
class Plan:
    """Work of every block."""

    prompts: int  # that count; the last batch is filled up
    warm_ups: int  # prompts before them, likewise
    tokens: int  # most of an answer
    repeats: int
    cold: bool  # whether methods forget all before every batch

    def batches(self, rows: int) -> tuple[int, int]:
        """Return the numbers of batches that count, and of those before them; raise InvalidArgument if too many."""
        counting, warming = -(-self.prompts // rows), -(-self.warm_ups // rows)
        if (counting + warming) * rows > NUM_PROMPTS:
            raise InvalidArgument(
                f"{counting + warming} batches of {rows} are more than the {NUM_PROMPTS} prompts of a kind; give fewer "
                "--prompts, --warm-ups or --rows."
            )
        return counting, warming
