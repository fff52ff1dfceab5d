"""What every Ports keeps."""

from __future__ import annotations

import threading

import pytest

from adws.adw_modules.errors import InvalidAdwId, PortsExhausted
from adws.adw_modules.resources.ports import PortPair
from tests.contracts.worlds import FIRST, MOMENT, SECOND, THIRD


class PortContract:
    """Mix in and give `ports` (three pairs), their `port_range`, and `occupy`, which puts a stranger on a port."""

    def test_a_workflow_gets_the_pair_of_its_id(self, ports, port_range):
        expected = next(port_range.pairs_for(FIRST))

        assert ports.take(FIRST) == expected

        rows = sorted((row.port, row.purpose) for row in ports.all())
        assert rows == sorted([(expected.backend, "backend"), (expected.frontend, "frontend")])
        assert {(row.adw_id, row.reserved_at) for row in ports.all()} == {(FIRST, MOMENT)}

    def test_taking_again_returns_the_same_pair(self, ports, clock):
        taken = ports.take(FIRST)
        clock.advance(60.0)

        assert ports.take(FIRST) == taken
        assert {row.reserved_at for row in ports.all()} == {MOMENT}, "it has it since the first time"

    def test_a_pair_that_is_taken_is_passed_over(self, ports, port_range):
        first = ports.take(FIRST)
        twin = next(name for name in map("{:08x}".format, range(500)) if next(port_range.pairs_for(name)) == first)

        second = ports.take(twin)

        assert second != first
        assert second in port_range

    def test_of_many_threads_each_gets_a_pair_of_its_own(self, ports):
        start, got, none = threading.Barrier(6), [], []

        def compete(adw_id: str) -> None:
            start.wait()
            try:
                got.append(ports.take(adw_id))
            except PortsExhausted:
                none.append(adw_id)

        threads = [threading.Thread(target=compete, args=(f"{n:08x}",)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert (len(set(got)), len(got), len(none)) == (3, 3, 3)

    def test_when_all_are_taken_the_refusal_says_what_to_do(self, ports):
        for adw_id in (FIRST, SECOND, THIRD):
            ports.take(adw_id)

        with pytest.raises(PortsExhausted, match=r"no pair of ports is free in .*free some"):
            ports.take("00000000")

        assert len(ports.all()) == 6

    def test_a_freed_pair_is_free_for_another(self, ports):
        taken = {adw_id: ports.take(adw_id) for adw_id in (FIRST, SECOND, THIRD)}

        assert ports.free(SECOND) == tuple(sorted((taken[SECOND].backend, taken[SECOND].frontend)))
        assert ports.free(SECOND) == ()
        assert ports.take("00000000") == taken[SECOND]

    def test_what_a_stranger_listens_on_is_passed_over(self, ports, port_range, occupy):
        expected = next(port_range.pairs_for(FIRST))
        occupy(expected.frontend)

        taken = ports.take(FIRST)

        assert taken != expected
        assert expected.frontend not in {row.port for row in ports.all()}
        assert expected.backend not in {row.port for row in ports.all()}, "half a pair is not kept"

    def test_the_pair_it_had_before_is_preferred(self, ports, port_range):
        wanted = list(port_range.pairs_for(FIRST))[2]

        assert ports.take(FIRST, preferred=wanted) == wanted

    def test_a_preferred_pair_that_is_taken_or_out_of_range_is_no_obstacle(self, ports, port_range):
        taken = ports.take(SECOND)

        assert ports.take(FIRST, preferred=taken) != taken
        ports.free(FIRST)
        assert ports.take(FIRST, preferred=PortPair(backend=80, frontend=81)) in port_range

    def test_a_pair_that_was_handed_over_stays_reserved(self, ports):
        taken = ports.take(FIRST)

        with ports.handed_over(FIRST):
            assert {row.adw_id for row in ports.all()} == {FIRST}

        assert ports.take(FIRST) == taken

    def test_a_workflow_without_ports_hands_nothing_over(self, ports):
        with ports.handed_over(FIRST):
            pass

        assert ports.all() == ()

    def test_a_pair_freed_while_it_was_handed_over_is_gone(self, ports):
        ports.take(FIRST)

        with ports.handed_over(FIRST):
            ports.free(FIRST)

        assert ports.all() == ()

    def test_an_id_that_is_no_name_is_refused(self, ports):
        for call in (ports.take, ports.free):
            with pytest.raises(InvalidAdwId):
                call("../etc")
