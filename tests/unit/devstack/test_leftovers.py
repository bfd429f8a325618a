"""The record of processes: what it holds must never keep a stack from starting."""

import json
import subprocess
from pathlib import Path

import psutil
import pytest

from sluicegate.devstack.stack.leftovers import ProcessRecord


def test_leftover_is_ended_when_it_is_the_process_that_was_written_down(tmp_path: Path) -> None:
    path = tmp_path / "processes.json"
    with subprocess.Popen(["sleep", "60"]) as child:
        ProcessRecord(path).write([child.pid])
        assert ProcessRecord(path).end_leftovers() == 1
    assert not path.exists()


def test_process_lives_when_its_number_belonged_to_another(tmp_path: Path) -> None:
    path = tmp_path / "processes.json"
    with subprocess.Popen(["sleep", "60"]) as child:
        path.write_text(json.dumps([[child.pid, psutil.Process(child.pid).create_time() - 100]]))
        assert ProcessRecord(path).end_leftovers() == 0
        assert child.poll() is None
        child.kill()


@pytest.mark.parametrize("text", ["", "[[12", "{}", '{"a": 1}', "[1]", '[["x", 1]]', "[[1]]", "null"])
def test_damaged_record_is_put_away(tmp_path: Path, text: str) -> None:
    path = tmp_path / "processes.json"
    path.write_text(text)
    assert ProcessRecord(path).end_leftovers() == 0
    assert not path.exists()
