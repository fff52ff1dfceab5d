"""
Issue locks as three plain calls: one live workflow for each issue of a repository.

The lock belongs to the workflow, not to a process: it is taken when the workflow is created, kept while it is parked,
and freed by the write that ends it. A wrong id never gets in and never lets anybody out.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from adws.adw_modules import ambient
from adws.adw_modules.errors import UsageError
from adws.adw_modules.ids import check_adw_id

if TYPE_CHECKING:
    from adws.adw_modules.interfaces import IssueLocks

#: Decimal digits only, no sign, no leading zero: as an issue's address spells it.
_ISSUE = re.compile(r"[1-9][0-9]{0,17}")


def acquire_lock(
    issue_number: int | str, adw_id: str, repository: str | None = None, *, locks: IssueLocks | None = None
) -> bool:
    """Take the lock of an issue for *adw_id*; True when it is (or was already) its own, False when another has it."""
    return _locks(locks).acquire(check_issue_number(issue_number), check_adw_id(adw_id), repository or "")


def verify_lock_ownership(
    issue_number: int | str, adw_id: str, repository: str | None = None, *, locks: IssueLocks | None = None
) -> bool:
    """Say whether *adw_id* has the lock of the issue."""
    return _locks(locks).verify(check_issue_number(issue_number), check_adw_id(adw_id), repository or "")


def release_lock(
    issue_number: int | str, adw_id: str, repository: str | None = None, *, locks: IssueLocks | None = None
) -> bool:
    """Free the lock of an issue; False, and nothing changed, when *adw_id* does not have it."""
    return _locks(locks).release(check_issue_number(issue_number), check_adw_id(adw_id), repository or "")


def check_issue_number(issue_number: object) -> int:
    """Return the number of an issue given as a number or as digits; raise UsageError for anything else."""
    if isinstance(issue_number, int | str) and not isinstance(issue_number, bool):
        digits = str(issue_number).strip()
        if _ISSUE.fullmatch(digits):
            return int(digits)

    raise UsageError(f"{str(issue_number)[:40]!r} is not an issue number: use a whole number from 1 up, such as 42")


def _locks(locks: IssueLocks | None) -> IssueLocks:
    return ambient.parts().locks if locks is None else locks
