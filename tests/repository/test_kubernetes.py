"""The manifests are what Kubernetes takes, belong together, and keep what the documentation promises.

Kubernetes' own kinds are held against its published schemas (the package kubernetes-validate). No cluster is asked.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from lmdeploy.cli.main import make_parser
from lmdeploy.serve.restrictions import is_loopback
from openai_gateway.settings import DEFAULT_PORT
from tests.repository.test_docker import EXIT_SECONDS, given, stages
from tests.support.queries import queried_metrics

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "deploy" / "kubernetes"
VERSION = "1.35"
OF_OTHERS = ("monitoring.coreos.com/v1", "inference.networking.k8s.io/v1")  # of which no package has schemas

Document = dict[str, Any]


def read(path: Path) -> Document:
    found: Document = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found


KUSTOMIZATIONS = sorted(FOLDER.rglob("kustomization.yaml"))
RESOURCES = sorted(
    (file.parent / name).resolve()
    for file in KUSTOMIZATIONS
    for name in read(file).get("resources", ())
    if name.endswith(".yaml")
)


def manifest(name: str) -> Document:
    return read(FOLDER / f"{name}.yaml")


def pod() -> Document:
    """Return the replicas' pod, as Kubernetes gets it."""
    found: Document = manifest("base/deployment")["spec"]["template"]["spec"]
    return found


def validate(document: Document) -> None:
    """Raise where a document is none of Kubernetes'."""
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="`make dev` installs kubernetes-validate")
    kubernetes_validate.validate(document, VERSION, strict=True)


def short(path: Path) -> str:
    return path.relative_to(FOLDER).as_posix()


@pytest.mark.parametrize("path", [path for path in RESOURCES if read(path)["apiVersion"] not in OF_OTHERS], ids=short)
def test_a_manifest_is_what_its_kind_takes(path: Path) -> None:
    validate(read(path))


