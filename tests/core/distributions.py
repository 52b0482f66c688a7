"""Throw-away distributions: metadata and modules in a folder on ``sys.path``, as pip would leave them."""

from __future__ import annotations

import textwrap
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from shutil import copytree

API = "llmkit-api:0.1"
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def install(
    site: Path,
    name: str,
    modules: Mapping[str, str],
    plugins: Mapping[str, str],
    *,
    version: str = "1.0",
    keywords: Iterable[str] = (API,),
) -> None:
    """A distribution in ``site``: ``modules`` are name -> source, ``plugins`` entry point -> module."""
    for module, source in modules.items():
        path = site.joinpath(*module.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))
    _write_metadata(site, name, version, keywords, plugins)


def install_project(site: Path, project: Path) -> None:
    """A project folder as pip installs it: its packages, its keywords and entry points."""
    content = tomllib.loads((project / "pyproject.toml").read_text())
    metadata = content["project"]
    for package in content["tool"]["setuptools"]["packages"]:
        copytree(project / package, site / package)
    plugins = metadata["entry-points"]["llmkit"]
    _write_metadata(site, metadata["name"], metadata["version"], metadata["keywords"], plugins)


def _write_metadata(
    site: Path, name: str, version: str, keywords: Iterable[str], plugins: Mapping[str, str]
) -> None:
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    words = ",".join(keywords)
    (info / "METADATA").write_text("\n".join([*lines, *([f"Keywords: {words}"] if words else []), "", ""]))
    entries = [f"{plugin} = {module}" for plugin, module in plugins.items()]
    (info / "entry_points.txt").write_text("\n".join(["[llmkit]", *entries, ""]))
