"""`polydraft doctor`: is this machine fit? Exit status 1 if something needed is broken.

polydraft doctor
polydraft doctor --json
"""

from __future__ import annotations

import hashlib
import platform
import subprocess
import sys
from dataclasses import asdict, dataclass
from importlib import import_module, metadata
from typing import Any

import typer

from polydraft.apps.terminal.options import Json
from polydraft.apps.terminal.terminal import print_json, print_table

# As in pyproject.toml; a test holds the two together.
LEAST_VERSIONS = {
    "torch": "2.11", "transformers": "5.23", "safetensors": "0.6", "tokenizers": "0.22", "numpy": "2.0",
    "pillow": "11",
}  # fmt: skip
OPTIONAL = {"diffusers": "tiny-latent and some published models", "matplotlib": "--map, bench and train"}
IMPORT_NAMES = {"pillow": "PIL"}
OK, BROKEN, WARNING = "ok", "broken", "warning"
IMPORT_FAILURES = (ImportError, OSError, RuntimeError, AttributeError, ValueError, TypeError)


@dataclass(frozen=True)
class Check:
    name: str
    status: str
    detail: str


def doctor(as_json: Json = False) -> None:
    """Check Python, libraries, device and embedded models."""
    checks = [check_python(), *map(check_package, LEAST_VERSIONS), *map(check_optional, OPTIONAL), check_torchaudio()]
    if not any(check.status == BROKEN for check in checks):
        checks += [check_device(), check_native(), check_threads(), check_glyphs(), *check_models()]
    fit = not any(check.status == BROKEN for check in checks)
    if as_json:
        print_json({"fit": fit, "checks": [asdict(check) for check in checks]})
    else:
        print_table(["", "status", ""], [[check.name, check.status, check.detail] for check in checks])
        typer.echo("\nfit" if fit else "\nnot fit: repair what is broken, then run polydraft doctor again")
    if not fit:
        raise typer.Exit(1)


def check_python() -> Check:
    detail = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    return Check("python", OK if sys.version_info >= (3, 11) else BROKEN, detail)


def check_package(name: str) -> Check:
    """Check that a required package imports and is new enough."""
    try:
        import_module(IMPORT_NAMES.get(name, name))
        version = metadata.version(name)
    except IMPORT_FAILURES as error:
        return Check(name, BROKEN, f"cannot be imported: {first_line(error)}; install it again")
    least = LEAST_VERSIONS[name]
    if numbers(version) < numbers(least):
        return Check(name, BROKEN, f"{version} is too old; install {least} or newer")
    return Check(name, OK, version)


def check_optional(name: str) -> Check:
    """Check a package of an extra: it may be absent, and is told with what needs it and the command that brings it."""
    from polydraft.core.checks.extras import EXTRAS, pip_install

    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Check(name, OK, f"absent, for {OPTIONAL[name]}: {pip_install(EXTRAS[name])}")
    try:
        import_module(name)
    except IMPORT_FAILURES as error:
        return Check(name, WARNING, f"{version} cannot be imported: {first_line(error)}; for {OPTIONAL[name]}")
    return Check(name, OK, version)


def check_torchaudio() -> Check:
    """Check that torchaudio, where installed, was built for this torch; else it breaks other libraries' imports."""
    try:
        version = metadata.version("torchaudio")
    except metadata.PackageNotFoundError:
        return Check("torchaudio", OK, "absent, not needed")
    # a child process, for a library built for another torch may take the interpreter down with it
    child = subprocess.run([sys.executable, "-c", "import torchaudio"], capture_output=True, text=True, check=False)
    if child.returncode == 0:
        return Check("torchaudio", OK, f"{version}, not needed")
    reason = child.stderr.strip().splitlines()[-1:] or [f"status {child.returncode}"]
    detail = f"{version} is broken, it cannot be imported ({reason[0][:120]}); not needed, uninstall it"
    return Check("torchaudio", WARNING, detail)


