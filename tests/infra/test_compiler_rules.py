"""What the Bicep compiler and its linter find with every rule on, where no compiler is at hand."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from tests.support.bicep import parse, text_of, walk
from tests.support.infrastructure import FILES, INFRA, Infrastructure

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tree_sitter import Node

VERSIONS = {
    "Microsoft.App/": "2026-01-01",
    "Microsoft.Authorization/roleAssignments": "2022-04-01",
    "Microsoft.Consumption/budgets": "2023-11-01",
    "Microsoft.ContainerRegistry/registries": "2025-11-01",
    "Microsoft.ContainerRegistry/registries/tasks": "2019-04-01",
    "Microsoft.Insights/actionGroups": "2023-01-01",
    "Microsoft.Insights/components": "2020-02-02",
    "Microsoft.Insights/diagnosticSettings": "2021-05-01-preview",
    "Microsoft.Insights/metricAlerts": "2026-01-01",
    "Microsoft.Insights/scheduledQueryRules": "2026-03-01",
    "Microsoft.Insights/workbooks": "2023-06-01",
    "Microsoft.ManagedIdentity/userAssignedIdentities": "2024-11-30",
    "Microsoft.Network/privateDnsZones": "2024-06-01",
    "Microsoft.Network/privateDnsZones/virtualNetworkLinks": "2024-06-01",
    "Microsoft.Network/": "2025-07-01",
    "Microsoft.OperationalInsights/workspaces": "2025-07-01",
    "Microsoft.Resources/resourceGroups": "2025-04-01",
    "Microsoft.ServiceBus/": "2026-01-01",
    "Microsoft.Storage/": "2025-06-01",
    "Microsoft.Web/": "2025-05-01",
}
"""One version for a provider where its types share them, and the newest stable one where a type stands alone; a
diagnostic setting has had no stable one with categories, anywhere. Looked up in November 2026."""
WIDTH = 120


def name_of(node: Node) -> str:
    return text_of(next(c for c in node.named_children if c.type == "identifier"))


def at(file: Path, node: Node, said: str) -> str:
    return f"{file.name}:{node.start_point[0] + 1}: {said}"


def untyped(file: Path) -> Iterator[str]:
    """Parameters and outputs that say no more than `object` or `array`."""
    for node in walk(parse(file)):
        if node.type in ("parameter_declaration", "output_declaration", "type_declaration"):
            for part in walk(node):
                if part.type == "primitive_type" and text_of(part) in ("object", "array"):
                    yield at(file, part, f"{name_of(node)} is any {text_of(part)}")


def named_modules(file: Path) -> Iterator[str]:
    """Modules with a name of their own, which two deployments at once would share."""
    for module in parse(file).named_children:
        if module.type == "module_declaration":
            for key in properties(module):
                if key == "name":
                    yield at(file, module, f"module {name_of(module)} is named")


def properties(declaration: Node) -> dict[str, Node]:
    """The properties of what a module or a resource declares, through its loop and its condition."""
    node = declaration.named_children[-1]
    while node.type in ("for_statement", "if_statement"):
        node = node.named_children[-1]
    found = {}
    for child in node.named_children:
        if child.type == "object_property":
            key, value = child.named_children
            found[text_of(key)] = value
    return found


def hidden_from_previews(file: Path) -> Iterator[str]:
    """Outputs of a module that decide a name, a scope, a condition or a loop of another: what-if stops there."""
    for module in parse(file).named_children:
        if module.type != "module_declaration":
            continue
        target = text_of(next(c for c in module.named_children if c.type == "string")).strip("'")
        given = properties(module).get("params")
        late = {
            text_of(p.named_children[0])
            for p in (given.named_children if given is not None else [])
            if p.type == "object_property" and re.search(r"\boutputs\.", text_of(p.named_children[1]))
        }
        for parameter in sorted(late & decisive(file.parent / target)):
            yield at(file, module, f"{parameter} of {target} is an output of another module")


def decisive(file: Path) -> set[str]:
    """Every name that a name, a scope, a condition or a loop of the file depends on, through its variables."""
    root = parse(file)
    variables = {name_of(n): n for n in root.named_children if n.type == "variable_declaration"}
    deciding: list[Node] = []
    for declaration in root.named_children:
        if declaration.type not in ("resource_declaration", "module_declaration"):
            continue
        body = declaration.named_children[-1]
        while body.type in ("for_statement", "if_statement"):
            deciding += body.named_children[:-1]
            body = body.named_children[-1]
        deciding += [v for k, v in properties(declaration).items() if k in ("name", "scope", "parent")]
    found: set[str] = set()
    while deciding:
        for part in walk(deciding.pop()):
            if part.type == "identifier" and (name := text_of(part)) not in found:
                found.add(name)
                if name in variables:
                    deciding.append(variables[name].named_children[-1])
    return found


def old_versions(file: Path) -> Iterator[str]:
    """Resources with another API version than the one looked up for their type."""
    for node in walk(parse(file)):
        if node.type == "resource_declaration":
            kind, _, version = (
                text_of(next(c for c in node.named_children if c.type == "string")).strip("'").partition("@")
            )
            wanted = VERSIONS.get(kind) or VERSIONS.get(kind.partition("/")[0] + "/", "one in the table")
            if version != wanted:
                yield at(file, node, f"{kind} is {version}, and should be {wanted}")


def unformatted(file: Path) -> Iterator[str]:
    """Where the formatter would change something, as far as it can be told without it."""
    text = file.read_text(encoding="utf-8")
    if not text.endswith("\n") or text.endswith("\n\n"):
        yield f"{file.name}: one line end at the end"
    for number, line in enumerate(text.split("\n"), 1):
        indent = len(line) - len(line.lstrip())
        if line != line.rstrip() or "\t" in line or indent % 2:
            yield f"{file.name}:{number}: white space"
        if re.search(r"\[for ", line):
            yield f"{file.name}:{number}: a loop begins on a line of its own"
        code = re.sub(r"'(?:[^'\\]|\\.)*'", "''", line)
        if len(line) > WIDTH and len(code) > WIDTH // 2 and not line.lstrip().startswith("//"):
            yield f"{file.name}:{number}: {len(line)} characters"


def unused(file: Path) -> Iterator[str]:
    """Parameters, variables and imports that nothing uses."""
    root = parse(file)
    uses = [text_of(n) for n in walk(root) if n.type == "identifier"]
    for node in root.named_children:
        names = []
        if node.type in ("parameter_declaration", "variable_declaration"):
            names = [name_of(node)]
        if node.type == "import_functionality":
            names = [text_of(n) for n in node.named_children if n.type == "identifier"]
        for name in names:
            if uses.count(name) < 2:
                yield at(file, node, f"nothing uses {name}")


def looked_up_too_early(file: Path) -> Iterator[str]:
    """What is looked up in the template that makes it, or under a name that stands for nothing: neither is there."""
    made, found = [], []
    for node in parse(file).named_children:
        if node.type != "resource_declaration":
            continue
        kind = (
            text_of(next(c for c in node.named_children if c.type == "string")).strip("'").partition("@")[0]
        )
        name = properties(node).get("name")
        entry = (kind, text_of(name) if name is not None else "")
        if not any(c.type == "existing" for c in node.children):
            made.append(entry)
        else:
            found.append((node, entry))
    for node, entry in found:
        if entry in made:
            yield at(file, node, f"{name_of(node)} is made here too")
        if "'none'" in entry[1] and node.named_children[-1].type != "if_statement":
            yield at(file, node, f"{name_of(node)} may be none")


RULES = (unused, looked_up_too_early, untyped, named_modules, hidden_from_previews, old_versions, unformatted)


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_every_template_keeps_the_rules(file: Path) -> None:
    """No template has what the compiler's stricter rules or its formatter would object to."""
    assert [said for rule in RULES for said in rule(file)] == []


