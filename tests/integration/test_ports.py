"""Real sockets: what is reserved is held, what a stranger has is left to it, what a dead worker left is freed."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from adws.adw_modules.interfaces import Verdict
from adws.adw_modules.process.identity import SystemProcesses
from adws.adw_modules.resources import ports
from adws.adw_modules.resources.ports import Ports, is_free
from tests import warm
from tests.contracts.worlds import FIRST, SECOND, make_owner
from tests.homes import free_range

ASKER = [sys.executable, str(Path(__file__).with_name("quota_asker.py"))]


@pytest.fixture
def hold(database, clock):
    """`hold("one", span)` are the ports of a process of that name."""
    made = []

    def make(name="one", span=None) -> Ports:
        made.append(Ports(database, clock=clock, me=make_owner(name), ports=span or free_range(3)))
        return made[-1]

    yield make
    for one in made:
        one.close()


def listens(port: int, address: str = "127.0.0.1") -> bool:
    try:
        socket.create_connection((address, port), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


# --- holding ---------------------------------------------------------------------------------------------------


def test_inside_the_block_a_process_can_bind_and_after_it_the_port_is_held_again(hold):
    ports = hold()
    pair = ports.take(FIRST)

    with ports.handed_over(FIRST):
        assert not ports.is_held(FIRST)
        server = socket.create_server(("127.0.0.1", pair.backend))
        client = socket.create_connection(("127.0.0.1", pair.backend))
        accepted, _ = server.accept()
        for one in (accepted, client, server):  # our side first: its connection lingers in TIME_WAIT
            one.close()

    assert ports.is_held(FIRST)
    assert not is_free(pair.backend)


def test_a_server_that_stayed_keeps_its_port_and_the_next_take_finds_another(hold):
    """
    It is not ended here; the work continues with other ports.
    """
    ports = hold()
    pair = ports.take(FIRST)
    with ports.handed_over(FIRST):
        stayed = socket.create_server(("127.0.0.1", pair.frontend))

    assert not ports.is_held(FIRST)
    assert {row.adw_id for row in ports.all()} == {FIRST}
    again = ports.take(FIRST)

    assert again.frontend != pair.frontend
    assert listens(pair.frontend)
    stayed.close()


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::1", "::"])
def test_a_stranger_is_passed_over_wherever_it_listens_and_is_alive_at_the_end(hold, address):
    span = free_range(2)
    wanted = next(span.pairs_for(FIRST))
    code = (
        "import socket, sys\n"
        "s = socket.create_server((sys.argv[1], int(sys.argv[2])), "
        "family=socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET)\n"
        "print('up', flush=True)\nsys.stdin.readline()\n"
    )
    stranger = subprocess.Popen(
        [sys.executable, "-c", code, address, str(wanted.backend)], stdin=-1, stdout=-1, text=True
    )
    try:
        assert stranger.stdout.readline() == "up\n"
        ports = hold(span=span)

        taken = ports.take(FIRST)
        ports.free(FIRST)

        assert taken != wanted
        assert stranger.poll() is None
        assert listens(wanted.backend, "::1" if ":" in address else "127.0.0.1")
    finally:
        stranger.communicate("\n")


# --- several processes -----------------------------------------------------------------------------------------


def test_fifteen_processes_get_fifteen_pairs(database_url):
    span = free_range(15)
    running = warm.begin_together(
        *([*ASKER, database_url, "-", "ports", f"{number:08x}", str(span.backend_start), "15"] for number in range(15))
    )
    pairs = [process.stdout.readline().split() for process in running]
    try:
        assert len({port for pair in pairs for port in pair}) == 30, pairs
        assert all(listens(int(port)) for pair in pairs for port in pair)
    finally:
        for process in running:
            process.communicate("\n", timeout=60)


def test_what_a_killed_worker_left_is_freed_and_what_a_live_one_has_is_not(database_url, open_db, clock):
    span = free_range(3)
    workers = warm.begin_together(
        *([*ASKER, database_url, "-", "ports", adw_id, str(span.backend_start), "3"] for adw_id in (FIRST, SECOND))
    )
    for worker in workers:
        worker.stdout.readline()
    processes = SystemProcesses(clock=clock)
    ports = Ports(open_db(database_url), clock=clock, me=processes.me("cli"), ports=span)
    workers[0].send_signal(signal.SIGKILL)
    workers[0].wait()
    try:
        freed = ports.free_left_behind(processes.verdict)

        assert {row.adw_id for row in freed} == {FIRST}
        assert len(freed) == 2
        assert {row.adw_id for row in ports.all()} == {SECOND}
        assert ports.free_left_behind(processes.verdict) == ()
    finally:
        for worker in workers:
            worker.communicate("\n") if worker.poll() is None else worker.communicate()


def test_left_behind_is_only_what_is_proven_so(database, clock, hold):
    """
    An owner nobody can judge, one of another host, and a port somebody still listens on: all stay.
    """
    span = free_range(3)
    gone = hold("gone", span)
    pair = gone.take(FIRST)
    me = hold("me", span)

    assert me.free_left_behind(lambda _owner: Verdict.UNKNOWN) == ()
    assert me.free_left_behind(lambda _owner: Verdict.DEAD) == (), "its sockets are open: something listens"
    gone.close()
    elsewhere = Ports(database, clock=clock, me=replace(make_owner("me"), host="other"))
    assert elsewhere.free_left_behind(lambda _owner: Verdict.DEAD) == ()
    assert {row.port for row in me.free_left_behind(lambda _owner: Verdict.DEAD)} == {pair.backend, pair.frontend}


def test_half_a_pair_that_is_left_is_no_obstacle(hold):
    """
    Something listened on one of the two ports when the other was freed.
    """
    span = free_range(3)
    gone, new = hold("gone", span), hold("new", span)
    pair = gone.take(FIRST)
    gone.close()
    with socket.create_server(("127.0.0.1", pair.backend)):
        assert [row.port for row in new.free_left_behind(lambda _owner: Verdict.DEAD)] == [pair.frontend]

    assert new.take(FIRST) in span
    assert len(new.all()) == 2


def test_without_the_sixth_version_of_ip_the_fourth_is_held(hold, monkeypatch):
    monkeypatch.setattr(
        ports, "_LOOPBACK", ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "2001:db8::1"), (999, "x"))
    )

    pair = hold().take(FIRST)

    assert listens(pair.backend)


def test_a_process_that_starts_does_not_inherit_the_sockets(hold):
    ports = hold()
    pair = ports.take(FIRST)
    code = "import sys; print('up', flush=True); sys.stdin.readline()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, close_fds=False)
    try:
        child.stdout.readline()  # a moment before the program begins it still has what it is about to close
        ports.free(FIRST)
        assert is_free(pair.backend)
    finally:
        child.communicate(b"\n")
