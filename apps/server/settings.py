"""Settings of the server from arguments, the environment (`POLYDRAFT_…`) and a TOML file, in this order.

POLYDRAFT_PORT=9000 POLYDRAFT_MODEL=tiny-image,tiny-speech polydraft serve --config server.toml

# server.toml
port = 8000
model = ["tiny-image", "tiny-speech"]
max-queue = 64

Every option has the same name in all three places (`--max-queue`, `POLYDRAFT_MAX_QUEUE`, `max-queue` or `max_queue`).
A file may also have a table of every served model:

[models."tiny-vlm"]
drafter = ["runs/hydra", "runs/eagle"]
reference = "terms.txt"
"""

from __future__ import annotations

import ipaddress
import json
import re
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from polydraft.apps.server.limits import LARGEST_BODY, LARGEST_UPLOAD, LONGEST_SOUND
from polydraft.apps.terminal.assignment import assign_drafters, assign_references
from polydraft.core.checks.suggestions import did_you_mean
from polydraft.core.errors import InvalidArgument

EMBEDDED = ("tiny-image", "tiny-speech", "tiny-vlm")
ASSIGNED = ("drafter", "reference")  # options whose values name one of several models
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
OPTIONS = {"model": "models", "allow_host": "hosts", "queue": "max_queue", "cors_origin": "cors_origins"}
"""Fields whose option has another name, by that name."""


def split_names(value: Any) -> Any:
    """Return a list of names from `a,b` or from a JSON list; other values as they are."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        try:
            return json.loads(value)
        except ValueError as error:
            raise ValueError(f"{value:.80} is not a JSON list; give names as a,b or as a JSON list") from error
    return [name.strip() for name in value.split(",") if name.strip()]


Names = Annotated[list[str], NoDecode, BeforeValidator(split_names)]


def aliases(given: Any) -> Any:
    """Return the mapping of "alias=model,…", of a list of such texts, or the mapping itself."""
    if isinstance(given, str):
        given = [given]
    if not isinstance(given, list | tuple):
        return given
    pairs = [pair.strip() for text in given for pair in str(text).split(",") if pair.strip()]
    found = {alias.strip(): model.strip() for alias, _, model in (pair.partition("=") for pair in pairs)}
    if not all(found) or not all(found.values()):
        raise ValueError("an alias is written as alias=model, such as tts-1=tiny-speech,gpt-4o=tiny-vlm")
    return found


class ModelSettings(BaseModel):
    """Settings of one served model; None is the server's setting of that name."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    drafter: Names = []
    reference: str | None = None
    codec: str | None = None
    method: str | None = None
    device: str | None = None
    dtype: str | None = None


