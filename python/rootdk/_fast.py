"""The compiled binding (python/binding): plain calls, with gradients where PyTorch wants them, go straight to the library, and everything else is answered with
NotImplemented and goes the general way. Without the binary, or with ROOTDK_BINDING=0, everything goes the general way."""

import ctypes
import importlib.machinery
import importlib.util
import os
from pathlib import Path
from typing import Any, Dict, Optional, Tuple

from . import _abi


def _load() -> Optional[Any]:
    """The copy in the wheel, or the one beside the library in a build of the source tree."""
    if os.environ.get("ROOTDK_BINDING") == "0":
        return None
    for folder in (Path(__file__).resolve().parent, Path(_abi.path).resolve().parent):
        file = folder / "_binding.abi3.so"
        if not file.exists():
            continue
        loader = importlib.machinery.ExtensionFileLoader("rootdk._binding", str(file))
        spec = importlib.util.spec_from_loader("rootdk._binding", loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
        functions: Tuple[Any, ...] = (_abi.attention, _abi.attention_backward, _abi.struct_init)
        module.connect(*(ctypes.cast(function, ctypes.c_void_p).value for function in functions), _abi.check)
        return module
    return None


binding = _load()


def learn_numpy(numpy: Any) -> None:
    if binding is not None:
        names = ("ndarray", "empty")
        types = {name: numpy.dtype(name) for name in ("float32", "float64")}
        binding.learn_numpy({**{name: getattr(numpy, name) for name in names}, **types})


def learn_torch(torch: Any, dtypes: Any, wrote: Any) -> None:
    """`dtypes` are PyTorch's types by their names in the library; wrote(tensor) is called once its memory has been written to. Names that are private to PyTorch may be missing."""
    if binding is None:
        return
    raw = torch._C
    functorch = getattr(raw, "_functorch", None)
    autocast: Dict[str, Tuple[Any, Any, Tuple[str, ...]]]  # whether it is on, its type, and what both are asked with
    if hasattr(torch, "get_autocast_dtype"):
        autocast = {name: (torch.is_autocast_enabled, torch.get_autocast_dtype, (name,)) for name in ("cpu", "cuda")}
    else:
        autocast = {
            "cpu": (torch.is_autocast_cpu_enabled, torch.get_autocast_cpu_dtype, ()),
            "cuda": (torch.is_autocast_enabled, torch.get_autocast_gpu_dtype, ()),
        }
    binding.learn_torch(
        {
            "Tensor": torch.Tensor,
            "Parameter": torch.nn.Parameter,
            "empty_like": torch.empty_like,
            "empty_like_options": {"memory_format": torch.contiguous_format},
            "is_grad_enabled": torch.is_grad_enabled,
            "wrote": wrote,
            "dispatch_modes": getattr(raw, "_len_torch_dispatch_stack", None),
            "function_modes": getattr(raw, "_len_torch_function_stack", None),
            "transform": getattr(functorch, "peek_interpreter_stack", None),
            "tracing_state": getattr(raw, "_get_tracing_state", None),
            "forward_ad": torch.autograd.forward_ad,
            "draw_seed": lambda: int(torch.randint(2**62, ())),
            **{
                f"{device}_{name}": value
                for device, values in autocast.items()
                for name, value in zip(("autocast", "autocast_type", "autocast_arguments"), values)
            },
            "exchange": getattr(torch.Tensor, "__dlpack_c_exchange_api__", None),
            **dtypes,
        }
    )
