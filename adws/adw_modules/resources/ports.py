"""
Ports of workflows: reserved in the database, held by a bound socket, and released only while their user runs.

Checking that a port is free and using it later is a race. So the row comes first (no two workflows can have the same),
then the socket (which detects other programs). A port that another program listens on is skipped: no process is ever
ended for a port.
"""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from adws.adw_modules import timestamps
from adws.adw_modules.db.connection import Database, Session
from adws.adw_modules.errors import PortsExhausted
from adws.adw_modules.identifiers import check_adw_id
from adws.adw_modules.interfaces import Clock, OwnerRecord, Verdict

#: Purposes of the ports of a pair, in the order of PortPair.
BACKEND, FRONTEND = "backend", "frontend"
#: Addresses on which ports are held: those of `localhost` on this machine.
_LOOPBACK = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))
#: Errors of a machine that does not have the address.
_NO_SUCH_ADDRESS = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT})


@dataclass(frozen=True, kw_only=True, slots=True)
class PortPair:
    """The ports of one workflow."""

    backend: int
    frontend: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PortRow:
    """A reserved port."""

    port: int
    adw_id: str
    purpose: str  #: backend | frontend
    host: str
    reserved_at: str
    owner: str = ""  #: the record of the process that holds it


@dataclass(frozen=True, kw_only=True, slots=True)
class PortRange:
    """The available ports: *count* pairs, from two starts."""

    backend_start: int = 9100
    frontend_start: int = 9200
    count: int = 15

    def pair(self, index: int) -> PortPair:
        """Return the pair at *index*; after the last comes the first."""
        place = index % self.count

        return PortPair(backend=self.backend_start + place, frontend=self.frontend_start + place)

    def pairs_for(self, adw_id: str) -> Iterator[PortPair]:
        """Yield every pair, beginning with the one that users of ADW expect for this id."""
        first = index_of(adw_id, self.count)
        yield from (self.pair(first + step) for step in range(self.count))

    def __contains__(self, pair: PortPair) -> bool:
        place = pair.backend - self.backend_start

        return 0 <= place < self.count and pair == self.pair(place)

    def __str__(self) -> str:
        last = self.count - 1

        return (
            f"{self.backend_start} to {self.backend_start + last} and "
            f"{self.frontend_start} to {self.frontend_start + last}"
        )


def index_of(adw_id: str, count: int) -> int:
    """Return the index of a workflow below *count*: its first eight characters as a number of base 36."""
    digits = "".join(char for char in check_adw_id(adw_id)[:8] if char.isalnum())

    return int(digits, 36) % count