class ServerSettings(BaseSettings):
    """Settings of the server, from arguments, `POLYDRAFT_*` environment variables and a TOML file."""

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(env_prefix="POLYDRAFT_", extra="forbid")

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    models: Names = []  # served models of any modality
    tables: dict[str, ModelSettings] = {}  # further settings by model, the tables `[models.NAME]` of a file
    image: str | None = None  # served image model; with no model given, the embedded ones are served
    speech: str | None = None
    vlm: str | None = None
    transcription: str | None = None
    alias: Annotated[dict[str, str], NoDecode, BeforeValidator(aliases)] = {}  # {"gpt-4o": "tiny-vlm"}
    method: str | None = None
    drafter: Names = []  # folders or repositories; of several models as MODEL=FOLDER
    reference: Names = []  # text files that answers may quote; of several models as MODEL=FILE
    codec: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    threads: Annotated[int | None, Field(ge=1, le=1024)] = None
    api_key: SecretStr = SecretStr("")
    open: bool = False  # allow a reachable address without a key
    hosts: Names = []  # accepted host names besides the loopback's
    cors_origins: Names = []  # origins whose pages may call the API from a browser
    root_path: str = ""  # prefix under which a reverse proxy shows the service
    rows: Annotated[int, Field(ge=1, le=1024)] = 8  # see `engine.Limits`, as the next two and `deadline`
    max_queue: Annotated[int, Field(ge=0, le=100_000)] = 32
    draft_rows: Annotated[int | None, Field(ge=1)] = None
    deadline: Annotated[float, Field(gt=0, le=86_400)] = 300.0
    drain: Annotated[float, Field(ge=0, le=3600)] = 30.0  # seconds for accepted requests at the end
    keep_alive: Annotated[int, Field(ge=1, le=86_400)] = 120  # seconds; longer than Go's 90 s and load balancers' 60 s
    max_body: Annotated[int, Field(ge=1024, description="Bytes.")] = LARGEST_BODY
    max_pixels: Annotated[int, Field(ge=64)] = 16_000_000
    max_upload_bytes: Annotated[int, Field(ge=1024, description="Of a sound file.")] = LARGEST_UPLOAD
    max_sound_seconds: Annotated[float, Field(gt=0, le=1_000_000, description="Of a sound.")] = LONGEST_SOUND
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    ui: bool = True
    ray: bool = False  # engines on a Ray cluster, see `apps/ray`
    ray_address: str | None = None
    replicas: Annotated[int, Field(ge=1, le=10_000)] = 1  # engine processes
    max_replicas: Annotated[int | None, Field(ge=1, le=10_000)] = None  # limit as the queue grows
    replica_cpus: Annotated[float, Field(gt=0, le=1024)] = 1.0  # cores per process
    replica_gpus: Annotated[float, Field(ge=0, le=64)] = 0.0

    @field_validator("host")
    @classmethod
    def bare_host(cls, host: str) -> str:
        """Return the host without the brackets that an IPv6 address has in a URL."""
        return host.strip().strip("[]").lower()

    @field_validator("api_key")
    @classmethod
    def sendable_key(cls, key: SecretStr) -> SecretStr:
        """Refuse a key that no HTTP header carries unchanged."""
        if re.fullmatch(r"([!-~]([ -~]*[!-~])?)?", key.get_secret_value()) is None:
            raise ValueError(
                "a key is sent in an HTTP header, so it may have only printable ASCII characters and no space or line "
                "break at its ends; choose another one"
            )
        return key

    @field_validator("root_path")
    @classmethod
    def plain_prefix(cls, prefix: str) -> str:
        """Return the prefix with a slash before it and none after it; empty stays empty."""
        prefix = f"/{prefix.strip('/')}" if prefix.strip("/") else ""
        if re.fullmatch(r"(/[\w.~-]+)*", prefix, re.ASCII) is None:
            raise ValueError(f"{prefix:.80} is not a path; give one such as /polydraft")
        return prefix

    @field_validator("cors_origins")
    @classmethod
    def whole_origins(cls, origins: list[str]) -> list[str]:
        """Refuse values that no browser sends as `Origin`."""
        for origin in origins:
            if origin != "*" and re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s?#@]+", origin) is None:
                raise ValueError(f"{origin:.80} is not an origin; give one such as https://example.org, or *")
        return origins

    @model_validator(mode="after")
    def safe(self) -> Self:
        """Refuse to be reached by others without a key."""
        if not (self.loopback or self.key or self.open):
            raise ValueError(f"host {self.host} is reached by others; give --api-key, or --open if nobody needs one.")
        return self

    @model_validator(mode="after")
    def assigned(self) -> Self:
        """Refuse drafters and references that name none of several models, and two references of one."""
        _ = self.drafters, self.references
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
        """Return the host names that requests may be sent to; empty allows any."""
        if not self.loopback and not self.hosts:
            return ()
        host_name = f"[{self.host}]" if ":" in self.host else self.host
        return (*LOOPBACK, *(() if self.any_address else (host_name,)), *(name.lower() for name in self.hosts))

    @property
    def any_address(self) -> bool:
        """Check whether the server listens on every address of the machine."""
        return self.host in ("", "0.0.0.0", "::")

    @property
    def model_choices(self) -> list[tuple[str, str | None]]:
        """Return the models with the modality that each must have."""
        options = (
            (self.image, "image"), (self.speech, "speech"), (self.vlm, "vlm"), (self.transcription, "transcription"),
        )  # fmt: skip
        by_modality = {name: kind for name, kind in options if name}
        named = [(name, None) for name in self.models if not (name in self.tables and name in by_modality)]
        return [*named, *((name, kind) for name, kind in options if name)] or [(name, None) for name in EMBEDDED]

    @property
    def drafters(self) -> dict[str, list[str]]:
        """Return the drafters that `drafter` gives to every model."""
        return assign_drafters(self.drafter, [name for name, _ in self.model_choices])

    @property
    def references(self) -> dict[str, str]:
        """Return the reference that `reference` gives to every model."""
        return assign_references(self.reference, [name for name, _ in self.model_choices])

    def settings_of(self, model: str) -> dict[str, Any]:
        """Return the settings of a served model by name: its table's, else the server's.

        What `drafter` and `reference` give to the model precedes its table.
        """
        usual = {name: getattr(self, name) for name in ModelSettings.model_fields if name not in ASSIGNED}
        table = self.tables.get(model, ModelSettings())
        given = {name: value for name, value in table.model_dump().items() if value is not None}
        drafters, reference = self.drafters.get(model, table.drafter), self.references.get(model, table.reference)
        return usual | given | {"drafter": tuple(drafters), "reference": reference}

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource, dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:  # fmt: skip
        sources = (init_settings, OptionEnvironment(settings_cls))
        return (*sources, OptionFile(settings_cls, FILE)) if FILE is not None else sources


