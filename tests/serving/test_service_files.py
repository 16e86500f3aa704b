"""The files of systemd, nginx and Prometheus in docs are right for their tools and the command."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from dragoman.cli.main import cli
from dragoman.cli.serve import serve
from dragoman.runtime.serving.apis import live
from dragoman.runtime.serving.clients import read_proxies

from .test_dashboard import families, metrics_of, series

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
UNIT = DOCS / "systemd" / "dragoman@.service"
SETTINGS = DOCS / "systemd" / "serve.toml"
ALERTS = DOCS / "prometheus" / "alerts.yaml"
NGINX = (DOCS / "nginx" / "dragoman.conf").read_text(encoding="utf-8")
GUIDE = (DOCS / "guides" / "operating.md").read_text(encoding="utf-8")

__all__ = ["families", "series"]


@pytest.fixture
def service() -> dict[str, list[str]]:
    """The values of each key of the unit's section [Service]."""
    text = UNIT.read_text(encoding="utf-8").partition("[Service]\n")[2].partition("[Install]\n")[0]
    found = defaultdict(list)
    for line in text.splitlines():
        if line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found[key].append(value)
    return dict(found)


@pytest.fixture
def options(service: dict[str, list[str]]) -> dict[str, Any]:
    """The options that the command reads from the unit and the file."""
    (command,) = service["ExecStart"]
    program, name, *arguments = command.replace("%i", "8001").split()
    assert (Path(program).name, name) == ("dragoman", serve.name)
    assert "/etc/dragoman/serve.toml" in arguments
    arguments[arguments.index("/etc/dragoman/serve.toml")] = str(SETTINGS)
    return serve.make_context(name, arguments, **cli.context_settings).params


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="needs systemd-analyze, a part of systemd"
)
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    def complaints(text: str) -> str:
        unit = tmp_path / UNIT.name
        unit.write_text(text.replace("/opt/dragoman/bin/dragoman", "/bin/true"), encoding="utf-8")
        command = ["systemd-analyze", "verify", "--man=no", str(unit)]
        return subprocess.run(command, capture_output=True, text=True).stderr

    text = UNIT.read_text(encoding="utf-8")
    assert complaints(text) == ""
    assert "ProtectHom" in complaints(text.replace("ProtectHome", "ProtectHom"))


def test_the_service_has_no_unnecessary_rights(service: dict[str, list[str]]) -> None:
    expected = {"DynamicUser", "NoNewPrivileges", "PrivateTmp", "ProtectHome", "RestrictNamespaces"}
    assert {key for key in expected if service[key] == ["yes"]} == expected
    assert service["ProtectSystem"] == ["strict"]
    assert service["CapabilityBoundingSet"] == [""]
    assert "HOME" not in UNIT.read_text(encoding="utf-8").replace("XDG_CACHE_HOME", "")


def test_there_is_time_to_drain(service: dict[str, list[str]], options: dict[str, Any]) -> None:
    (stop,) = service["TimeoutStopSec"]
    assert int(stop) > options["drain_seconds"] + 5
    assert options["timeout"] <= options["drain_seconds"]
    reading, listening = re.findall(r"proxy_read_timeout (\d+)s;", NGINX)
    assert int(reading) > options["timeout"]
    assert int(listening) > live.WAITING_SECONDS


def test_secrets_are_in_the_folder_that_the_group_may_read(
    service: dict[str, list[str]], options: dict[str, Any]
) -> None:
    (group,) = service["SupplementaryGroups"]
    assert f"install -d -m 2750 -g {group} /etc/dragoman" in GUIDE
    for name in ("api_key_file", "certificate", "private_key"):
        assert options[name].parent == Path("/etc/dragoman")


def test_nginx_leads_to_the_instances() -> None:
    ports = re.findall(r"server 127\.0\.0\.1:(\d+) max_fails=0;", NGINX)
    assert [f"dragoman@{port}" in GUIDE for port in ports] == [True, True]
    behind = tomllib.loads(re.findall(r"```toml\n(.*?)```", GUIDE, re.DOTALL)[0])
    assert behind["host"] == "127.0.0.1"
    assert read_proxies(behind["trusted_proxies"].split(","))
    assert "X-Forwarded-For $proxy_add_x_forwarded_for;" in NGINX
    default = next(one.default for one in serve.params if one.name == "max_body")
    assert f"client_max_body_size {default}m;" in NGINX
    assert re.search(r"location /metrics \{.*\n +deny all;", NGINX)  # a slash may follow


def test_alerts_are_on_metrics_of_the_server(series: set[str]) -> None:
    (group,) = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    names = [rule["alert"] for rule in group["rules"]]
    used = set().union(*(metrics_of(rule["expr"]) for rule in group["rules"]))
    assert used - series == {"up"}
    for name in names:
        assert f"`{name}`" in GUIDE


def test_prometheus_reads_both_instances() -> None:
    text = (DOCS / "prometheus" / "prometheus.yaml").read_text(encoding="utf-8")
    (job,) = yaml.safe_load(text)["scrape_configs"]
    assert job["job_name"] == "dragoman"
    for target in job["static_configs"][0]["targets"]:
        url = httpx.URL(f"http://{target}")
        assert f"server {url.host}:{url.port} " in NGINX
