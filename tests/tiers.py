"""
What `scripts/test --fast` leaves out: kills, the browser, real agents, PostgreSQL, and what starts many processes.

Everything in the directories below; and files whose tests take long, most of them because they run git, workers and
whole workflows.
"""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parent
DIRECTORIES = frozenset({"acceptance", "agents", "browser", "crash"})
SLOW_FILES = frozenset(
    {
        "test_agent_runner.py",
        "test_agent_workflows.py",
        "test_app_agents.py",
        "test_app_work.py",
        "test_base_check.py",
        "test_breaker_processes.py",
        "test_budgets_of_agents.py",
        "test_control_groups.py",
        "test_database_gone.py",
        "test_db_sqlite.py",
        "test_delivery_faults.py",
        "test_delivery_runs.py",
        "test_diffs.py",
        "test_direct_trigger.py",
        "test_external_loops.py",
        "test_foreign_branch.py",
        "test_forge_faults.py",
        "test_forges.py",
        "test_gates_and_verdicts.py",
        "test_gc_real.py",
        "test_git_attacks.py",
        "test_git_attacks_boxed.py",
        "test_git_repository.py",
        "test_git_workplace.py",
        "test_hijacked_agent.py",
        "test_live_changes.py",
        "test_local_forge.py",
        "test_migrate_tree.py",
        "test_move.py",
        "test_ownership_processes.py",
        "test_parties_at_work.py",
        "test_ports.py",
        "test_process_run.py",
        "test_procrastinate_dispatch.py",
        "test_quotas.py",
        "test_rebuild.py",
        "test_redaction_planted_secrets.py",
        "test_redaction_surroundings.py",
        "test_remote_refs.py",
        "test_retention.py",
        "test_rollback_real.py",
        "test_rollback_runs.py",
        "test_run_queue.py",
        "test_sandbox_work.py",
        "test_sandboxed_agent.py",
        "test_seed_loops.py",
        "test_shared_git.py",
        "test_state_files.py",
        "test_step_counts.py",
        "test_two_hosts.py",
        "test_verify_real.py",
        "test_web_api.py",
        "test_web_external.py",
        "test_web_lists.py",
        "test_web_metrics.py",
        "test_web_pages.py",
        "test_web_recovery.py",
        "test_web_schema.py",
        "test_web_server.py",
        "test_web_steps.py",
        "test_web_workflow_orders.py",
        "test_web_workflow_page.py",
        "test_work_in_worktrees.py",
        "test_worker_processes.py",
        "test_worktrees.py",
    }
)
#: Markers of what needs a part of the machine that takes long to start.
MARKERS = frozenset({"postgres", "browser", "root", "strace"})


def is_fast(file: Path) -> bool:
    """Say whether the quick tier has this file of tests."""
    return not DIRECTORIES & {*file.relative_to(TESTS).parts} and file.name not in SLOW_FILES
