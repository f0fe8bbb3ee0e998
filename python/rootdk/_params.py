"""The parameters of a call, from Python values into a struct of the C ABI."""

import ctypes
import inspect
import operator
import struct
import typing
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Type, TypedDict, TypeVar, Union

from . import _abi, _structs
from ._abi import Arena, Place
from ._arrays import Kind, require_kind, small_code
from ._slots import write_tensor
from ._typing import AnyArray, Floats, Integers

Window = Union[None, int, Tuple[Optional[int], Optional[int]]]
Pair = Union[int, Tuple[int, int]]


class AttentionOptions(TypedDict, total=False):
    """What shapes the operation. help(rootdk.attention) says what each option means."""

    causal: bool
    window: Window
    scale: Union[None, str, float]
    temperature: float
    softcap: Optional[float]
    score: str
    bias: Optional[AnyArray]
    mask: Optional[AnyArray]
    block_mask: Optional[AnyArray]
    block_size: Optional[Pair]
    kv_lengths: Optional[Integers]
    q_starts: Optional[Integers]
    kv_starts: Optional[Integers]
    max_q_len: int
    max_kv_len: int
    relative_table: Optional[AnyArray]
    relative_zero: int
    alibi_slopes: Optional[Floats]
    sinks: Optional[Floats]
    additive_v: Optional[AnyArray]
    dropout: float
    seed: Union[int, AnyArray]
    compute: Optional[str]
    rotate: bool


class AttendOptions(TypedDict, total=False):
    """What shapes attention over a cache. help(rootdk.KvCache.attend) says what each option means."""

    layer: int
    window: Optional[int]
    window_keeps_first: int
    scale: Union[None, str, float]
    temperature: float
    softcap: Optional[float]
    relative_table: Optional[AnyArray]
    relative_zero: int
    alibi_slopes: Optional[Floats]
    sinks: Optional[Floats]


class Form:
    """A struct of parameters: the options that fill it, and its fields with their defaults, by number."""

    def __init__(self, operation: str, options: Any, structure: Type[ctypes.Structure], init: Any, place: Place):
        defaults = structure()
        init(ctypes.byref(defaults))
        fields: List[Any] = list(structure._fields_[1:])  # without struct_size
        self.operation, self.place = operation, place
        self.options: Dict[str, Any] = typing.get_type_hints(options)
        self.index = {name: i for i, (name, _) in enumerate(fields)}
        self.defaults: List[Any] = [0 if kind is _structs.pointer else getattr(defaults, name) for name, kind in fields]
        # Tuples, which torch.compile follows more easily than sets.
        self.tensors = tuple(name for name, kind in fields if kind is _structs.pointer and name in self.options)
        self.factors = tuple(i for i, (_, kind) in enumerate(fields) if kind is _structs.double)
        self.integers = tuple(
            i for i, (_, kind) in enumerate(fields) if kind not in (_structs.double, _structs.pointer)
        )

    def default_of(self, option: str) -> Any:
        """The default as a reader writes it; None where the library decides."""
        if option in self.tensors or option not in self.index or option in ("scale", "softcap", "compute"):
            return None
        value = self.defaults[self.index[option]]
        if option == "score":
            return next(name for name, number in _structs.SCORES.items() if number == value)
        return bool(value) if self.options[option] is bool else value


ATTENTION = Form("attention", AttentionOptions, _structs.AttentionParams, _abi.attention_params_init, _abi.PARAMS)
ATTEND = Form("attend", AttendOptions, _structs.AttendParams, _abi.attend_params_init, _abi.ATTEND_PARAMS)

TENSORS = ATTENTION.tensors
BOOLEAN_TENSORS = ("mask", "block_mask")
INTEGER_TENSORS = ("kv_lengths", "q_starts", "kv_starts")
DIFFERENTIABLE = ("bias", "relative_table", "alibi_slopes", "sinks", "additive_v")
_BROADCAST = ("mask", "block_mask", "bias")  # fewer than four dimensions: those in front are 1
_SCALES = {"inverse_sqrt_head_dim": 0, "none": 1, "inverse_head_dim": 2}
_SCALE_VALUE = 3
_SEED_MASK = 0xFFFFFFFFFFFFFFFF


