"""Training prompts from recordings: windows of sound, which the target transcribes.

files = find_recordings("recordings")
training_prompts = RecordingPrompts(pipe, files, seed=0, held_out=0.1)
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from polydraft.apps.data.samples import TOGETHER
from polydraft.apps.terminal.terminal import note
from polydraft.apps.terminal.usage import Inputs
from polydraft.core.errors import DataUnavailable, InvalidArgument, PromptError
from polydraft.core.target.causal import PromptInputs
from polydraft.core.target.encoder_decoder import ENCODER_INPUT, EncoderInput

HELD = 32  # held-out prompts at most
TIMESTAMPS = (True, False)  # whether transcripts have them, in turn


def find_recordings(data: str | None) -> list[Path]:
    """Return the files of a folder and its subfolders, or the file itself; raise DataUnavailable for none."""
    if data is None:
        raise DataUnavailable("drafters of what transcribes learn from recordings; give a folder of them with --data.")
    given = Path(data)
    files = sorted(file for file in given.rglob("*") if file.is_file()) if given.is_dir() else [given]
    if not files or not files[0].exists():
        raise DataUnavailable(f"{data} holds no recordings; give a folder of sound files.")
    return files


class WindowPrompts:
    """Prompts for greedy transcripts of windows of recordings, in groups.

    Args:
        pipe (Any): pipeline of the target, which detects the language of every recording.
        files (Sequence[Path]): recordings; what is no sound is noted once.
        timestamps (Sequence[bool]): whether transcripts have timestamps, in turn.
        is_wanted (Callable[[int], bool]): tells which windows to take, by their number among all.
    """

    def __init__(
        self, pipe: Any, files: Sequence[Path], timestamps: Sequence[bool] = TIMESTAMPS,
        is_wanted: Callable[[int], bool] = lambda number: True,
    ) -> None:  # fmt: skip
        self.pipe: Any = pipe
        self.files: Sequence[Path] = files
        self.timestamps: Sequence[bool] = timestamps
        self.is_wanted: Callable[[int], bool] = is_wanted
        self.num_seen: int = 0  # windows of the present walk, wanted or not
        self.languages: dict[Path, str | None] = {}  # of recordings
        self.refused: set[Path] = set()  # files that are no sound
        self.walk: Iterator[PromptInputs] = iter(())
        self.next_group: int = -1  # the group that the walk comes to next

    def group(self, index: int) -> list[PromptInputs]:
        """Return group `index` of the prompts; an empty one after the last window."""
        if index != self.next_group:
            self.walk = self.prompts(first=index * TOGETHER)
        self.next_group = index + 1
        return list(islice(self.walk, TOGETHER))

    def prompts(self, first: int = 0) -> Iterator[PromptInputs]:
        """Yield the prompts from the one with the number `first` on."""
        for number, (file, encoder_input) in enumerate(self.windows()):
            if number >= first:
                yield self.prompt(file, encoder_input, self.timestamps[number % len(self.timestamps)])

    def windows(self) -> Iterator[tuple[Path, EncoderInput]]:
        """Yield the wanted windows of all recordings, one after the other."""
        self.num_seen = 0
        for file in self.files:
            try:
                features = self.pipe.read_sound(file)
            except PromptError as error:
                if file not in self.refused:
                    note(f"note: {error}")
                self.refused.add(file)
                continue
            with features:
                for first in range(0, features.num_frames, self.pipe.window_frames):
                    self.num_seen += 1
                    if self.is_wanted(self.num_seen - 1):
                        num_frames = min(self.pipe.window_frames, features.num_frames - first)
                        yield file, self.pipe.encoder_input(features, first, num_frames)

    def prompt(self, file: Path, encoder_input: EncoderInput, timestamps: bool) -> PromptInputs:
        """Return the prompt for a window of a recording."""
        tokens = self.pipe.control_tokens
        if file not in self.languages:
            self.languages[file] = self.pipe.detect_language(encoder_input)[0] if tokens.languages else None
        ids = tokens.prompt(self.languages[file], "transcribe", timestamps)
        return PromptInputs(
            (ids,), self.pipe.context_len - len(ids), model_kwargs={ENCODER_INPUT: encoder_input},
            sampling_params=self.pipe.sampling_params(temperature=0.0),
        )  # fmt: skip


class RecordingPrompts:
    """Training prompts from recordings, of whose windows a share is never trained on.

    Args:
        pipe (Any): pipeline of the target.
        files (Sequence[Path]): recordings.
        seed (int): seed of their order.
        held_out (float): share of the windows that is held out, every n-th of all.

    Raises:
        InvalidArgument: the share is impossible.
    """

    blank: tuple[int, ...] | None = None  # there is no guidance
    unread = None  # and there are no images

    def __init__(self, pipe: Any, files: Sequence[Path], seed: int, held_out: float) -> None:
        if not 0 < held_out < 1:
            raise InvalidArgument(f"held_out={held_out:g} is not possible; it must be a share between 0 and 1.")
        self.files: list[Path] = list(files)
        period = max(2, round(1 / held_out))
        random.Random(seed).shuffle(self.files)
        self.train_windows: WindowPrompts
        self.train_windows = WindowPrompts(pipe, self.files, is_wanted=lambda number: number % period > 0)
        self.held_windows: WindowPrompts
        self.held_windows = WindowPrompts(pipe, self.files, is_wanted=lambda number: number % period == 0)

    def prompts(self, index: int) -> list[PromptInputs]:
        """Return group `index` of the training windows; an empty one after the last."""
        return self.train_windows.group(index)

    @cached_property
    def held_prompts(self) -> list[PromptInputs]:
        """Return the prompts that are never trained on; raise DataUnavailable where nothing else would be left."""
        prompts = list(islice(self.held_windows.prompts(), HELD))
        if self.held_windows.num_seen < 2:
            raise DataUnavailable("the recordings hold less than two windows of sound; give more of them.")
        return prompts

    def held_out(self) -> list[PromptInputs]:
        return self.held_prompts

    def rendered(self, rows: int) -> None:
        return None

    def example(self, folder: Path) -> Inputs:
        """Return the first recording, as the input of a command."""
        refused = self.train_windows.refused | self.held_windows.refused
        return Inputs(reference=str(next(file for file in self.files if file not in refused)))
