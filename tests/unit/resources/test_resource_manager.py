"""`ResourceQuota`: the plain calls say yes and no, and enforcing stops and explains."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from adws.adw_modules import default_home
from adws.adw_modules.errors import QuotaExceeded, UsageError
from adws.adw_modules.resource_manager import CHECKS, ResourceQuota
from adws.adw_modules.resources.quotas import GB, Limits, Quotas, QuotaStatus
from adws.config import load as config_load
from tests.homes import lab_home

NAMES = ("disk", "memory", "worktrees", "worktree_size", "cost_per_day")


class MeasuredQuotas(Quotas):
    """Quotas of a machine that is as the test says."""

    measured: tuple[QuotaStatus, ...] = ()

    def status(self, *, estimated_cost=None):
        measured = {one.name: one for one in self.measured}
        return tuple(measured.get(one.name, one) for one in super().status(estimated_cost=estimated_cost))


def new_quotas(home, measured):
    made = MeasuredQuotas(home.database, clock=home.clock, trees=home.settings.trees_dir, host=home.host)
    made.measured = measured
    return made


@pytest.fixture
def home():
    return lab_home()


@pytest.fixture
def quotas(home):
    home.quotas = new_quotas(
        home,
        [
            QuotaStatus(name=name, used=1, limit=2, unit="", is_exceeded=False, detail=f"do something about {name}")
            for name in NAMES
        ],
    )
    with default_home.using(home):
        yield home.quotas


def change(quotas, name, **facts):
    quotas.measured = [replace(one, **facts) if one.name == name else one for one in quotas.measured]


def test_the_constants_are_the_defaults_of_the_settings(tmp_path):
    settings, limits = config_load.load(env={}, cwd=tmp_path), Limits()

    assert ResourceQuota.MIN_FREE_DISK_GB * GB == limits.min_free_disk == settings.quota_min_free_disk
    assert ResourceQuota.MAX_WORKTREES == limits.max_worktrees == settings.quota_max_worktrees
    assert ResourceQuota.MAX_DISK_PER_WORKTREE_GB * GB == limits.max_worktree_size == settings.quota_max_worktree_size
    assert ResourceQuota.MAX_API_COST_PER_WORKFLOW == limits.max_cost == settings.quota_max_cost
    assert limits.min_free_memory == settings.quota_min_free_memory
    assert limits.max_cost_per_day == settings.quota_max_cost_per_day
    assert limits.max_runs == settings.quota_max_runs


def test_each_check_speaks_for_its_own_limit(home, quotas):
    assert ResourceQuota.check_disk_space() is True
    assert ResourceQuota.check_worktree_count() is True
    assert ResourceQuota.check_api_budget(10.0) is True
    assert ResourceQuota.check_api_budget(10.01) is False

    other_quotas = new_quotas(home, quotas.measured)
    change(quotas, "disk", is_exceeded=True)
    assert ResourceQuota.check_disk_space() is False
    assert ResourceQuota.check_disk_space(quotas=other_quotas) is True
    change(quotas, "worktrees", is_exceeded=True)
    assert ResourceQuota.check_worktree_count() is False


@pytest.mark.parametrize("cost", [-1.0, float("nan")])
def test_what_is_no_cost_is_refused(quotas, cost):
    with pytest.raises(UsageError, match="is no cost"):
        ResourceQuota.check_api_budget(cost)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "worktree_size"])
def test_enforcing_stops_and_says_what_to_do(quotas, name):
    change(quotas, name, used=3, limit=2, is_exceeded=True)

    with pytest.raises(QuotaExceeded, match=f"the quota {name} is used up: do something about {name}") as refused:
        ResourceQuota.enforce_quotas(5.0)

    assert refused.value.name == name


def test_a_worktree_that_is_too_large_is_in_the_answer_and_refuses_nobody_else(quotas):
    change(quotas, "worktree_size", used=3, limit=2, is_exceeded=True)

    assert ResourceQuota.enforce_quotas(5.0) == {**dict.fromkeys(CHECKS, True), "worktree_size": False}


def test_a_cost_that_is_not_known_is_in_the_answer_and_in_the_log(quotas, caplog):
    with caplog.at_level(logging.WARNING):
        checks = ResourceQuota.enforce_quotas()

    assert checks["api_budget"] is True
    assert [(record.action, record.quota) for record in caplog.records] == [("quota_unknown", "cost")]