class Ports:
    """The ports of this process: rows of the table ports, and the sockets it holds."""

    def __init__(self, database: Database, *, clock: Clock, me: OwnerRecord, ports: PortRange | None = None) -> None:
        """Reserve in *database* as *me*, from *ports*."""
        self._database = database
        self._clock = clock
        self._me = me
        self._range = ports or PortRange()
        self._held: dict[str, tuple[socket.socket, ...]] = {}
        self._guard = threading.RLock()

    def take(self, adw_id: str, *, preferred: PortPair | None = None) -> PortPair:
        """Return the workflow's pair, reserved, bound and held; a new one if it has none. Raises PortsExhausted."""
        check_adw_id(adw_id)
        with self._guard:
            has_rows, present = self._present(adw_id)
            if present is not None and adw_id in self._held:
                return present
            if has_rows:
                # This process holds them from now on: only the owner of a workflow takes ports for it.
                self._change_rows("UPDATE ports SET owner = :owner WHERE host = :host AND adw_id = :adw_id", adw_id)
                if present is not None and self._bind(adw_id, present):
                    return present
                # Another program listens on one of them, or one of the two was freed meanwhile.
                self._give_up(adw_id)
            wanted = [preferred] if preferred is not None and preferred in self._range else []
            for pair in (*wanted, *self._range.pairs_for(adw_id)):
                if not self._reserve(adw_id, pair):
                    continue
                try:
                    if self._bind(adw_id, pair):
                        return pair
                except BaseException:
                    self._give_up(adw_id)
                    raise
                self._give_up(adw_id)

        here = [row for row in self.all() if row.host == self._me.host]
        taken = {row.port for row in here}
        pairs = map(self._range.pair, range(self._range.count))
        every = [port for pair in pairs for port in (pair.backend, pair.frontend)]
        parts = [f"workflows have {len({row.adw_id for row in here})} of {self._range.count} pairs"]
        if foreign := [port for port in every if port not in taken and not is_free(port)]:
            parts.append(f"other programs listen on {', '.join(map(str, foreign))}")

        raise PortsExhausted(
            f"no pair of ports is free in {self._range}: {' and '.join(parts)}; "
            "free some with adw admin gc, or raise quota.max_worktrees"
        )

    @contextmanager
    def handed_over(self, adw_id: str) -> Iterator[None]:
        """Close the sockets inside the block, so that a process can bind the ports; bind them again after it."""
        with self._guard:
            _close(self._held.pop(adw_id, ()))
        try:
            yield
        finally:
            # If a process still listens, the row stays ours, and the next take checks the port again.
            with self._guard:
                _, present = self._present(adw_id)
                if present is not None and adw_id not in self._held:
                    self._bind(adw_id, present)

    def free(self, adw_id: str) -> tuple[int, ...]:
        """Free the workflow's ports on every host, and return their numbers. Never ends a process."""
        sql, params = "DELETE FROM ports WHERE adw_id = :adw_id RETURNING port", {"adw_id": check_adw_id(adw_id)}
        with self._guard:
            _close(self._held.pop(adw_id, ()))
            rows = self._database.transact(lambda session: session.all(sql, params))

        return tuple(sorted(row[0] for row in rows))

    def all(self) -> tuple[PortRow, ...]:
        """Return every reservation."""
        return reservations(self._database)

    def is_held(self, adw_id: str) -> bool:
        """Return whether this process holds the sockets of a workflow."""
        return adw_id in self._held

    def free_left_behind(self, verdict: Callable[[OwnerRecord | None], Verdict]) -> tuple[PortRow, ...]:
        """
        Free the ports of this host whose owner is dead and on which nothing listens, and return them.

        *verdict* tells whether an owner lives. A listening process may be left from that workflow, so its port stays
        reserved until that process ends. Ports of other hosts are left to those hosts.
        """
        sql = "DELETE FROM ports WHERE host = :host AND port = :port AND adw_id = :adw_id AND owner = :owner"
        freed = []
        for row in self.all():
            if row.host != self._me.host or verdict(OwnerRecord.from_text(row.owner)) is not Verdict.DEAD:
                continue
            if is_free(row.port) and self._change_rows(sql, row.adw_id, port=row.port, owner=row.owner) == 1:
                freed.append(row)

        return tuple(freed)

    def close(self) -> None:
        """Close the sockets; the reservations stay."""
        with self._guard:
            for adw_id in list(self._held):
                _close(self._held.pop(adw_id))

    # --- how ---------------------------------------------------------------------------------------------------

    def _present(self, adw_id: str) -> tuple[bool, PortPair | None]:
        """Return whether the workflow has any port on this host, and its pair if it has both."""
        rows = {row.purpose: row.port for row in self.all() if (row.adw_id, row.host) == (adw_id, self._me.host)}
        is_pair = set(rows) == {BACKEND, FRONTEND}

        return bool(rows), PortPair(backend=rows[BACKEND], frontend=rows[FRONTEND]) if is_pair else None

    def _reserve(self, adw_id: str, pair: PortPair) -> bool:
        """Reserve both ports on this host, or neither: the primary key (host, port) admits only one workflow."""
        moment = timestamps.to_text(self._clock.now())
        base = {"host": self._me.host, "adw_id": adw_id, "owner": self._me.to_text(), "reserved_at": moment}

        def work(session: Session) -> bool:
            for port, purpose in ((pair.backend, BACKEND), (pair.frontend, FRONTEND)):
                is_reserved = session.run(
                    "INSERT INTO ports (host, port, adw_id, purpose, owner, reserved_at) "
                    "VALUES (:host, :port, :adw_id, :purpose, :owner, :reserved_at) ON CONFLICT DO NOTHING",
                    {**base, "port": port, "purpose": purpose},
                )
                if not is_reserved:  # the port is taken, or the workflow has one for this purpose
                    raise _TakenError
            return True

        try:
            return self._database.transact(work)
        except _TakenError:
            return False

    def _give_up(self, adw_id: str) -> None:
        """Free the ports that this process reserved for the workflow."""
        self._change_rows("DELETE FROM ports WHERE host = :host AND adw_id = :adw_id AND owner = :owner", adw_id)

    def _change_rows(self, sql: str, adw_id: str, **more: object) -> int:
        params = {"host": self._me.host, "adw_id": adw_id, "owner": self._me.to_text(), **more}

        return self._database.transact(lambda session: session.run(sql, params))

    def _bind(self, adw_id: str, pair: PortPair) -> bool:
        """Bind and hold both ports; return False, holding neither, if another program listens on one."""
        sockets: list[socket.socket] = []
        try:
            for port in (pair.backend, pair.frontend):
                sockets += bound(port)
        except OSError as exc:
            _close(sockets)
            if exc.errno in {errno.EADDRINUSE, errno.EACCES}:
                return False
            raise
        self._held[adw_id] = tuple(sockets)

        return True


class _TakenError(Exception):
    """One of the ports is taken; rolls back what its transaction reserved before."""


def reservations(database: Database) -> tuple[PortRow, ...]:
    """Return every reservation, in the order of hosts and numbers."""
    with database.read() as session:
        rows = session.all("SELECT port, adw_id, purpose, host, reserved_at, owner FROM ports ORDER BY host, port")

    return tuple(PortRow(**dict(zip(PortRow.__slots__, row, strict=True))) for row in rows)


def bound(port: int) -> list[socket.socket]:
    """Return sockets that listen on *port* on every available loopback address; raise OSError if one is taken."""
    sockets: list[socket.socket] = []
    try:
        for family, address in _LOOPBACK:
            try:
                made = socket.socket(family, socket.SOCK_STREAM)
                sockets.append(made)
                # Connections of the former user may linger; unlike REUSEPORT, this admits no second listener.
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                made.bind((address, port))
                made.listen(1)
            except OSError as exc:
                if exc.errno not in _NO_SUCH_ADDRESS:  # else the machine does not have the address
                    raise
    except BaseException:
        _close(sockets)
        raise

    return sockets


def is_free(port: int) -> bool:
    """Return whether nothing listens on *port* at this moment."""
    try:
        _close(bound(port))
    except OSError:
        return False

    return True


def _close(sockets: Sequence[socket.socket]) -> None:
    for one in sockets:
        one.close()
