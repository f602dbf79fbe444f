"""Reads Bicep and works out which resources a deployment would make, without Azure and without a compiler.

It knows the part of the language infra/ uses: parameters, variables, loops, conditions, modules, lambdas, a few
functions. What only a deployment knows (a property of a resource) becomes `Later`, which names it. Anything else
is an error here, so that infra/ does not quietly grow beyond what its tests can see.
"""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import tree_sitter_bicep
from tree_sitter import Language, Parser

from tests.support.bicep_functions import FUNCTIONS, Later, as_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tree_sitter import Node, Tree

_PARSER = Parser(Language(tree_sitter_bicep.language()))
_SKIPPED = (
    "decorators",
    "comment",
    "target_scope_assignment",
    "type_declaration",
    "import_functionality",
    "diagnostic_comment",
)
ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


@dataclass
class Resource:
    """A resource that would be made, or (existing) one that is looked up."""

    type: str
    api: str
    name: str
    """With its parents' names before it, as Azure Resource Manager has it."""
    body: dict[str, Any]
    file: str
    existing: bool = False
    conditional: bool = False

    @property
    def id(self) -> str:
        return f"/{self.type}/{self.name}"

    @property
    def properties(self) -> dict[str, Any]:
        return self.body.get("properties", {})


@dataclass
class Module:
    """A deployed module."""

    outputs: dict[str, Any]


@dataclass
class Deployment:
    """What a template makes, its modules' resources included."""

    resources: list[Resource] = field(default_factory=list)
    outputs: dict[str, Any] = field(default_factory=dict)

    def of(self, kind: str) -> list[Resource]:
        """The resources of a type, the existing ones left out."""
        return [r for r in self.resources if r.type == kind and not r.existing]

    def one(self, kind: str) -> Resource:
        """The only resource of a type."""
        (found,) = self.of(kind)
        return found


@functools.cache
def _tree(content: bytes) -> Tree:
    """Most tests read the same files."""
    return _PARSER.parse(content)


def parse(path: Path) -> Node:
    """The syntax tree of a file; AssertionError where it cannot be read."""
    root = _tree(path.read_bytes()).root_node
    assert not root.has_error, f"{path}: not readable as Bicep"
    return root


def walk(node: Node) -> Iterator[Node]:
    """The node and everything below it."""
    yield node
    for child in node.children:
        yield from walk(child)


def strings(path: Path) -> Iterator[str]:
    """Every piece of text in a file's literals."""
    for node in walk(parse(path)):
        if node.type == "string_content":
            yield text_of(node)


def text_of(node: Node) -> str:
    return (node.text or b"").decode()


def deploy(path: Path, **parameters: Any) -> Deployment:
    """What deploying the file with these parameters would make."""
    return _Template(path, parameters).deployment()


def parameters_of(path: Path) -> dict[str, bool]:
    """The parameters of a file, and whether each must be given."""
    found = {}
    for node in parse(path).named_children:
        if node.type == "parameter_declaration":
            name = next(c for c in node.named_children if c.type == "identifier")
            found[text_of(name)] = not any(c.type == "=" for c in node.children)
    return found


