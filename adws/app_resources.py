"""
The wiring of what workflows hold on this machine and share: git, worktrees, ports, quotas, breakers.

Apart from `app` because looking at workflows needs none of it.
"""

from __future__ import annotations

from adws import config, config_values
from adws.adw_modules.circuit_breaker import CircuitBreakerConfig, CircuitBreakerRegistry
from adws.adw_modules.db.breakers import DatabaseBreakers
from adws.adw_modules.db.ports import DatabasePortBook
from adws.adw_modules.db.quota_book import DatabaseQuotaBook
from adws.adw_modules.db.session import Database
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.owner_record import OwnerRecord
from adws.adw_modules.resources.ports import MachinePorts, PortRange
from adws.adw_modules.resources.quotas import EmptyBook, Limits, MachineQuotas


def port_range(settings: config.Settings) -> PortRange:
    """Return the ports that workflows get theirs from."""
    return PortRange(
        backend_start=settings.ports_backend_start,
        frontend_start=settings.ports_frontend_start,
        count=settings.ports_count,
    )


def open_ports(settings: config.Settings, database: Database, *, clock: Clock, me: OwnerRecord) -> MachinePorts:
    """Return the ports of this machine, reserved in *database* as *me*."""
    return MachinePorts(DatabasePortBook(database, clock=clock), me=me, ports=port_range(settings))


class GitRoom:
    """What works with the repository of a home."""

    def __init__(self, settings: config.Settings, *, clock: Clock) -> None:
        # GitPython takes a tenth of a second to import, and commands that only look at ports or quotas have no use.
        from adws.adw_modules.resources.diff_stats import DiffStats  # noqa: PLC0415 - see above
        from adws.adw_modules.resources.git import GitCommands  # noqa: PLC0415 - see above
        from adws.adw_modules.resources.remote_refs import OwnRemoteRefs  # noqa: PLC0415 - see above
        from adws.adw_modules.resources.repository import RepositoryGit  # noqa: PLC0415 - see above
        from adws.adw_modules.resources.shared_git import SharedGit  # noqa: PLC0415 - see above
        from adws.adw_modules.resources.workplace import WorkplaceGit  # noqa: PLC0415 - see above
        from adws.adw_modules.resources.worktrees import Worktrees  # noqa: PLC0415 - see above

        commands = GitCommands(settings.home, token=settings.github_token, author=settings.git_author or "")
        self.commands = commands
        self.workplace = WorkplaceGit(commands)
        self.repository = RepositoryGit(commands, trees=settings.trees_dir, clock=clock, remote=settings.git_remote)
        self.shared = SharedGit(commands, lambda: self.repository.common_dir, remote=settings.git_remote)
        self.remote_refs = OwnRemoteRefs(commands, lambda: self.repository.common_dir, remote=settings.git_remote)
        self.diff_stats = DiffStats(commands, clock=clock)
        self.worktrees = Worktrees(
            self.repository,
            self.workplace,
            include=config_values.files_in(settings.worktree_include),
            setup=config_values.commands_in(settings.worktree_setup),
        )


def open_quotas(settings: config.Settings, database: Database | None, *, clock: Clock, host: str) -> MachineQuotas:
    """Return the limits of this machine and of everybody who shares *database*, None when there is none yet."""
    limits = Limits(
        min_free_disk=settings.quota_min_free_disk,
        min_free_memory=settings.quota_min_free_memory,
        max_worktrees=settings.quota_max_worktrees,
        max_worktree_size=settings.quota_max_worktree_size,
        max_cost=settings.quota_max_cost,
        max_cost_per_day=settings.quota_max_cost_per_day,
        max_runs=settings.quota_max_runs,
    )

    book = EmptyBook() if database is None else DatabaseQuotaBook(database, clock=clock)

    return MachineQuotas(book, trees=settings.trees_dir, host=host, limits=limits)


def open_breakers(settings: config.Settings, database: Database, *, clock: Clock) -> CircuitBreakerRegistry:
    """Return the breakers of outside parties, which everybody who uses *database* shares."""
    numbers = CircuitBreakerConfig(
        failure_threshold=settings.breakers_failure_threshold,
        reset_timeout_seconds=settings.breakers_reset_timeout_seconds,
        half_open_max_attempts=settings.breakers_half_open_max_attempts,
    )

    return CircuitBreakerRegistry(numbers, store=DatabaseBreakers(database), clock=clock)
