"""T isolated tenants prefill a shared prompt T times, to the token, and `kvcast compare` shows the price."""

import json
from pathlib import Path

import pytest

from kvcast import load_scenario, simulate
from kvcast.cli import main

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "tenant_isolation.toml"
PROMPT = 6000


@pytest.mark.parametrize("tenants", [2, 4, 16])
def test_the_shared_prompt_is_prefilled_once_for_each_tenant(tenants):
    """With room for everything, all that isolation adds is the prompt of every further tenant."""
    roomy = [
        "run.warmup_s=0",
        "workload.duration_s=60",
        "engine.kv_blocks=1000000",
        f"workload.class.assistant.tenants={tenants}",
    ]
    computed = {}
    for isolation in ("false", "true"):
        report = simulate(load_scenario(EXAMPLE, [*roomy, f"workload.class.assistant.isolation={isolation}"]))
        computed[isolation] = report.summary["prompt_tokens"] - report.summary["prefix_hit_tokens"]
    assert computed["true"] - computed["false"] == (tenants - 1) * PROMPT


def test_its_price_is_shown(capsys):
    vary = "workload.class.assistant.isolation=false,true"
    assert main(["compare", str(EXAMPLE), "--set", "workload.duration_s=90", "--vary", vary, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    isolated = document["variants"][1]["vs_first"]
    assert isolated["prefix_hit_rate"]["shown"] is True
    assert isolated["prefix_hit_rate"]["difference"] < 0
