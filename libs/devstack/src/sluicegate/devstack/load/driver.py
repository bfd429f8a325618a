"""Runs a job: non-blocking sockets on one epoll, no event loop library.

The driver shares its core with the fake provider, so each microsecond it spends is one the proxy under test may have
to wait for; and with one client it must not blur the latency with a loop's bookkeeping. The price is that it is for
this only: HTTP/1.1 without TLS, one request at a time on a connection.
"""

import gc
import select
import socket
import time
from collections import Counter
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

from sluicegate.devstack.load.checking import Checker, Partial, WrongAnswerError
from sluicegate.devstack.load.job import Job, Result, spread

_READ_BYTES: Final = 32 * 1024
_RECONNECT_PAUSE_S: Final = 0.02
_LONGEST_WAIT_S: Final = 0.25
_SPIN_NS: Final = 1_200_000
"""epoll waits whole milliseconds; what is due sooner than this is awaited by polling."""
_clock = time.perf_counter_ns


class _Connection:
    __slots__ = ("due_ns", "first_ns", "partial", "sent_ns", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.partial: Partial | None = None
        self.due_ns = self.sent_ns = self.first_ns = 0


class Driver:
    """One run of one job. Not reusable."""

    def __init__(self, job: Job) -> None:
        self._job = job
        parts = urlsplit(job.url)
        self._address = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._request = request_bytes(job)
        self._checker = Checker(job.expects, job.events)
        self._poll = select.epoll()
        self._busy: dict[int, _Connection] = {}
        self._idle: list[_Connection] = []
        self._opened = 0
        self._started = 0
        self._answered = 0
        self._errors: Counter[str] = Counter()
        self._latency_ns: list[int] = []
        self._first_byte_ns: list[int] = []
        self._tail_ns: list[int] = []
        self._lateness_ns: list[int] = []
        self._request_ids: list[str] = []
        self._end_ns = 0
        self._most = job.requests if job.requests is not None else 1 << 62

    def run(self) -> Result:
        """Blocks until every started request has its answer, its error, or its timeout."""
        if self._job.is_kept and self._job.rate_per_s is None:
            with suppress(OSError):
                self._idle.extend(self._open() for _ in range(self._job.connections))
        gc.collect()
        gc.disable()
        cpu_s = {name: sum(map(cpu_seconds, pids)) for name, pids in self._job.watch.items()}
        own_s = time.process_time()
        start_ns = _clock()
        self._end_ns = start_ns + int(self._job.seconds * 1e9)
        if self._job.rate_per_s is None:
            self._closed_loop()
        else:
            self._open_loop(start_ns, self._job.rate_per_s)
        wall_s = (_clock() - start_ns) / 1e9
        own_s = time.process_time() - own_s
        watched = {name: sum(map(cpu_seconds, pids)) - cpu_s[name] for name, pids in self._job.watch.items()}
        gc.enable()
        self._close_all()
        return Result(
            answered=self._answered,
            errors=dict(self._errors),
            wall_s=wall_s,
            driver_cpu_s=own_s,
            watched_cpu_s=watched,
            latency=spread(self._latency_ns),
            first_byte=spread(self._first_byte_ns),
            tail=spread(self._tail_ns),
            lateness=spread(self._lateness_ns),
            body_digests=self._checker.digests,
            connections_opened=self._opened,
            request_ids=self._request_ids if self._job.wants_request_ids else None,
        )

    def _closed_loop(self) -> None:
        while self._busy or self._may_start():
            while len(self._busy) < self._job.connections and self._may_start():
                if not self._start(_clock()):
                    break
            if self._busy:
                self._turn(self._job.timeout_s)

    def _open_loop(self, start_ns: int, rate_per_s: float) -> None:
        interval_ns = 1e9 / rate_per_s
        while True:
            due_ns = start_ns + int(self._started * interval_ns)
            if not self._may_start(due_ns):
                break
            now_ns = _clock()
            if now_ns >= due_ns:
                self._lateness_ns.append(now_ns - due_ns)
                self._start(due_ns)
            else:
                self._turn(max(due_ns - now_ns - _SPIN_NS, 0) / 1e9)
        while self._busy:
            self._turn(self._job.timeout_s)

    def _may_start(self, at_ns: int | None = None) -> bool:
        return self._started < self._most and (at_ns or _clock()) < self._end_ns

    def _turn(self, wait_s: float) -> None:
        ready = self._poll.poll(min(wait_s, _LONGEST_WAIT_S))
        busy = self._busy
        for fd, _ in ready:
            connection = busy.get(fd)
            if connection is None:
                self._drop_idle(fd)
            else:
                self._read(connection)
        if not ready and busy:
            self._end_overdue()

    def _start(self, due_ns: int) -> bool:
        """False if there is nobody to send to; that counts as an error, and is followed by a short pause."""
        self._started += 1
        try:
            connection = self._idle.pop() if self._idle else self._open()
        except OSError as error:
            self._errors[f"connect: {type(error).__name__}"] += 1
            time.sleep(_RECONNECT_PAUSE_S)
            return False
        connection.due_ns = due_ns
        self._send(connection)
        return True

    def _send(self, connection: _Connection) -> None:
        self._busy[connection.sock.fileno()] = connection
        connection.sent_ns = _clock()
        connection.first_ns = 0
        try:
            connection.sock.sendall(self._request)
        except OSError as error:
            self._fail(connection, f"send: {type(error).__name__}")

    def _read(self, connection: _Connection) -> None:
        try:
            data = connection.sock.recv(_READ_BYTES)
        except OSError as error:
            self._fail(connection, f"receive: {type(error).__name__}")
            return
        now_ns = _clock()
        if not connection.first_ns:
            connection.first_ns = now_ns
        try:
            if self._is_whole(connection, data):
                self._finish(connection, now_ns, is_open=data != b"")
        except WrongAnswerError as error:
            self._fail(connection, str(error))

    def _is_whole(self, connection: _Connection, data: bytes) -> bool:
        partial = connection.partial
        is_kept = self._job.is_kept
        if partial is None:
            if not data:
                raise WrongAnswerError("closed without an answer")
            if is_kept and self._checker.is_known(data):
                self._note_request_id(data)
                return True
            partial = connection.partial = Partial()
        may_be_whole = partial.add(data) if data else True
        if not may_be_whole or (data and not is_kept):
            return False
        whole = partial.data
        if not self._checker.is_known(whole) and not self._checker.check(whole, is_closed=not data):
            return False
        self._note_request_id(whole)
        connection.partial = None
        return True

    def _finish(self, connection: _Connection, now_ns: int, *, is_open: bool) -> None:
        self._answered += 1
        self._latency_ns.append(now_ns - connection.due_ns)
        self._first_byte_ns.append(connection.first_ns - connection.sent_ns)
        self._tail_ns.append(now_ns - connection.first_ns)
        if not is_open:
            self._close(connection)
            return
        if self._job.rate_per_s is None and self._started < self._most and now_ns < self._end_ns:
            self._started += 1
            connection.due_ns = _clock()
            self._send(connection)
            return
        del self._busy[connection.sock.fileno()]
        self._idle.append(connection)

    def _fail(self, connection: _Connection, reason: str) -> None:
        self._errors[reason] += 1
        self._close(connection)

    def _end_overdue(self) -> None:
        oldest_ns = _clock() - int(self._job.timeout_s * 1e9)
        for connection in list(self._busy.values()):
            if connection.sent_ns < oldest_ns:
                self._fail(connection, "timeout")

    def _open(self) -> _Connection:
        sock = socket.create_connection(self._address, timeout=self._job.timeout_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._opened += 1
        self._poll.register(sock.fileno(), select.EPOLLIN)
        return _Connection(sock)

    def _drop_idle(self, fd: int) -> None:
        """The server closed a connection between two requests, as it may."""
        for connection in self._idle:
            if connection.sock.fileno() == fd:
                self._idle.remove(connection)
                self._close(connection)
                return

    def _close(self, connection: _Connection) -> None:
        self._busy.pop(connection.sock.fileno(), None)
        self._poll.unregister(connection.sock.fileno())
        connection.sock.close()

    def _close_all(self) -> None:
        for connection in [*self._idle, *self._busy.values()]:
            connection.sock.close()
        self._poll.close()

    def _note_request_id(self, data: bytes) -> None:
        if not self._job.wants_request_ids:
            return
        head = data[: data.find(b"\r\n\r\n") + 2]
        _, _, rest = head.lower().partition(b"\r\nx-request-id:")
        self._request_ids.append(rest.partition(b"\r\n")[0].strip().decode("latin-1"))


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process, living and ended (`/proc/<pid>/schedstat` sees only the first thread)."""
    return time.clock_gettime((~pid << 3) | 2)


def request_bytes(job: Job) -> bytes:
    """The request, as it goes on the wire."""
    parts = urlsplit(job.url)
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    headers = {"host": parts.netloc, "content-type": "application/json", **job.headers}
    if not job.is_kept:
        headers["connection"] = "close"
    body = job.body.encode()
    lines = [f"POST {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode() + body
