"""Arguments and results as their annotations say, by pydantic: checked where they are given, and sent as JSON."""

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import UnionType
from typing import Annotated, Any, Final, Union

from pydantic import ConfigDict, PlainSerializer, PlainValidator, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import PydanticSerializationError, from_json, to_json, to_jsonable_python
from typing_extensions import TypedDict

from headgate._error_text import name_of
from headgate._worker.job import Job
from headgate.errors import WrongArguments

_CONFIG: Final = ConfigDict(
    extra="forbid", ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="strings"
)
_BY_PLACE: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_VARIADIC: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

_ADVICE: Final = (
    "; for bytes that are no text, give a pydantic model of yours "
    "ConfigDict(ser_json_bytes='base64', val_json_bytes='base64')"
)

# How values of a type travel: what makes JSON of one, and what makes one of that JSON.
Codec = tuple[Callable[[Any], Any], Callable[[Any], Any]]


@dataclass(frozen=True, slots=True)
class StateOf:
    """The default of a parameter that is given a part of the app's state; see `App.state`."""

    kind: type[Any]


class Fields:
    """Named values of given types, checked and brought to JSON and back."""

    def __init__(self, title: str, types: Mapping[str, Any]) -> None:
        self.names = frozenset(types)
        make: Any = TypedDict
        made: Any = make(title, dict(types), total=False)
        made.__pydantic_config__ = _CONFIG
        try:
            # In a tuple, for pydantic takes no settings of how bytes are written from a TypedDict, though it does
            # those of how they are read.
            self._adapter: TypeAdapter[tuple[dict[str, Any]]] = TypeAdapter(tuple[made], config=_CONFIG)
        except PydanticUserError as error:
            raise TypeError(
                f"{title} has an annotation that no JSON is made of ({error.message.splitlines()[0]}); annotate "
                "it with a type that pydantic knows, or give the app a codec for it: App(..., codecs={...}). What "
                "the lifespan yields is given to parameters whose default is app.state(TheType)"
            ) from None

    def encode(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values as JSON.

        Raises:
            ValidationError: they are not of their types.
            PydanticSerializationError: they have no JSON form.
        """
        checked = self._adapter.validate_python((dict(values),))
        # By way of text: only there are numbers that JSON has no form for made strings.
        text = self._adapter.dump_json(checked, by_alias=True)
        try:
            found: list[dict[str, Any]] = from_json(text)
        except ValueError as error:  # some two hundred levels, which can be written
            raise PydanticSerializationError(str(error)) from None
        return found[0]

    def decode(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values that JSON stands for; raises ValidationError."""
        # As text: only so are strings taken for bytes in base64, and lists for tuples and sets.
        return self._adapter.validate_json(to_json([values]))[0]


class Signature:
    """What a function takes and gives. Annotations are read when they are first needed, so that they may name what
    the module defines later."""

    def __init__(
        self, function: Callable[..., Any], codecs: Mapping[type[Any], Codec], *, batch: bool = False
    ) -> None:
        self.name = getattr(function, "__qualname__", repr(function))
        self._function = function
        self._codecs = codecs
        self._batch = batch
        self._whole = inspect.signature(function)
        self._arguments: Fields | None = None
        self._result: Fields | None = None
        self._hints: dict[str, Any] | None = None
        self._given: inspect.Signature | None = None

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """All parameters, those too that a worker fills in."""
        return self._whole.parameters

    @property
    def hints(self) -> dict[str, Any]:
        if self._hints is None:
            try:
                self._hints = typing.get_type_hints(inspect.unwrap(self._function), include_extras=True)
            except NameError as error:
                raise TypeError(f"an annotation of {self.name} names what is not there: {error}") from None
        return self._hints

    @cached_property
    def injected(self) -> dict[str, type[Job] | StateOf]:
        """The parameters that a worker fills in, by name."""
        found: dict[str, type[Job] | StateOf] = {}
        for name, parameter in self._whole.parameters.items():
            if self.hints.get(name) is Job:
                found[name] = Job
            elif isinstance(parameter.default, StateOf):
                found[name] = parameter.default
        return found

    @cached_property
    def is_coroutine(self) -> bool:
        """Whether calling the function gives a coroutine."""
        return inspect.iscoroutinefunction(inspect.unwrap(self._function))

    @cached_property
    def gives_nothing(self) -> bool:
        """Whether the function is annotated to return None."""
        return self.hints.get("return", Any) is type(None)

    @property
    def given(self) -> inspect.Signature:
        """The signature that callers see."""
        if self._given is None:
            injected = self.injected
            kept = [one for name, one in self._whole.parameters.items() if name not in injected]
            if self._batch and (len(kept) != 1 or kept[0].kind in _VARIADIC):
                raise TypeError(
                    f"{self.name} has batch=, so it takes one list of elements, beside what a worker fills in; "
                    f"its signature is {self._whole}"
                )
            self._given = self._whole.replace(parameters=kept)
        return self._given

    @cached_property
    def places(self) -> tuple[str, ...] | None:
        """The names of the parameters that callers see, if each may be given by its place."""
        parameters = self.given.parameters
        return tuple(parameters) if all(one.kind in _BY_PLACE for one in parameters.values()) else None

    @property
    def arguments(self) -> Fields:
        if self._arguments is None:
            types = {name: self._type_of(one) for name, one in self.given.parameters.items()}
            self._arguments = Fields(self.name, types)
        return self._arguments

    @property
    def result(self) -> Fields:
        if self._result is None:
            from headgate._app.flow import Flow

            annotation = self.hints.get("return", Any)
            if self._batch:  # a job of one element has a result of its own, and an exception is none
                annotation = without_exceptions(annotation)
                annotation = Union[annotation, None, *typing.get_args(annotation)[:1]]
            # A flow that is returned stands for the result of its last call.
            annotation = Any if annotation is Flow else with_codecs(annotation, self._codecs)
            self._result = Fields(f"the result of {self.name}", {"value": annotation})
        return self._result

    def _type_of(self, parameter: inspect.Parameter) -> Any:
        annotation: Any = with_codecs(self.hints.get(parameter.name, Any), self._codecs)
        match parameter.kind:
            case inspect.Parameter.VAR_POSITIONAL:
                return list.__class_getitem__(annotation)
            case inspect.Parameter.VAR_KEYWORD:
                return dict.__class_getitem__((str, annotation))
            case _:
                return annotation

    def check(self) -> None:
        """Raises TypeError for an annotation that no JSON is made of, or that names what is not there."""
        assert self.arguments is not None
        assert self.result is not None

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by name, without those left to their defaults.

        Raises:
            WrongArguments: the function cannot be called so.
        """
        places = self.places
        try:
            if places is not None and not kwargs and len(args) == len(places):
                bound = dict(zip(places, args, strict=True))  # a fifth of what it takes to look at every parameter
            else:
                bound = self.given.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise WrongArguments(f"{self.name}: {error}; its signature is {self.given}") from None
        return {name: list(value) if isinstance(value, tuple) else value for name, value in bound.items()}

    def encode(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Bound arguments as JSON.

        Raises:
            WrongArguments: one is not of its type, or has no JSON form.
        """
        try:
            return self.arguments.encode(arguments)
        except ValidationError as error:
            raise WrongArguments(f"{self.name}: {faults(error)}") from None
        except (PydanticSerializationError, UnicodeError, RecursionError) as error:
            raise WrongArguments(f"{self.name}: an argument has no JSON form: {error}{_ADVICE}") from None

    @cached_property
    def required(self) -> tuple[str, ...]:
        """The names of the parameters that callers must give."""
        given = self.given.parameters.items()
        return tuple(name for name, one in given if one.default is one.empty and one.kind not in _VARIADIC)

    def missing(self, arguments: Mapping[str, Any]) -> list[str]:
        """Required arguments that are not there."""
        return [name for name in self.required if name not in arguments]

    def call_with(self, arguments: Mapping[str, Any], injected: Mapping[str, Any]) -> tuple[list[Any], Any]:
        """Positional and keyword arguments of the function itself."""
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        by_name = False
        for name, parameter in self._whole.parameters.items():
            value = (injected if name in injected else arguments).get(name, parameter.default)
            kind = parameter.kind
            if value is parameter.empty:
                by_name = True  # what comes after one that is left out has no place of its own
            elif kind is parameter.VAR_POSITIONAL:
                args += value
            elif kind is parameter.VAR_KEYWORD:
                kwargs |= value
            elif by_name or kind is parameter.KEYWORD_ONLY:
                kwargs[name] = value
            else:
                args.append(value)
        return args, kwargs


def loose(value: Any) -> Any:
    """Any value as JSON, of no type known beforehand.

    Raises:
        WrongArguments: it has no JSON form.
    """
    try:
        return to_jsonable_python(value, bytes_mode="base64", inf_nan_mode="strings", by_alias=True)
    except (PydanticSerializationError, UnicodeError, RecursionError) as error:
        raise WrongArguments(f"an argument has no JSON form: {error}") from None


def faults(error: ValidationError) -> str:
    """What is wrong with which value, in a line."""
    found = [
        f"`{'.'.join(map(str, fault['loc'][1:]))}` {_in_words(fault)}"
        for fault in error.errors(include_url=False, include_context=False)[:5]
    ]
    return "; ".join(found)


def _in_words(fault: Any) -> str:
    match fault["type"]:
        case "extra_forbidden":
            return "is no argument of it"
        case "missing":
            return "is missing"
        case _:
            value = shown(fault["input"])
            message = str(fault["msg"])
            return f"{message[0].lower()}{message[1:]}, not {value if len(value) <= 80 else value[:77] + '...'}"


def shown(value: Any) -> str:
    """Its repr, where it has one."""
    try:
        return repr(value)
    except BaseException:  # of a class of the user's, or too large or deep for Python to write
        return f"a {name_of(value)} whose repr raises"


def without_exceptions(annotation: Any) -> Any:
    """`list[int | ValueError]`, which a function of a batch may be annotated with, as `list[int]`."""
    if typing.get_origin(annotation) is not list:
        return annotation
    (element,) = typing.get_args(annotation)
    kinds = typing.get_args(element) if typing.get_origin(element) in (Union, UnionType) else (element,)
    kept = [kind for kind in kinds if not (isinstance(kind, type) and issubclass(kind, BaseException))]
    return list[Union[tuple(kept)]] if kept else list[None]  # type: ignore[misc]  # noqa: UP007 (at run time)


def with_codecs(annotation: Any, codecs: Mapping[type[Any], Codec]) -> Any:
    """The annotation, with the codecs of the types that it is made of."""
    from headgate._app.call import JobCall

    if isinstance(annotation, type) and annotation in codecs:
        encode, decode = codecs[annotation]
        kind = annotation
        return Annotated[
            annotation,
            PlainValidator(lambda value: value if isinstance(value, kind) else decode(value)),
            PlainSerializer(encode),
        ]
    parts = typing.get_args(annotation)
    origin = typing.get_origin(annotation)
    if origin is JobCall:  # what a function returns is a call's result once it is there
        return with_codecs(parts[0], codecs)
    made = parts if origin is typing.Literal else tuple(with_codecs(part, codecs) for part in parts)
    if made == parts:
        return annotation
    if origin is Annotated:
        return Annotated[(made[0], *annotation.__metadata__)]
    if origin in (Union, UnionType):
        return Union[made]  # noqa: UP007 (of parts known at run time)
    return origin[made]