SITE = "resource {} 'Microsoft.Web/sites@2025-05-01'{} = {{\n  name: {}\n}}\n"
SEEDED = [
    ("param tags string\n", "nothing uses tags"),
    ("import { texts } from 'types.bicep'\n", "nothing uses texts"),
    (SITE.format("r", "", "'r'") + SITE.format("s", " existing", "'r'"), "s is made here too"),
    (SITE.format("s", " existing", "'none'"), "s may be none"),
    ("param tags object\noutput x string = tags.a\n", "tags is any object"),
    ("param jobs array = []\noutput x string = jobs[0]\n", "jobs is any array"),
    ("type entry = {\n  list: array\n}\n", "entry is any array"),
    ("module m 'inner.bicep' = {\n  name: 'm'\n  params: {\n    name: 'x'\n  }\n}\n", "module m is named"),
    (
        "module a 'other.bicep' = {}\nmodule m 'inner.bicep' = {\n  params: {\n    name: a.outputs.name\n  }\n}\n",
        "name of inner.bicep is an output",
    ),
    ("resource r 'Microsoft.Web/sites@2024-11-01' = {\n  name: 'r'\n}\n", "should be 2025-05-01"),
    ("resource r 'Microsoft.Cache/redis@2024-11-01' = {\n  name: 'r'\n}\n", "should be one in the table"),
    ("output x int[] = [for i in range(0, 3): i]\n", "a line of its own"),
    ("output x int = 1 \n", "white space"),
    ("output x int = 1\n\n", "one line end"),
    (f"output x string = {'concat(a, ' * 20}a{')' * 20}\n", "characters"),
]


