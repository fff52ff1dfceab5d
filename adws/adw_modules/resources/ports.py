"""
Ports of workflows: reserved in the database, bound and held by a socket, and released only while their user runs.

Checking whether a port is free and using it later is a race. So the row comes first (two of ours can never have the
same), then the socket (which tells about everybody else); a port that another program listens on is passed over and
never taken away. No process is ever ended for a port.
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

#: Purpose of each port of a pair, in the order of PortPair.
BACKEND, FRONTEND = "backend", "frontend"
#: Addresses that are held: what a program on this machine finds under `localhost`.
_LOOPBACK = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))
#: What a machine says that does not have the address at all.
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


@dataclass(frozen=True, kw_only=True, slots=True)
class PortRange:
    """Which ports there are: *count* pairs, from two starts."""

    backend_start: int = 9100
    frontend_start: int = 9200
    count: int = 15

    def pair(self, index: int) -> PortPair:
        """Return one pair; after the last comes the first."""
        place = index % self.count

        return PortPair(backend=self.backend_start + place, frontend=self.frontend_start + place)

    def pairs_for(self, adw_id: str) -> Iterator[PortPair]:
        """Yield every pair, first the one that users of ADW expect for this id."""
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
    """Return the place of a workflow among *count*: its first eight characters as a number of base 36."""
    digits = "".join(char for char in check_adw_id(adw_id)[:8] if char.isalnum())

    return int(digits, 36) % count


class Ports:
    """The ports of this process: rows in the database, and the sockets it holds."""

    def __init__(self, book: PortStore, *, me: OwnerRecord, ports: PortRange | None = None) -> None:
        """Reserve in *book* as *me*, from *ports*."""
        self._book = book
        self._me = me
        self._range = ports or PortRange()
        self._held: dict[str, tuple[socket.socket, ...]] = {}
        self._guard = threading.RLock()

    def take(self, adw_id: str, *, preferred: PortPair | None = None) -> PortPair:
        """Reserve a pair, bind and hold it; raise PortsExhausted. The pair it has when it has one."""
        check_adw_id(adw_id)
        with self._guard:
            present = self._present(adw_id)
            if present is not None and self._hold_again(adw_id, present):
                return present
            if present is None:
                self._give_up(adw_id)  # half a pair: the other half was freed while something listened on this one
            wanted = [preferred] if preferred is not None and preferred in self._range else []
            for pair in (*wanted, *self._range.pairs_for(adw_id)):
                if self._take(adw_id, pair):
                    return pair

        raise PortsExhausted(self._why_none())

    @contextmanager
    def handed_over(self, adw_id: str) -> Iterator[None]:
        """Close the sockets inside the block, so that a process can bind them; bind them again after it."""
        with self._guard:
            _close(self._held.pop(adw_id, ()))
        try:
            yield
        finally:
            # A process that still listens there keeps it: the row stays ours, and the next take checks again.
            with self._guard:
                present = self._present(adw_id)
                if present is not None and adw_id not in self._held:
                    self._bind(adw_id, present)

    def free(self, adw_id: str) -> tuple[int, ...]:
        """Free what the workflow has and return it; nothing when it has none. Never ends a process."""
        check_adw_id(adw_id)
        with self._guard:
            _close(self._held.pop(adw_id, ()))
            return self._book.free(adw_id)

    def all(self) -> tuple[PortRow, ...]:
        """Return every reservation."""
        return tuple(row for row, _ in self._book.all())

    def is_held(self, adw_id: str) -> bool:
        """Say whether this process holds the sockets of a workflow."""
        return adw_id in self._held

    def free_left_behind(self, verdict: Callable[[OwnerRecord | None], Verdict]) -> tuple[PortRow, ...]:
        """
        Free the ports of this host whose holder is dead and on which nothing listens, and return them.

        *verdict* says of an owner whether it lives. What still listens may be a left-over of that workflow: its port
        stays reserved until that is ended. Ports of other hosts are for those hosts to judge.
        """
        mine = [(row, owner) for row, owner in self._book.all() if row.host == self._me.host]
        dead = [(row, text) for row, text in mine if verdict(OwnerRecord.from_text(text)) is Verdict.DEAD]

        return tuple(row for row, text in dead if is_free(row.port) and self._book.free_left(row, text))

    def close(self) -> None:
        """Close the sockets; the reservations stay."""
        with self._guard:
            for adw_id in list(self._held):
                _close(self._held.pop(adw_id))

    # --- how ---------------------------------------------------------------------------------------------------

    def _present(self, adw_id: str) -> PortPair | None:
        """Return the pair the workflow has on this host."""
        result = {row.purpose: row.port for row in self.all() if (row.adw_id, row.host) == (adw_id, self._me.host)}
        if set(result) != {BACKEND, FRONTEND}:
            return None

        return PortPair(backend=result[BACKEND], frontend=result[FRONTEND])

    def _hold_again(self, adw_id: str, pair: PortPair) -> bool:
        """Hold a pair that is reserved already; a stranger on one of its ports makes it give the pair up."""
        if adw_id in self._held:
            return True
        self._book.keep(adw_id, self._me)
        if self._bind(adw_id, pair):
            return True
        self._give_up(adw_id)

        return False

    def _give_up(self, adw_id: str) -> None:
        """Free what the workflow has on this host, reserved by any worker: only its owner takes ports for it."""
        self._book.keep(adw_id, self._me)
        self._book.give_up(adw_id, self._me)

    def _take(self, adw_id: str, pair: PortPair) -> bool:
        if not self._book.reserve(adw_id, ((pair.backend, BACKEND), (pair.frontend, FRONTEND)), self._me):
            return False
        try:
            if self._bind(adw_id, pair):
                return True
        except BaseException:
            self._book.give_up(adw_id, self._me)
            raise
        self._book.give_up(adw_id, self._me)

        return False

    def _bind(self, adw_id: str, pair: PortPair) -> bool:
        """Bind and hold both ports; False, and nothing is held, when somebody listens on one."""
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

    def _why_none(self) -> str:
        rows = self.all()
        ours = sorted({row.adw_id for row in rows if row.host == self._me.host})
        taken = {row.port for row in rows if row.host == self._me.host}
        every = [port for place in range(self._range.count) for port in _numbers(self._range.pair(place))]
        foreign = [port for port in every if port not in taken and not is_free(port)]
        parts = [f"workflows have {len(ours)} of {self._range.count} pairs"]
        if foreign:
            parts.append(f"other programs listen on {', '.join(map(str, foreign))}")

        return (
            f"no pair of ports is free in {self._range}: {' and '.join(parts)}; "
            "free some with adw gc, or widen the range with ports.count"
        )


def bound(port: int) -> list[socket.socket]:
    """Return sockets that listen on *port* of every loopback address there is; raise OSError when one is taken."""
    sockets: list[socket.socket] = []
    try:
        for family, address in _LOOPBACK:
            try:
                made = socket.socket(family, socket.SOCK_STREAM)
            except OSError as exc:
                if exc.errno in _NO_SUCH_ADDRESS:
                    continue
                raise
            sockets.append(made)
            # Connections of the former user may linger; REUSEPORT would let a second listener in, this does not.
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if not _listen(made, address, port):
                sockets.remove(made)
                made.close()
    except BaseException:
        _close(sockets)
        raise

    return sockets


def _listen(made: socket.socket, address: str, port: int) -> bool:
    """Listen there; False when the machine does not have the address."""
    try:
        made.bind((address, port))
        made.listen(1)
    except OSError as exc:
        if exc.errno in _NO_SUCH_ADDRESS:
            return False
        raise

    return True


def is_free(port: int) -> bool:
    """Say whether nothing listens on *port* at this moment."""
    try:
        _close(bound(port))
    except OSError:
        return False

    return True


def _numbers(pair: PortPair) -> tuple[int, int]:
    return pair.backend, pair.frontend


def _close(sockets: Sequence[socket.socket]) -> None:
    for one in sockets:
        one.close()


# Reservations of ports: the primary key (host, port) lets one workflow in.
#
# A row says who holds the port, as an owner record; so what a dead worker left can be told from what a live one has.


class PortStore:
    """Port reservations in the table ports."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def reserve(self, adw_id: str, ports: Sequence[tuple[int, str]], owner: OwnerRecord) -> bool:
        """Reserve all of *ports* (number and purpose) on the owner's host, or none of them."""
        moment = timestamps.to_text(self._clock.now())
        base = {"host": owner.host, "adw_id": adw_id, "owner": owner.to_text(), "reserved_at": moment}

        def work(session: Session) -> bool:
            for port, purpose in ports:
                is_reserved = session.run(
                    "INSERT INTO ports (host, port, adw_id, purpose, owner, reserved_at) "
                    "VALUES (:host, :port, :adw_id, :purpose, :owner, :reserved_at) ON CONFLICT DO NOTHING",
                    {**base, "port": port, "purpose": purpose},
                )
                if not is_reserved:  # somebody has the port, or the workflow has one for this purpose
                    raise _TakenError
            return True

        try:
            return self._database.transact(work)
        except _TakenError:
            return False

    def keep(self, adw_id: str, owner: OwnerRecord) -> None:
        """Say that *owner* holds the workflow's ports on its host now."""
        sql = "UPDATE ports SET owner = :owner WHERE host = :host AND adw_id = :adw_id"
        params = {"host": owner.host, "adw_id": adw_id, "owner": owner.to_text()}
        self._database.transact(lambda session: session.run(sql, params))

    def give_up(self, adw_id: str, owner: OwnerRecord) -> None:
        """Free what *owner* reserved for the workflow."""
        sql = "DELETE FROM ports WHERE host = :host AND adw_id = :adw_id AND owner = :owner"
        params = {"host": owner.host, "adw_id": adw_id, "owner": owner.to_text()}
        self._database.transact(lambda session: session.run(sql, params))

    def free(self, adw_id: str) -> tuple[int, ...]:
        """Free what the workflow has, on every host, and return the numbers."""
        sql = "DELETE FROM ports WHERE adw_id = :adw_id RETURNING port"
        result = self._database.transact(lambda session: session.all(sql, {"adw_id": adw_id}))

        return tuple(sorted(row[0] for row in result))

    def free_left(self, row: PortRow, owner: str) -> bool:
        """Free one port that *owner* still has; False when it has another owner by now."""
        sql = "DELETE FROM ports WHERE host = :host AND port = :port AND adw_id = :adw_id AND owner = :owner"
        params = {"host": row.host, "port": row.port, "adw_id": row.adw_id, "owner": owner}

        return self._database.transact(lambda session: session.run(sql, params)) == 1

    def all(self) -> tuple[tuple[PortRow, str], ...]:
        """Return every reservation and who holds it, in the order of hosts and numbers."""
        with self._database.read() as session:
            rows = session.all("SELECT host, port, adw_id, purpose, owner, reserved_at FROM ports ORDER BY host, port")

        return tuple(
            (PortRow(port=port, adw_id=adw_id, purpose=purpose, host=host, reserved_at=reserved_at), owner)
            for host, port, adw_id, purpose, owner, reserved_at in rows
        )


class _TakenError(Exception):
    """Somebody has one of the ports; what was reserved before it in this transaction is undone with it."""
