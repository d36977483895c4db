"""Host time of a step: what the engine's own Python takes, whatever the GPU.

The one idea: tables of kernels hold none of it, layers timed inside an engine and a calibrated serving loop all of it;
it is added by engine and scheduling mode to the times that hold none, and never twice (`contained`).

    python -c "from calibrate.host import BY_MODE; print(BY_MODE['async'].words)"
"""

from __future__ import annotations

from dataclasses import dataclass

from calibrate.profile import DeviceProfile

OPERATOR = "host_per_sequence"
"""Among a profile's per_sequence operators, host time that was measured."""


@dataclass(frozen=True)
class HostTime:
    """Added to a step. layer_s: least time of each of `layers` layers in a step with a prefill chunk, whose kernels are
    launched one by one (graphs are captured for decodes and small batches)."""

    step_s: float = 0.0
    sequence_s: float = 0.0
    layer_s: float = 0.0
    layers: int = 0

    @property
    def prefill_s(self) -> float:
        return self.layers * self.layer_s

    @property
    def words(self) -> str:
        return (
            f"{self.step_s * 1e3:g} ms a step, {self.sequence_s * 1e6:g} us a sequence; in a prefill"
            f" {self.layer_s * 1e6:g} us a layer at least"
        )


NONE = HostTime()
LAYER_S = 60e-6
"""A dozen launches of 5 us; suspected where the first token of mixtures of experts came 40 % later than priced."""
BY_MODE = {"async": HostTime(0.6e-3, 15e-6, LAYER_S), "sync": HostTime(2.0e-3, 15e-6, LAYER_S)}
"""async: the next step is decided while this one runs (vLLM's async_scheduling, SGLang's overlap schedule): public vLLM
runs, where it takes TPOT's error from 8.4 to 5.8 % and the bias to zero. sync: decided between steps: TPOT's error from
16.4 to 6.6 %."""
MODES = {"async": "scheduled while the step before runs", "sync": "scheduled between steps"}


def contained(profile: DeviceProfile) -> str:
    """What host time the times of a profile hold themselves, in words; "" for none: then an engine's is added."""
    points = profile.points
    if inside := points.get("host_inside"):
        return str(inside)
    if not points.get("step_overhead_us") and all(op["name"] != OPERATOR for op in points.get("per_sequence", ())):
        return ""
    return "measured in the profile's own steps"
