"""A webhook as the audit shows it: anyone may read that, and many a URL of a webhook is a secret."""

from typing import Any
from urllib.parse import urlsplit

from sluicegate.admin.changes.masking import STARS
from sluicegate.admin.fields import snapshot
from sluicegate.admin.webhooks.repository import WebhookRow
from sluicegate.admin.webhooks.schemas import Webhook


def webhook_snapshot(row: WebhookRow) -> dict[str, Any]:
    """Return a row without the part of its URL behind the host, and without what is not configuration."""
    shown = snapshot(Webhook, row)
    del shown["circuit"]
    return shown | {"url": without_path(row.url)}


def without_path(url: str) -> str:
    """Return a URL with stars for what stands behind its host."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}/{STARS if parts.path.strip('/') or parts.query else ''}"
