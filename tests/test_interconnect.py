"""All-reduces by the link between the GPUs: the form against measured tables, and whose time they are part of."""

import numpy as np
import pytest

from calibrate.atlas.price import Pricer
from calibrate.atlas.tables import bundled_gpus, load
from calibrate.latency import step_time
from calibrate.link import ERROR, LINKS, all_reduce_s, bandwidth_of
from calibrate.models import resolve_model
from calibrate.resolve import resolve_profile
from kvcast import api
from kvcast.config import scenario_from_doc
from workloads.errors import InputError

MODEL = resolve_model("llama-3.1-70b")


def test_the_form_errs_as_much_as_it_states():
    errors: dict[str, list[np.ndarray]] = {}
    for gpu in bundled_gpus():
        price = Pricer(load(gpu))
        for gpus in (2, 4, 8):
            size, measured = price.all_reduce(gpus)
            if measured.error == 0.0:
                form = all_reduce_s(price.link, price.link_bandwidth, gpus, 2 * size)
                errors.setdefault(price.link, []).append(np.abs(form / measured.seconds - 1)[2 * size <= 64e6])
    assert set(errors) == {"nvlink", "pcie4", "pcie5"}
    for link, found in errors.items():
        assert np.concatenate(found).mean() == pytest.approx(ERROR[link], abs=0.02), link


@pytest.mark.parametrize("link", ["nvlink", "pcie5", "pcie4", "pcie3"])
def test_more_bytes_or_gpus_never_take_less_and_no_byte_beats_the_link(link):
    bandwidth, size = bandwidth_of(link, "nvlink", 450e9, "H100"), 2.0 ** np.arange(7, 30)
    times = np.array([all_reduce_s(link, bandwidth, gpus, size) for gpus in (2, 4, 8)])
    assert (np.diff(times, axis=0) > 0).all()
    assert (np.diff(times, axis=1) > 0).all()
    moved = np.array([2 * (gpus - 1) / gpus * size for gpus in (2, 4, 8)])
    assert (moved / times < bandwidth).all()


@pytest.mark.parametrize("gpu", ["roofline:h100", "atlas:h100"])
def test_a_slower_link_lengthens_every_step_by_its_all_reduces_alone(gpu):
    def seconds(link: str | None, *shape: object) -> float:
        return step_time(resolve_profile(gpu, MODEL, "bf16", 4, None, link), MODEL, "bf16", 4).step(*shape)[0]

    for shape in (([], 32, 32_000, 1000, 32), ([(2048, 0)], 0, 0, 0, 1)):
        tokens = shape[1] or 2048
        by_link = [seconds(link, *shape) for link in ("none", "nvlink", "pcie5", "pcie4", "pcie3")]
        assert by_link == sorted(by_link)
        assert seconds(None, *shape) == by_link[1], "its own"
        size = tokens * 2.0 * MODEL.hidden
        for link, found in zip(("pcie5", "pcie4"), by_link[2:4], strict=True):
            each = all_reduce_s(link, bandwidth_of(link, "nvlink", 450e9, "H100"), 4, size)
            assert found - by_link[0] == pytest.approx(161 * each, rel=0.05)


def test_a_link_that_a_gpu_does_not_have_or_a_profile_that_measured_its_own_is_one_line():
    def asked(profile: str, link: str, gpus: int = 2):
        hardware = {"profile": profile, "link": link, "tensor_parallel": gpus}
        return api.resolve(scenario_from_doc({"workload": {"preset": "chat", "requests": 5}, "hardware": hardware}))

    assert asked("roofline:rtx-4090", "pcie3").profile.points["link_bandwidth"] == 16e9
    with pytest.raises(InputError, match=r"link = 'nvlink': RTX 4090 has none; expected one of pcie5, pcie4, pcie3"):
        asked("roofline:rtx-4090", "nvlink")
    with pytest.raises(InputError, match=r"\[hardware\] link = 'pcie6'.*nvlink, pcie5, pcie4, pcie3"):
        asked("roofline:h100", "pcie6")
    document = {"workload": {"preset": "chat", "requests": 5}, "model": {"name": "llama-3.1-70b"}}
    document["hardware"] = {"profile": "h100-llama-3.1-70b-tp4-aic", "tensor_parallel": 4, "link": "pcie5"}
    with pytest.raises(InputError, match="holds the all-reduces of its own GPUs; expected atlas:GPU or roofline:GPU"):
        api.resolve(scenario_from_doc(document))
    assert "none" in LINKS
