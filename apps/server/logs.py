"""JSON logs, one line per event, without the content of requests and answers."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime


class Lines(logging.Formatter):
    """Formatter with time, level, logger, event, the fields of `extra={"fields": …}`, and the trace of an error."""

    def format(self, record: logging.LogRecord) -> str:
        record_fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(), "logger": record.name, "event": record.getMessage(),
        } | getattr(record, "fields", {})  # fmt: skip
        if record.exc_info:
            record_fields["trace"] = self.formatException(record.exc_info)
        return json.dumps(record_fields, ensure_ascii=False)


def configure(level: str) -> None:
    """Send all logs to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Lines())
    logging.root.handlers[:] = [handler]
    logging.root.setLevel("WARNING")
    logging.getLogger("polydraft").setLevel(level.upper())
