"""``LLMKIT_*`` variables: settings, Kubernetes' own, unknown ones."""

from __future__ import annotations

import pwd
from pathlib import Path

import pytest

from llmkit import UsageError
from llmkit.config import Config, environment, sources

KUBERNETES = {
    "LLMKIT_SERVICE_HOST": "10.96.0.12",
    "LLMKIT_SERVICE_PORT": "8000",
    "LLMKIT_SERVICE_PORT_HTTP": "8000",
    "LLMKIT_PORT": "tcp://10.96.0.12:8000",
    "LLMKIT_PORT_8000_TCP": "tcp://10.96.0.12:8000",
    "LLMKIT_PORT_8000_TCP_PROTO": "tcp",
    "LLMKIT_PORT_8000_TCP_PORT": "8000",
    "LLMKIT_PORT_8000_TCP_ADDR": "10.96.0.12",
}


def test_what_kubernetes_injects_is_ignored_with_one_line() -> None:
    loaded = sources.load({}, KUBERNETES)
    assert loaded.config == Config()
    assert loaded.warnings == ()
    (note,) = loaded.notes
    assert note == (
        "environment: ignored what Kubernetes sets for a service called llmkit: LLMKIT_PORT, "
        "LLMKIT_PORT_8000_TCP, LLMKIT_PORT_8000_TCP_ADDR and 5 more"
    )


def test_services_whose_name_begins_like_ours_are_ignored_too() -> None:
    injected = {name.replace("LLMKIT_", "LLMKIT_METRICS_EXPORTER_", 1): v for name, v in KUBERNETES.items()}
    loaded = sources.load({}, injected)
    assert loaded.config == Config()
    assert (len(loaded.notes), loaded.warnings) == (1, ())


def test_a_port_of_ones_own_still_works() -> None:
    assert sources.load({}, {"LLMKIT_PORT": "81"}).config.server.port == 81
    with pytest.raises(UsageError, match="LLMKIT_PORT: '' is not an integer; want integer, 0 to 65535"):
        sources.load({}, {"LLMKIT_PORT": ""})


def test_an_unknown_variable_warns_with_the_nearest() -> None:
    loaded = sources.load({}, {"LLMKIT_MAX_MODEL_LENGTH": "9", "HOME": "/", "llmkit_port": "1"})
    assert loaded.warnings == (
        "environment: LLMKIT_MAX_MODEL_LENGTH is no variable of llmkit and is ignored; "
        "did you mean LLMKIT_MAX_MODEL_LEN?",
    )


def test_variables_that_are_no_setting_are_known() -> None:
    assert sources.load({}, dict.fromkeys(environment.OTHER_VARIABLES, "/x")).warnings == ()


def test_values_in_one_variable_are_apart_at_commas_or_a_json_list() -> None:
    loaded = sources.load(
        {},
        {
            "LLMKIT_PLUGIN": "a, b",
            "LLMKIT_SERVED_MODEL_NAME": '["x,y", "z"]',
            "LLMKIT_PLUGIN_OPTION": "a.list=1,2",
        },
    ).config
    assert loaded.plugins.plugin == ("a", "b")
    assert loaded.model.served_model_name == ("x,y", "z")
    assert loaded.plugins.plugin_option == ("a.list=1,2",)


def test_the_cache_folder_follows_the_variable_then_xdg_then_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    assert environment.cache_dir({}) == Path("/home/ada/.cache/llmkit")
    assert environment.cache_dir({"XDG_CACHE_HOME": "/xdg"}) == Path("/xdg/llmkit")
    assert environment.cache_dir({"XDG_CACHE_HOME": "/xdg", "LLMKIT_CACHE_DIR": "/own"}) == Path("/own")


def test_a_user_without_a_home_has_no_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's arbitrary uid: no HOME, no entry in passwd."""

    def unknown(uid: int) -> None:
        raise KeyError(f"uid not found: {uid}")

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert environment.cache_dir({}) is None
    assert environment.cache_dir({"LLMKIT_CACHE_DIR": "/own"}) == Path("/own")
