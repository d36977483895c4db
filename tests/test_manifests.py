"""The Kubernetes manifests of docs/clusters.md, by the fields that their operators and Kubernetes know.

No cluster is at hand: the shapes below are the parts in question of what a server would check, in short. `Cluster` of
Dask is the custom resource definition that dask-kubernetes 2026.3.0 installs, of Ray the field reference of KubeRay
1.6.2, and the pods are those of Kubernetes 1.37. A server refuses a field that it does not know, and so does `wrong`.
"""

import copy
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "examples" / "clusters"
QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|[kKMGT]i?)?")

# A shape: a type; a pattern; a list of one shape; or fields, "!" behind those that must be there, "*" any name.
RESOURCES = {"requests": {"*": QUANTITY}, "limits": {"*": QUANTITY}}
PORT = {"containerPort!": int, "name": re.compile(r"(?=.*[a-z])[a-z0-9-]{1,15}"), "protocol": str}
PROBE = {"httpGet": {"port!": (int, str), "path": str}, "initialDelaySeconds": int, "periodSeconds": int}
ENV = {"name!": str, "value": str, "valueFrom": {"secretKeyRef": {"name!": str, "key!": str}}}
CONTAINER = {
    "name!": re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"), "image": str, "imagePullPolicy": str, "command": [str],
    "args": [str], "env": [ENV], "ports": [PORT], "resources": RESOURCES, "readinessProbe": PROBE,
    "livenessProbe": PROBE, "volumeMounts": [{"name!": str, "mountPath!": str}],
}  # fmt: skip
POD = {"containers!": [CONTAINER], "nodeSelector": {"*": str}, "serviceAccountName": str, "restartPolicy": str}
METADATA = {"name": re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?"), "labels": {"*": str}, "annotations": {"*": str}}
TEMPLATE = {"metadata": METADATA, "spec": POD}
SERVICE = {
    "type": re.compile("ClusterIP|NodePort|LoadBalancer"), "selector": {"*": str},
    "ports": [{"port!": int, "name": str, "targetPort": (int, str), "protocol": str}],
}  # fmt: skip
DASK = {
    "apiVersion!": re.compile("kubernetes.dask.org/v1"), "kind!": re.compile("DaskCluster"), "metadata!": METADATA,
    "spec!": {
        "idleTimeout": int,
        "scheduler!": {"metadata": METADATA, "spec!": POD, "service!": SERVICE},
        "worker!": {"metadata": METADATA, "replicas": int, "spec!": POD},
    },
}  # fmt: skip
GROUP = {
    "groupName!": str, "replicas": int, "minReplicas!": int, "maxReplicas!": int, "idleTimeoutSeconds": int,
    "numOfHosts": int, "suspend": bool, "labels": {"*": str}, "resources": {"*": str}, "rayStartParams": {"*": str},
    "template!": TEMPLATE,
}  # fmt: skip
HEAD = {
    "rayStartParams": {"*": str}, "template!": TEMPLATE, "serviceType": str, "enableIngress": bool,
    "labels": {"*": str}, "resources": {"*": str},
}  # fmt: skip
RAY = {
    "apiVersion!": re.compile("ray.io/v1"), "kind!": re.compile("RayCluster"), "metadata!": METADATA,
    "spec!": {
        "rayVersion": str, "headGroupSpec!": HEAD, "workerGroupSpecs": [GROUP], "suspend": bool,
        "enableInTreeAutoscaling": bool,
        "authOptions": {"mode": re.compile("disabled|token"), "secretName": str, "enableK8sTokenAuth": bool},
    },
}  # fmt: skip


def wrong(found: Any, shape: Any, at: str = "") -> Iterator[str]:
    """Where a document has not the shape."""
    if isinstance(shape, dict) and isinstance(found, dict):
        must = [key[:-1] for key in shape if key.endswith("!")]
        yield from (f"{at}.{key} is missing" for key in must if key not in found)
        for key, value in found.items():
            expected = shape.get(key, shape.get(f"{key}!", shape.get("*")))
            yield from [f"{at}.{key} is unknown"] if expected is None else wrong(value, expected, f"{at}.{key}")
    elif isinstance(shape, list) and isinstance(found, list):
        for index, value in enumerate(found):
            yield from wrong(value, shape[0], f"{at}[{index}]")
    elif isinstance(shape, re.Pattern):
        if not (isinstance(found, str) and shape.fullmatch(found)):
            yield f"{at} is {found!r}"
    elif isinstance(shape, dict | list) or not isinstance(found, shape):
        yield f"{at} is {found!r}"


def apart_in_dask(document: dict[str, Any]) -> Iterator[str]:
    """Names by which one part of the manifest, its operator or the page means another."""
    name, scheduler = document["metadata"]["name"], document["spec"]["scheduler"]
    of_scheduler = {"dask.org/cluster-name": name, "dask.org/component": "scheduler"}
    if scheduler["service"]["selector"] != of_scheduler:  # the labels that the operator gives the scheduler's pod
        yield "the service selects other pods"
    ports = {port["name"]: port["containerPort"] for port in scheduler["spec"]["containers"][0]["ports"]}
    served = {port["name"]: (port["targetPort"], port["port"]) for port in scheduler["service"]["ports"]}
    if served != {port: (port, number) for port, number in ports.items()}:
        yield "the service's ports are not the container's"
    if scheduler["spec"]["containers"][0]["readinessProbe"]["httpGet"]["port"] not in ports:
        yield "the probe asks a port that is not there"
    if f"--address tcp://{name}-scheduler:{ports['tcp-comm']}" not in (ROOT / "docs" / "clusters.md").read_text():
        yield "the page's address is another"


def apart_in_ray(document: dict[str, Any]) -> Iterator[str]:
    """The same; KubeRay refuses a token without a version from 2.52, and replicas out of their limits."""
    spec = document["spec"]
    pinned = re.search(r"^ray==(.*)$", (ROOT / "constraints.txt").read_text(), re.M)
    if pinned is None or spec["rayVersion"] != pinned[1]:
        yield "its Ray is not the pinned one"
    page = (ROOT / "docs" / "clusters.md").read_text()
    if f"rayproject/ray:{spec['rayVersion']}-py" not in page:
        yield "the page's image has another Ray"
    if f"-l ray.io/cluster={document['metadata']['name']},ray.io/node-type=head" not in page:
        yield "the page's head is another cluster's"
    for group in spec["workerGroupSpecs"]:
        if not 0 <= group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]:
            yield "the replicas are out of their limits"