def whole(value: Any, name: str, bits: int = 64) -> int:
    """A whole number, also one of NumPy, that an integer of the C ABI holds: ctypes would cut off its upper bits."""
    if not isinstance(value, int):
        try:
            value = operator.index(value)
        except TypeError:
            raise TypeError(f"rootdk: {name} is {value!r}, expected a whole number") from None
    if not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
        raise ValueError(f"rootdk: {name} is {value}, which {bits} bits do not hold")
    return int(value)


def pair(value: Pair, name: str) -> Tuple[int, int]:
    """(n, n) for one number."""
    if isinstance(value, int):
        return (value, value)
    if isinstance(value, (tuple, list)) and len(value) == 2:
        return (whole(value[0], name), whole(value[1], name))
    if hasattr(value, "__index__"):
        return (whole(value, name),) * 2
    raise TypeError(f"rootdk: {name} is {value!r}, expected a number or two")


def _window(window: Window) -> Tuple[int, int]:
    """(left, right), -1 for no limit."""
    if isinstance(window, int):
        return (window, window)
    if isinstance(window, (tuple, list)) and len(window) == 2:
        left, right = window
        return (-1 if left is None else whole(left, "window"), -1 if right is None else whole(right, "window"))
    if hasattr(window, "__index__"):
        return (whole(window, "window"),) * 2
    raise TypeError(f"rootdk: window is {window!r}, expected a number of keys or (left, right)")


def _scale(scale: Union[str, float]) -> Tuple[int, float]:
    """(kind, factor) of the C ABI."""
    if not isinstance(scale, str):
        return (_SCALE_VALUE, float(scale))
    if scale not in _SCALES:
        raise ValueError(f"rootdk: scale is {scale!r}, expected a number or one of {', '.join(map(repr, _SCALES))}")
    return (_SCALES[scale], 1.0)


def choice(value: str, choices: Dict[str, int], name: str) -> int:
    if value not in choices:
        raise ValueError(f"rootdk: {name} is {value!r}, expected one of {', '.join(choices)}")
    return choices[value]


def _list_code(name: str, kind: Kind, q: Any) -> int:
    """The type of the array that a list becomes."""
    if name in BOOLEAN_TENSORS:
        return _structs.BOOL
    return _structs.I32 if name in INTEGER_TENSORS else small_code(kind.code(q, "q"))


