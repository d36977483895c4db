"""The dashboard as a web server shares it: app.py behind a door that knows the names it is called by.

The one idea: a browser says in Host which name it looked up, and in Origin whose page is asking. A name that nobody
configured is somebody else's, pointed here (DNS rebinding), so it gets 403, on every path and on the WebSocket. No page
elsewhere may frame this one, and a browser fetches nothing from elsewhere for it, whatever a name on it says. Streamlit
itself would ask a public service for this machine's address, at its start and whenever a page elsewhere opens a
WebSocket: it is told that there is none.

    kvcast dashboard        # starts: streamlit run kvcast/jobs/served.py
"""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import streamlit as st
from starlette.middleware import Middleware
from streamlit import net_util

HOSTS = "KVCAST_HOSTS"
"""Environment: the names of this server, by commas."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")
WILDCARD = ("0.0.0.0", "::", "")
POLICY = (
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; connect-src 'self' ws: wss: data: blob:;"
    " frame-ancestors 'none'"
)
HEADERS = [
    (b"x-frame-options", b"DENY"),
    (b"content-security-policy", POLICY.encode()),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


def hosts(address: str, more: list[str]) -> list[str]:
    """Names that a server at `address` is called by: loopback, the address, this machine's where it listens on all,
    and `more`."""
    own = [address]
    if address in WILDCARD:
        own = [socket.gethostname(), socket.getfqdn(), net_util.get_internal_ip() or ""]
    return list(dict.fromkeys(name.lower() for name in (*LOOPBACK, *own, *more) if name))


class Door:
    """ASGI: lets requests through whose Host, and Origin where there is one, are names of this server."""

    def __init__(self, app: Any, names: list[str]) -> None:
        self.app, self.names = app, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
        elif not self._known(scope):
            await _refuse(scope, receive, send)
        else:
            await self.app(scope, receive, send if scope["type"] == "websocket" else _with_headers(send))

    def _known(self, scope: Scope) -> bool:
        given = {name: value.decode("latin-1") for name, value in scope["headers"] if name in (b"host", b"origin")}
        host, origin = given.get(b"host", ""), given.get(b"origin")
        return self._is_name("//" + host) and (origin is None or self._is_name(origin))

    def _is_name(self, url: str) -> bool:
        try:
            return (urlsplit(url).hostname or "").rstrip(".") in self.names
        except ValueError:
            return False


def _with_headers(send: Send) -> Send:
    async def sent(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *HEADERS]
        await send(message)

    return sent


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008})
        return
    text = b"this server is not called that; start it with kvcast dashboard --host NAME\n"
    await send({"type": "http.response.start", "status": 403, "headers": [(b"content-type", b"text/plain"), *HEADERS]})
    await send({"type": "http.response.body", "body": text})


def ask_nobody() -> None:
    """Streamlit looks up no address outside."""
    net_util.get_external_ip = lambda: None


ask_nobody()
names = os.environ.get(HOSTS, ",".join(LOOPBACK)).split(",")
app = st.App(Path(__file__).resolve().parents[2] / "app.py", middleware=[Middleware(Door, names=names)])
