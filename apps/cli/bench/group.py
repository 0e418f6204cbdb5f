"""`polydraft bench`: speed, quality and costs, each measured in one process.

polydraft bench image --prompts 8 --repeats 3 --methods jacobi,draft
polydraft bench image --model FOLDER --data prompts.jsonl --drafter runs/eagle --methods eagle2,jacobi
polydraft bench image --model FOLDER --data coco.txt --clip openai/clip-vit-base-patch16 --fid-features clip
polydraft bench image --shape emu3 --scale 16 --tokens 64
polydraft bench speech --sentences 100 -o runs/bench
polydraft bench speech --data lines.jsonl --model ./my-voice --drafter runs/hydra --methods hydra -o runs/bench
polydraft bench listen --limit 4 -o runs/bench
polydraft bench listen --data meetings --model openai/whisper-small --methods auto,history
polydraft bench vlm --prompts 8
polydraft bench vlm --data photos.jsonl --model ./my-vlm --drafter runs/eagle --methods eagle2,pld -o runs/bench
polydraft bench text --model ./smollm2 --kinds chat,summary
polydraft bench speculate --model ./smollm2 --dtype float32
polydraft bench text --model ./smollm2 --data questions.jsonl --drafter runs/eagle
polydraft bench drift --model tiny-speech --methods "hydra,hydra+typical"
polydraft bench acceptance --model tiny-speech --method hydra --temperatures 0.6,1,1.3
polydraft bench serve --clients 1,2,4,8
polydraft bench plan --shape tiny-vlm --rate 40 --gpus 1,8,1000
polydraft bench generate --shape smolvlm --prompts 80,800,3000 --dtypes bfloat16,float32
polydraft bench rows --shape smolvlm --rows 64
polydraft bench rows --shape emu3 --rows 2 --length 8193
polydraft bench roofline --shape llava-1.6-7b
polydraft bench against ../before --model ../before/assets/models/tiny-image --methods "jacobi,eagle2"
polydraft bench report --document BENCHMARKS.md --pictures assets/pictures
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from polydraft.apps.cli.bench import engine, image, listen, methods, plan, report, serve, speculate, speech, text, vlm
from polydraft.apps.terminal.application import Application

if TYPE_CHECKING:
    from types import ModuleType

app: Application = Application(no_args_is_help=True, help="Measure speed, fidelity, understanding and costs.")
module: ModuleType
for module in (image, speech, listen, vlm, text, speculate, methods, serve, plan, engine, report):
    app.add_typer(module.app)


@app.callback()
def bench() -> None:
    """Measure speed, fidelity, understanding and costs."""