@pytest.mark.parametrize(("text", "said"), SEEDED, ids=[said for _, said in SEEDED])
def test_each_rule_finds_what_it_is_for(tmp_path: Path, text: str, said: str) -> None:
    """A template with a mistake of each kind gets the message of that kind and no other."""
    (tmp_path / "inner.bicep").write_text(
        "param name string\nvar full = '${name}-1'\nresource r 'Microsoft.Web/sites@2025-05-01' = {\n  name: full\n}\n"
    )
    (tmp_path / "other.bicep").write_text("output name string = 'x'\n")
    (tmp_path / "main.bicep").write_text(text)
    found = [message for rule in RULES for message in rule(tmp_path / "main.bicep")]
    assert len(found) == 1, found
    assert said in found[0]


def test_a_type_has_the_keys_that_the_manifest_has(sample: Infrastructure) -> None:
    """What the templates say a job and a handler of the manifest look like is what the code writes."""
    types = {
        name_of(n): {
            text_of(p.named_children[0]): text_of(p.named_children[-1])
            for part in n.named_children
            if part.type == "object"
            for p in part.named_children
            if p.type == "object_property"
        }
        for n in parse(INFRA / "types.bicep").named_children
        if n.type == "type_declaration"
    }
    kinds = {str: "string", int: "int", bool: "bool"}
    for kind, name in (("jobs", "scheduledJob"), ("handlers", "queueHandler")):
        wanted = {k for k, what in types[name].items() if not what.endswith("?")}
        for entry in sample.manifest[kind]:
            assert wanted <= set(entry) <= set(types[name]), f"infra/types.bicep: {name}"
            for key, value in entry.items():
                assert types[name][key].rstrip("?") == kinds[type(value)], key


def test_the_compiler_is_asked_for_the_same() -> None:
    """Where there is a compiler, in an editor or in CI, it is told to look at what these rules look at."""
    rules = json.loads((INFRA / "bicepconfig.json").read_text())["analyzers"]["core"]["rules"]
    assert set(rules) == {
        "no-module-name",
        "use-recent-api-versions",
        "use-resource-id-functions",
        "use-user-defined-types",
        "what-if-short-circuiting",
    }


def test_modules_are_handed_names_and_not_outputs() -> None:
    """Every module learns the names of the others' resources from main.bicep, so a preview looks into each."""
    handed = [text_of(n) for n in walk(parse(INFRA / "main.bicep")) if n.type == "object_property"]
    assert not [text for text in handed if re.match(r"\w+: [^{]*\boutputs\.", text)]
