"""Dockerfile, compose file and Kubernetes manifests: no Docker is needed to see what they promise.

The checks are of what these files use, after the Compose Specification and Kubernetes' own reference.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.lifecycle import LAST_SECONDS
from gateway.settings import Settings, load
from tests.debian import needs
from tests.dockerfile import DOCKER, lineage, stages

ROOT = DOCKER.parent
TOKEN = {"SLOTGATE_ADMIN_TOKEN": "0123456789abcdef0123456789abcdef"}
SECONDS = r"(\d+)s"


def compose() -> dict[str, Any]:
    """The compose file, its merges done."""
    value: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    return value


def manifests() -> dict[str, dict[str, Any]]:
    """Kubernetes' objects by kind."""
    paths = (DOCKER / "kubernetes").glob("*.yaml")
    return {one["kind"]: one for path in paths for one in yaml.safe_load_all(path.read_text())}


def kubernetes_settings() -> Settings:
    """The configuration that its pods get."""
    return load(str(DOCKER / "kubernetes/slotgate.toml"), {})


def program(name: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the test environment, with nothing else in its own environment."""
    command = [str(Path(sys.executable).with_name(name)), *words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env=environment, cwd=ROOT
    )


# -- the image -----------------------------------------------------------------------------------------


def test_the_dockerfile_has_no_faults_that_a_linter_knows() -> None:
    """But for libgomp1 without its version, which Debian takes away with the next one; and layers that are
    kept apart, so that they can be kept."""
    found = program("hadolint", "--no-color", "--ignore=DL3008", "--ignore=DL3059", "docker/Dockerfile")
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


def test_the_image_is_built_apart_from_what_runs() -> None:
    """In its own stage, by hashes; what runs has neither the sources nor what built them."""
    every = stages()
    assert list(every)[-1] == "gateway"  # what is built if nobody names a stage
    installs = [words for _, words in every["build"].steps if words.startswith("pip install")]
    assert all("--require-hashes" in words or "--no-deps" in words for words in installs)
    running = [step for stage in lineage("gateway") for step in stage.steps]
    assert [words for name, words in running if name == "COPY"] == [
        "--from=build /opt/slotgate /opt/slotgate"
    ]
    assert lineage("gateway")[0].base == every["build"].base  # a virtual environment fits no other Python


@pytest.mark.parametrize("name", ["gateway", "demo-engine"])
def test_nothing_runs_as_root(name: str) -> None:
    """By number, so that Kubernetes can tell; and the process itself gets the signals."""
    users = [words for stage in lineage(name) for instruction, words in stage.steps if instruction == "USER"]
    assert users[-1] == "10001:10001"
    assert json.loads(stages()[name].last("ENTRYPOINT"))
    assert json.loads(stages()[name].last("CMD"))


def test_the_health_check_needs_no_program_that_is_not_there() -> None:
    """A slim image has no curl; what is asked is that the process lives, not that engines do."""
    command = stages()["gateway"].health_check
    assert command[:2] == ["python", "-c"]
    ast.parse(command[2])
    assert "/health" in command[2]
    assert not re.search(r"curl|wget", (DOCKER / "Dockerfile").read_text())


def test_whatever_is_copied_is_there_and_reaches_the_builder() -> None:
    """Everything else is kept from it."""
    ignored = (DOCKER / "Dockerfile.dockerignore").read_text().splitlines()
    sent = {line[1:] for line in ignored if line.startswith("!")}
    assert "*" in ignored
    copied = set()
    for stage in stages().values():
        for name, words in stage.steps:
            if name == "COPY" and "--from" not in words:
                copied |= set(words.split()[:-1])
    assert copied == sent
    assert all((ROOT / name).exists() for name in copied)


def test_the_model_of_the_demo_lies_where_it_is_looked_for() -> None:
    """Its name stands in the code, in the image and in compose."""
    from gateway.demo.model import FILE

    path = f"/opt/model/{FILE}"
    assert path in json.loads(stages()["demo-engine"].last("CMD"))
    assert all(path in compose()["services"][name]["command"] for name in ("demo-1", "demo-2"))


# -- compose -------------------------------------------------------------------------------------------


def test_compose_takes_the_file() -> None:
    """Docker's own program reads it as it would to start it; without a token it says how to make one."""
    command = ("docker-compose", "--file", str(DOCKER / "compose.yaml"), "--profile", "demo", "config")
    read = program(*command, "--format", "json", **TOKEN)
    assert (read.returncode, read.stderr) == (0, "")
    assert set(json.loads(read.stdout)["services"]) == set(compose()["services"])
    assert "openssl rand -hex 24" in program(*command).stderr


def test_services_come_from_here_or_in_one_version() -> None:
    """What is built is a stage of our Dockerfile; another day fetches no other image."""
    for service in compose()["services"].values():
        if "build" in service:
            assert (DOCKER / service["build"]["context"]).resolve() == ROOT
            assert service["build"]["target"] in stages()
            assert (ROOT / service["build"]["dockerfile"]).is_file()
        else:
            assert re.search(r":v?\d+\.\d+\.\d+$", service["image"]), "an image without its version"


def test_mounts_are_there_and_volumes_are_declared() -> None:
    """A path that is missing would become an empty directory, owned by root."""
    file = compose()
    named = set()
    for service in file["services"].values():
        for volume in service.get("volumes", ()):
            source, target, *mode = volume.split(":")
            assert target.startswith("/")
            if source.startswith("."):
                assert (DOCKER / source).exists(), source
                assert mode == ["ro"], volume
            else:
                named.add(source)
    assert named == set(file["volumes"])


def test_services_can_do_little() -> None:
    """Read-only, without capabilities, reached from this machine only."""
    for name, service in compose()["services"].items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
        assert not re.search(r"password", json.dumps(service), re.IGNORECASE)


def test_the_demo_s_engines_come_only_when_asked_for() -> None:
    """They are the gateway's backends until there are others."""
    services = compose()["services"]
    demo = {name for name, service in services.items() if service.get("profiles") == ["demo"]}
    settings = load(str(DOCKER / "slotgate.toml"), TOKEN)
    assert {backend.url for backend in settings.backends} == {f"http://{name}:8080" for name in demo}
    assert not any("profiles" in services[name] for name in ("gateway", "prometheus", "grafana"))


def test_a_container_has_time_to_drain() -> None:
    """`docker stop` kills what has not ended by then."""
    service = compose()["services"]["gateway"]
    server = load(str(DOCKER / "slotgate.toml"), TOKEN).server
    grace = re.fullmatch(SECONDS, service["stop_grace_period"])
    assert grace is not None
    assert int(grace[1]) >= server.shutdown_pause_seconds + server.shutdown_seconds + LAST_SECONDS


def test_two_gateways_share_what_one_would_have() -> None:
    """Docker's own program reads the other file too: both gateways have the same Redis, files of their own,
    time to drain, and no more rights than one; the balancer knows both, Redis keeps what it was told."""
    command = ("docker-compose", "--file", str(DOCKER / "two-gateways.yaml"), "--profile", "demo", "config")
    read = program(*command, "--format", "json", **TOKEN)
    assert (read.returncode, read.stderr) == (0, "")
    services = json.loads(read.stdout)["services"]
    one, other = services["gateway-1"], services["gateway-2"]
    assert one["environment"] == other["environment"] == TOKEN | {"SLOTGATE_REDIS__URL": "redis://redis:6379"}
    ours, theirs = ({volume["source"] for volume in service["volumes"]} for service in (one, other))
    assert ours & theirs == {str(DOCKER / "slotgate.toml")}
    assert one["stop_grace_period"] == other["stop_grace_period"] == "2m10s"
    for name, service in services.items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"]
        assert all(port["host_ip"] == "127.0.0.1" for port in service.get("ports", ()))
    balancer = (DOCKER / "haproxy.cfg").read_text()
    assert re.findall(r"server (\S+) (\S+):8400", balancer) == [
        (name, name) for name in ("gateway-1", "gateway-2")
    ]
    assert "--appendonly" in services["redis"]["command"]


@needs("haproxy")
def test_the_balancer_takes_its_file() -> None:
    """But for names that only Docker knows."""
    ran = subprocess.run(
        ["haproxy", "-c", "-f", str(DOCKER / "haproxy.cfg")], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr


def test_prometheus_and_grafana_find_what_they_read() -> None:
    """Folders are mounted where their own files say, and each service is called by its name."""
    services = compose()["services"]
    (job,) = yaml.safe_load((DOCKER / "prometheus/prometheus.yaml").read_text())["scrape_configs"]
    (target,) = job["static_configs"][0]["targets"]
    host, _, port = target.partition(":")
    assert host in services
    assert int(port) == load(str(DOCKER / "slotgate.toml"), TOKEN).server.port
    (source,) = yaml.safe_load((ROOT / "grafana/provisioning/datasources/prometheus.yaml").read_text())[
        "datasources"
    ]
    assert source["url"] == "http://prometheus:9090"
    assert "./prometheus:/etc/prometheus:ro" in services["prometheus"]["volumes"]
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (ROOT / "grafana/dashboards" / Path(home).name).is_file()


# -- Kubernetes ----------------------------------------------------------------------------------------


def test_manifests_are_of_one_application() -> None:
    """What selects pods selects those of the deployment, by ports that they have."""
    every = manifests()
    pod = every["Deployment"]["spec"]["template"]
    labels = pod["metadata"]["labels"]
    ports = {port["name"]: port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]}
    assert every["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert every["Service"]["spec"]["selector"] == labels
    assert every["Service"]["spec"]["ports"][0]["targetPort"] in ports
    monitor = every["PodMonitor"]["spec"]
    assert monitor["selector"]["matchLabels"] == labels
    assert monitor["podMetricsEndpoints"][0]["port"] in ports
    assert labels[monitor["jobLabel"]] == "slotgate"  # as the alert on `up` has it
    assert ports["http"] == kubernetes_settings().server.port
    listed = every["Kustomization"]["resources"]
    assert {one.name for one in (DOCKER / "kubernetes").glob("*.yaml")} == {
        *listed,
        "kustomization.yaml",
    }


@pytest.mark.parametrize("name", ["deployment", "service"])
def test_kubernetes_knows_every_member(name: str) -> None:
    """By the schemas of its own API; a PodMonitor is not part of that."""
    read = program("kubernetes-validate", "--strict", f"docker/kubernetes/{name}.yaml")
    assert read.returncode == 0, read.stdout + read.stderr


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not there")
def test_kubectl_puts_the_manifests_together() -> None:
    """The configuration becomes a map whose name the Deployment mounts."""
    command = ["kubectl", "kustomize", str(DOCKER / "kubernetes")]
    made = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    every = {one["kind"]: one for one in yaml.safe_load_all(made.stdout)}
    assert set(every) == {"ConfigMap", "Deployment", "Service", "PodMonitor"}
    volumes = every["Deployment"]["spec"]["template"]["spec"]["volumes"]
    maps = [volume["configMap"]["name"] for volume in volumes if "configMap" in volume]
    assert maps == [every["ConfigMap"]["metadata"]["name"]]


def test_a_pod_drains_before_it_ends() -> None:
    """It serves on until it gets nothing new, then finishes what it has, all within its grace."""
    pod = manifests()["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    *python, code = container["lifecycle"]["preStop"]["exec"]["command"]
    assert python == ["python", "-c"]
    waits = re.search(r"sleep\((\d+)\)", code)
    assert waits is not None
    server = kubernetes_settings().server
    needed = int(waits[1]) + server.shutdown_pause_seconds + server.shutdown_seconds + LAST_SECONDS
    assert pod["terminationGracePeriodSeconds"] >= needed
    assert container["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert container["livenessProbe"]["httpGet"]["path"] == "/health"


def test_slots_are_handed_out_by_one_pod() -> None:
    """Two gateways without a common ledger would hand out every slot twice, also for a moment."""
    spec = manifests()["Deployment"]["spec"]
    assert spec["replicas"] == 1
    assert spec["strategy"] == {"type": "Recreate"}


def test_a_pod_can_do_little() -> None:
    """As the image's user, with a read-only root, in the strictest of Kubernetes' standards."""
    pod = manifests()["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    user = lineage("gateway")[0].last("USER")
    context = pod["securityContext"]
    assert f"{context['runAsUser']}:{context['runAsGroup']}" == user
    assert context["runAsNonRoot"]
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
    assert pod["automountServiceAccountToken"] is False


def test_both_configurations_are_valid() -> None:
    """And the journal lies where the container may write."""
    for path in (DOCKER / "slotgate.toml", DOCKER / "kubernetes/slotgate.toml"):
        assert tomllib.loads(path.read_text())["backends"]
        assert load(str(path), TOKEN).server.host == "0.0.0.0"
    assert kubernetes_settings().accounting.journal.startswith("/data/")
    assert stages()["gateway"].environment["SLOTGATE_ACCOUNTING__JOURNAL"].startswith("/data/")
