"""Which hosts a preset stands for: those that its client is configured for, and no others."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from adws.adw_modules.sandbox import registries


@pytest.fixture(autouse=True)
def _nothing_is_known(monkeypatch):
    monkeypatch.setattr(registries, "_KNOWN", {})


def client(folder: Path, name: str, *lines: str) -> dict[str, str]:
    """Let a program *name* print *lines*, and return an environment that has it alone besides the system's."""
    folder.mkdir(exist_ok=True)
    program = folder / name
    program.write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines))
    program.chmod(0o755)
    return {"PATH": str(folder), "HOME": str(folder)}


def test_npm_says_its_registries(tmp_path):
    env = client(
        tmp_path, "npm", '{"registry": "https://npm.example/", "@acme:registry": "http://10.0.0.1:4873/x", "a": 1}'
    )

    assert registries.expanded(["npm", "api.example"], env=env) == ["npm.example", "10.0.0.1:4873", "api.example"]


def test_apt_says_its_sources(tmp_path):
    env = client(
        tmp_path, "apt-get", "https://mirror.example/debian", "https://mirror.example/debian", "http://b.example/"
    )

    assert registries.expanded(["debian"], env=env) == ["mirror.example", "b.example"]


def test_pip_says_its_indexes_and_a_configured_one_takes_the_place_of_the_default(tmp_path):
    env = client(
        tmp_path, "pip", "global.index-url='https://pip.example/simple'", "global.extra-index-url='https://b.example/s'"
    )

    assert registries.expanded(["pypi"], env=env) == ["pip.example", "b.example"]


def test_variables_of_pip_and_uv_count(tmp_path):
    env = client(tmp_path, "pip") | {"PIP_INDEX_URL": "https://p.example/", "UV_INDEX": "acme=https://u.example/simple"}

    assert registries.expanded(["pypi"], env=env) == ["p.example", "u.example"]


def test_cargo_is_configured_by_a_file(tmp_path):
    (tmp_path / ".cargo").mkdir()
    (tmp_path / ".cargo" / "config.toml").write_text('[source.mirror]\nregistry = "sparse+http://127.0.0.1:9/index/"\n')

    assert registries.expanded(["crates"], env={"PATH": "", "HOME": str(tmp_path)}) == ["127.0.0.1:9"]


@pytest.mark.skipif(shutil.which("apt-get") is None, reason="apt-get is not installed")
def test_the_real_apt_is_asked():
    assert registries.expanded(["debian"], env=os.environ)


@pytest.mark.parametrize("preset", sorted(registries.PRESETS))
def test_a_preset_without_its_client_says_what_to_do(preset, tmp_path, monkeypatch):
    monkeypatch.setattr(registries.sys, "executable", "/nonexistent")
    with pytest.raises(registries.ConfigError, match="no client of it says which hosts it uses"):
        registries.expanded([preset], env={"PATH": str(tmp_path), "HOME": str(tmp_path)})
