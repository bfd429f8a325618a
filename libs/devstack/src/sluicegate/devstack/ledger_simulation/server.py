"""The real Valkey under virtual time: a call is executed synchronously, at the virtual instant at which it arrives.

The library's scripts ask `TIME` in one line; here that line reads a key that is set in front of each call. Key expiry
stays the server's own, in real time, and the virtual epoch lies in the future: nothing expires during a run.
"""

import socket
from typing import Any
from urllib.parse import urlsplit

EPOCH_S = 4_000_000_000

_TIME_LINE = "redis.call('TIME')"
_NOW_KEY = "simulation:now"
_VIRTUAL_TIME = f"redis.call('LRANGE', '{_NOW_KEY}', 0, 1)"


class ServerError(Exception):
    """The server answered with an error."""


class Connection:
    """RESP2 over a blocking socket; commands are pipelined in one write."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._socket = socket.create_connection((parts.hostname, parts.port or 6379), timeout=30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._replies = self._socket.makefile("rb")
        if parts.password:
            self.run(["AUTH", parts.password])

    def close(self) -> None:
        self._replies.close()
        self._socket.close()

    def run(self, *commands: list[Any]) -> list[Any]:
        """Send the commands together; return their replies, errors raised after all were read."""
        self._socket.sendall(b"".join(map(_encode, commands)))
        replies = [self._read() for _ in commands]
        for reply in replies:
            if isinstance(reply, ServerError):
                raise reply
        return replies

    def _read(self) -> Any:
        line = self._replies.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"$":
            length = int(rest)
            return None if length < 0 else self._replies.read(length + 2)[:-2]
        if kind == b"*":
            return [self._read() for _ in range(int(rest))]
        if kind == b":":
            return int(rest)
        if kind == b"-":
            return ServerError(rest.decode())
        return rest


class Server:
    """One Valkey, emptied; `now_s` is the virtual time since the epoch."""

    def __init__(self, url: str) -> None:
        self._connection = Connection(url)
        self._scripts: dict[str, bytes] = {}
        self.losses = 0
        self.flush()

    def close(self) -> None:
        self.flush()
        self._connection.close()

    def run_script(self, text: str, keys: list[Any], arguments: list[Any], now_s: float) -> Any:
        """Run a script at a virtual instant."""
        sha = self._scripts.get(text)
        if sha is None:
            if text.count(_TIME_LINE) != 1:
                raise ValueError("a script must ask for the time in exactly one place")
            (sha,) = self._connection.run(["SCRIPT", "LOAD", text.replace(_TIME_LINE, _VIRTUAL_TIME)])
            self._scripts[text] = sha
        seconds, micros = divmod(round((EPOCH_S + now_s) * 1e6), 1_000_000)
        return self._connection.run(
            ["DEL", _NOW_KEY],
            ["RPUSH", _NOW_KEY, seconds, micros],
            ["EVALSHA", sha, len(keys), *keys, *arguments],
        )[2]

    def hashes(self, keys: list[str]) -> list[dict[str, str]]:
        """Read several hashes in one go."""
        replies = self._connection.run(*(["HGETALL", key] for key in keys))
        return [
            {flat[index].decode(): flat[index + 1].decode() for index in range(0, len(flat), 2)} for flat in replies
        ]

    def keys(self) -> list[str]:
        """Return the names of all keys but the simulation's own."""
        (names,) = self._connection.run(["KEYS", "sg:*"])
        return sorted(name.decode() for name in names)

    def flush(self) -> None:
        """Forget everything."""
        self._connection.run(["FLUSHALL"])
        self.losses += 1

    def snapshot(self) -> dict[str, bytes]:
        """Return what a replica has at this instant."""
        names = self.keys()
        if not names:
            return {}
        return dict(zip(names, self._connection.run(*(["DUMP", name] for name in names)), strict=True))

    def fail_over(self, snapshot: dict[str, bytes]) -> None:
        """Replace all data by a replica's, which had not seen the last writes."""
        self.losses += 1
        self._connection.run(["FLUSHALL"], *(["RESTORE", name, 0, dump] for name, dump in snapshot.items()))


def _encode(command: list[Any]) -> bytes:
    parts = [b"*%d\r\n" % len(command)]
    for part in command:
        raw = part if isinstance(part, bytes) else str(part).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(raw), raw))
    return b"".join(parts)
