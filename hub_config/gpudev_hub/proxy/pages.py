"""The proxy's own answers: short, plain, and never a traceback.

Promises: every inserted text is HTML-escaped; a client that prefers JSON gets
{"message": ..., "status": ...}. Pure.
"""

import html
import json

NOT_ANSWERING = (
    "This server is not answering right now. It may be starting, or it may have stopped. "
    "Try again in a moment."
)
MESSAGES = {
    400: "The proxy could not understand this request.",
    404: "There is nothing at this address.",
    405: "This method is not supported here.",
    417: "The proxy cannot meet the expectation this request states.",
    500: "The proxy could not handle this request.",
    502: "This server sent an answer that could not be understood.",
    503: NOT_ANSWERING,
}
REASONS = {
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    417: "Expectation Failed",
    500: "Internal Server Error",
    502: "Bad Gateway",
    503: "Service Unavailable",
}

_PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>{status} {reason}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>body{{font-family:sans-serif;max-width:40rem;margin:4rem auto;padding:0 1rem;line-height:1.5}}</style>
</head>
<body><h1>{reason}</h1>
<p>{message}</p>
<p><a href="">Try again</a> or go to the <a href="{home}">hub home page</a>.</p>
</body></html>
"""


def _quality(accept: str, media_type: str) -> float:
    """How much an Accept header wants exactly this media type; 0 when it is not named."""
    best = 0.0
    for entry in accept.lower().split(","):
        name, *params = [part.strip() for part in entry.split(";")]
        if name != media_type:
            continue
        weight = next((param[2:] for param in params if param.startswith("q=")), "1")
        try:
            best = max(best, float(weight))
        except ValueError:
            continue
    return best


def prefers_json(accept: str) -> bool:
    """True when JSON is named and wanted more than HTML; '*/*' alone is a browser's or curl's habit."""
    return _quality(accept, "application/json") > _quality(accept, "text/html")


def error_page(status: int, home_url: str) -> tuple[bytes, bytes]:
    """Content type and body of a page for people."""
    page = _PAGE.format(
        status=status,
        reason=html.escape(REASONS[status]),
        message=html.escape(MESSAGES[status]),
        home=html.escape(home_url, quote=True),
    )
    return b"text/html; charset=utf-8", page.encode()


def error_json(status: int) -> tuple[bytes, bytes]:
    """Content type and body of an answer for programs."""
    return b"application/json", json.dumps({"message": MESSAGES[status], "status": status}).encode()
