"""Puts into the package what `runonce init` writes and what `runonce dev` starts; all else is in pyproject.toml."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent


LOCAL = (
    *("azurite/launcher.py", "azurite/run.js", "azurite/package.json", "azurite/package-lock.json"),
    *(f"servicebus/{path.name}" for path in sorted((ROOT / "servicebus").glob("*.py"))),
)
"""The stand-ins for Azure on one machine."""


class WithTemplate(build_py):
    """Copies template/ and what template/files.txt names, and LOCAL, as they are in the repository."""

    def run(self) -> None:
        """Build."""
        super().run()
        names = ROOT / "template" / "files.txt"
        if self.editable_mode or not names.exists():
            return  # a checkout has them where they are
        package = Path(self.build_lib) / "runonce"
        lines = [line.split() for line in names.read_text(encoding="utf-8").splitlines()]
        template = ["template", *(line[1] for line in lines if line and line[0] != "#")]
        for into, name in [("_template", name) for name in template] + [("_local", name) for name in LOCAL]:
            source, target = ROOT / name, package / into / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(
                    source, target, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True
                )
            else:
                shutil.copy(source, target)


setup(cmdclass={"build_py": WithTemplate})