class OptionEnvironment(EnvSettingsSource):
    """Environment variables named as a field or as its option."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        value, key, is_complex = super().get_field_value(field, field_name)
        for option, name in OPTIONS.items():
            if value is None and name == field_name:
                value = self.env_vars.get(f"{self.env_prefix}{option}".lower())
        return value, key, is_complex


class OptionFile(TomlConfigSettingsSource):
    """A TOML file whose keys are named as a field or as its option, with dashes or underscores."""

    def __call__(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in super().__call__().items():
            name = key.replace("-", "_")
            name = field_of(OPTIONS.get(name, name), value)
            if name in found:
                raise InvalidArgument(f"{key}: this setting is in the file twice, under two names; leave one out.")
            found[name] = value
        return with_models_of_tables(found)


def field_of(name: str, value: Any) -> str:
    """Return the field of a setting: `models` is a list of names, or a table of every model."""
    return "tables" if name == "models" and isinstance(value, dict) else name


def with_models_of_tables(found: dict[str, Any]) -> dict[str, Any]:
    """Return settings whose models include those that have a table."""
    tables = found.get("tables")
    if not isinstance(tables, dict):
        return found
    named = split_names(found.get("models", []))
    return found | {"models": [*named, *(name for name in tables if name not in named)]}


FILE: Path | None = None  # read by `settings`, which alone sets it


def settings(given: dict[str, Any], file: Path | None = None) -> ServerSettings:
    """Return the settings from given arguments, the environment and `file`.

    Raises:
        InvalidArgument: an option is unknown or has a value that is not allowed.
    """
    from pydantic import ValidationError
    from pydantic_settings import SettingsError

    global FILE
    if file is not None and not file.is_file():
        raise InvalidArgument(f"{file} is no file; give a TOML file, or leave --config out.")
    FILE = file
    try:
        return ServerSettings(**with_models_of_tables({field_of(name, value): value for name, value in given.items()}))
    except InvalidArgument:
        raise
    except ValidationError as error:
        first = error.errors()[0]
        place, fields = first["loc"], ServerSettings.model_fields
        if place[:1] == ("tables",):
            place, fields = ("models", *place[1:]), ModelSettings.model_fields
        name = ".".join(map(str, place))
        text = first["msg"].removeprefix("Value error, ").rstrip(".")
        if first["type"] == "extra_forbidden":
            text = f"this setting is unknown{did_you_mean(str(place[-1]), fields)}; leave it out"
        raise InvalidArgument(f"{name}: {text}." if name else f"{text}.") from error
    except (SettingsError, ValueError) as error:
        raise InvalidArgument(
            f"the settings cannot be read ({str(error).splitlines()[0]:.200}); correct them."
        ) from error
    finally:
        FILE = None
