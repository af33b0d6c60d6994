"""One address for the whole site, as a Slack or Mattermost channel gives it, or a program of one's own.

The address is the password of such a channel, so it is read from a file, and no log or error repeats it. That
is also why the request goes past ``httpx.Client``, which logs addresses, and follows redirects if told to.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from gpudev_core import notices
from gpudev_services.notify.channel import TIMEOUT_S, Message, SendFailed, one_line, secret_in

KEY = "notify.webhook_url_file"


class Webhook:
    name = notices.WEBHOOK

    def __init__(self, url_file: Path, timeout_s: float = TIMEOUT_S) -> None:
        self._url_file = url_file
        self._timeout = httpx.Timeout(timeout_s).as_dict()

    def send(self, message: Message) -> None:
        request = self._request(message)
        try:
            with httpx.HTTPTransport() as transport:
                answer = transport.handle_request(request)
                answer.close()
        except httpx.HTTPError as error:
            raise SendFailed(f"the webhook gave no answer: {type(error).__name__}") from None
        if answer.is_redirect:
            raise SendFailed(f"the webhook answered {answer.status_code}, a redirect; these are not followed")
        if not answer.is_success:
            seconds = answer.headers.get("Retry-After", "")
            raise SendFailed(
                f"the webhook answered {answer.status_code}", float(seconds) if seconds.isdecimal() else 0.0
            )

    def _request(self, message: Message) -> httpx.Request:
        url = self._url()
        return httpx.Request(
            "POST",
            url,
            json=body(message),
            headers={"User-Agent": "gpu-dev-portal", "Idempotency-Key": message.key},
            extensions={"timeout": self._timeout},
        )

    def _url(self) -> httpx.URL:
        try:
            url = httpx.URL(secret_in(self._url_file, KEY))
        except httpx.InvalidURL:
            url = httpx.URL()
        if url.scheme not in ("http", "https") or not url.host:
            raise SendFailed(f"{KEY}: {self._url_file} does not hold an http:// or https:// address")
        return url


def body(message: Message) -> dict[str, Any]:
    """``text`` as Slack reads it; under ``notice`` the same for programs."""
    return {
        "text": _escaped(one_line(f"{message.user}: {message.text}")),
        "notice": {
            "notice_id": message.notice_id,
            "reservation_id": message.reservation_id,
            "user": message.user,
            "name": message.name,
            "kind": message.kind,
            "due_at": message.due_at.isoformat(),
            "detail": message.detail,
        },
    }


def _escaped(text: str) -> str:
    """A reservation's name must not become a link or call a whole channel."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
