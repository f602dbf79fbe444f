"""Puts the files that `runonce init` writes into the package; everything else is in pyproject.toml."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent


class WithTemplate(build_py):
    """Copies template/ and what template/files.txt names, as they are in the repository."""

    def run(self) -> None:
        """Build."""
        super().run()
        names = ROOT / "template" / "files.txt"
        if self.editable_mode or not names.exists():
            return  # a checkout has them where they are
        into = Path(self.build_lib) / "runonce" / "_template"
        lines = [line.split() for line in names.read_text(encoding="utf-8").splitlines()]
        for name in ["template", *(line[1] for line in lines if line and line[0] != "#")]:
            source, target = ROOT / name, into / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(
                    source, target, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True
                )
            else:
                shutil.copy(source, target)


setup(cmdclass={"build_py": WithTemplate})
