"""The workspace keeps its own promises: every room is checked, the lock is portable, links in pages lead somewhere."""

import importlib
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
MEMBERS = sorted(path.parent for kind in ("libs", "services") for path in (ROOT / kind).glob("*/pyproject.toml"))
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("libs/*/README.md"), *ROOT.glob("services/*/README.md")]
)
PARSE: Any = importlib.import_module("re._parser").parse
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")


def root_project() -> dict[str, Any]:
    """Return the root's pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def package(member: Path) -> str:
    """Return the import name of a room."""
    return f"sluicegate.{member.name.replace('-', '_')}"


def member_id(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_every_room_is_type_checked() -> None:
    assert set(root_project()["tool"]["mypy"]["mypy_path"]) == {f"{member_id(member)}/src" for member in MEMBERS}


def test_every_room_is_behind_the_walls() -> None:
    assert set(root_project()["tool"]["importlinter"]["root_packages"]) == {package(member) for member in MEMBERS}


def test_every_service_is_independent_of_the_others() -> None:
    (contract,) = (row for row in root_project()["tool"]["importlinter"]["contracts"] if row["type"] == "independence")
    assert set(contract["modules"]) == {package(member) for member in MEMBERS if member.parent.name == "services"}


@pytest.mark.parametrize("member", MEMBERS, ids=member_id)
def test_room_has_a_page_types_and_its_own_module(member: Path) -> None:
    project = tomllib.loads((member / "pyproject.toml").read_text())
    source = member / "src" / package(member).replace(".", "/")
    assert project["project"]["name"] == f"sluicegate-{member.name}"
    assert project["tool"]["uv"]["build-backend"]["module-name"] == package(member)
    assert (member / "README.md").exists()
    assert (source / "py.typed").exists()
    assert not (member / "src" / "sluicegate" / "__init__.py").exists()


@pytest.mark.parametrize("name", ["requirements.lock", "taskw.lock"])
def test_lock_pins_hashes_and_names_no_place(name: str) -> None:
    text = (ROOT / name).read_text()
    requirements = re.findall(r"^[a-z0-9][^\n]*(?:\n +--hash=[^\n]*)*", text, flags=re.MULTILINE)
    assert requirements
    assert all("==" in row and "--hash=sha256:" in row for row in requirements)
    assert not re.search(r"https?://|file:|^-e|--(extra-)?index-url|--find-links", text, flags=re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=member_id)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    targets = [target for target in LINK.findall(page.read_text()) if "://" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/adr/0*.md")), ids=lambda page: page.stem)
def test_decision_has_its_four_parts_and_is_listed(page: Path) -> None:
    parts = re.findall(r"^## (.+)$", page.read_text(), flags=re.MULTILINE)
    assert parts == ["Context", "Decision", "Consequences", "Alternatives"]
    assert f"({page.name})" in (page.parent / "README.md").read_text()


def test_no_expression_repeats_possessively() -> None:
    """Possessive repeats and atomic groups match wrongly before Python 3.11.5, and 3.11.0 is supported."""
    found = [
        f"{module.__name__}.{name}"
        for module in _modules_with_expressions()
        for name, value in vars(module).items()
        if isinstance(value, re.Pattern) and _is_possessive(PARSE(value.pattern, value.flags))
    ]
    assert found == []


def test_possessive_repeat_is_found_when_there_is_one() -> None:
    assert _is_possessive(PARSE(rb"a(?:b|c*+)d"))
    assert not _is_possessive(PARSE(rb"a(?:b|c*)d"))


def _modules_with_expressions() -> Iterator[ModuleType]:
    for path in sorted([*ROOT.glob("libs/*/src/**/*.py"), *ROOT.glob("services/*/src/**/*.py")]):
        if re.search(r"^import re$", path.read_text(), re.MULTILINE):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield importlib.import_module(".".join(parts[parts.index("src") + 1 :]).removesuffix(".__init__"))


def _is_possessive(parsed: Any) -> bool:
    for operation, argument in parsed:
        if str(operation) in {"POSSESSIVE_REPEAT", "ATOMIC_GROUP"}:
            return True
        nested = [part for part in _flat(argument) if type(part).__name__ == "SubPattern"]
        if any(map(_is_possessive, nested)):
            return True
    return False


def _flat(argument: Any) -> Iterator[Any]:
    if isinstance(argument, tuple | list):
        for part in argument:
            yield from _flat(part)
    else:
        yield argument