class Params:
    """One call's parameters: the fields of a form by number, and apart from them the arrays that are given."""

    __slots__ = ("form", "values", "tensors", "seed_tensor")

    def __init__(self, options: Mapping[str, Any], form: Optional[Form] = None) -> None:
        form = form or ATTENTION  # not the argument's default: torch.compile follows globals, and no default objects
        self.form = form
        self.values: List[Any] = list(form.defaults)
        self.tensors: Dict[str, Any] = {}
        # A seed that is a tensor is read when the call runs, so that a compiled graph keeps it open.
        self.seed_tensor: Any = None
        for name, value in options.items():
            if name in form.tensors:
                if value is not None:
                    self.tensors[name] = value
            elif name in form.options:
                if value is not None:
                    self._set(name, value)
            else:
                raise TypeError(f"{form.operation}: unknown option {name!r}; there are {', '.join(form.options)}")

    def _set(self, name: str, value: Any) -> None:
        values, index = self.values, self.form.index
        if name == "window":
            if "window_right" in index:
                values[index["window_left"]], values[index["window_right"]] = _window(value)
            else:
                values[index["window_left"]] = value
        elif name == "scale":
            values[index["scale_kind"]], values[index["scale"]] = _scale(value)
        elif name == "score":
            values[index["score"]] = choice(value, _structs.SCORES, "score")
        elif name == "block_size":
            values[index["block_q"]], values[index["block_kv"]] = pair(value, "block_size")
        elif name == "compute":
            values[index["compute"]] = choice(value, _structs.COMPUTE, "compute")
        elif name in ("causal", "rotate"):
            values[index[name]] = int(value)
        elif name == "seed":
            if isinstance(value, int):
                values[index["seed"]] = value & _SEED_MASK
            elif isinstance(value, (float, str)):
                raise TypeError(f"rootdk: seed is {value!r}, expected a whole number")
            else:
                self.seed_tensor = value
        elif index[name] in self.form.factors:
            values[index[name]] = float(value)
        else:
            values[index[name]] = value

    @property
    def integers(self) -> List[int]:
        return [self.values[i] for i in self.form.integers]

    @property
    def factors(self) -> List[float]:
        return [self.values[i] for i in self.form.factors]

    @classmethod
    def from_numbers(cls, integers: Sequence[int], factors: Sequence[float], tensors: Dict[str, Any]) -> "Params":
        params = cls({})
        for places, numbers in ((ATTENTION.integers, integers), (ATTENTION.factors, factors)):
            for i, number in zip(places, numbers):
                params.values[i] = number
        params.tensors = tensors
        return params

    @classmethod
    def from_struct(cls, memory: bytes, tensors: Dict[str, Any]) -> "Params":
        """The numbers of a struct, whose pointers are null, with these arrays."""
        params = cls({})
        params.values[:] = ATTENTION.place.read(memory)
        params.tensors = tensors
        return params

    def with_tensors(self, tensors: Dict[str, Any]) -> "Params":
        """The same numbers with other arrays."""
        params = Params.__new__(Params)
        params.form, params.values, params.seed_tensor = self.form, self.values, self.seed_tensor
        params.tensors = tensors
        return params

    def read_seed(self) -> None:
        """Makes a number of a seed that is a tensor: for a backward pass that draws what the forward pass drew."""
        if self.seed_tensor is not None:
            self.values[self.form.index["seed"]] = int(self.seed_tensor) & _SEED_MASK
            self.seed_tensor = None

    def write(self, arena: Arena, kind: Kind, q: Any) -> int:
        """The address of the struct. Lists of numbers become arrays here, and stay in `tensors`."""
        values, form = list(self.values), self.form
        if self.seed_tensor is not None:
            values[form.index["seed"]] = int(self.seed_tensor) & _SEED_MASK
        for name, x in self.tensors.items():
            is_integer = name in INTEGER_TENSORS
            if isinstance(x, (list, tuple)):
                x = kind.from_list(x, _list_code(name, kind, q), q)
            if is_integer:
                require_kind(kind, x, name)
                x = kind.to_int32(x)
            self.tensors[name] = x
            values[form.index[name]] = write_tensor(arena, kind, name, x, name, 4 if name in _BROADCAST else 0)
        try:
            return form.place.write(arena, *values)
        except struct.error as error:
            numbers = {name: values[i] for name, i in form.index.items() if name not in form.tensors}
            raise TypeError(
                f"{form.operation}: a number of the call is of the wrong type or too large: {error} ({numbers})"
            ) from None


Function = TypeVar("Function", bound=Callable[..., Any])


def spells_out(form: Form) -> Callable[[Function], Function]:
    """Shows the options of a form in the signature of a function that takes them as **options: for help and
    completion."""

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        options = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=form.default_of(name), annotation=hint)
            for name, hint in form.options.items()
        ]
        function.__signature__ = signature.replace(parameters=own + options)  # type: ignore[attr-defined]
        return function

    return decorate


def write_execution(
    arena: Arena,
    target: Optional[str],
    threads: Optional[int],
    stream: int = 0,
    workspace: int = 0,
    workspace_bytes: int = 0,
) -> int:
    """The address of rootdk_execution, or 0 where everything is left to the library."""
    if target is None and not threads and not stream and not workspace:
        return 0
    name = _abi.target_address(target) if target else 0
    width = whole(threads or 0, "threads", 32)
    return _abi.EXECUTION.write(arena, width, 0, 0, 0, name, 0, stream, workspace, workspace_bytes, 0, 0)
