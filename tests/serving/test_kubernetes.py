"""The manifests in docs/kubernetes are right for the cluster, the command and each other."""

from __future__ import annotations

import asyncio
import re
import tomllib
from pathlib import Path
from typing import Any

import httpx
import kubernetes_validate
import pytest
import yaml

from dragoman.cli.main import cli
from dragoman.cli.serve import serve
from dragoman.errors import DragomanError
from dragoman.runtime.serving.app import create_app
from dragoman.runtime.serving.clients import read_keys
from dragoman.runtime.serving.options import ServerOptions

from ..small_bundle import small_bundle

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "kubernetes"
FILES = sorted(FOLDER.glob("*.yaml"))
OLDEST = "1.30"
"""The first version in which a container can sleep before it stops."""
VERSIONS = (OLDEST, kubernetes_validate.latest_version())
AUTOSCALERS = ("horizontal-pod-autoscaler", "horizontal-pod-autoscaler-queue")

Manifest = dict[str, Any]


def manifest(name: str) -> Manifest:
    found: Manifest = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    return found


@pytest.fixture
def pod() -> Manifest:
    found: Manifest = manifest("deployment")["spec"]["template"]
    return found


@pytest.fixture
def container(pod: Manifest) -> Manifest:
    (found,) = pod["spec"]["containers"]
    return dict(found)


