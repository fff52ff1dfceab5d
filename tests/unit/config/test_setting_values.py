"""The values of single settings: defaults, what is taken and as what, and what is refused with which sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from adws.adw_modules.agents.base import names as agent_names
from adws.adw_modules.agents.prices import model_sets
from adws.adw_modules.circuit_breaker import CircuitBreakerConfig
from adws.adw_modules.errors import ConfigError
from adws.adw_modules.identifiers import OWN_SECRETS
from adws.adw_modules.queue import model as queue_model
from adws.adw_modules.schedule.jobs import CRON_ENTRIES, entries_of
from adws.adw_triggers import trigger_cron
from adws.adw_triggers.github_events import USUAL
from adws.config import kinds, settings
from adws.config import load as config_load
from adws.config.settings import CRON_JOBS, Settings

ONE, TWO = "first-token-0123456789", "second-token-0123456789"
HOOK = "https://hooks.example.invalid/T000/B000/xyz"


def load(home: Path, toml: str = "", **changes: str) -> Settings:
    (home / "adw.toml").write_text(toml)
    return config_load.load(env={env_of(name): text for name, text in changes.items()}, cwd=home)


def env_of(name: str) -> str:
    """Return the variable of the setting *name*; of a name that is no setting, what it would be."""
    return settings.BY_NAME[name].env if name in settings.BY_NAME else f"ADW_{name.upper()}"


def test_the_defaults(tmp_path):
    usual = load(tmp_path)

    # Work is isolated, and nothing is merged.
    assert (usual.worktree_enabled, usual.ship_merge, usual.ship_draft) == (True, "no", True)
    assert (usual.ship_allow_workflow_files, usual.ship_allow_agent_files) == (False, False)
    assert (usual.ship_labels, usual.ship_allow_paths, usual.git_author) == (None, None, None)
    assert usual.worktree_include == (".env", "app/server/.env", ".mcp.json", "playwright-mcp-config.json")
    # The agent is Claude, and every agent has a program.
    assert (usual.agent_name, usual.agent_permissions, usual.agent_model) == ("claude", "edit", None)
    assert agent_names() == settings.AGENTS
    # The server listens at loopback without a token; the dashboard may act.
    assert (usual.web_host, usual.web_port, usual.web_token, usual.web_workers) == ("127.0.0.1", 8001, None, 2)
    assert (usual.web_public_url, usual.web_read_only) == (None, False)
    assert (usual.webhook_label, usual.webhook_max_followups) == ("adw", 0)
    assert frozenset(usual.webhook_events) == USUAL
    assert usual.notify_events[:2] == ("failed", "paused")
    # A worker offers its machine and no tags; every host may be asked.
    assert (usual.worker_host, usual.worker_tags) == (None, None)
    assert usual.runs_no_match_seconds == 300.0
    assert (usual.steps_max_result_bytes, usual.steps_http_allow) == (8 * 2**20, None)
    assert not usual.run_limits
    # Finished workflows are kept for ever, their events a year.
    assert (usual.retention_logs_days, usual.retention_workflows_days) == (90, 0)


def test_the_defaults_of_breakers_are_those_of_the_library(tmp_path):
    usual = load(tmp_path)

    assert CircuitBreakerConfig() == CircuitBreakerConfig(
        usual.breakers_failure_threshold, usual.breakers_reset_timeout_seconds
    )


def test_every_usual_expression_of_the_schedule_can_be_used(tmp_path):
    expressions = entries_of(load(tmp_path))

    assert [*expressions] == [*CRON_ENTRIES] == [*CRON_JOBS]
    assert not any(trigger_cron.problem_of(text) for text in expressions.values())
    assert [name for name, text in expressions.items() if not text] == ["poll_comments"]


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("agent_programs", "claude=/opt/claude, codex=cx", {"claude": "/opt/claude", "codex": "cx"}),
        ("worktree_enabled", "false", False),
        ("worktree_enabled", "Off", False),
        ("worktree_enabled", "1", True),
        ("worktree_enabled", "yes", True),
        ("worktree_include", "None", ()),
        ("worktree_include", " ./a , b/c,, ", ("a", "b/c")),
        ("git_author", "Ada Example <ada@example.com>", "Ada Example <ada@example.com>"),
        ("ports_count", "100", 100),
        ("quota_max_cost", "0", 0.0),
        ("breakers_failure_threshold", "1000", 1000),
        ("breakers_reset_timeout_seconds", "1", 1.0),
        ("cron_poll_issues", "OFF", ""),
        ("cron_disabled", "gc, report", ("gc", "report")),
        ("cron_report", " 0   7 * * 1-5 ", "0 7 * * 1-5"),
        ("notify_events", "none", ()),
        ("retention_logs_days", "1", 1),
        ("retention_logs_days", "36500", 36500),
        (
            "steps_http_allow",
            "API.example.com, *.local,10.0.0.1,[::1]",
            ("api.example.com", "*.local", "10.0.0.1", "::1"),
        ),
        ("webhook_label", "do it: now", "do it: now"),
        ("webhook_login", "adw-bot[bot]", "adw-bot[bot]"),
        ("webhook_senders", "ada, !bob, a[bot]", ("ada", "!bob", "a[bot]")),
        ("agent_models", "heavy=best, advisor=small", {"heavy": "best", "advisor": "small"}),
        ("webhook_events", "Comment,label", ("comment", "label")),
        ("webhook_events", "none", ()),
        ("worker_host", "beta", "beta"),
        ("worker_tags", "gpu, arm64", ("arm64", "gpu")),
        ("web_public_url", "https://ADW.Example.com/", "https://adw.example.com"),
        ("web_public_url", "http://build-1:8001", "http://build-1:8001"),
        ("web_public_url", "http://[::1]:8001", "http://[::1]:8001"),
        *(("web_host", host, host) for host in ("0.0.0.0", "::1", "::", "localhost", "adw.example.com")),
    ],
)
def test_what_can_be_is_taken(tmp_path, name, text, value):
    assert getattr(load(tmp_path, **{name: text}), name) == value


def test_the_file_takes_booleans_lists_and_lines(tmp_path):
    read = load(
        tmp_path,
        '[worktree]\nenabled = false\nsetup = """\nnpm ci --prefix "my app"\n\nuv sync\n"""\n'
        '[ship]\nlabels = ["adw", "robot"]\nallow_paths = "docs/, *.md"\n'
        '[agent]\nname = "codex"\nmodel = "openai/gpt-5.1-codex"\nenv = ["NPM_TOKEN", "FOO"]\n'
        '[notify]\nevents = ["failed", "quota"]\n[cron]\ndisabled = ["gc"]\n'
        '[worker]\nhost = "alpha"\ntags = ["gpu", "big"]\n'
        "[webhook]\nmax_followups = 2\n[retention]\nlogs_days = 30\n",
    )

    assert (read.worktree_enabled, read.shown("worktree_enabled")) == (False, "false")
    assert (read.ship_labels, read.shown("ship_labels")) == (("adw", "robot"), "adw, robot")
    assert read.ship_allow_paths == ("docs/", "*.md")
    assert kinds.commands_in(read.worktree_setup) == (("npm", "ci", "--prefix", "my app"), ("uv", "sync"))
    assert (read.agent_name, read.agent_model) == ("codex", "openai/gpt-5.1-codex")
    assert (read.agent_env, read.notify_events, read.cron_disabled) == (
        ("NPM_TOKEN", "FOO"),
        ("failed", "quota"),
        ("gc",),
    )
    assert (read.worker_host, read.worker_tags) == ("alpha", ("big", "gpu"))
    assert (read.webhook_max_followups, read.retention_logs_days) == (2, 30)


WHOLE_1_1000 = "a whole number from 1 to 1000"
SECONDS_1_86400 = "a number of seconds from 1 to 86400"
FILES = "must be paths inside the repository"
SHELL = "without what only a shell understands"
DAYS = "days from 1 to 36500, or 0 for ever"
HOSTS = "must be names of hosts"
LETTERS = "letters, digits and . _ : -"


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("agent_name", "hal", "must be one of claude, codex, gemini, opencode, aider"),
        ("agent_permissions", "root", "must be one of read, edit, all"),
        ("agent_model", "--yolo", "must be the name of a model"),
        ("agent_models", "heavy=a b", "must be the name of a model"),
        ("agent_models", "huge=a", "NAME is one of base, heavy"),
        ("agent_env", "A, B=1", "must be names of environment variables, separated by commas"),
        *(("breakers_failure_threshold", text, WHOLE_1_1000) for text in ("0", "1001", "2.5")),
        *(("breakers_reset_timeout_seconds", text, SECONDS_1_86400) for text in ("0.9", "86400.1", "nan", "soon")),
        *(
            ("cron_report", text, "must be five fields")
            for text in ("hourly", "* * * *", "* * * * * *", "* * * * $(x)")
        ),
        *(("notify_command", text, SHELL) for text in ("a && b", "a ; b")),
        ("notify_command", "one\ntwo", "must be one command"),
        ("notify_events", "sunset", "words of failed"),
        *(
            ("worktree_include", text, FILES)
            for text in ("/etc/passwd", "../x", "a/../../x", "~/.ssh/id", "-rf", "\x07")
        ),
        *(("worktree_setup", text, SHELL) for text in ("npm ci && uv sync", "cat a | sh")),
        ("worktree_setup", "echo 'open", "no closing quotation"),
        # About ranges of ports, whichever of the three settings is to blame.
        ("ports_count", "101", "would overlap"),
        ("ports_backend_start", "9210", "would overlap"),
        ("ports_frontend_start", "65530", "above 65535"),
        ("ports_backend_start", "80", "1024 or more"),
        *(("quota_max_cost", text, "a number of US dollars, 0 or more") for text in ("-1", "nan", "inf", "ten")),
        *(("retention_logs_days", text, DAYS) for text in ("-1", "36501", "soon", "1.5", "٣")),
        ("worktree_enabled", "perhaps", "must be true or false"),
        ("ship_labels", "a,,b", "must be a list of texts"),
        ("git_author", "Ada", "must be a name and an address"),
        ("git_author", "<ada@example.com>", "must be a name and an address"),
        ("ship_merge", "always", "must be one of no, squash, merge, rebase"),
        ("ship_max_files", "0", "must be a whole number, 1 or more"),
        *(("steps_http_allow", text, HOSTS) for text in ("https://a.b", "a/b", "a,,b", "*", "a*.b", "-a")),
        *(
            ("web_host", text, "must be a name or an address")
            for text in ("-x", "a b", "127.0.0.1:80/x", "http://here")
        ),
        *(
            ("web_public_url", text, "without a path")
            for text in ("adw.example.com", "https://", "https://x/adw", "https://x?a=1", "ftp://x", "https://x y")
        ),
        ("webhook_label", "a\tb", "one line of at most 50"),
        ("webhook_label", "x" * 51, "one line of at most 50"),
        ("webhook_login", "@adw", "without an @"),
        ("webhook_login", "adw bot", "without an @"),
        ("webhook_senders", "a,,b", "separated by commas"),
        ("webhook_events", "label, push", "label, comment, opened, assigned, closed, pull_request"),
        ("webhook_events", "label, none", "or none"),
        ("webhook_max_followups", "-1", "0 or more"),
        ("worker_host", "two words", LETTERS),
        ("worker_tags", "gpu,,x", LETTERS),
        ("worker_tags", "a|b", LETTERS),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, name, text, words):
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, **{name: text})

    assert words in str(refused.value)
    if not name.startswith("ports_"):
        assert f"{name.replace('_', '.', 1)} (env ADW_{name.upper()})" in str(refused.value)


def test_the_model_sets_of_adw_mean_models_of_claude_unless_something_else_is_said(tmp_path):
    usual = {"base": "sonnet", "heavy": "opus", "lightweight": "haiku"}

    assert model_sets(load(tmp_path)) == usual
    assert model_sets(load(tmp_path, agent_models="heavy=best")) == {**usual, "heavy": "best"}
    assert model_sets(load(tmp_path, agent_name="codex")) == {}
    assert model_sets(load(tmp_path, agent_name="codex", agent_models="base=gpt")) == {"base": "gpt"}


def test_the_variables_that_adw_gives_to_a_phase_are_no_settings(tmp_path):
    load(tmp_path, backend_port="9100", frontend_port="9200")


# --- secrets ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "values"),
    [
        ("web_token", f"{ONE}, {TWO}", {ONE, TWO}),
        ("webhook_secret", "s3cret, s3cret-next", {"s3cret", "s3cret-next"}),
        ("notify_url", HOOK, {HOOK}),
    ],
)
def test_a_secret_is_shown_as_set_and_stands_in_no_file(tmp_path, name, text, values):
    read = load(tmp_path, **{name: text})

    assert read.shown(name) == "set"
    assert values <= set(read.secrets())
    with pytest.raises(ConfigError, match=name.replace("_", r"\.", 1)):
        load(tmp_path, f'[{name.partition("_")[0]}]\n{name.partition("_")[2]} = "{text}"\n')


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        *(("web_token", text, "must be") for text in ("short", f"{ONE},", f"{ONE}, short", "two words of a token 123")),
        ("webhook_secret", "two words", "must be one word"),
        *(("notify_url", text, "https://") for text in ("ftp://x", "example.invalid/hook", "https://a b")),
        ("web_public_url", "https://user@x", "without a path"),
    ],
)
def test_a_secret_that_cannot_be_is_refused_and_not_repeated(tmp_path, name, text, words):
    with pytest.raises(ConfigError, match=words) as refused:
        load(tmp_path, **{name: text})

    assert text not in str(refused.value)


def test_no_secret_of_the_settings_reaches_a_process_that_adw_starts():
    """A token of the API in an agent's environment would let the agent start and approve workflows."""
    names = {name for one in settings.SETTINGS if one.secret for name in (one.env, *one.aliases)}

    assert names - OWN_SECRETS == set()


