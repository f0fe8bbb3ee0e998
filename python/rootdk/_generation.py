"""What generation takes and gives: options of sampling, tokens one by one, whole continuations."""

import ctypes
import inspect
import operator
import threading
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, TypedDict, TypeVar

from . import _abi, _models_abi, _structs
from ._models_abi import c_ids
from ._params import whole

if TYPE_CHECKING:
    from ._models import Model


class SamplingOptions(TypedDict, total=False):
    """How the next token is taken from the logits. help(rootdk.Model.stream) says what each option means."""

    greedy: Optional[bool]
    temperature: Optional[float]
    top_k: Optional[int]
    top_p: Optional[float]
    min_p: Optional[float]
    repetition_penalty: float
    seed: int


_DEFAULTS: Dict[str, Any] = {**dict.fromkeys(SamplingOptions.__annotations__), "repetition_penalty": 1.0, "seed": 0}
_DRAWS = ("temperature", "top_k", "top_p", "min_p")
Function = TypeVar("Function", bound=Callable[..., Any])


def spells_out_sampling(function: Function) -> Function:
    """Shows SamplingOptions in the signature of a function that takes them as **sampling: for help and completion."""
    signature = inspect.signature(function)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_DEFAULTS[name], annotation=hint)
        for name, hint in SamplingOptions.__annotations__.items()
    ]
    function.__signature__ = signature.replace(parameters=own + options)  # type: ignore[attr-defined]
    return function


def _number(value: Any, name: str) -> float:
    if isinstance(value, str) or not hasattr(value, "__float__"):
        raise TypeError(f"generate: {name} is {value!r}, expected a number")
    return float(value)


def generate_params(functions: Any, max_new: int, sampling: Mapping[str, Any]) -> _models_abi.GenerateParams:
    """The struct for the options of sampling; the rest of it has its defaults."""
    for name in sampling:
        if name not in _DEFAULTS:
            raise TypeError(f"generate: unknown option {name!r}; those of sampling are {', '.join(_DEFAULTS)}")
    given = {**_DEFAULTS, **sampling}
    params = _models_abi.GenerateParams()
    functions.generate_params_init(ctypes.byref(params))
    sampled = {name: given[name] for name in _DRAWS if given[name] is not None}
    if given["greedy"] and sampled:
        raise ValueError(f"generate: greedy takes no {', '.join(sampled)}")
    params.max_new, params.seed = whole(max_new, "max_new"), operator.index(given["seed"]) & 0xFFFFFFFFFFFFFFFF
    params.greedy = not sampled if given["greedy"] is None else given["greedy"]
    for name, value in sampled.items():
        setattr(params, name, whole(value, name) if name == "top_k" else _number(value, name))
    params.repetition_penalty = _number(given["repetition_penalty"], "repetition_penalty")
    return params


_CACHE_TYPES: Dict[Optional[str], int] = {
    None: -1,
    "f32": _structs.F32,
    "bf16": _structs.BF16,
    "f16": _structs.F16,
    "int8": _structs.I8,
    "e4m3": _structs.F8E4M3,
}


def cache_type_code(name: Optional[str]) -> int:
    return one_of(name, "cache_type", _CACHE_TYPES)


def one_of(value: Any, name: str, choices: Dict[Any, int]) -> int:
    if value not in choices:
        known = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"rootdk: {name} is {value!r}, expected one of {known}")
    return choices[value]


class Token(NamedTuple):
    """One new token. The text is what it adds to the text before it: empty while a character is not complete."""

    id: int
    text: str


class Generation(NamedTuple):
    """A continuation. str() is prompt and continuation together."""

    text: str  # of the new tokens; empty without a tokenizer
    ids: List[int]  # the new tokens
    prompt_ids: List[int]
    prompt: str  # empty where ids were given, and before the answer of an encoder-decoder model

    def __str__(self) -> str:
        return self.prompt + self.text


class Beam(NamedTuple):
    """One continuation of beam search."""

    text: str  # of the new tokens; empty without a tokenizer
    ids: List[int]  # the new tokens
    log_probability: float  # of the new tokens together
    score: float  # log_probability over length^length_penalty


class TokenStream(Iterator[Token]):
    """The tokens of a generation, each as it comes. Leaving it early costs nothing more."""

    def __init__(self, model: "Model", ids: List[int], params: _models_abi.GenerateParams, *needed: Any) -> None:
        self._functions = model._functions
        # With stop strings a token waits for the next one: text that was held back comes with the end.
        self._delays = params.stop_count > 0
        self._waiting: Optional[Token] = None
        self._lock = threading.Lock()
        handle = ctypes.c_void_p()
        _abi.check(
            self._functions.generation_begin(
                model._handle, c_ids(ids), len(ids), ctypes.byref(params), ctypes.byref(handle)
            )
        )
        self._handle = _abi.own(handle, self._functions.generation_destroy, model._handle, *needed)

    def __next__(self) -> Token:
        token = self._take()
        if not self._delays:
            if token.id < 0:
                raise StopIteration
            return token
        if self._waiting is None and token.id >= 0:
            self._waiting, token = token, self._take()
        if self._waiting is None:
            raise StopIteration
        if token.id < 0:
            last, self._waiting = self._waiting, None
            return Token(last.id, last.text + token.text)
        before, self._waiting = self._waiting, token
        return before

    def _take(self) -> Token:
        """The next token, or id -1 at the end."""
        number, address, count = ctypes.c_int32(), ctypes.c_void_p(), ctypes.c_size_t()
        with self._lock:
            _abi.check(
                self._functions.generation_next(
                    self._handle, ctypes.byref(number), ctypes.byref(address), ctypes.byref(count)
                )
            )
            text = _models_abi.read_text(address, count)
        return Token(number.value, text)
