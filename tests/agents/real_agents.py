"""Coding agents that are really installed: where they are, and how each is led to a model on this machine."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

#: The folder that `scripts/lib/install_agents` filled.
FOLDER = "ADW_TEST_AGENTS"

_CODEX = """\
model = "gpt-5-stub"
model_provider = "stub"
check_for_update_on_startup = false
[analytics]
enabled = false
[model_providers.stub]
name = "stub"
base_url = "{url}/v1"
env_key = "CODEX_API_KEY"
wire_api = "responses"
request_max_retries = 1
stream_max_retries = 1
"""


def program(name: str) -> Path | None:
    """Return an agent that is installed for tests, None when it is not."""
    folder = os.environ.get(FOLDER, "")
    path = Path(folder) / "bin" / name

    return path if folder and path.exists() else None


def why_missing(name: str) -> str:
    """Return why tests with an agent are skipped, "" when it is there."""
    if program(name) is not None:
        return ""
    if not os.environ.get(FOLDER):
        return f"{name} is not run: {FOLDER} names no folder with agents, see docs/agents.md"

    return f"{name} is not run: it is not in {os.environ[FOLDER]}, install it with scripts/lib/install_agents"


def variables(name: str, home: Path, url: str) -> Mapping[str, str]:
    """Set up the agent *name* in *home* for the model at *url*, and return what it is told in variables."""
    home.mkdir(parents=True, exist_ok=True)
    places = {f"XDG_{kind}_HOME": str(home / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA", "STATE")}

    return {"HOME": str(home), "NO_PROXY": "*", "no_proxy": "*", **places, **_SET_UP[name](home, url)}


def _claude(home: Path, url: str) -> dict[str, str]:
    return {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "stub", "CLAUDE_CONFIG_DIR": str(home / ".claude")}


def _codex(home: Path, url: str) -> dict[str, str]:
    (home / ".codex").mkdir()
    (home / ".codex" / "config.toml").write_text(_CODEX.format(url=url))
    (home / "tmp").mkdir()
    # With bubblewrap installed its sandbox needs a helper in CODEX_HOME, which it does not put below TMPDIR.
    return {"CODEX_HOME": str(home / ".codex"), "CODEX_API_KEY": "stub", "TMPDIR": str(home / "tmp")}


def _gemini(home: Path, url: str) -> dict[str, str]:
    settings = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "privacy": {"usageStatisticsEnabled": False},
        "general": {"disableAutoUpdate": True, "disableUpdateNag": True},
    }
    (home / ".gemini").mkdir()
    (home / ".gemini" / "settings.json").write_text(json.dumps(settings))
    return {"GEMINI_API_KEY": "stub", "GOOGLE_GEMINI_BASE_URL": url}


def _opencode(home: Path, url: str) -> dict[str, str]:
    model = "anthropic/claude-sonnet-4-5"
    provider = {"anthropic": {"options": {"baseURL": f"{url}/v1", "apiKey": "stub"}}}
    settings = {"autoupdate": False, "share": "disabled", "model": model, "small_model": model, "provider": provider}
    (home / "opencode.json").write_text(json.dumps(settings))
    return {"OPENCODE_CONFIG": str(home / "opencode.json")}


def _aider(_home: Path, url: str) -> dict[str, str]:
    return {"OPENAI_API_KEY": "stub", "OPENAI_API_BASE": f"{url}/v1"}


_SET_UP: Mapping[str, Callable[[Path, str], dict[str, str]]] = {
    "claude": _claude,
    "codex": _codex,
    "gemini": _gemini,
    "opencode": _opencode,
    "aider": _aider,
}
#: Options of a phase that make an agent use the stub: those that no variable can set.
OPTIONS: Mapping[str, Mapping[str, object]] = {
    "gemini": {"model": "gemini-2.5-pro", "permissions": "all"},
    "aider": {"model": "openai/stub", "arguments": ["--edit-format=whole", "stub.txt"]},
}
