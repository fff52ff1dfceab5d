"""Where adw's own secrets come from, and where they are not left."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from adws.adw_modules.errors import ConfigError
from adws.config import credentials


def test_a_variable_counts_before_a_file_and_that_before_systemd(tmp_path):
    for name in ("file", "adw_forge_key", "adw_github_token", "github_pat"):
        (tmp_path / name).write_text(f"{name}\n")
        (tmp_path / name).chmod(0o600)
    env = {
        "ADW_WEB_TOKEN": "variable",
        "ADW_GITHUB_TOKEN_FILE": str(tmp_path / "file"),
        "CREDENTIALS_DIRECTORY": str(tmp_path),
        "PATH": "/usr/bin",
    }

    assert credentials.read(env) == {
        "ADW_WEB_TOKEN": "variable",
        "ADW_GITHUB_TOKEN": "file",
        "ADW_FORGE_KEY": "adw_forge_key",
        "GITHUB_PAT": "github_pat",
    }


def test_a_file_that_others_may_read_is_refused(tmp_path):
    (tmp_path / "token").write_text("x")
    (tmp_path / "token").chmod(0o644)

    with pytest.raises(ConfigError, match="chmod 600"):
        credentials.read({"ADW_GITHUB_TOKEN_FILE": str(tmp_path / "token")})
    with pytest.raises(ConfigError, match="cannot be read"):
        credentials.read({"ADW_GITHUB_TOKEN_FILE": str(tmp_path / "missing")})


def test_nothing_of_a_secret_stays_in_the_environment_of_the_process():
    code = (
        "import os; from adws.config import credentials, load; credentials.take();"
        "print(b'planted' in open('/proc/self/environ', 'rb').read(), 'ADW_GITHUB_TOKEN' in os.environ,"
        " load.process_environment()['ADW_GITHUB_TOKEN'], load.process_environment()['OTHER'])"
    )
    env = {**os.environ, "ADW_GITHUB_TOKEN": "planted-secret", "OTHER": "kept"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["False", "False", "planted-secret", "kept"]


@pytest.mark.parametrize("entry", ["main.main", "worker.start"], ids=["command", "worker-of-a-server"])
def test_each_process_of_adw_takes_its_secrets_before_it_does_anything(entry):
    code = (
        "from adws.cli import main, worker;"
        "main.run = lambda: print(b'planted' in open('/proc/self/environ', 'rb').read());"
        f"{entry}()"
    )
    env = {**os.environ, "ADW_GITHUB_TOKEN": "planted-secret"}
    with subprocess.Popen(
        [sys.executable, "-c", code], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:  # its input stays open: a worker ends when that closes
        assert process.stdout is not None
        said = process.stdout.read()

    assert said.split() == ["False"]
