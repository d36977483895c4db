"""Other profiles for a scenario: of the same GPU for a model, a precision or a width that its own was not made for, or
of every GPU.

>>> fitting_profile(replace(scenario, hardware=replace(scenario.hardware, tensor_parallel=4)))
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sim.scenario import Scenario

if TYPE_CHECKING:
    from calibrate.models import ModelSpec
    from calibrate.profile import DeviceProfile


def model_of(scenario: Scenario) -> ModelSpec:
    """The scenario's model: a bundled one, or that of its config.json."""
    from calibrate.models import bundled_model, load_model_at

    given = scenario.model
    return load_model_at(Path(given.config)) if given.config else bundled_model(given.name)


def bundled_for(scenario: Scenario, device: str | None = None, tp: int | None = None) -> list[DeviceProfile]:
    """The bundled profiles of the scenario's model, precision and KV type; of any GPU and width, or of those given."""
    from calibrate.models import known_as
    from calibrate.profile import fitting

    given, model = scenario.model, model_of(scenario)
    return fitting(device, known_as(model), model.weight_dtype(given.dtype), tp, given.kv_dtype)


def fitting_profile(scenario: Scenario) -> str | None:
    """The best that is known of the same GPU for the scenario's model, precision and layout; None when its own profile
    fits, or is no bundled one, or a GPU is named (which brings its own)."""
    from calibrate.profile import bundled_profile, bundled_profiles
    from calibrate.resolve import profile_of_gpu
    from calibrate.sources.roofline import gpu_key

    if scenario.hardware.gpu is not None or scenario.hardware.profile not in bundled_profiles():
        return None
    given, model, tp = scenario.model, model_of(scenario), scenario.hardware.tensor_parallel
    device = str(bundled_profile(scenario.hardware.profile).device["name"])
    layout = scenario.hardware.layout
    found = [one.id for one in bundled_for(scenario, device, tp)] if layout.plain else []
    if scenario.hardware.profile in found:
        return None
    dtype, kv_dtype = model.weight_dtype(given.dtype), given.kv_dtype or model.kv_dtype(given.dtype)
    if found:
        return found[0]
    return profile_of_gpu(gpu_key(device), model, dtype, layout, kv_dtype, scenario.engine.semantics)