class _Template:
    def __init__(self, path: Path, parameters: Mapping[str, Any]) -> None:
        self.path = path
        self.given = dict(parameters)
        self.made = Deployment()
        self.values: dict[str, Any] = {}
        self.declared: dict[str, Node] = {}
        self.outputs: list[Node] = []
        for node in parse(path).named_children:
            if node.type in _SKIPPED:
                continue
            if node.type == "output_declaration":
                self.outputs.append(node)
                continue
            name = text_of(next(c for c in node.named_children if c.type == "identifier"))
            assert name not in self.declared, f"{path}: {name} is declared twice"
            self.declared[name] = node
        parameters_here = {n for n, node in self.declared.items() if node.type == "parameter_declaration"}
        unknown = set(parameters) - parameters_here
        assert not unknown, f"{path}: no parameters {unknown}"

    def deployment(self) -> Deployment:
        for name in self.declared:
            self.value(name)
        for node in self.outputs:
            name = text_of(next(c for c in node.named_children if c.type == "identifier"))
            self.made.outputs[name] = self.evaluate(node.named_children[-1], {})
        return self.made

    def value(self, name: str) -> Any:
        if name not in self.values:
            assert name in self.declared, f"{self.path}: {name} is not declared"
            self.values[name] = self.declare(name, self.declared[name])
        return self.values[name]

    def declare(self, name: str, node: Node) -> Any:
        match node.type:
            case "parameter_declaration":
                if name in self.given:
                    return self.given[name]
                assert any(c.type == "=" for c in node.children), f"{self.path}: {name} is not given"
                return self.evaluate(node.named_children[-1], {})
            case "variable_declaration":
                return self.evaluate(node.named_children[-1], {})
            case "resource_declaration":
                kind = self.evaluate(next(c for c in node.named_children if c.type == "string"), {})
                existing = any(c.type == "existing" for c in node.children)
                return self.repeat(
                    node.named_children[-1],
                    {},
                    lambda body, names: self.resource(kind, body, names, existing),
                )
            case "module_declaration":
                target = self.evaluate(next(c for c in node.named_children if c.type == "string"), {})
                return self.repeat(
                    node.named_children[-1], {}, lambda body, names: self.module(target, body, names)
                )
        raise AssertionError(f"{self.path}: {node.type} is not known here")

    def repeat(self, node: Node, names: dict[str, Any], make: Callable[[Node, dict[str, Any]], Any]) -> Any:
        """A declaration's body: with a loop, a condition, or neither."""
        if node.type == "for_statement":
            return [self.repeat(body, scope, make) for body, scope in self.loop(node, names)]
        if node.type == "if_statement":
            condition, body = node.named_children
            return make(body, names) if self.evaluate(condition, names) else None
        return make(node, names)

    def loop(self, node: Node, names: dict[str, Any]) -> Iterator[tuple[Node, dict[str, Any]]]:
        variables, source, body = node.named_children
        loop_names = (
            [text_of(c) for c in variables.named_children]
            if variables.named_children
            else [text_of(variables)]
        )
        for index, item in enumerate(self.evaluate(source, names)):
            yield body, {**names, **dict(zip(loop_names, (item, index), strict=False))}

    def resource(self, kind: str, body: Node, names: dict[str, Any], existing: bool) -> Resource:
        content = self.evaluate(body, names)
        type_name, api = kind.split("@")
        parent = content.pop("parent", None)
        name = content.pop("name")
        full = f"{parent.name}/{name}" if parent is not None else str(name)
        if isinstance(scope := content.get("scope"), Resource):
            content["scope"] = scope.id
        made = Resource(type_name, api, full, content, self.path.name, existing)
        if not existing:
            others = [(r.body.get("scope"), r.name) for r in self.made.of(type_name)]
            assert (content.get("scope"), full) not in others, f"{self.path}: {full} twice"
        self.made.resources.append(made)
        return made

    def module(self, target: str, body: Node, names: dict[str, Any]) -> Module:
        content = self.evaluate(body, names)
        inner = _Template(self.path.parent / target, content.get("params", {})).deployment()
        self.made.resources += inner.resources
        return Module(inner.outputs)

    # -- expressions ----------------------------------------------------------------------------------------

    def evaluate(self, node: Node, names: dict[str, Any]) -> Any:
        method = getattr(self, f"_{node.type}", None)
        assert method is not None, f"{self.path}:{node.start_point[0] + 1}: {node.type} is not known here"
        return method(node, names)

    def _number(self, node: Node, _: dict[str, Any]) -> int:
        return int(text_of(node))

    def _boolean(self, node: Node, _: dict[str, Any]) -> bool:
        return text_of(node) == "true"

    def _null(self, *_: Any) -> None:
        return None

    def _identifier(self, node: Node, names: dict[str, Any]) -> Any:
        name = text_of(node)
        return names[name] if name in names else self.value(name)

    def _string(self, node: Node, names: dict[str, Any]) -> str:
        parts = []
        for child in node.named_children:
            if child.type == "interpolation":
                parts.append(as_text(self.evaluate(child.named_children[0], names)))
            elif child.type == "escape_sequence":
                code = text_of(child)[1:]
                parts.append(ESCAPES.get(code, code))
            else:
                parts.append(re.sub(r"\\(.)", lambda m: ESCAPES.get(m[1], m[1]), text_of(child)))
        return "".join(parts)

    def _array(self, node: Node, names: dict[str, Any]) -> list[Any]:
        return [self.evaluate(c, names) for c in node.named_children if c.type != "comment"]

    def _object(self, node: Node, names: dict[str, Any]) -> dict[str, Any]:
        made = {}
        for child in node.named_children:
            if child.type == "comment":
                continue
            key, value = child.named_children
            name = self.evaluate(key, names) if key.type == "string" else text_of(key)
            if name == "dependsOn":
                continue  # order is Azure's business
            made[name] = self.evaluate(value, names)
        return made

    def _for_statement(self, node: Node, names: dict[str, Any]) -> list[Any]:
        return [self.evaluate(body, scope) for body, scope in self.loop(node, names)]

    def _parenthesized_expression(self, node: Node, names: dict[str, Any]) -> Any:
        return self.evaluate(node.named_children[0], names)

    def _ternary_expression(self, node: Node, names: dict[str, Any]) -> Any:
        condition, yes, no = node.named_children
        return self.evaluate(yes if self.evaluate(condition, names) else no, names)

    def _unary_expression(self, node: Node, names: dict[str, Any]) -> Any:
        assert node.children[0].type == "!"
        return not self.evaluate(node.named_children[0], names)

    def _binary_expression(self, node: Node, names: dict[str, Any]) -> Any:
        left, right = node.named_children
        first = self.evaluate(left, names)
        match node.children[1].type:
            case "&&":
                return first and self.evaluate(right, names)
            case "||":
                return first or self.evaluate(right, names)
            case "??":
                return first if first is not None else self.evaluate(right, names)
            case "==":
                return first == self.evaluate(right, names)
            case "!=":
                return first != self.evaluate(right, names)
            case ">":
                return first > self.evaluate(right, names)
        raise AssertionError(f"{self.path}: operator {node.children[1].type} is not known here")

    def _member_expression(self, node: Node, names: dict[str, Any]) -> Any:
        base = self.evaluate(node.named_children[0], names)
        name = text_of(node.named_children[-1])
        if base is None and (".?" in {c.type for c in node.children} or _is_safe(node.named_children[0])):
            return None
        match base:
            case dict() if ".?" in {c.type for c in node.children}:
                found = base.get(name)
            case dict():
                assert name in base, f"{self.path}:{node.start_point[0] + 1}: no {name} in {sorted(base)}"
                found = base[name]
            case Later():
                found = Later(f"{base.what}.{name}")
            case Module():
                found = base.outputs if name == "outputs" else getattr(base, name)
            case Resource():
                found = getattr(base, name) if name in ("id", "name") else Later(f"{base.id}.{name}")
            case _:
                raise AssertionError(f"{self.path}:{node.start_point[0] + 1}: {name} of {base!r}")
        return found

    def _subscript_expression(self, node: Node, names: dict[str, Any]) -> Any:
        base, index = (self.evaluate(c, names) for c in node.named_children)
        return base[index]

    def _lambda_expression(self, node: Node, names: dict[str, Any]) -> Callable[..., Any]:
        *variables, body = node.named_children
        argument = text_of(variables[0])
        return lambda value: self.evaluate(body, {**names, argument: value})

    def _call_expression(self, node: Node, names: dict[str, Any]) -> Any:
        target, arguments = node.named_children
        name = text_of(target)
        given = [self.evaluate(c, names) for c in arguments.named_children if c.type != "comment"]
        if name == "loadJsonContent":
            return json.loads((self.path.parent / given[0]).read_text(encoding="utf-8"))
        assert name in FUNCTIONS, f"{self.path}:{node.start_point[0] + 1}: function {name} is not known here"
        return FUNCTIONS[name](*given)


def _is_safe(node: Node) -> bool:
    """Whether a chain of members began with `.?`, which lets all of it be nothing."""
    return node.type == "member_expression" and (
        ".?" in {c.type for c in node.children} or _is_safe(node.named_children[0])
    )
