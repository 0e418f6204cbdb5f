"""Logs as JSON, a line an event. What was asked and answered is in none of them."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime


class Lines(logging.Formatter):
    """time, level, logger, event, whatever `extra={"fields": …}` says, and the trace of an error."""

    def format(self, record: logging.LogRecord) -> str:
        told = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(), "logger": record.name, "event": record.getMessage(),
        } | getattr(record, "fields", {})  # fmt: skip
        if record.exc_info:
            told["trace"] = self.formatException(record.exc_info)
        return json.dumps(told, ensure_ascii=False)


def configure(level: str) -> None:
    """Everything to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Lines())
    logging.root.handlers[:] = [handler]
    logging.root.setLevel("WARNING")
    logging.getLogger("polydraft").setLevel(level.upper())
