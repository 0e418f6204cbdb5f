"""`polydraft bench report`: run a fixed set of benches and write them up as one document with plots.

polydraft bench report --document BENCHMARKS.md --pictures assets/pictures
polydraft bench report --only speech,vlm --results runs/report
polydraft bench report --text-model ./smollm2
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polydraft.apps.terminal.application import Application
from polydraft.apps.terminal.options import Results

app: Application = Application()


@app.command("report")
def report(
    document: Annotated[Path, typer.Option(help="The document to write.")] = Path("BENCHMARKS.md"),
    pictures: Annotated[Path, typer.Option(help="Folder of its plots.")] = Path("pictures"),
    results: Annotated[
        Path, typer.Option(help="Folder of results; benches that have some of this revision are not run again.")
    ] = Path("runs/report"),
    only: Annotated[str | None, typer.Option(help="Names of benches, separated by commas. Default: all.")] = None,
    text_model: Annotated[
        str | None, typer.Option(help="Folder or name of a language model, for a section of its results.")
    ] = None,
    as_json: Results = False,
) -> None:
    """Run the set of benches and write a document with their tables and plots. Use an idle machine."""
    from polydraft.apps.bench.report import run

    run(document=document, pictures=pictures, results=results, only=only, text_model=text_model, json_output=as_json)