MANIFESTS = {"dask": (DASK, apart_in_dask), "ray": (RAY, apart_in_ray)}


def read(name: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    return document


def faults(name: str, document: dict[str, Any]) -> list[str]:
    shape, apart = MANIFESTS[name]
    return list(wrong(document, shape)) or list(apart(document))


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_has_the_fields_that_its_operator_knows(name):
    assert faults(name, read(name)) == []


@pytest.mark.parametrize(
    ("name", "path", "value", "says"),
    [
        ("dask", "spec.worker.spec.containers.0.argz", ["dask"], ".spec.worker.spec.containers[0].argz is unknown"),
        ("dask", "spec.worker.spec.containers.0.args.6", 1, ".spec.worker.spec.containers[0].args[6] is 1"),
        ("dask", "spec.worker.replicas", "4", ".spec.worker.replicas is '4'"),
        ("dask", "spec.scheduler", {"spec": {"containers": []}}, ".spec.scheduler.service is missing"),
        ("dask", "spec.scheduler.service.selector", {"app": "kvcast"}, "the service selects other pods"),
        ("dask", "spec.scheduler.service.ports.0.port", 8787, "the service's ports are not the container's"),
        ("dask", "spec.scheduler.spec.containers.0.readinessProbe.httpGet.port", "web", "the probe asks a port"),
        ("dask", "metadata.name", "KvCast", ".metadata.name is 'KvCast'"),
        ("ray", "spec.rayVersion", 2.6, ".spec.rayVersion is 2.6"),
        ("ray", "spec.rayVersion", "2.9.0", "its Ray is not the pinned one"),
        ("ray", "spec.headGroupSpec.rayStartParams.num-cpus", 0, ".num-cpus is 0"),
        ("ray", "spec.authOptions.mode", "on", ".spec.authOptions.mode is 'on'"),
        ("ray", "spec.workerGroupSpecs.0.minReplicas", 5, "the replicas are out of their limits"),
        ("ray", "metadata.name", "other", "the page's head is another cluster's"),
    ],
)
def test_faults_in_a_manifest_are_seen(name, path, value, says):
    document = copy.deepcopy(read(name))
    *way, last = (int(step) if step.isdigit() else step for step in path.split("."))
    inner: Any = document
    for step in way:
        inner = inner[step]
    inner[last] = value
    found = faults(name, document)
    assert any(says in line for line in found), found


def test_dasks_commands_know_the_arguments():
    """An unknown one would end the pod; the operator sets the scheduler's address in the worker's environment."""
    commands = {of: pytest.importorskip(f"distributed.cli.dask_{of}").main for of in ("scheduler", "worker")}
    for of, command in commands.items():
        dask, sub, *options = read("dask")["spec"][of]["spec"]["containers"][0]["args"]
        assert (dask, sub) == ("dask", of)
        command.make_context(f"dask {of}", options)


def test_the_image_installs_an_extra_that_is_there():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked = set(re.findall(r"EXTRA=(\w+)", (ROOT / "docs" / "clusters.md").read_text()))
    assert asked == {"dask", "ray"}
    assert asked <= set(extras)
