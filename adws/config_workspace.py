"""
The part of the table of settings about the place of work: worktrees, shipping, ports, limits, breakers.

Apart from config_table.py because of its length; nobody reads it from here.
"""

from __future__ import annotations

from adws import config_values
from adws.config_setting import Setting

_AT_LEAST_ONE = config_values.whole(least=1)
_SIZE = "bytes, or a number with KiB, MiB or GiB"

WORKSPACE_SETTINGS: tuple[Setting, ...] = (
    Setting(
        "worktree_enabled",
        "true",
        config_values.switch,
        "Work in a git worktree and on a branch of its own for each workflow; without it, or where the home is in no "
        "git repository, work is done in place.",
        "worktree.enabled",
        values="true, false",
    ),
    Setting(
        "workspace_publish_work",
        "auto",
        config_values.choice("auto", "always", "never"),
        "Push the commits of each phase to refs/adw/wip/ID before its result is written, so that a worker on another "
        "machine can go on. auto: with PostgreSQL, and what cannot be pushed stays with its machine. always: what "
        "cannot be pushed fails the attempt. never: work stays with its machine.",
        "workspace.publish_work",
        values="auto, always, never",
    ),
    Setting(
        "ship_merge",
        "no",
        config_values.choice("no", "squash", "merge", "rebase"),
        "Merge the pull request when it is put up, and how.",
        "ship.merge",
        values="no, squash, merge, rebase",
    ),
    Setting(
        "ship_draft",
        "true",
        config_values.switch,
        "Put pull requests up as drafts.",
        "ship.draft",
        values="true, false",
    ),
    Setting(
        "ship_labels", "", config_values.texts, "Labels that pull requests get.", "ship.labels", values="A, B, ..."
    ),
    Setting(
        "ship_allow_paths",
        "",
        config_values.texts,
        "Patterns of files that the check before a push lets through, whatever they are.",
        "ship.allow_paths",
        values="A, B, ...",
    ),
    Setting(
        "ship_allow_workflow_files",
        "false",
        config_values.switch,
        "Push changes of .github/workflows and its like.",
        "ship.allow_workflow_files",
        values="true, false",
    ),
    Setting(
        "ship_allow_agent_files",
        "false",
        config_values.switch,
        "Push changes of the configuration of agents: .claude, CLAUDE.md, .mcp.json, adw.toml and their like.",
        "ship.allow_agent_files",
        values="true, false",
    ),
    Setting(
        "ship_max_files",
        "300",
        _AT_LEAST_ONE,
        "Most files that one push may change.",
        "ship.max_files",
        values="1 or more",
    ),
    Setting(
        "ship_max_lines",
        "20000",
        _AT_LEAST_ONE,
        "Most lines, added and removed, that one push may change.",
        "ship.max_lines",
        values="1 or more",
    ),
    Setting(
        "worktree_include",
        ".env, app/server/.env, .mcp.json, playwright-mcp-config.json",
        config_values.file_list,
        "Files of the main checkout that new worktrees get too; those that git does not ignore are left out.",
        "worktree.include",
        values="paths, separated by commas, or none",
    ),
    Setting(
        "worktree_setup",
        "",
        config_values.command_list,
        "Commands that set a new worktree up, such as npm ci; run one after the other, without a shell.",
        "worktree.setup",
        values="one command a line",
    ),
    *(
        Setting(f"ports_{name}", default, config_values.whole(least=least), text, f"ports.{name}", values=values)
        for name, default, least, text, values in (
            ("backend_start", "9100", 1024, "First port for the backend of a workflow.", "1024 or more"),
            ("frontend_start", "9200", 1024, "First port for the frontend of a workflow.", "1024 or more"),
            ("count", "15", 1, "Pairs of ports there are.", "1 or more"),
        )
    ),
    *(
        Setting(f"quota_{name}", default, parse, text, f"quota.{name}", values=values)
        for name, default, parse, text, values in (
            ("min_free_disk", "10 GiB", config_values.size, "Disk that must be free where worktrees are.", _SIZE),
            ("min_free_memory", "1 GiB", config_values.size, "Memory that must be free to start work.", _SIZE),
            ("max_worktrees", "15", _AT_LEAST_ONE, "Worktrees on one machine.", "1 or more"),
            ("max_worktree_size", "5 GiB", config_values.size, "Disk that one worktree may take.", _SIZE),
            ("max_cost", "10", config_values.amount, "What one workflow may cost.", "US dollars"),
            ("max_cost_per_day", "100", config_values.amount, "What all may cost from midnight UTC.", "US dollars"),
            ("max_runs", "15", _AT_LEAST_ONE, "Workflows that are worked on at once.", "1 or more"),
        )
    ),
    *(
        Setting(f"breakers_{name}", default, parse, text, f"breakers.{name}", values=values)
        for name, default, parse, text, values in (
            (
                "failure_threshold",
                "5",
                config_values.whole_between(1, 1000),
                "Failures in a row of an outside party, such as an agent's provider, after which nobody asks it.",
                "1 to 1000",
            ),
            (
                "reset_timeout_seconds",
                "60",
                config_values.seconds_between(1, 86400),
                "How long nobody asks it, unless it said itself until when.",
                "1 to 86400 seconds",
            ),
            (
                "half_open_max_attempts",
                "1",
                config_values.whole_between(1, 10),
                "How many may try it at a time after that, before all may again.",
                "1 to 10",
            ),
        )
    ),
)
