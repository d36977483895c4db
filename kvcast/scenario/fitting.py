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


def bundled_for(scenario: Scenario) -> list[DeviceProfile]:
    """The bundled profiles of the scenario's model and precision, of any GPU and width."""
    from calibrate.models import bundled_model, known_as, load_model_at
    from calibrate.profile import BUNDLED, bundled_profiles, load_profile

    model = load_model_at(Path(scenario.model.config)) if scenario.model.config else bundled_model(scenario.model.name)
    name, dtype = known_as(model), model.weight_dtype(scenario.model.dtype)
    profiles = [load_profile(BUNDLED / f"{one}.json") for one in bundled_profiles()]
    return [
        one
        for one in profiles
        if one.fits(name, dtype, one.tensor_parallel) and scenario.model.kv_dtype in (None, one.kv_dtype)
    ]


def fitting_profile(scenario: Scenario) -> str | None:
    """Another bundled profile of the same GPU that fits the scenario's model, or its roofline; None when its own fits,
    or is no bundled one, or a GPU is named (which brings its own)."""
    from calibrate.models import bundled_model, known_as, load_model_at
    from calibrate.profile import BUNDLED, bundled_profiles, load_profile
    from calibrate.sources.roofline import gpu_key

    names = bundled_profiles()
    if scenario.hardware.gpu is not None or scenario.hardware.profile not in names:
        return None
    model = load_model_at(Path(scenario.model.config)) if scenario.model.config else bundled_model(scenario.model.name)
    name = known_as(model)
    wanted = (model.weight_dtype(scenario.model.dtype), scenario.hardware.tensor_parallel)
    here, kv_dtype = load_profile(BUNDLED / f"{scenario.hardware.profile}.json"), scenario.model.kv_dtype
    profiles = [here, *(load_profile(BUNDLED / f"{one}.json") for one in names)]
    fitting = [
        one
        for one in profiles
        if one.device["name"] == here.device["name"] and one.fits(name, *wanted) and kv_dtype in (None, one.kv_dtype)
    ]
    if not fitting:
        return f"roofline:{gpu_key(str(here.device['name']))}"
    return None if fitting[0] is here else fitting[0].id