def test_a_pod_runs_without_rights_and_writes_where_the_image_says() -> None:
    of_replicas = pod()
    (container,) = of_replicas["containers"]
    security = {**of_replicas.get("securityContext", {}), **container["securityContext"]}
    assert security["runAsNonRoot"]
    assert security["runAsUser"] > 0
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert security["readOnlyRootFilesystem"]
    assert not security["allowPrivilegeEscalation"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    (volumes,) = given(stages((ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8"))[-1], "VOLUME")
    writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    assert writable == {*yaml.safe_load(volumes), "/dev/shm"}
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        volume["name"] for volume in of_replicas["volumes"]
    }


def test_a_pod_starts_our_server_and_asks_its_health() -> None:
    (container,) = pod()["containers"]
    parsed = make_parser().parse_args(container["args"])
    assert is_loopback(parsed.triton_server_name)
    (port,) = container["ports"]
    assert port["containerPort"] == parsed.server_port
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        probed = container[probe]["httpGet"]
        assert probed["path"] == "/health"
        assert probed["port"] in (port["name"], port["containerPort"])


def test_probes_give_a_model_time_to_load_at_first_and_when_triton_is_started_again() -> None:
    (container,) = pod()["containers"]
    probes = {name: probe for name, probe in container.items() if name.endswith("Probe")}
    timeout = {name: probe["periodSeconds"] * probe["failureThreshold"] for name, probe in probes.items()}
    assert timeout["startupProbe"] >= 600
    assert timeout["livenessProbe"] >= 600
    assert timeout["readinessProbe"] <= 15


def test_a_pod_that_ends_may_finish_its_responses() -> None:
    of_replicas = pod()
    (container,) = of_replicas["containers"]
    command, pause = container["lifecycle"]["preStop"]["exec"]["command"]
    assert command == "sleep"
    drained = make_parser().parse_args(container["args"]).drain_seconds
    assert of_replicas["terminationGracePeriodSeconds"] >= float(pause) + drained + EXIT_SECONDS


def test_the_parts_name_each_other() -> None:
    deployment = manifest("base/deployment")
    name, labels = deployment["metadata"]["name"], deployment["spec"]["template"]["metadata"]["labels"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    (port,) = container["ports"]
    assert port["containerPort"] == DEFAULT_PORT
    selectors = [
        deployment["spec"]["selector"]["matchLabels"],
        manifest("base/service")["spec"]["selector"],
        manifest("base/disruption-budget")["spec"]["selector"]["matchLabels"],
        manifest("base/network-policy")["spec"]["podSelector"]["matchLabels"],
    ]
    assert all(selector.items() <= labels.items() for selector in selectors)
    service = manifest("base/service")
    assert service["spec"]["ports"][0]["targetPort"] == port["name"]
    models, *_ = deployment["spec"]["template"]["spec"]["volumes"]
    assert models["persistentVolumeClaim"]["claimName"] == manifest("base/models")["metadata"]["name"]
    (allowed,) = manifest("base/network-policy")["spec"]["ingress"][0]["ports"]
    assert allowed["port"] == port["name"]

    monitor = manifest("components/monitoring/servicemonitor")["spec"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert [endpoint["port"] for endpoint in monitor["endpoints"]] == [service["spec"]["ports"][0]["name"]]
    assert service["metadata"]["labels"][monitor["jobLabel"]] == "lmdeploy"  # what queries select by
    pool = manifest("components/llm-d/inferencepool")["spec"]
    labelled = manifest("components/llm-d/deployment")["spec"]["template"]["metadata"]["labels"]
    assert pool["selector"]["matchLabels"].items() <= {**labels, **labelled}.items()
    assert [target["number"] for target in pool["targetPorts"]] == [port["containerPort"]]
    assert manifest("base/autoscaler")["spec"]["scaleTargetRef"]["name"] == name


def test_weights_come_to_where_replicas_read_them() -> None:
    job = manifest("components/weights/job")["spec"]["template"]["spec"]
    (container,) = job["containers"]
    assert container["command"][:2] == ["/opt/lmdeploy/.venv/bin/hf", "download"]
    (served,) = pod()["containers"]
    assert container["command"][-2:] == ["--local-dir", served["args"][2]]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    (models,) = (volume for volume in job["volumes"] if volume["name"] == "models")
    assert models["persistentVolumeClaim"]["claimName"] == manifest("base/models")["metadata"]["name"]
    assert served["args"][2].startswith(f"{mounts['models']}/")
    security = {**job["securityContext"], **container["securityContext"]}
    assert (security["runAsNonRoot"], security["readOnlyRootFilesystem"]) == (True, True)
    assert security["capabilities"] == {"drop": ["ALL"]}


def test_the_cache_is_kept_on_a_volume_that_replicas_share() -> None:
    volume = manifest("components/disk-cache/volume")
    (patch,) = manifest("components/disk-cache/kustomization")["patches"]
    deployment = manifest("base/deployment")
    assert patch["target"] == {"kind": "Deployment", "name": deployment["metadata"]["name"]}
    for change in yaml.safe_load(patch["patch"]):
        assert change["op"] == "add"
        *way, end = change["path"].split("/")[1:]
        assert end == "-"
        found: Any = deployment
        for key in way:
            found = found[int(key) if key.isdigit() else key]
        found.append(change["value"])
    validate(deployment)
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    served = make_parser().parse_args(container["args"])
    (mount,) = (mount for mount in container["volumeMounts"] if served.cache_dir.startswith(f"{mount['mountPath']}/"))
    (source,) = (source for source in pod["volumes"] if source["name"] == mount["name"])
    assert source["persistentVolumeClaim"]["claimName"] == volume["metadata"]["name"]
    assert volume["spec"]["accessModes"] == ["ReadWriteMany"]
    assert served.cache_dir_bytes <= 0.95 * float(volume["spec"]["resources"]["requests"]["storage"][:-2]) * 2**30


def test_the_autoscaler_goes_by_the_queue() -> None:
    (metric,) = manifest("base/autoscaler")["spec"]["metrics"]
    (rule,) = yaml.safe_load((ROOT / "deploy" / "prometheus" / "adapter.yml").read_text("utf-8"))["rules"]["custom"]
    assert metric["pods"]["metric"]["name"] == rule["name"]["as"]
    queue = "turbomind_requests_waiting"
    assert queried_metrics(rule["seriesQuery"])[0][0] == queue


KUBECTL = shutil.which("kubectl")


@pytest.mark.skipif(KUBECTL is None, reason="kubectl, which has kustomize built in, is not installed")
def test_overlays_are_put_together_to_manifests_that_kubernetes_takes(tmp_path: Path) -> None:
    built = {document["kind"]: document for document in build(FOLDER / "overlays" / "autoscaled")}
    assert built.keys() == {
        *("Deployment", "Service", "PersistentVolumeClaim", "PodDisruptionBudget", "NetworkPolicy"),
        *("HorizontalPodAutoscaler", "ServiceMonitor", "InferencePool"),
    }
    deployment = built["Deployment"]
    validate(deployment)
    template = deployment["spec"]["template"]
    assert template["metadata"]["labels"]["llm-d.ai/inference-serving"] == "true"
    (container,) = template["spec"]["containers"]
    assert re.fullmatch(r"lmdeploy:\d+\.\d+\.\d+", container["image"])
    assert make_parser().parse_args(container["args"]).model_name == "my-model"

    overlay = tmp_path / "kustomization.yaml"
    parts = {"resources": [path_from(tmp_path, "base")], "components": []}
    parts["components"] = [path_from(tmp_path, f"components/{name}") for name in ("gpu", "weights")]
    overlay.write_text(
        yaml.safe_dump({"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", **parts})
    )
    (with_gpu,) = (document for document in build(tmp_path) if document["kind"] == "Deployment")
    validate(with_gpu)
    (job,) = (document for document in build(tmp_path) if document["kind"] == "Job")
    assert image_of(with_gpu) == "lmdeploy:cuda"
    assert re.fullmatch(r"lmdeploy:\d+\.\d+\.\d+", image_of(job))
    (container,) = with_gpu["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"memory": "16Gi", "nvidia.com/gpu": "1"}
    assert container["args"][:2] == ["serve", "api_server"]


def image_of(document: Document) -> str:
    (container,) = document["spec"]["template"]["spec"]["containers"]
    return str(container["image"])


def path_from(folder: Path, name: str) -> str:
    return os.path.relpath(FOLDER / name, folder)


def build(folder: Path) -> list[Document]:
    assert KUBECTL is not None
    done = subprocess.run([KUBECTL, "kustomize", str(folder)], capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))
