"""Logging: structlog over the standard library, one format for our own lines and those of libraries.

Every line passes one redaction, last, so that no key or password leaves the process in a log,
whoever wrote the line.
"""

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import Any, Final, Literal, cast

import structlog
from structlog.typing import FilteringBoundLogger, Processor

_SECRET_FIELDS: Final = frozenset(
    {
        "authorization",
        "proxy_authorization",
        "api_key",
        "x_api_key",
        "password",
        "secret",
        "token",
        "cookie",
        "credential",
    }
)
_STARS: Final = "***"
# Libraries that say something at each request or start.
_CHATTY: Final = ("uvicorn", "httpx", "httpcore", "httpx2", "httpcore2")
# What a secret looks like in free text: gateway keys, bearer values, common provider keys, passwords in URLs.
_SECRET_TEXT: Final = re.compile(
    r"(?P<gateway>sgk_[0-9A-Za-z]{8})[0-9A-Za-z]+"
    r"|(?P<bearer>[Bb]earer\s+)[^\s\"',}]+"
    r"|(?P<provider>\bsk-)[0-9A-Za-z_-]{8,}"
    r"|(?P<url>[a-z]+://[^\s/:@\"]*:)[^\s/@\"]+(?=@)"
)


def redact_text(text: str) -> str:
    """Return `text` with everything that looks like a secret replaced by stars."""
    return _SECRET_TEXT.sub(lambda match: cast("str", match[match.lastgroup or 0]) + _STARS, text)


def _redact_fields(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    event.pop("color_message", None)  # uvicorn's second copy of the event
    for name in event:
        if name.lower().replace("-", "_") in _SECRET_FIELDS:
            event[name] = _STARS
    return event


class _RedactingFormatter(structlog.stdlib.ProcessorFormatter):
    def format(self, record: logging.LogRecord) -> str:
        return redact_text(super().format(record))


def configure(room: str, level: str = "info", log_format: Literal["json", "console"] = "json") -> None:
    """Set up logging of this process: lines on stderr, `room` in each. Call once, at start."""
    number = logging.getLevelNamesMapping()[level.upper()]

    def add_room(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        event["room"] = room
        return event

    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        add_room,
        _redact_fields,
    ]
    rendering: list[Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=repr, ensure_ascii=False)]
        if log_format == "json"
        # Not rich's tracebacks: they print local variables, keys and prompts among them.
        else [
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)
        ]
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        _RedactingFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        )
    )
    logging.root.handlers = [handler]
    logging.root.setLevel(number)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(number, logging.WARNING))
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )


def get_logger(name: str) -> FilteringBoundLogger:
    """Return the logger of a module; `name` is its `__name__`. Events are short phrases, facts are fields."""
    return cast("FilteringBoundLogger", structlog.stdlib.get_logger(name))
