"""The C ABI of models (include/rootdk/models_c_api.h), from a library that is loaded when it is first asked for: it needs
oneDNN and ICU, and attention alone does not."""

import ctypes
import ctypes.util
import functools
import os
from pathlib import Path
from typing import Any, Callable, List

from . import _abi
from ._exit_gate import gate
from ._interrupts import interrupts
from ._structs import double, int32, int64, pointer, size

_text = ctypes.POINTER(pointer)  # receives the address of a text; the next argument is its size
_ids = ctypes.POINTER(int32)


class ModelInfo(ctypes.Structure):
    """rootdk_model_info"""

    _fields_ = [
        ("struct_size", size),
        ("architecture", ctypes.c_char_p),
        ("parameters", int64),
        ("d_model", int64),
        ("layers", int64),
        ("heads", int64),
        ("kv_heads", int64),
        ("vocab_size", int64),
        ("output_width", int64),
        ("max_position", int64),
        ("gives_logits", int32),
        ("has_encoder", int32),
        ("has_tokenizer", int32),
    ]


class GenerateParams(ctypes.Structure):
    """rootdk_generate_params"""

    _fields_ = [
        ("struct_size", size),
        ("max_new", int64),
        ("greedy", int32),
        ("temperature", double),
        ("top_k", int64),
        ("top_p", double),
        ("seed", ctypes.c_uint64),
        ("stop_at_end", int32),
        ("cache", int32),
        ("threads", int32),
        ("min_p", double),
        ("repetition_penalty", double),
        ("draft", pointer),
        ("draft_tokens", int64),
        ("stop", ctypes.POINTER(ctypes.c_char_p)),
        ("stop_count", size),
        ("cache_type", int32),
    ]


class LoadParams(ctypes.Structure):
    """rootdk_load_params"""

    _fields_ = [("struct_size", size), ("weights", int32), ("activations", int32), ("threads", int32)]


class BatchToken(ctypes.Structure):
    """rootdk_batch_token"""

    _fields_ = [("request", size), ("id", int32), ("last", int32)]


class BeamParams(ctypes.Structure):
    """rootdk_beam_params"""

    _fields_ = [
        ("struct_size", size),
        ("beams", int64),
        ("max_new", int64),
        ("length_penalty", double),
        ("stop_at_end", int32),
        ("cache_type", int32),
        ("threads", int32),
    ]


class InspectParams(ctypes.Structure):
    """rootdk_inspect_params"""

    _fields_ = [
        ("struct_size", size),
        ("layers", ctypes.POINTER(int64)),
        ("layer_count", size),
        ("heads", ctypes.POINTER(int64)),
        ("head_count", size),
        ("map_side", int64),
        ("threads", int32),
    ]


def library_path() -> str:
    """ROOTDK_MODELS_LIBRARY, the neighbour of the library that is loaded already, or the system's."""
    named = os.environ.get("ROOTDK_MODELS_LIBRARY")
    if named:
        return named
    neighbour = Path(_abi.path).with_name(Path(_abi.path).name.replace("librootdk", "librootdk_models"))
    if neighbour.exists():
        return str(neighbour)
    found = ctypes.util.find_library("rootdk_models")
    if found:
        return found
    raise ImportError(
        f"rootdk: models need librootdk_models.so, which is neither beside {_abi.path} nor installed; set "
        "ROOTDK_MODELS_LIBRARY to its path"
    )


