"""The port, taken before anything heavy is imported or loaded: a taken one is refused at once."""

from __future__ import annotations

import socket

from polydraft.apps.server.settings import Settings
from polydraft.core.errors import InvalidArgument


def bound(settings: Settings) -> socket.socket:
    """The socket to listen on."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((settings.host, settings.port))
    except OSError as error:
        listening.close()
        raise InvalidArgument(
            f"{settings.host}:{settings.port} cannot be listened on ({error.strerror or error}); choose another --port."
        ) from error
    return listening


def address(settings: Settings, listening: socket.socket) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"http://{host}:{listening.getsockname()[1]}"
