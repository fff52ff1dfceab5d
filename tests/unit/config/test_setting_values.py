"""The values of single settings: defaults, what is taken and as what, and what is refused with which sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from adws.adw_modules.agents.base import names as agent_names
from adws.adw_modules.agents.prices import model_sets
from adws.adw_modules.errors import ConfigError
from adws.adw_modules.identifiers import OWN_SECRETS
from adws.adw_modules.queue import model as queue_model
from adws.adw_modules.schedule.jobs import CRON_ENTRIES, entries_of
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


def test_there_are_no_more_settings_than_a_person_can_look_through():
    assert len(settings.SETTINGS) <= 80
    assert len(settings.COMMON) == 20


def test_by_default_work_is_isolated_and_nobody_from_outside_gets_in(tmp_path):
    usual = load(tmp_path)

    assert (usual.worktree_enabled, usual.ship_pull_request, usual.ship_allow_paths) == (True, "draft", None)
    assert (usual.agent_name, usual.agent_permissions, usual.agent_model) == ("claude", "edit", None)
    assert (usual.web_host, usual.web_port, usual.web_token) == ("127.0.0.1", 8001, None)
    assert (usual.webhook_label, usual.webhook_max_followups) == ("adw", 0)
    assert agent_names() == settings.AGENTS


def test_comments_and_the_removal_of_left_overs_are_on_the_schedule_only_when_asked_for(tmp_path):
    expressions = entries_of(load(tmp_path))

    assert [*expressions] == [*CRON_ENTRIES] == [*CRON_JOBS]
    assert [name for name, text in expressions.items() if not text] == ["poll_comments", "gc_execute"]


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        *(
            ("repository", text, "acme/shop")
            for text in (
                "acme/shop",
                "https://github.com/acme/shop",
                "https://github.com/acme/shop.git/",
                "git@github.com:acme/shop.git",
                "ssh://git@forge.corp.invalid:2222/acme/shop.git",
                "https://forge.corp.invalid/acme/shop",
            )
        ),
        ("repository", "https://github.com/me/me.github.io.git", "me/me.github.io"),
        ("agent_programs", "claude=/opt/claude, codex=cx", {"claude": "/opt/claude", "codex": "cx"}),
        ("worktree_enabled", "false", False),
        ("worktree_enabled", "Off", False),
        ("worktree_enabled", "1", True),
        ("worktree_enabled", "yes", True),
        ("worktree_include", "None", ()),
        ("sandbox_memory", "OFF", 0),
        ("sandbox_memory", "512 MiB", 2**29),
        ("worktree_include", " ./a , b/c,, ", ("a", "b/c")),
        ("git_author", "Ada Example <ada@example.com>", "Ada Example <ada@example.com>"),
        ("quota_max_cost", "0", 0.0),
        ("cron_jobs", "GC,report", ("gc", "report")),
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
        ("agent_model", "sonnet", {"": "sonnet"}),
        ("agent_model", "heavy=best, small, advisor=tiny", {"heavy": "best", "": "small", "advisor": "tiny"}),
        ("webhook_secret", "with,comma", ("with,comma",)),
        ("webhook_secret", "with,comma  next", ("with,comma", "next")),
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
        '[notify]\nevents = ["failed", "quota"]\n[cron]\njobs = ["gc"]\n'
        '[worker]\nhost = "alpha"\ntags = ["gpu", "big"]\n'
        "[webhook]\nmax_followups = 2\n[retention]\nlogs_days = 30\n",
    )

    assert (read.worktree_enabled, read.shown("worktree_enabled")) == (False, "false")
    assert (read.ship_labels, read.shown("ship_labels")) == (("adw", "robot"), "adw, robot")
    assert read.ship_allow_paths == ("docs/", "*.md")
    assert kinds.commands_in(read.worktree_setup) == (("npm", "ci", "--prefix", "my app"), ("uv", "sync"))
    assert (read.agent_name, read.agent_model) == ("codex", {"": "openai/gpt-5.1-codex"})
    assert (read.agent_env, read.notify_events, read.cron_jobs) == (
        ("NPM_TOKEN", "FOO"),
        ("failed", "quota"),
        ("gc",),
    )
    assert (read.worker_host, read.worker_tags) == ("alpha", ("big", "gpu"))
    assert (read.webhook_max_followups, read.retention_logs_days) == (2, 30)


FILES = "must be paths inside the repository"
SHELL = "without what only a shell understands"
DAYS = "must be a whole number from 0 to 36500"
HOSTS = "must be names of hosts"
LETTERS = "letters, digits and . _ : -"


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("store", "cloud", "must be one of files, database"),
        *(("lease_ttl_seconds", text, "seconds above 0") for text in ("nan", "inf", "-1", "0", "soon")),
        *(("max_attempts", text, "must be a whole number, 1 or more") for text in ("1.5", "0", "true")),
        *(("quota_min_free_disk", text, "above 0, or a number with KiB, MiB or GiB") for text in ("16 MB", "0", "off")),
        *(("repository", text, "owner/name") for text in ("shop", "../..")),
        ("git_remote", "--upload-pack=x", "git remote"),
        ("agent_programs", "claude=--help", "name or path of a program"),
        ("agent_programs", "hal=/opt/hal", "NAME=VALUE, separated by commas, where NAME is one of claude"),
        ("state_dir", "~nobody-of-this-name/x", "must be a path"),
        ("state_dir", "a\0b", "without a null character"),
        ("github_api_url", "ftp://ghe.example.com", "must be an address such as https://github.example.com/api/v3"),
        ("forge", "gitlab", "must be one of auto, github, local, none, or the name of a plugin"),
        ("advisor_use", "pkg.mod:", "or package.module:function"),
        ("agent_name", "hal", "must be one of claude, codex, gemini, opencode, aider"),
        ("agent_permissions", "root", "must be one of read, edit, all"),
        ("agent_model", "--yolo", "must be the name of a model"),
        ("agent_model", "heavy=a b", "must be the name of a model"),
        ("agent_model", "huge=a", "NAME is one of base, heavy"),
        ("agent_env", "A, B=1", "must be names of environment variables, separated by commas"),
        *(("notify_command", text, SHELL) for text in ("a && b", "a ; b")),
        ("notify_command", "one\ntwo", "must be one command"),
        ("notify_events", "sunset", "words of failed"),
        *(
            ("worktree_include", text, FILES)
            for text in ("/etc/passwd", "../x", "a/../../x", "~/.ssh/id", "-rf", "\x07")
        ),
        *(("worktree_setup", text, SHELL) for text in ("npm ci && uv sync", "cat a | sh")),
        ("worktree_setup", "echo 'open", "no closing quotation"),
        ("ports_backend_start", "65425", "the last port would be 65539, above 65535"),
        ("ports_backend_start", "80", "1024 or more"),
        *(("quota_max_cost", text, "a number of US dollars, 0 or more") for text in ("-1", "nan", "inf", "ten")),
        *(("retention_logs_days", text, DAYS) for text in ("-1", "36501", "soon", "1.5", "٣")),
        ("worktree_enabled", "perhaps", "must be true or false"),
        ("ship_labels", "a,,b", "must be a list of texts"),
        ("git_author", "Ada", "must be a name and an address"),
        ("git_author", "<ada@example.com>", "must be a name and an address"),
        ("ship_pull_request", "always", "must be one of draft, ready, squash, merge, rebase"),
        ("ship_max_lines", "0", "must be a whole number, 1 or more"),
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
        ("cron_jobs", "gc, none", "or none"),
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
    if "last port" not in words:
        setting = settings.BY_NAME[name]
        assert f"{setting.key} (env {setting.env}) is {text!r} but " in str(refused.value)


def test_the_model_sets_of_adw_mean_models_of_claude_unless_something_else_is_said(tmp_path):
    usual = {"base": "sonnet", "heavy": "opus", "lightweight": "haiku"}

    assert model_sets(load(tmp_path)) == usual
    assert model_sets(load(tmp_path, agent_model="heavy=best")) == {**usual, "heavy": "best"}
    assert model_sets(load(tmp_path, agent_name="codex")) == {}
    assert model_sets(load(tmp_path, agent_name="codex", agent_model="base=gpt")) == {"base": "gpt"}


def test_the_variables_that_adw_gives_to_a_phase_are_no_settings(tmp_path):
    load(tmp_path, backend_port="9100", frontend_port="9200")


# --- secrets ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "values"),
    [
        ("web_token", f"{ONE}, {TWO}", {ONE, TWO}),
        ("webhook_secret", "s3cret s3cret-next", {"s3cret", "s3cret-next"}),
        ("notify_url", HOOK, {HOOK}),
    ],
)
def test_a_secret_is_shown_as_set_and_stands_in_no_file(tmp_path, name, text, values):
    read = load(tmp_path, **{name: text})

    assert (read.shown(name), load(tmp_path).shown(name)) == ("set", None)
    assert not any(value in repr(read) for value in values)
    assert values <= set(read.secrets())
    with pytest.raises(ConfigError, match=name.replace("_", r"\.", 1)):
        load(tmp_path, f'[{name.partition("_")[0]}]\n{name.partition("_")[2]} = "{text}"\n')


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        *(("web_token", text, "must be") for text in ("short", f"{ONE},", f"{ONE}, short", "two words of a token 123")),
        ("webhook_secret", "one, two", "must be one word"),
        *(("notify_url", text, "https://") for text in ("ftp://x", "example.invalid/hook", "https://a b")),
        ("web_public_url", "https://user@x", "without a path"),
        *(
            ("database_url", text, "must be sqlite:///PATH or postgresql://")
            for text in ("mysql://me:hush@db/x", "sqlite://:memory:", "sqlite:///", "postgresql://")
        ),
        ("github_token", "ghp_one ghp_two", "must be one word"),
        ("repository", "https://hush@github.com/acme", "owner/name"),
    ],
)
def test_a_secret_that_cannot_be_is_refused_and_not_repeated(tmp_path, name, text, words):
    with pytest.raises(ConfigError, match=words) as refused:
        load(tmp_path, **{name: text})

    assert repr(text) not in str(refused.value)


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
