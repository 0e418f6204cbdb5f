"""Work of every block of `polydraft bench text`, and how many batches it makes."""

from __future__ import annotations

from dataclasses import dataclass

from polydraft.apps.data.text_prompts import NUM_PROMPTS
from polydraft.core.errors import InvalidArgument


@dataclass(frozen=True)
class Plan:
    """Work of every block."""

    prompts: int | None  # that count, the last batch filled up; None for all there are, in whole batches
    warm_ups: int  # prompts before them, likewise
    tokens: int  # most of an answer
    repeats: int
    cold: bool  # whether methods forget all before every batch

    def batches(self, rows: int, available: int = NUM_PROMPTS) -> tuple[int, int]:
        """Return the numbers of batches that count, and of those before them.

        Args:
            rows (int): Prompts of a batch.
            available (int): Prompts that there are.

        Raises:
            InvalidArgument: There are fewer than are needed.
        """
        warming = -(-self.warm_ups // rows)
        counting = max(1, available // rows - warming) if self.prompts is None else -(-self.prompts // rows)
        if (counting + warming) * rows > available:
            raise InvalidArgument(
                f"{counting + warming} batches of {rows} are more than the {available} prompts of a kind; give fewer "
                "--prompts, --warm-ups or --rows."
            )
        return counting, warming