# --- [limits.SCOPE] --------------------------------------------------------------------------------------------


def test_limits_are_read_by_scope_and_repositories_in_any_case(tmp_path):
    limits = load(
        tmp_path,
        '[limits.repository]\n"Acme/Widget" = 1\n"*" = 2\n[limits.workflow]\nsdlc = 0\n'
        "[limits.provider]\nanthropic = 3\n[limits]\nmax_minutes = 2\n",
    ).run_limits

    assert limits.of("repository:acme/widget") == 1
    assert limits.of("repository:acme/other") == 2
    assert limits.of("workflow:sdlc") == 0
    assert limits.of("workflow:patch") is None
    assert limits.of("provider:anthropic") == 3


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[limits.team]\na = 1", r"adw\.toml:2: limits\.team\.a is not a setting of adw"),
        ("[limits]\nworkflow = 3", r"adw\.toml:2: limits\.workflow must be a table, such as \[limits\.workflow\]"),
        ('[limits.workflow]\nsdlc = "3"', r"adw\.toml:2: the limit of workflow 'sdlc' must be a whole number, 0 or"),
        ("[limits.workflow]\nsdlc = true", "must be a whole number"),
        ("[limits.workflow]\nsdlc = -1", "must be a whole number, 0 or more"),
        ('[limits.workflow]\n"*" = 0', r"'\*' must be a whole number, 1 or more"),
        ('[limits.workflow]\n"a|b" = 1', "cannot be the name of a workflow"),
        ('[limits.repository]\n"A/b" = 1\n"a/B" = 2', r"adw\.toml:3: the repository 'a/B' has two limits"),
    ],
)
def test_what_is_no_limit_is_refused_with_its_place(tmp_path, text, sentence):
    with pytest.raises(ConfigError, match=sentence):
        load(tmp_path, text)


def test_the_words_of_limits_are_those_of_the_queue():
    assert (settings.EVERY, settings.SCOPES) == (queue_model.EVERY, queue_model.SCOPES)
