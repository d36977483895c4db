"""Other profiles for a scenario: of the same GPU for a model, a precision or a width that its own was not made for, or
of every GPU.

>>> fitting_profile(replace(scenario, hardware=replace(scenario.hardware, tensor_parallel=4)))
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sim.scenario import Scenario

if TYPE_CHECKING:
    from calibrate.profile import DeviceProfile


def bundled_for(scenario: Scenario, device: str | None = None, tp: int | None = None) -> list[DeviceProfile]:
    """The bundled profiles of the scenario's model, precision and KV type; of any GPU and width, or of those given."""
    from calibrate.models import bundled_model, known_as, load_model_at
    from calibrate.profile import fitting

    given = scenario.model
    model = load_model_at(Path(given.config)) if given.config else bundled_model(given.name)
    return fitting(device, known_as(model), model.weight_dtype(given.dtype), tp, given.kv_dtype)


def fitting_profile(scenario: Scenario) -> str | None:
    """Another bundled profile of the same GPU that fits the scenario's model, or its roofline, or for a layout that is
    more than tensor parallel its atlas; None when its own fits, or is no bundled one, or a GPU is named (which brings
    its own)."""
    from calibrate.profile import bundled_profile, bundled_profiles
    from calibrate.sources.roofline import gpu_key

    if scenario.hardware.gpu is not None or scenario.hardware.profile not in bundled_profiles():
        return None
    device = str(bundled_profile(scenario.hardware.profile).device["name"])
    if not scenario.hardware.layout.plain:
        return f"atlas:{gpu_key(device)}"
    found = [one.id for one in bundled_for(scenario, device, scenario.hardware.tensor_parallel)]
    if not found:
        return f"roofline:{gpu_key(device)}"
    return None if scenario.hardware.profile in found else found[0]