def check_device() -> Check:
    import torch

    from polydraft.core.model.precision import has_native_bf16
    from polydraft.modalities.device_dtype import resolve_device, resolve_dtype

    device = resolve_device("auto")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    dtype = str(resolve_dtype("auto", device)).removeprefix("torch.")
    support = "multiplies bf16" if has_native_bf16(device) else "does not multiply bf16"
    return Check("device", OK, f"{device} ({name}), {support}, uses {dtype}")


def check_native() -> Check:
    """Report by what models are computed on CPUs, the C library or torch, and why."""
    from polydraft.core.native.library import library, why_unused

    if (native := library()) is None:
        return Check("cpu passes", OK, f"by torch's operations, not by the C library: {why_unused()}")
    threads = "" if native.has_threads else ", on one thread, since torch has another OpenMP library"
    return Check("cpu passes", OK, f"by the C library ({native.instruction_set}){threads}")


def check_threads() -> Check:
    """Report how many threads passes may use, and whether others take their cores right now."""
    import torch

    from polydraft.core.model.threads import cgroup_quota, has_free_cores, thread_counts, usable_cores

    most, quota = thread_counts()[0], cgroup_quota()
    limit = f", control group's quota {quota:g}" if quota < float("inf") else ""
    detail = f"up to {most} a pass (torch {torch.get_num_threads()}, usable cores {usable_cores()}{limit})"
    if any(has_free_cores(most) for _ in range(3)):
        return Check("threads", OK, f"{detail}, undisturbed")
    return Check("threads", WARNING, f"{detail}; other processes take the cores, so passes use fewer while they last")


def check_glyphs() -> Check:
    """Check the glyph rasters of the emoji world."""
    from polydraft.core.checks.system_errors import system_error
    from polydraft.modalities.world.glyphs import GLYPH_SIZES, load_sheet

    try:
        kinds = {size: len(load_sheet(size)) for size in GLYPH_SIZES}
    except (OSError, ValueError) as error:
        lack = system_error(error, "the glyphs cannot be read")
        return Check("glyphs", BROKEN, str(lack or f"{first_line(error)}; install polydraft again"))
    return Check("glyphs", OK, ", ".join(f"{count} {size}" for size, count in kinds.items()))


def check_models() -> list[Check]:
    """Load every embedded model completely; the hash tells two installations apart."""
    from polydraft.core.errors import MissingPackage, PolydraftError
    from polydraft.modalities.loading import load
    from polydraft.modalities.model_card import embedded_models

    checks = []
    for card in embedded_models():
        files = sorted(path for path in card.path.rglob("*") if path.is_file())
        digest = hashlib.sha256()
        for path in files:
            digest.update(path.relative_to(card.path).as_posix().encode() + path.read_bytes())
        size = sum(path.stat().st_size for path in files) / 1e6
        try:
            pipe = load(card.name)
            for kind in card.drafters:
                pipe.drafter(kind)
            earned = ", ".join(f"{dtype} {promise(card.name, dtype)}" for dtype in ("bfloat16", "float32"))
            steady = sized_steadily(pipe)
        except MissingPackage as error:
            checks.append(Check(card.name, OK, f"{size:.1f} MB, not loaded: {error}"))
        except PolydraftError as error:
            checks.append(Check(card.name, BROKEN, str(error)))
        else:
            drafters = ", ".join(card.drafters) or "none"
            detail = f"{size:.1f} MB, sha256 {digest.hexdigest()[:12]}, {earned}; drafters: {drafters}"
            if not steady:
                detail += "; timings of passes disagree, so drafts are sized anew once the machine is quiet"
            checks.append(Check(card.name, OK if steady else WARNING, detail))
    return checks or [Check("models", BROKEN, "none is embedded; install polydraft again")]


def sized_steadily(pipe: Any) -> bool:
    """Return whether the timings agree that the drafts of the model's default method are sized by, if any are."""
    times = pipe.method(pipe.default_method).pass_times
    return times is None or times.is_stable


def promise(name: str, dtype: str) -> str:
    """Return the guarantee of drafted tokens in a dtype: identical where this machine keeps every bit."""
    from polydraft.core.target.conformance import effective_guarantee
    from polydraft.modalities.loading import load

    return effective_guarantee("identical", load(name, dtype=dtype).target())


def numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: (2, 13) for "2.13.0+cpu"."""
    return tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
