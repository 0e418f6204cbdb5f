"""How the server is set up: by arguments, by the environment (`POLYDRAFT_…`) and by a TOML file, in this order.

POLYDRAFT_PORT=9000 polydraft serve --config server.toml

# server.toml
port = 8000
models = ["tiny-image", "tiny-speech"]
max_queue = 64
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, SecretStr, model_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from polydraft.core.errors import InvalidArgument

EMBEDDED = ("tiny-image", "tiny-speech", "tiny-vlm")
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
MEGABYTE = 2**20


def aliases(given: Any) -> Any:
    """Return the mapping of "alias=model,…", of a list of such texts, or of a mapping itself."""
    if isinstance(given, str):
        given = [given]
    if not isinstance(given, list | tuple):
        return given
    pairs = [pair.strip() for text in given for pair in str(text).split(",") if pair.strip()]
    found = {alias.strip(): model.strip() for alias, _, model in (pair.partition("=") for pair in pairs)}
    if not all(found) or not all(found.values()):
        raise ValueError("an alias is written as alias=model, such as tts-1=tiny-speech,gpt-4o=tiny-vlm")
    return found


class Settings(BaseSettings):
    """models: what is served; image, speech, vlm: the same by modality; none of them given, the embedded ones.

    alias: other names of models that are served, such as {"gpt-4o": "tiny-vlm"}.
    rows, max_queue, deadline, draft_rows: see `engine.Limits`. drain: seconds that accepted requests get at the end.
    hosts: names besides the loopback's that requests may be sent to. open: whether an address that others reach may
    go without a key. ray, ray_address, replicas, max_replicas, replica_cpus, replica_gpus: engines on a Ray cluster, so
    many processes (up to so many as the queue grows) of so many cores and GPUs each; see `apps/ray`.
    """

    model_config = SettingsConfigDict(env_prefix="POLYDRAFT_", extra="forbid")

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    models: list[str] = []
    image: str | None = None
    speech: str | None = None
    vlm: str | None = None
    alias: Annotated[dict[str, str], NoDecode, BeforeValidator(aliases)] = {}
    method: str | None = None
    drafter: str | None = None
    codec: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    threads: Annotated[int | None, Field(ge=1, le=1024)] = None
    api_key: SecretStr = SecretStr("")
    open: bool = False
    hosts: list[str] = []
    rows: Annotated[int, Field(ge=1, le=1024)] = 8
    max_queue: Annotated[int, Field(ge=0, le=100_000)] = 32
    draft_rows: Annotated[int | None, Field(ge=1)] = None
    deadline: Annotated[float, Field(gt=0, le=86_400)] = 300.0
    drain: Annotated[float, Field(ge=0, le=3600)] = 30.0
    max_body: Annotated[int, Field(ge=1024, description="Bytes.")] = 32 * MEGABYTE
    max_pixels: Annotated[int, Field(ge=64)] = 16_000_000
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    ui: bool = True
    ray: bool = False
    ray_address: str | None = None
    replicas: Annotated[int, Field(ge=1, le=10_000)] = 1
    max_replicas: Annotated[int | None, Field(ge=1, le=10_000)] = None
    replica_cpus: Annotated[float, Field(gt=0, le=1024)] = 1.0
    replica_gpus: Annotated[float, Field(ge=0, le=64)] = 0.0

    @model_validator(mode="after")
    def safe(self) -> Self:
        """Refuse to be reached by others without a key."""
        if not (self.loopback or self.key or self.open):
            raise ValueError(f"host {self.host} is reached by others; give --api-key, or --open if nobody needs one.")
        return self

    @property
    def key(self) -> str:
        return self.api_key.get_secret_value()

    @property
    def loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def names(self) -> tuple[str, ...]:
        """Hosts that requests may be sent to; any where others reach the server and nobody said which."""
        if not self.loopback and not self.hosts:
            return ()
        return (*LOOPBACK, *(name.lower() for name in self.hosts))

    @property
    def chosen(self) -> list[tuple[str, str | None]]:
        """Models with the modality they must have."""
        by_modality = [(self.image, "image"), (self.speech, "speech"), (self.vlm, "vlm")]
        given = [*((name, None) for name in self.models), *((name, kind) for name, kind in by_modality if name)]
        return [*given] or [(name, None) for name in EMBEDDED]

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource, dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:  # fmt: skip
        sources = (init_settings, env_settings)
        return (*sources, TomlConfigSettingsSource(settings_cls, FILE)) if FILE is not None else sources


FILE: Path | None = None  # read by `settings`, which alone sets it


def settings(given: dict[str, Any], file: Path | None = None) -> Settings:
    """Settings of arguments that were given, the environment and `file`; raises InvalidArgument."""
    from pydantic import ValidationError
    from pydantic_settings import SettingsError

    global FILE
    if file is not None and not file.is_file():
        raise InvalidArgument(f"{file} is no file; give a TOML file, or leave --config out.")
    FILE = file
    try:
        return Settings(**given)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        text = first["msg"].removeprefix("Value error, ").rstrip(".")
        raise InvalidArgument(f"{name}: {text}." if name else f"{text}.") from error
    except (SettingsError, ValueError) as error:
        raise InvalidArgument(
            f"the settings cannot be read ({str(error).splitlines()[0]:.200}); correct them."
        ) from error
    finally:
        FILE = None