class Functions:
    """The functions of the library, by their names without rootdk_."""

    def __init__(self) -> None:
        self.path = library_path()
        try:
            self._library = ctypes.CDLL(self.path)
        except OSError as error:
            raise ImportError(
                f"rootdk: models need oneDNN and ICU beside {self.path} (Debian 12: libdnnl2 and libicu72): {error}"
            ) from None
        interrupts.install(self._function("on_interrupt", None, [interrupts.check_type]))
        handle = ctypes.POINTER(pointer)
        tensors = [pointer] * 5
        self.load_params_init = self._function("load_params_init", None, [ctypes.POINTER(LoadParams)])
        self.model_load_with = self._computing(
            "model_load_with", int32, [ctypes.c_char_p, ctypes.POINTER(LoadParams), handle]
        )
        self.model_destroy = self._function("model_destroy", None, [pointer])
        self.model_info_init = self._function("model_info_init", None, [ctypes.POINTER(ModelInfo)])
        self.model_describe = self._function("model_describe", int32, [pointer, ctypes.POINTER(ModelInfo)])
        self.model_encode = self._function(
            "model_encode", int32, [pointer, ctypes.c_char_p, size, int32, ctypes.POINTER(_ids), ctypes.POINTER(size)]
        )
        self.model_decode = self._function(
            "model_decode", int32, [pointer, _ids, size, int32, _text, ctypes.POINTER(size)]
        )
        self.model_forward = self._computing("model_forward", int32, [pointer, *tensors, int32])
        sized = self._function("generate_params_init_sized", None, [ctypes.POINTER(GenerateParams), size])
        self.generate_params_init = lambda params: sized(params, ctypes.sizeof(GenerateParams))
        self.generation_begin = self._computing(
            "generation_begin", int32, [pointer, _ids, size, ctypes.POINTER(GenerateParams), handle]
        )
        self.generation_next = self._computing(
            "generation_next", int32, [pointer, ctypes.POINTER(int32), _text, ctypes.POINTER(size)]
        )
        self.generation_destroy = self._function("generation_destroy", None, [pointer])
        self._add_many(handle)
        self.inspect_params_init = self._function("inspect_params_init", None, [ctypes.POINTER(InspectParams)])
        self.model_inspect = self._computing(
            "model_inspect", int32, [pointer, _ids, size, ctypes.POINTER(InspectParams), handle]
        )
        self.inspection_json = self._function("inspection_json", int32, [pointer, _text, ctypes.POINTER(size)])
        self.inspection_map = self._function(
            "inspection_map",
            int32,
            [
                pointer,
                size,
                ctypes.POINTER(ctypes.POINTER(ctypes.c_float)),
                ctypes.POINTER(int64),
                ctypes.POINTER(int64),
            ],
        )
        self.inspection_page = self._function("inspection_page", int32, [pointer, _text, ctypes.POINTER(size)])
        self.inspection_destroy = self._function("inspection_destroy", None, [pointer])

    def _add_many(self, handle: Any) -> None:
        """Batches, beams and vectors."""
        self.batch_create = self._function("batch_create", int32, [pointer, int64, int32, int32, handle])
        self.batch_add = self._function(
            "batch_add", int32, [pointer, _ids, size, ctypes.POINTER(GenerateParams), ctypes.POINTER(size)]
        )
        self.batch_step = self._computing(
            "batch_step", int32, [pointer, ctypes.POINTER(ctypes.POINTER(BatchToken)), ctypes.POINTER(size)]
        )
        self.batch_destroy = self._function("batch_destroy", None, [pointer])
        self.beam_params_init = self._function("beam_params_init", None, [ctypes.POINTER(BeamParams)])
        self.beam_search = self._computing(
            "beam_search", int32, [pointer, _ids, size, ctypes.POINTER(BeamParams), handle, ctypes.POINTER(size)]
        )
        real = ctypes.POINTER(double)
        self.beams_get = self._function(
            "beams_get", int32, [pointer, size, ctypes.POINTER(_ids), ctypes.POINTER(size), real, real]
        )
        self.beams_destroy = self._function("beams_destroy", None, [pointer])
        texts = [ctypes.POINTER(ctypes.c_char_p), ctypes.POINTER(size), size]
        self.model_embed = self._computing(
            "model_embed", int32, [pointer, *texts, int32, int32, pointer, ctypes.POINTER(int64), int32]
        )

    def _function(self, name: str, result: Any, arguments: List[Any]) -> Callable[..., Any]:
        return _abi.typed_function(self._library, self.path, name, result, arguments)

    def _computing(self, name: str, result: Any, arguments: List[Any]) -> Callable[..., Any]:
        return gate.through(interrupts.through(self._function(name, result, arguments)))

    def text(self, function: Callable[..., int], *arguments: Any) -> str:
        """What a function hands out as (text, bytes)."""
        address, count = pointer(), size()
        _abi.check(function(*arguments, ctypes.byref(address), ctypes.byref(count)))
        return read_text(address, count)


def read_text(address: Any, count: Any) -> str:
    return ctypes.string_at(address, count.value).decode("utf-8", "replace") if count.value else ""


@functools.lru_cache(maxsize=None)
def functions() -> Functions:
    return Functions()


def c_ids(ids: Any) -> Any:
    return (int32 * len(ids))(*ids)
