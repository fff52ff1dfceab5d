"""What every Quotas keeps."""

from __future__ import annotations

import threading

import pytest

from adws.adw_modules.errors import InvalidAdwId, QuotaExceeded


class QuotaContract:
    """Mix in and give `quotas` with room for three runs."""

    def test_three_get_a_place_and_the_fourth_is_told_why_not(self, quotas):
        for number in range(3):
            quotas.admit(f"{number:08x}")

        with pytest.raises(QuotaExceeded, match=r"the quota runs is used up: 3 of 3 .*: wait") as refused:
            quotas.admit("00000009")

        assert refused.value.name == "runs"
        assert status_of(quotas, "runs").used == 3

    def test_a_workflow_that_has_a_place_is_admitted_again(self, quotas):
        for number in (0, 1, 2, 1, 2):
            quotas.admit(f"{number:08x}")

        assert status_of(quotas, "runs").used == 3
        assert status_of(quotas, "runs").is_exceeded is True, "one more would be refused"

    def test_a_place_that_was_given_back_is_free(self, quotas):
        for number in range(3):
            quotas.admit(f"{number:08x}")
        quotas.release("00000001")
        quotas.release("00000001")

        quotas.admit("00000009")

        assert status_of(quotas, "runs").used == 3

    def test_what_would_cost_too_much_is_refused(self, quotas):
        with pytest.raises(QuotaExceeded) as refused:
            quotas.admit("00000001", estimated_cost=10.5)

        assert refused.value.name == "cost"
        assert status_of(quotas, "runs").used == 0
        quotas.admit("00000001", estimated_cost=10.0)

    def test_a_cost_that_nobody_knows_is_said_not_skipped(self, quotas):
        unknown = status_of(quotas, "cost")

        assert (unknown.is_known, unknown.is_exceeded) == (False, False)
        assert "not known" in unknown.detail

    def test_of_many_threads_three_get_in(self, quotas):
        start, got, refused = threading.Barrier(8), [], []

        def compete(adw_id: str) -> None:
            start.wait()
            try:
                quotas.admit(adw_id)
                got.append(adw_id)
            except QuotaExceeded:
                refused.append(adw_id)

        threads = [threading.Thread(target=compete, args=(f"{n:08x}",)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert (len(got), len(refused)) == (3, 5)

    def test_an_id_that_is_no_name_is_refused(self, quotas):
        for call in (quotas.admit, quotas.release):
            with pytest.raises(InvalidAdwId):
                call("../etc")


def status_of(quotas, name):
    return next(status for status in quotas.status() if status.name == name)
