"""The port, taken before anything heavy is imported or loaded: a taken one is refused at once."""

from __future__ import annotations

import socket

from polydraft.apps.server.settings import ServerSettings
from polydraft.core.errors import InvalidArgument

BACKLOG = 2048  # connections that the kernel holds until they are accepted


def bound(settings: ServerSettings) -> socket.socket:
    """Return a socket that listens at the settings' address; raises InvalidArgument where that is not possible.

    It listens at once: two sockets that are only bound may share a port, so that a second server would load its models
    before it finds the port taken.
    """
    try:
        family, *_, where = socket.getaddrinfo(
            settings.host or None, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise unusable(settings, error) from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(where)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise unusable(settings, error) from error
    return listening


def unusable(settings: ServerSettings, error: OSError) -> InvalidArgument:
    """Return the refusal of an address that cannot be listened on."""
    return InvalidArgument(
        f"{settings.host}:{settings.port} cannot be listened on ({error.strerror or error}); choose another --port, or "
        "a --host of this machine."
    )


def address(settings: ServerSettings, listening: socket.socket) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"http://{host}:{listening.getsockname()[1]}{settings.root_path}"
