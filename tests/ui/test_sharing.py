"""The dashboard on a shared host: who may ask it, who may frame it, and whom it asks (nobody).

python -m pytest tests/ui/test_sharing.py
"""

from __future__ import annotations

import socket
import threading
import urllib.error
import urllib.request
from urllib.parse import urlencode, urlsplit

import pytest

from kvcast.config import scenario_from_doc
from kvcast.jobs import demo, link
from kvcast.jobs.served import LOOPBACK, hosts
from kvcast.pages.edit.plain import JOINER
from tests.conftest import require_browser
from tests.ui.browser import Reader, browser, dashboard


@pytest.fixture(scope="module")
def asked() -> list[str]:
    """First lines of what reached the proxy that the server is told to use."""
    return []


@pytest.fixture(scope="module")
def server(asked: list[str], tmp_path_factory: pytest.TempPathFactory):
    with socket.create_server(("localhost", 0)) as proxy:

        def listen() -> None:
            while True:
                try:
                    client, _ = proxy.accept()
                except OSError:
                    return
                with client:
                    asked.append(client.recv(200).decode("latin-1").partition("\r\n")[0])

        threading.Thread(target=listen, daemon=True).start()
        at = f"http://localhost:{proxy.getsockname()[1]}"
        through = {"http_proxy": at, "https_proxy": at, "HTTP_PROXY": at, "HTTPS_PROXY": at, "no_proxy": "localhost"}
        folder = tmp_path_factory.mktemp("shared") / "runs"
        with dashboard(folder, "--address", "0.0.0.0", "--host", "kv.example.com", **through) as address:
            yield address


def status(server: str, path: str = "/", **headers: str) -> int:
    request = urllib.request.Request(server + path, headers={name.title(): value for name, value in headers.items()})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.headers["X-Frame-Options"] == "DENY"
            policy = answer.headers["Content-Security-Policy"]
            assert "default-src 'self'" in policy
            assert "frame-ancestors 'none'" in policy
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code


def handshake(server: str, host: str, origin: str) -> str:
    """Status line of a WebSocket that a page at `origin` opens."""
    where = urlsplit(server)
    with socket.create_connection((where.hostname, where.port), timeout=30) as wire:
        wire.sendall(
            f"GET /_stcore/stream HTTP/1.1\r\nHost: {host}\r\nOrigin: {origin}\r\nUpgrade: websocket\r\nConnection:"
            " Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
        )
        return wire.recv(100).decode("latin-1").partition("\r\n")[0]


def test_only_its_own_names_are_answered(server: str) -> None:
    port = urlsplit(server).port
    for path in ("/", "/_stcore/health", "/_stcore/host-config"):
        assert status(server, path) == 200
        assert status(server, path, host=f"kv.example.com:{port}") == 200
        assert status(server, path, host="KV.example.com.") == 200
        for name in (f"evil.example:{port}", "kv.example.com.evil.example", "", "[", "a@localhost@evil.example"):
            assert status(server, path, host=name) in (400, 403), name
        assert status(server, path, origin="http://evil.example") == 403
        assert status(server, path, origin="null") == 403


def test_a_page_elsewhere_opens_no_socket_and_makes_nobody_ask(server: str, asked: list[str]) -> None:
    mine = urlsplit(server).netloc
    assert handshake(server, mine, server).endswith("101 Switching Protocols")
    assert " 403" in handshake(server, mine, "http://evil.example")
    assert " 403" in handshake(server, "evil.example", "http://evil.example")
    assert not asked


def test_names_of_a_server() -> None:
    assert hosts("localhost", []) == [*LOOPBACK]
    assert hosts("10.1.2.3", ["KV.example.com"]) == [*LOOPBACK, "10.1.2.3", "kv.example.com"]
    assert {*LOOPBACK, socket.gethostname().lower()} <= set(hosts("0.0.0.0", []))


HOST = "evil.example"
NAMES = (
    f"![a](http://{HOST}/c.png)",
    f"[b](http://{HOST}/b)",
    f"http://{HOST}/auto",
    f"www.{HOST}",
    f"<img src=http://{HOST}/i.png>",
    f"me@{HOST}",
)


def hostile_mix() -> dict:
    """A mix whose every name is Markdown, HTML or an address."""
    layers = [{"name": f"{name} layer", "scope": "session", "tokens": {"value": 300}} for name in NAMES]
    classes = [
        {
            "name": name,
            "share": 1.0,
            "output": {"value": 20},
            "layers": layers,
            "tenants": 2,
            "turns": {"value": 3},
            "think": {"value": 5.0},
            "turn_input": {"value": 30},
            "slo_class": name,
        }
        for name in NAMES
    ]
    return {
        "name": NAMES[0],
        "workload": {"duration_s": 60, "rate": 2.0, "class": classes},
        "model": {"name": "llama-3.1-8b"},
        "hardware": {"gpu": "h200"},
        "slo": {"classes": {name: {"ttft_s": 1.0} for name in NAMES}},
    }


def test_names_are_plain_text_on_every_page(server: str) -> None:
    """Nothing on any page links to, or fetches from, an address that came in a name."""
    require_browser(__name__)
    scenario = scenario_from_doc(hostile_mix())
    packed = urlencode(link.query(scenario, demo.scenario()))
    with browser() as chromium:
        reader = Reader(chromium.new_page(), server)
        reader.open(f"?{packed}")
        reader.see(f"TTFT www{JOINER}.{HOST}")
        nothing_of_names(reader)
        assert reader.metrics() == {}, "a link shows its settings and waits"
        reader.go("Plan").press("Run").until(lambda: bool(reader.metrics()), True)
        nothing_of_names(reader)
        assert reader.outside() == []


def nothing_of_names(reader: Reader) -> None:
    for page in ("Plan", "Workload", "Cache", "Compare", "Calibration", "Timeline"):
        reader.go(page)
        links = reader.page.locator(f"a[href*='{HOST}'], img[src*='{HOST}']")
        assert links.count() == 0, (page, [links.nth(i).evaluate("e => e.outerHTML") for i in range(links.count())])
    assert HOST in reader.page.content()
