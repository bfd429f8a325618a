"""How the front shows a starting stack: a moving line and ticks on a terminal, plain lines elsewhere."""

import json
import time
from collections.abc import Mapping
from typing import Any, Self

from rich.console import Console
from rich.status import Status

from sluicegate.devstack.stack.reporting import Died, Failed, Note, Ready, Report, Step


class Progress:
    """Renders reports; use as a context."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False, soft_wrap=True)
        self._began: dict[str, float] = {}
        self._status = Status("starting", console=self._console) if self._console.is_terminal else None

    def __enter__(self) -> Self:
        if self._status:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status:
            self._status.stop()

    def show(self, report: Report) -> None:
        match report:
            case Step():
                self._step(report)
            case Died():
                self._console.print(f"[red]✗[/] {report.text}; the end of {report.log_path}:")
                self._raw("".join(f"    {line}\n" for line in (report.log_tail or "(empty)").splitlines()))
            case Failed():
                self._raw(f"✗ {report.text}\n")
            case Note():
                self._raw(f"  {report.text}\n")
            case Ready():
                self._rest()
                self._raw("\n" + farewell(report.stack))

    def _step(self, step: Step) -> None:
        if step.state == "starting":
            self._began[step.name] = time.monotonic()
        elif step.state == "ready":
            began = self._began.pop(step.name, None)
            took = "" if began is None else f"  ({time.monotonic() - began:.1f} s)"
            self._console.print(f"[green]✓[/] {step.name:<14} {step.detail}{took}")
        elif step.state == "stopping":
            self._began[step.name] = time.monotonic()
        else:
            self._began.pop(step.name, None)
            self._console.print(f"[dim]■[/] {step.name} stopped")
        self._rest("starting" if step.state in {"starting", "ready"} else "stopping")

    def _rest(self, verb: str = "") -> None:
        """The moving line names what is awaited, and goes away when there is nothing."""
        if self._status is None:
            return
        if self._began:
            self._status.update(f"{verb} {', '.join(self._began)}")
            self._status.start()
        else:
            self._status.stop()

    def _raw(self, text: str) -> None:
        self._console.print(text, markup=False, end="")


def curl_line(stack: Mapping[str, Any]) -> str:
    """A request that works when pasted."""
    body = json.dumps({"model": stack["model"], "messages": [{"role": "user", "content": "Hello!"}]})
    return (
        f"curl {stack['edge']['url']}/v1/chat/completions -H 'Authorization: Bearer {stack['key']}'"
        f" -H 'Content-Type: application/json' -d '{body}'"
    )


def farewell(stack: Mapping[str, Any]) -> str:
    """What a person needs once all is up."""
    return f"""\
Sluicegate is ready.

  gateway    {stack["edge"]["url"]}/v1
  internal   {stack["edge"]["internal_url"]}/readyz
  admin API  {stack["admin"]["url"]}/api   (described at /openapi.json; its token is in stack.json)
  provider   {stack["provider"]["url"]}
  key        {stack["key"]}
  model      {stack["model"]}

{curl_line(stack)}
"""
