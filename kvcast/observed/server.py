"""Pages of a running server: GETs of its /metrics, and of nothing else, for a bounded time.

No redirect is followed, no proxy is asked, a page has at most 8 MiB and 20 seconds.
"""

from __future__ import annotations

import time
import urllib.error
import urllib.parse
import urllib.request
from http.client import HTTPException
from typing import Any

from kvcast.observed.page import MAX_BYTES, Page, decoded, parsed
from workloads.errors import InputError, on_one_line

PAGE_S = 20.0  #: for one page, all of it
PAGES = 20  #: between the first and the last, for the means of what is running and waiting


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        raise InputError(f"{req.full_url}: redirects to {on_one_line(newurl[:100])}, expected the page itself")


def address(url: str) -> str:
    """The URL of the page: a server's own gets /metrics."""
    try:
        parts = urllib.parse.urlsplit(url)
        named = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        named = False
    if not named or parts.scheme not in ("http", "https") or parts.username is not None:
        raise InputError(
            f"{on_one_line(url[:80])}: expected a server such as http://localhost:8000, without a user name"
        )
    path = parts.path if parts.path.strip("/") else "/metrics"
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


def fetch(url: str, page_s: float = PAGE_S) -> Page:
    """One page. Raises InputError for whatever keeps it from being one."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)
    until = time.monotonic() + page_s
    try:
        request = urllib.request.Request(url, headers={"Accept": "text/plain;version=0.0.4"})
        with opener.open(request, timeout=page_s / 2) as answer:
            content = b""
            while part := answer.read1(1 << 16):
                content += part
                if len(content) > MAX_BYTES:
                    break
                if time.monotonic() > until:
                    raise InputError(f"{url}: not whole after {page_s:g} s, expected a metrics page")
    except urllib.error.HTTPError as problem:
        raise InputError(f"{url}: HTTP {problem.code}, expected a metrics page") from None
    except (OSError, HTTPException) as problem:
        why = getattr(problem, "reason", None) or problem
        raise InputError(f"{url}: {on_one_line(str(why)[:100])}, expected a server that answers") from None
    return parsed(decoded(content, url), url)


def watch(url: str, seconds: float) -> list[tuple[float, Page]]:
    """(seconds since the first, page) of the first page, of some between, and of one after `seconds`."""
    url, begin = address(url), time.monotonic()
    pages: list[tuple[float, Page]] = []
    for turn in range(PAGES + 1):
        time.sleep(max(begin + seconds * turn / PAGES - time.monotonic(), 0.0))
        pages.append((time.monotonic() - begin, fetch(url)))
        if turn < PAGES and pages[-1][0] >= seconds:  # pages take longer than the time between them
            break
    return pages
