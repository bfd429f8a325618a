"""`python -m sluicegate.devstack.load`: runs jobs, one JSON line in, one JSON line out. Pin it with `--core`."""

import argparse
import os
import sys

import msgspec

from sluicegate.devstack.load.driver import Driver
from sluicegate.devstack.load.job import Job, chat_body


def main() -> None:
    """Run jobs from standard input, or one described by options."""
    options = _options()
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
    if options.url:
        print(msgspec.json.format(msgspec.json.encode(Driver(_job(options)).run())).decode())
        return
    decoder = msgspec.json.Decoder(Job)
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(msgspec.json.encode(Driver(decoder.decode(line)).run()) + b"\n")
        sys.stdout.buffer.flush()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m sluicegate.devstack.load", description=__doc__)
    parser.add_argument("url", nargs="?", help="chat completions URL; without it, jobs are read from standard input")
    parser.add_argument("--core", type=int, help="CPU to run on")
    parser.add_argument("--key", help="bearer token")
    parser.add_argument("--model", default="fake-gpt")
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--fake", default="", help="knobs for the fake provider, as the body's field `fake`")
    parser.add_argument("--events", type=int, default=12)
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--each", action="store_true", help="a connection of its own for each request")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--requests", type=int)
    parser.add_argument("--rate", type=float, help="open loop: requests per second")
    parser.add_argument("--watch", action="append", default=[], metavar="NAME=PID[,PID]", help="read CPU clocks")
    return parser.parse_args()


def _job(options: argparse.Namespace) -> Job:
    body = chat_body(options.model, is_streamed=options.stream, fake=options.fake)
    watch = {name: [int(pid) for pid in pids.split(",")] for name, pids in (item.split("=") for item in options.watch)}
    return Job(
        url=options.url,
        body=body,
        headers={"authorization": f"Bearer {options.key}"} if options.key else {},
        expects="stream" if options.stream else "json",
        events=options.events,
        connections=options.connections,
        is_kept=not options.each,
        seconds=options.seconds,
        requests=options.requests,
        rate_per_s=options.rate,
        watch=watch,
    )


if __name__ == "__main__":
    main()
