"""Where calls run: in this process, in others of this machine, or on the workers of a Dask or a Ray cluster.

The one idea: every place is asked the same, `finished(function, calls)`, and gives every answer as it comes, so a study
does not know where its simulations ran. A worker answers only when its kvcast is the one that asks, by a hash of the
code; the call of a worker that is lost is made again on another one.

    >>> with workers("dask", "tcp://10.0.0.1:8786") as cluster:
    ...     sweep("examples/demo.toml", {"cache.policy": ["lru", "lfu"]}, "sweeps/demo", jobs=cluster)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kvcast.pools.places import HERE, Here, Workers
from workloads.errors import InputError, hint

__all__ = ["BACKENDS", "HERE", "Jobs", "Workers", "opened", "workers"]

Jobs = int | Workers
"""So many processes of this machine, or the workers of `workers`."""
BACKENDS = ("loky", "dask", "ray")
"""Processes of this machine, a Dask cluster, a Ray cluster."""


def workers(backend: str, address: str | None = None, processes: int = 1) -> Workers:
    """The workers of a cluster, or with "loky" so many processes of this machine; closed by whoever opened them.

    address: of a Dask scheduler, "tcp://10.0.0.1:8786"; of a Ray cluster, "10.0.0.1:6379", or "auto" on one of
    its machines. Raises InputError when nothing answers there, or the package is not installed.
    """
    if backend not in BACKENDS:
        raise InputError(f"--backend {backend}: no such backend{hint(backend, BACKENDS)}")
    if backend == "loky":
        if address:
            raise InputError(f"--address {address}: expected --backend dask or ray with it")
        return _local(processes)
    if not address:
        raise InputError(f"--backend {backend}: expected the --address of a running cluster with it")
    if backend == "dask":
        from kvcast.pools.dask import Dask

        return Dask(address)
    from kvcast.pools.ray import Ray

    return Ray(address)


def _local(processes: int) -> Workers:
    if processes == 1:
        return Here()
    from kvcast.pools.loky import Loky

    return Loky(processes)


@contextmanager
def opened(jobs: Jobs, calls: int | None = None) -> Iterator[Workers]:
    """The workers meant by `jobs`: those given stay open, processes of this machine end with the body. calls: how many
    there will be, where that is known; no more processes are started."""
    if isinstance(jobs, Workers):
        yield jobs
        return
    with _local(jobs if calls is None else max(min(jobs, calls), 1)) as local:
        yield local
