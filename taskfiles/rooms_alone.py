"""Install each room alone, with what it declares, and import all of its modules.

The workspace's one environment holds every package, so it hides an import that a room does not declare.
"""

import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UV = ["uv", "--quiet", "--system-certs"]


def member_folders() -> list[Path]:
    """Return the folders of all rooms."""
    return sorted(path.parent for kind in ("libs", "services") for path in (ROOT / kind).glob("*/pyproject.toml"))


def requirement(member: Path) -> str:
    """Return the member with all its extras, as pip writes it."""
    extras = tomllib.loads((member / "pyproject.toml").read_text())["project"].get("optional-dependencies", {})
    return f"{member}[{','.join(extras)}]" if extras else str(member)


def modules(member: Path) -> list[str]:
    """Return the names of all modules of a room."""
    source = member / "src"
    names = (path.relative_to(source).with_suffix("").parts for path in source.rglob("*.py"))
    return sorted(".".join(parts[:-1] if parts[-1] == "__init__" else parts) for parts in names)


def check(member: Path) -> bool:
    """Tell whether every module of the room imports in an environment of its own."""
    imports = "\n".join(f"import {name}" for name in modules(member))
    with tempfile.TemporaryDirectory(prefix="sluicegate-room-") as folder:
        python = f"{folder}/bin/python"
        subprocess.run([*UV, "venv", "--python", sys.executable, folder], check=True)
        subprocess.run(
            [
                *UV,
                "pip",
                "install",
                "--python",
                python,
                "--constraint",
                ROOT / "requirements.lock",
                requirement(member),
            ],
            check=True,
            cwd=ROOT,
        )
        done = subprocess.run([python, "-I", "-c", imports], check=False, cwd=folder)
    return done.returncode == 0


def main() -> None:
    """Check the rooms that the arguments name, or all of them."""
    members = [ROOT / name for name in sys.argv[1:]] or member_folders()
    failed = []
    for member in members:
        is_complete = check(member)
        print(f"{'ok  ' if is_complete else 'FAIL'} {member.relative_to(ROOT)}", flush=True)
        if not is_complete:
            failed.append(member.name)
    if failed:
        sys.exit(f"These rooms import what they do not declare: {', '.join(failed)}")


if __name__ == "__main__":
    main()
