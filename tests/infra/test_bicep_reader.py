"""The reader that the tests of infra/ stand on: what it works out, and what it refuses to guess."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.bicep import Later, deploy

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.bicep import Deployment


def deployed(folder: Path, text: str, **parameters: object) -> Deployment:
    (folder / "main.bicep").write_text(text)
    return deploy(folder / "main.bicep", **parameters)


def test_loops_conditions_and_modules_become_resources(tmp_path: Path) -> None:
    """A loop gives a resource for each item, a false condition none, and a module those of its file."""
    (tmp_path / "inner.bicep").write_text(
        "param names array\n"
        "resource q 'A/b@1' = [for (n, i) in names: if (n != 'no') {\n  name: '${n}-${i}'\n}]\n"
        "output first string = q[0].id\n"
    )
    made = deployed(
        tmp_path,
        "param more bool = false\n"
        "module m 'inner.bicep' = {\n  name: 'm'\n  params: {\n    names: ['x', 'no', 'y']\n  }\n}\n"
        "resource r 'C/d@1' = if (more) {\n  name: 'r'\n}\n"
        "output id string = m.outputs.first\n"
        "output none string = r.?properties.x ?? 'none'\n",
    )
    assert [r.name for r in made.resources] == ["x-0", "y-2"]
    assert made.outputs == {"id": "/A/b/x-0", "none": "none"}


def test_what_only_a_deployment_knows_is_named(tmp_path: Path) -> None:
    """A property of a resource is not made up: it stays recognisable wherever it goes."""
    made = deployed(
        tmp_path,
        "resource r 'A/b@1' = {\n  name: 'r'\n}\noutput x string = r.properties.endpoint\n"
        "output text string = 'at ${r.properties.endpoint}'\n",
    )
    assert made.outputs["x"] == Later("/A/b/r.properties.endpoint")
    assert made.outputs["text"] == "at </A/b/r.properties.endpoint>"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("var x = secret('y')\n", "function secret is not known"),
        ("var x = y\n", "y is not declared"),
        ("var x = { a: 1 }\nvar y = x.b\n", "no b in"),
        ("param x string\n", "x is not given"),
        ("var x = 1\nvar x = 2\n", "declared twice"),
        ("resource a 'A/b@1' = {\n  name: 'n'\n}\nresource b 'A/b@1' = {\n  name: 'n'\n}\n", "n twice"),
        ("var x = {\n", "not readable"),
        ("var x = 1 + 2\n", "operator"),
    ],
)
def test_it_does_not_guess(tmp_path: Path, text: str, said: str) -> None:
    """What it does not know is an error that says where, so that infra/ does not outgrow its tests unseen."""
    with pytest.raises(AssertionError, match=said):
        deployed(tmp_path, text)


def test_an_unknown_parameter_of_a_module_is_an_error(tmp_path: Path) -> None:
    """A module that is handed a parameter it does not have is a mistake of the caller."""
    (tmp_path / "inner.bicep").write_text("param a string\n")
    with pytest.raises(AssertionError, match="no parameters"):
        deployed(
            tmp_path, "module m 'inner.bicep' = {\n  name: 'm'\n  params: {\n    a: 'x'\n    b: 'y'\n  }\n}\n"
        )
