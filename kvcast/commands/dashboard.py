"""Open the dashboard in a browser: choose a mix, a model and a GPU, run, and look.

kvcast dashboard --port 8600
kvcast dashboard runs/a plans/b                   (opens the first run, lists the others; of a plan its answer's run)
kvcast dashboard --policy my_policy:MyPolicy      (offered beside the bundled policies; a page, link or file cannot name
                                                  one)
kvcast dashboard --model my-model/config.json --trace production=/data/day.jsonl
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import kvcast
from kvcast.commands import port

THEME = {  # at least 4.5:1 everywhere, captions and chosen buttons included (WCAG AA)
    "theme.light.textColor": "#101014",
    "theme.light.primaryColor": "#a8243a",
    "theme.dark.textColor": "#f6f6f6",
    "theme.dark.primaryColor": "#ff8a94",
    "theme.headingFontSizes": '["2.25rem", "1.35rem", "1.2rem", "1.1rem", "1rem", "0.875rem"]',
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folders",
        metavar="RUN_OR_PLAN",
        nargs="*",
        type=Path,
        help="run folders, or a plan's, to open (kvcast run --out, kvcast plan --out)",
    )
    parser.add_argument(
        "--port", metavar="N", type=port, default=8501, help="port of the local web server (default 8501)"
    )
    parser.add_argument(
        "--address", default="localhost", help="address to listen on (default localhost: this machine only)"
    )
    parser.add_argument(
        "--host",
        metavar="NAME",
        action="append",
        default=[],
        help="a name that browsers reach it by, behind a proxy or in a domain; may be repeated. Others are refused",
    )
    parser.add_argument(
        "--policy",
        metavar="M:C",
        action="append",
        default=[],
        help="offer an eviction policy of your own, module:Class; may be repeated",
    )
    parser.add_argument(
        "--model",
        metavar="PATH",
        action="append",
        default=[],
        type=Path,
        help="offer a model of your own by its config.json, or the folder it is in; may be repeated",
    )
    parser.add_argument(
        "--trace",
        metavar="NAME=FILE",
        action="append",
        default=[],
        help="offer a trace of your own by a name, of any size; may be repeated. Others are uploaded, up to 64 MiB",
    )
    parser.add_argument("--headless", action="store_true", help="do not open a browser")


def run(args: argparse.Namespace) -> int:
    from calibrate.models import load_model
    from kvcast import text
    from kvcast.jobs import allowed, demo, link, opened, served
    from kvcast.jobs.runner import PREPARE, Runner
    from sim.kvcache.policies import check
    from workloads.errors import InputError

    app = Path(kvcast.__file__).parent.parent / "app.py"
    if not app.is_file():
        raise InputError(f"{app}: no such file; expected a checkout of kvcast, installed with pip install -e .")
    for policy in args.policy:
        if ":" not in policy or "," in policy:
            raise InputError(f"--policy {policy}: expected module:Class")
        check(policy, {})
    models = [str((path / "config.json" if path.is_dir() else path).absolute()) for path in args.model]
    for path in models:
        load_model(Path(path))
    options = {
        "server.port": str(args.port),
        "server.address": args.address,
        "server.headless": "true",  # a browser that Streamlit opens has its advertisement over the page
        "server.showEmailPrompt": "false",
        "server.maxUploadSize": "64",
        "browser.gatherUsageStats": "false",
        "browser.serverAddress": _seen_as(args.address),
        "client.showErrorDetails": "none",
        "client.showErrorLinks": "false",
        "client.toolbarMode": "viewer",
        "server.fileWatcherType": "none",
        "runner.postScriptGC": "false",  # a third of the CPU time of a change; Python collects as it does anywhere
        "global.disableWidgetStateDuplicationWarning": "true",
        **THEME,
    }
    flags = [part for name, value in options.items() for part in (f"--{name}", value)]
    own = {
        allowed.POLICIES: ",".join(args.policy),
        allowed.MODELS: os.pathsep.join(models),
        allowed.TRACES: json.dumps(allowed.named_traces(args.trace)),
        served.HOSTS: ",".join(served.hosts(args.address, args.host)),
    }
    runner = Runner(Path(os.environ.get("KVCAST_RUNS", "runs/dashboard")))
    check_free(args.address, args.port)
    runs = opened.opened(runner, args.folders)
    environment = {
        **os.environ,
        **own,
        PREPARE: "" if runs else os.environ.get(PREPARE, "1"),
        opened.RUNS: json.dumps(runs),
    }
    address = f"http://{_seen_as(args.address)}:{args.port}"
    for folder, key in runs.items():
        print(f"{folder}: {address}/?{link.JOB}={key}")
    if not runs:
        text.progress("simulating the example")
        demo.prepare(runner)
    if not args.headless:
        first = "".join(f"/?{link.JOB}={key}" for key in list(runs.values())[:1])
        threading.Thread(target=_open, args=(address, first), daemon=True).start()
    served_app = Path(served.__file__)
    return subprocess.call([sys.executable, "-m", "streamlit", "run", str(served_app), *flags], env=environment)


def _seen_as(address: str) -> str:
    """The name to open it by on this machine."""
    from kvcast.jobs.served import WILDCARD

    return "localhost" if address in WILDCARD else f"[{address}]" if ":" in address else address


def _open(url: str, page: str) -> None:
    """A browser on the server's page once it answers."""
    import time
    import urllib.request
    import webbrowser

    for _ in range(600):
        try:
            with urllib.request.urlopen(f"{url}/_stcore/health", timeout=5):
                break
        except OSError:
            time.sleep(0.1)
    webbrowser.open(url + page)


def check_free(address: str, port: int) -> None:
    """Raise InputError where nobody could listen: said before the example is simulated."""
    import socket

    from workloads.errors import InputError

    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        socket.create_server((address, port), family=family).close()
    except OSError as error:
        raise InputError(
            f"--port {port}: {address} cannot be listened on"
            f" ({(error.strerror or str(error)).partition(' (while')[0]}); expected a free port, such as --port"
            f" {port + 1 if port < 65_535 else 8501}"
        ) from None