@pytest.fixture
def options(container: Manifest, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The options that the command reads from the container's environment."""
    for variable in container["env"]:
        monkeypatch.setenv(variable["name"], variable["value"])
    name, *arguments = container["args"]
    assert name == serve.name
    return serve.make_context(name, arguments, **cli.context_settings).params


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_manifests_are_valid(path: Path, version: str) -> None:
    kubernetes_validate.validate(manifest(path.stem), version, strict=True)


def test_a_field_that_does_not_exist_would_be_found() -> None:
    wrong = manifest("deployment")
    wrong["spec"]["template"]["spec"]["containers"][0]["readyProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="readyProbe"):
        kubernetes_validate.validate(wrong, OLDEST, strict=True)


def test_an_option_that_does_not_exist_would_be_found(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAGOMAN_SERVE_DRAIN", "3")
    with pytest.raises(DragomanError, match=r"^DRAGOMAN_SERVE_DRAIN: expected the name of an opt"):
        serve.make_context("serve", [], **cli.context_settings)


def test_ports_lead_to_the_server(container: Manifest, options: dict[str, Any]) -> None:
    (port,) = container["ports"]
    assert port["containerPort"] == options["port"]
    assert options["host"] == "0.0.0.0"  # noqa: S104
    (of_service,) = manifest("service")["spec"]["ports"]
    assert of_service["targetPort"] == port["name"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] == port["name"]


def test_probes_are_answered_without_a_key(container: Manifest, tmp_path: Path) -> None:
    directory = small_bundle(tmp_path, 9)
    app = create_app({"small": directory}, ServerOptions(api_keys=("secret",)), preload=False)

    async def status(path: str) -> int:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            return (await client.get(path)).status_code

    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert asyncio.run(status(container[probe]["httpGet"]["path"])) == 200
    assert asyncio.run(status("/metrics")) == 401


def test_there_is_time_to_drain(
    pod: Manifest, container: Manifest, options: dict[str, Any]
) -> None:
    before = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["spec"]["terminationGracePeriodSeconds"] > before + options["drain_seconds"]
    assert options["timeout"] <= options["drain_seconds"]
    ready = container["readinessProbe"]
    assert before >= ready["periodSeconds"] * ready["failureThreshold"]


def test_each_thread_has_a_core(container: Manifest, options: dict[str, Any]) -> None:
    resources = container["resources"]
    assert int(resources["requests"]["cpu"]) == options["workers"] * options["threads"]
    assert resources["requests"]["memory"] == resources["limits"]["memory"]


def test_the_container_has_no_unnecessary_rights(pod: Manifest, container: Manifest) -> None:
    of_pod, of_container = pod["spec"]["securityContext"], container["securityContext"]
    assert of_pod["runAsNonRoot"]
    assert of_pod["runAsUser"] > 0
    assert of_container["readOnlyRootFilesystem"]
    assert not of_container["allowPrivilegeEscalation"]
    assert of_container["capabilities"] == {"drop": ["ALL"]}
    assert not pod["spec"]["automountServiceAccountToken"]
    writable = [m["mountPath"] for m in container["volumeMounts"] if not m.get("readOnly")]
    assert writable == ["/tmp"]  # noqa: S108


def test_names_of_services_are_no_options(pod: Manifest) -> None:
    """A Service named dragoman-serve would put DRAGOMAN_SERVE_PORT into the environment."""
    assert pod["spec"]["enableServiceLinks"] is False


def test_what_options_name_is_mounted(
    pod: Manifest, container: Manifest, options: dict[str, Any]
) -> None:
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    places = {Path(m["mountPath"]): volumes[m["name"]] for m in container["volumeMounts"]}
    (bundle,) = options["bundles"]
    claim = places[bundle.parent]["persistentVolumeClaim"]["claimName"]
    assert claim == manifest("bundles")["metadata"]["name"]
    keys, secret = options["api_key_file"], manifest("secret")
    assert places[keys.parent]["secret"]["secretName"] == secret["metadata"]["name"]
    assert keys.name in secret["stringData"]


def test_without_keys_the_server_does_not_start(tmp_path: Path) -> None:
    (content,) = manifest("secret")["stringData"].values()
    (tmp_path / "keys").write_text(content, encoding="utf-8")
    with pytest.raises(DragomanError, match="expected a key on a line, found none"):
        read_keys(tmp_path / "keys")


def test_selectors_select_its_pods(pod: Manifest) -> None:
    labels = pod["metadata"]["labels"].items()
    selectors = [
        manifest("service")["spec"]["selector"],
        manifest("deployment")["spec"]["selector"]["matchLabels"],
        manifest("pod-disruption-budget")["spec"]["selector"]["matchLabels"],
        *(s["labelSelector"]["matchLabels"] for s in pod["spec"]["topologySpreadConstraints"]),
    ]
    for selector in selectors:
        assert selector
        assert selector.items() <= labels


@pytest.mark.parametrize("name", AUTOSCALERS)
def test_autoscalers_scale_the_deployment(name: str) -> None:
    deployment, scaled = manifest("deployment"), manifest(name)["spec"]
    target = scaled["scaleTargetRef"]
    assert target == {
        "apiVersion": deployment["apiVersion"],
        "kind": deployment["kind"],
        "name": deployment["metadata"]["name"],
    }
    assert "replicas" not in deployment["spec"]
    budget = manifest("pod-disruption-budget")["spec"]["maxUnavailable"]
    assert budget < scaled["minReplicas"] <= scaled["maxReplicas"]


def test_autoscalers_are_alternatives() -> None:
    names = {manifest(name)["metadata"]["name"] for name in AUTOSCALERS}
    assert len(names) == 1


def test_the_image_is_what_the_pod_runs(pod: Manifest, container: Manifest) -> None:
    text = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
    context = pod["spec"]["securityContext"]
    assert f"USER {context['runAsUser']}:{context['runAsGroup']}\n" in text
    assert f"-t {container['image']} " in text
    assert "command" not in container
    assert 'ENTRYPOINT ["/opt/dragoman/bin/dragoman"]\nCMD ["serve"]\n' in text
    (extras,) = re.findall(r'"\$1\[(.*)\]"', text)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    assert {"cpu", "serve"} <= set(extras.split(","))


def test_the_image_is_built_from_what_the_wheel_is_built_from() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    first, *others = [line for line in lines if not line.startswith("#")]
    assert first == "*"
    kept = {line[1:] for line in others if line.startswith("!")}
    assert kept >= {"src", "pyproject.toml", "hatch_build.py", "README.md", "constraints.txt"}
    for path in kept:
        assert list(ROOT.glob(path)), path
    linked = [path.resolve() for path in (ROOT / "src" / "dragoman").iterdir() if path.is_symlink()]
    assert {path.relative_to(ROOT).name for path in linked} <= {one.split("/")[0] for one in kept}
