"""What a handler's function takes: a message, a list of them, or a body that pydantic checks. No I/O."""

from __future__ import annotations

import inspect
import re
import types
import typing
from typing import TYPE_CHECKING, Any

from runonce.errors import DefinitionError

if TYPE_CHECKING:
    from collections.abc import Callable

MESSAGE = "<class 'runonce.messages.message.Message'>"
"""The class as it shows itself; it imports this module."""
MESSAGES = re.compile(r"[\w.]+\[(?:[\w.]+\.)?Message\]")
"""The annotation of a list of them."""


def arguments_of(job: str, body: Callable[..., Any], batch: int | None) -> tuple[Any, ...]:
    """For each parameter what its body is validated by, None for a message or a list of them.

    Raises:
        DefinitionError: The function cannot be called so.
    """
    return _arguments(job, body) if batch is None else _list_of_messages(job, body)


def _arguments(job: str, body: Callable[..., Any]) -> tuple[Any, ...]:
    parameters = list(inspect.signature(body).parameters.values())
    plain = all(
        p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty for p in parameters
    )
    if not plain or not 1 <= len(parameters) <= 2:  # noqa: PLR2004 - the message, and a model of its body
        raise DefinitionError(
            f"Job {job!r}: its function takes ({', '.join(map(str, parameters))}); write "
            f"`def {body.__name__}(message: Message)`, or take a pydantic model of the body, or both."
        )
    models = tuple(_body_type(job, body, parameter) for parameter in parameters)
    if len([m for m in models if m is not None]) == len(models) > 1:
        raise DefinitionError(f"Job {job!r}: its function takes two models; a message has one body.")
    return models


def _list_of_messages(job: str, body: Callable[..., Any]) -> tuple[None]:
    parameters = list(inspect.signature(body).parameters.values())
    annotation = parameters[0].annotation if len(parameters) == 1 else ""
    text = annotation if isinstance(annotation, str) else str(annotation)
    plain = annotation is inspect.Parameter.empty or MESSAGES.fullmatch(text)
    if not plain or parameters[0].kind not in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    ):
        raise DefinitionError(
            f"Job {job!r}: with batch= its function takes a list of messages, and not "
            f"({', '.join(map(str, parameters))}); write `def {body.__name__}(messages: list[Message])`."
        )
    return (None,)


def _body_type(job: str, body: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """What a parameter's body is validated by: a pydantic model, or an adapter of another type. None: the message.

    Each parameter is resolved by itself, for one name that only the type checker knows says nothing about another.
    """
    annotation = parameter.annotation
    if isinstance(annotation, str):
        try:
            scope = getattr(inspect.unwrap(body), "__globals__", {})
            annotation = typing.get_type_hints(
                types.SimpleNamespace(__annotations__={"it": annotation}), scope, include_extras=True
            )["it"]
        except (NameError, TypeError, AttributeError, SyntaxError) as error:
            if parameter.name == "message" or annotation.rpartition(".")[2] == "Message":
                return None
            raise DefinitionError(
                f"Job {job!r}: the type of its parameter `{parameter}` is not there when the job runs ({error}), so "
                f"no body could be checked by it; import it outside `if TYPE_CHECKING:`, define it outside functions."
            ) from error
    if annotation in (parameter.empty, Any, object) or MESSAGE in map(
        str, getattr(annotation, "__mro__", ())
    ):
        return None
    if isinstance(annotation, type) and hasattr(annotation, "model_validate_json"):
        return annotation
    try:
        from pydantic import TypeAdapter  # noqa: PLC0415 - an extra, asked for by such an annotation alone
        from pydantic.errors import PydanticUserError  # noqa: PLC0415
    except ImportError as error:
        raise DefinitionError(
            f"Job {job!r}: its parameter `{parameter}` takes a body of that type, which pydantic checks; install "
            f'"runonce[pydantic]", or take a Message.'
        ) from error
    try:
        return TypeAdapter(annotation)
    except (PydanticUserError, NameError, TypeError, ValueError) as error:  # the last in pydantic 2.10
        raise DefinitionError(
            f"Job {job!r}: its parameter `{parameter}` is neither a Message nor a type that pydantic can check a body "
            f"by ({str(error).partition(chr(10))[0]}); take a Message, a model, a dataclass or a type of JSON."
        ) from error
