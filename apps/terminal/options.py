"""Options that several commands have, so that they are called and explained alike."""

from __future__ import annotations

from typing import Annotated

import typer

from polydraft.apps.terminal.completion import method_names, model_names, one_of

NAMED = "Embedded or packaged model, a folder, or organisation/repository."
Model = Annotated[str, typer.Option(help="Embedded model or a model folder.", autocompletion=model_names)]
AnyModel = Annotated[str, typer.Option(help=NAMED, autocompletion=model_names)]
Drafters = Annotated[
    list[str] | None,
    typer.Option("--drafter", help="A drafter's folder or repository; may be given several times, one of each kind."),
]
DraftersOfModels = Annotated[
    list[str] | None,
    typer.Option("--drafter", help="A drafter's folder or repository, or MODEL=FOLDER; may be given several times."),
]
ReferencesOfModels = Annotated[
    list[str] | None,
    typer.Option(
        "--reference",
        help="A text file that answers may quote, to look drafts up in, or MODEL=FILE; one for each model.",
    ),
]
Method = Annotated[str | None, typer.Option(help="As in `polydraft methods`.", autocompletion=method_names)]
Temperature = Annotated[float | None, typer.Option(help="0 is greedy. Default: the model's own.")]
TopK = Annotated[int | None, typer.Option(help="Keep the k likeliest tokens; 0 is off.")]
TopP = Annotated[float | None, typer.Option(help="Keep the likeliest tokens of this mass; 1 is off.")]
MinP = Annotated[float | None, typer.Option(help="Keep tokens this likely beside the likeliest; 0 is off.")]
RepetitionPenalty = Annotated[float | None, typer.Option(help="Above 1 avoids what was said; 1 is off.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.", autocompletion=one_of("auto", "cpu", "cuda"))]
Dtype = Annotated[
    str,
    typer.Option(
        help="auto, float32, bfloat16 or float16.", autocompletion=one_of("auto", "float32", "bfloat16", "float16")
    ),
]
Compare = Annotated[bool, typer.Option("--compare", help="Decode plainly too: S, τ, same tokens?")]
Statistics = Annotated[bool, typer.Option("--json", help="Print statistics as JSON.")]
Results = Annotated[bool, typer.Option("--json", help="Print results as JSON.")]
Json = Annotated[bool, typer.Option("--json", help="Print as JSON.")]
