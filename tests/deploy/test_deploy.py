"""What deploy/ says is so: flags, variables, paths and times that it names are the program's."""

from __future__ import annotations

import configparser
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from llmkit.config import ServerConfig, sources
from llmkit.config.environment import OTHER_VARIABLES
from llmkit.config.flags import flags
from llmkit.frontend.front import DRAIN_GRACE_S
from llmkit.server.auth import OPEN_PATHS
from llmkit.server.run import FLUSH_S
from llmkit_cli.arguments import adapt, known_flags
from llmkit_cli.serve import serve

DEPLOY = Path(__file__).parents[2] / "deploy"
DOCKERFILES = [DEPLOY / "Dockerfile.cpu", DEPLOY / "Dockerfile.cuda"]
USER = 10001
CACHE = "/var/cache/llmkit"


def kubernetes(kind: str) -> Any:
    found = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    return next(manifest for manifest in found if manifest["kind"] == kind)


def pod() -> Any:
    return kubernetes("Deployment")["spec"]["template"]["spec"]


def compose() -> dict[str, Any]:
    services: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    return services


def unit() -> configparser.ConfigParser:
    class Repeatable(dict):  # type: ignore[type-arg]
        """A key that stands twice has both values, a line each."""

        def __setitem__(self, key: str, value: Any) -> None:
            if isinstance(value, list) and isinstance(self.get(key), list):
                value = self[key] + value
            super().__setitem__(key, value)

    parser = configparser.ConfigParser(strict=False, interpolation=None, dict_type=Repeatable)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(DEPLOY / "llmkit.service")
    return parser


def commands() -> Iterator[Any]:
    yield pytest.param(pod()["containers"][0]["args"], id="kubernetes")
    for name, service in compose().items():
        yield pytest.param(service["command"], id=name)
    yield pytest.param(shlex.split(unit()["Service"]["ExecStart"])[1:], id="systemd")


@pytest.mark.parametrize("command", commands())
def test_commands_are_those_of_the_program(command: list[str]) -> None:
    assert command[0] == "serve"
    assert adapt(command[1:], *known_flags(serve)) == command[1:]
    given = dict(word.removeprefix("--").split("=") for word in command if word.startswith("--"))
    fields = {flag.key: flag.field for flag in flags()}
    given.pop("config", None)
    loaded = sources.load({fields[key]: value for key, value in given.items()}, {})
    assert loaded.config.server.shutdown_timeout == ServerConfig().shutdown_timeout


def test_the_file_of_settings_is_one() -> None:
    server = sources.load({}, {}, DEPLOY / "llmkit.yaml").config.server
    assert server.needs_key
    assert server.shutdown_timeout == ServerConfig().shutdown_timeout


@pytest.mark.parametrize("path", sorted(DEPLOY.iterdir()), ids=lambda path: path.name)
def test_variables_are_known(path: Path) -> None:
    known = {flag.variable for flag in flags()} | {*OTHER_VARIABLES, "LLMKIT_SERVE_MODEL"}
    assert set(re.findall(r"\bLLMKIT_\w+", path.read_text())) <= known


def test_times_to_stop_are_long_enough() -> None:
    stopping = ServerConfig().shutdown_timeout + DRAIN_GRACE_S + FLUSH_S
    waiting = int(pod()["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod()["terminationGracePeriodSeconds"] > waiting + stopping
    assert int(unit()["Service"]["TimeoutStopSec"]) > stopping
    for service in compose().values():
        assert int(service["stop_grace_period"].removesuffix("s")) > stopping


def test_probes_ask_what_is_served_to_everybody() -> None:
    container = pod()["containers"][0]
    paths = {
        kind: container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")
    }
    assert paths == {"startup": "/health", "liveness": "/live", "readiness": "/health"}
    assert set(paths.values()) | {"/metrics"} <= OPEN_PATHS
    (port,) = container["ports"]
    assert port["containerPort"] == ServerConfig().port
    assert all(container[f"{kind}Probe"]["httpGet"]["port"] == port["name"] for kind in paths)
    assert kubernetes("Service")["spec"]["ports"][0]["targetPort"] == port["name"]


def test_a_pod_may_do_little() -> None:
    container = pod()["containers"][0]
    assert pod()["securityContext"]["runAsNonRoot"]
    assert pod()["securityContext"]["runAsUser"] == USER
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {mount["mountPath"] for mount in container["volumeMounts"]} >= {CACHE, "/tmp"}
    assert {volume["name"] for volume in pod()["volumes"]} == {
        mount["name"] for mount in container["volumeMounts"]
    }
    (keys,) = (word for word in container["args"] if word.startswith("--api-key-file="))
    assert any(keys.partition("=")[2].startswith(mount["mountPath"]) for mount in container["volumeMounts"])


def test_a_composed_service_may_do_little() -> None:
    for service in compose().values():
        assert service["read_only"]
        assert service["tmpfs"] == ["/tmp"]
        assert service["cap_drop"] == ["ALL"]
        assert service["volumes"] == [f"cache:{CACHE}"]
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        assert (DEPLOY / ".." / service["build"]["dockerfile"]).is_file()


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_an_image_has_no_root_and_no_build_tools(path: Path) -> None:
    text = path.read_text()
    build, final = text.split("\nFROM ")[1:]
    assert build.splitlines()[0].endswith(" AS build")
    assert f"USER {USER}:{USER}" in final
    assert not re.search(r"\b(apt-get|gcc|g\+\+|pip install|build-essential|git)\b", final)
    # In exec form, so that the program and no shell is process 1.
    assert 'ENTRYPOINT ["llmkit"]' in final
    assert "STOPSIGNAL SIGTERM" in final
    assert f"LLMKIT_CACHE_DIR={CACHE}" in final
    assert f"HOME={CACHE}" in final
    (probed,) = re.findall(r"http://127\.0\.0\.1:8000(/\w+)", final)
    assert probed in OPEN_PATHS
    assert f"deploy/{path.name} " in text


def test_the_unit_is_notified_by_its_main_process() -> None:
    service = unit()["Service"]
    assert (service["Type"], service["NotifyAccess"], service["KillMode"]) == ("notify", "main", "mixed")
    assert service["RestartPreventExitStatus"] == "2"
    assert service["User"] == "llmkit"
    assert int(service["WatchdogSec"]) >= 30
    assert "LLMKIT_CACHE_DIR=/var/cache/" + service["CacheDirectory"] in service["Environment"]
