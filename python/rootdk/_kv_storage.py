"""The memory of a KV cache: its types and layouts, and the tensors that hold it on a CUDA device."""

import ctypes
from typing import Any, Dict

from . import _structs
from ._arrays import kind_of
from ._params import choice

LAYOUTS = {"contiguous": 0, "paged": 1}
_DTYPES = {
    "f32": _structs.F32,
    "bf16": _structs.BF16,
    "f16": _structs.F16,
    "i8": _structs.I8,
    "f8e4m3": _structs.F8E4M3,
}
_QUANTISED = (_structs.I8, _structs.F8E4M3)
_DTYPE_NAMES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16", "int8": "i8", "float8_e4m3fn": "f8e4m3"}


def dtype_code(dtype: Any) -> int:
    """A type by our name, or as NumPy and PyTorch write it."""
    name = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", str(dtype))
    name = name.replace("torch.", "")
    return choice(_DTYPE_NAMES.get(name, name), _DTYPES, "dtype")


class Storage:
    """The memory of a cache on a CUDA device, as PyTorch tensors; on the CPU the library has its own."""

    def __init__(self, config: _structs.KvCacheConfig, device: Any) -> None:
        self.tensors: Dict[str, Any] = {}
        if str(device) == "cpu":
            return
        import torch

        try:
            device = torch.device(device)
        except RuntimeError as error:
            raise ValueError(f"rootdk: device is {device!r}, expected cpu or cuda: {error}") from None
        if device.type == "cpu":
            return
        if device.type != "cuda":
            raise ValueError(f"rootdk: device is {device}, expected cpu or cuda")
        if not torch.cuda.is_available():
            raise ValueError(f"rootdk: device is {device}, but PyTorch sees no CUDA device")
        index = torch.cuda.current_device() if device.index is None else device.index
        paged = config.layout == LAYOUTS["paged"]
        pages, page_size = (config.pages, config.page_size) if paged else (config.max_sequences, config.max_len)
        rows = (config.layers, pages, config.kv_heads, page_size)
        types = {_structs.F32: torch.float32, _structs.BF16: torch.bfloat16, _structs.F16: torch.float16}
        dtype, where = types.get(config.dtype, torch.int8), torch.device("cuda", index)
        value_dim = config.value_dim or config.head_dim
        self.tensors["k"] = torch.zeros(*rows, config.head_dim, dtype=dtype, device=where)
        self.tensors["v"] = torch.zeros(*rows, value_dim, dtype=dtype, device=where)
        if config.dtype in _QUANTISED:
            self.tensors["k_scales"] = torch.zeros(rows, device=where)
            self.tensors["v_scales"] = torch.zeros(rows, device=where)
        config.device_kind, config.device_index = _structs.CUDA, index
        self._described = (_structs.Tensor * len(self.tensors))()
        for description, (name, tensor) in zip(self._described, self.tensors.items()):
            kind_of(tensor, name).pack(description, 0, tensor, name)
            if name in ("k", "v"):
                description.dtype = config.dtype
            setattr(config, name, ctypes.addressof(description))
