"""A transformers model whose sequence is cut over the ranks of a torch.distributed group.

Every rank calls the model with the whole token ids. Its forward takes this rank's rows of them, with their positions in the
whole, and attention goes over all ranks; everything else in a model is done row by row. What comes out are this rank's
rows.
"""

import inspect
import sys
import types
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
import torch.distributed as dist
from torch import nn

from . import _hf_modules, distributed
from ._errors import UnsupportedError
from ._transport import require_reach


_IGNORED_LABEL = -100
_LAYERS = {"full_attention", "sliding_attention"}
_CUT = ("input_ids", "inputs_embeds", "token_type_ids", "position_ids")
_MISSING: Any = object()


def device_of(model: Any) -> torch.device:
    """Where a model is; refuses one that is on several devices, whose layers would need groups of their own."""
    devices = sorted({str(x.device) for x in model.parameters()})
    if len(devices) > 1:
        raise UnsupportedError(f"use: {type(model).__name__} is on {', '.join(devices)}; a model that is cut is on one device")
    return torch.device(devices[0] if devices else "cpu")


class Ranks:
    """What the layers of a model share: the group, and how the sequence of the call under way is cut."""

    def __init__(self, group: Any, layout: str, device: torch.device) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise RuntimeError("rootdk: torch.distributed has no process group here (init_process_group)")
        require_reach(group, device)
        self.group, self.layout = group, layout
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.shares: Optional[distributed.Shares] = None
        self.padding: Dict[str, torch.Tensor] = {}

    def cut(self, total: int) -> distributed.Shares:
        if total < self.size:
            raise ValueError(f"use: a sequence of {total} tokens is cut over {self.size} ranks, expected as many tokens")
        shares = distributed.shares(self.layout, total, self.size)
        if not all(shares):
            raise ValueError(
                f"use: {self.layout} shares of {total} tokens over {self.size} ranks leave a rank without rows; "
                "take zigzag or contiguous shares, or a longer sequence"
            )
        return shares

    def rows(self, total: int) -> distributed.Ranges:
        return self.cut(total)[self.rank]

    def wire(self, device: torch.device) -> torch.device:
        """Where tensors of the device are sent from: a group on nccl sends what lies on GPUs, others through the host."""
        return device if str(dist.get_backend(self.group)) == "nccl" else torch.device("cpu")

    def seed(self, device: torch.device) -> int:
        """The same on every rank."""
        seed = torch.randint(2**62, (1,)).to(self.wire(device))
        first = 0 if self.group is None else dist.get_process_group_ranks(self.group)[0]
        dist.broadcast(seed, first, group=self.group)
        return int(seed)


def _rope_types(config: Any) -> List[str]:
    """The kinds of RoPE of a model, whose options may differ by the kind of layer."""
    found = []
    for name in ("rope_parameters", "rope_scaling"):
        options = getattr(config, name, None) or {}
        for part in (options, *(x for x in options.values() if isinstance(x, dict))):
            found.append(str(part.get("rope_type", part.get("type", ""))))
    return found


def _refused_module(name: str, module: Any) -> str:
    """Why a model with this module cannot be cut; empty: nothing speaks against it."""
    kind = f"{name} ({type(module).__name__})"
    if isinstance(module, (nn.Conv1d, nn.RNNBase)):
        return f"{kind} mixes neighbouring rows"
    from_ids = "create_position_ids_from_input_ids"
    if hasattr(module, from_ids) or isinstance(module, nn.Embedding) and "attention_mask" in _parameters(module):
        return f"{kind} counts positions from the tokens of the whole sequence"
    if type(module).__name__.endswith("Embeddings") and hasattr(sys.modules[type(module).__module__], from_ids):
        return f"{kind} counts positions from the tokens of the whole sequence"
    if name.split(".")[-1] == "pooler":
        return f"{kind} pools a whole sequence; make the model without it (add_pooling_layer=False)"
    if getattr(module, "token_dropout", False):
        return f"{kind} scales its rows by how many tokens of the whole sequence are masked"
    return ""


def _parameters(module: Any) -> Any:
    return inspect.signature(type(module).forward).parameters


def refusal(model: Any) -> str:
    """Why a model cannot be cut; empty: it can."""
    config = model.config
    if "forward" in model.__dict__ and "_rootdk_ranks" not in model.__dict__:
        return "its forward was replaced, by accelerate or another wrapper; cut it before it is wrapped"
    for head in ("ForSequenceClassification", "ForMultipleChoice", "ForNextSentencePrediction"):
        if type(model).__name__.endswith(head):
            return "its head looks at one row of the whole sequence"
    if getattr(config, "is_encoder_decoder", False):
        return "it is an encoder and a decoder; a model of one stack can be cut over ranks"
    if "position_ids" not in inspect.signature(type(model).forward).parameters:
        return "its forward takes no position_ids, so that its rows would not know their positions"
    for module in _hf_modules.wrapped_modules(model):
        if getattr(getattr(module, "config", config), "alibi", False) or hasattr(module, "disentangled_attention_bias"):
            return "its attention adds a bias of all rows and keys"
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    others = sorted(set(getattr(text, "layer_types", None) or ()) - _LAYERS)
    if others or getattr(text, "attention_chunk_size", None):
        return f"it has layers of the kind {', '.join(others) or 'chunked_attention'}, which are not cut"
    if getattr(config, "vision_config", None) is not None:
        return "its images attend to each other by a mask, which is not cut"
    changing = sorted({"dynamic", "longrope"} & set(_rope_types(text)))
    if changing:
        return f"its RoPE is of the type {changing[0]}, whose angles depend on the length of the whole sequence"
    for name, module in model.named_modules():
        reason = _refused_module(name, module)
        if reason:
            return reason
    return ""


def attention_forward(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Optional[torch.Tensor],
    scaling: Optional[float] = None,
    dropout: float = 0.0,
    is_causal: Optional[bool] = None,
    sliding_window: Any = _MISSING,
    softcap: Optional[float] = None,
    s_aux: Optional[torch.Tensor] = None,
    position_bias: Optional[torch.Tensor] = None,
    output_attentions: bool = False,
    **_: Any,
) -> Tuple[torch.Tensor, Optional[torch.Tensor]]:
    """The attention function that transformers calls, over all ranks: query, key and value are this rank's rows."""
    from .huggingface import _STATS
    from .torch._sdpa import lower_for_autocast

    ranks: Ranks = module._rootdk_ranks
    if ranks.shares is None:
        raise RuntimeError("rootdk: a part of the model was called; call the model that was given to use(), which cuts")
    for name, given in (("attention_mask", attention_mask is not None), ("position_bias", position_bias is not None)):
        if given:
            raise UnsupportedError(f"rootdk: {type(module).__name__} has {name}, which is not cut over ranks")
    if output_attentions:
        raise UnsupportedError("rootdk: output_attentions is not served over ranks")
    if sliding_window is _MISSING:
        if getattr(getattr(module, "config", None), "sliding_window", None) is not None:
            raise UnsupportedError(f"rootdk: {type(module).__name__} does not tell the window that its model has")
        sliding_window = None
    query, key, value = lower_for_autocast(query, key, value)
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    collector = getattr(module, "_rootdk_statistics", None)
    options: Dict[str, Any] = dict(ranks.padding)
    if sliding_window is not None:
        options["window"] = (sliding_window - 1, None if causal else sliding_window - 1)
    if s_aux is not None:
        options["sinks"] = s_aux.to(torch.float64 if query.dtype == torch.float64 else torch.float32)
    if dropout > 0:
        options.update(dropout=dropout, seed=ranks.seed(query.device))
    asked: Any = _STATS if collector is not None else False
    result: Any = distributed.attention(
        *(x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value)),
        group=ranks.group,
        shares=ranks.shares,
        causal=causal,
        scale=scaling,
        softcap=softcap,
        stats=asked,
        **options,
    )
    if collector is not None:
        collector.record(module._rootdk_name, result.stats())
        result = result.out
    return result.transpose(1, 2).contiguous(), None


def _padding(mask: Optional[torch.Tensor], total: int) -> Dict[str, torch.Tensor]:
    """The options of attention for a padding mask of the whole: lengths where the padding is on the right."""
    if mask is None:
        return {}
    if mask.dim() != 2 or mask.shape[1] != total:
        raise UnsupportedError(f"use: attention_mask has the shape {tuple(mask.shape)}, expected [batch, {total}]")
    keep = mask.bool()
    if bool(keep.all()):
        return {}
    lengths = keep.sum(1)
    if torch.equal(keep, torch.arange(total, device=keep.device)[None, :] < lengths[:, None]):
        return {"kv_lengths": lengths.to(torch.int32)}
    return {"mask": keep[:, None, None, :]}


def _shifted_labels(model: Any, labels: torch.Tensor) -> torch.Tensor:
    """Labels of the whole, each beside the row that predicts it: a rank's last row is followed by another rank's first."""
    if getattr(getattr(model, "loss_function", None), "__name__", "") != "ForCausalLMLoss":
        raise UnsupportedError(
            f"use: {type(model).__name__} computes a loss over a whole sequence; take it from the rows it gives"
        )
    return nn.functional.pad(labels, (0, 1), value=_IGNORED_LABEL)[..., 1:]


def _arguments(model: Any, arguments: Tuple[Any, ...], options: Dict[str, Any]) -> Dict[str, Any]:
    """The arguments of a call that are given, by name."""
    signature = inspect.signature(type(model).forward)
    named = dict(signature.bind_partial(model, *arguments, **options).arguments)
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            named.update(named.pop(parameter.name, {}))
    del named[next(iter(signature.parameters))]
    return {name: value for name, value in named.items() if value is not None}


def _check_call(model: Any, named: Dict[str, Any], mask: Optional[torch.Tensor], labels: Any) -> None:
    """Raises where a call would be computed otherwise than in one process."""
    if model.training and getattr(model, "is_gradient_checkpointing", False):
        raise UnsupportedError("use: gradient checkpointing is not served by a model whose sequence is cut over ranks")
    routers = named.get("output_router_logits", getattr(model.config, "output_router_logits", False))
    if labels is not None and routers:
        raise UnsupportedError("use: the loss of routers is that of a whole sequence; set output_router_logits=False")
    positions = named.get("position_ids")
    if mask is None and positions is not None and not bool((positions.diff(dim=-1) == 1).all()):
        raise UnsupportedError(
            "use: position_ids do not rise by 1: packed documents, which attend to themselves alone, are not served"
        )


def forward(model: Any, *arguments: Any, **options: Any) -> Any:
    """The model's forward: the whole goes in, this rank's rows come out."""
    ranks: Ranks = model._rootdk_ranks
    named = _arguments(model, arguments, options)
    whole = named.get("input_ids", named.get("inputs_embeds"))
    if whole is None:
        raise ValueError("use: the model is called without input_ids and inputs_embeds")
    batch, total = whole.shape[:2]
    mask, labels = named.pop("attention_mask", None), named.pop("labels", None)
    _check_call(model, named, mask, labels)
    for name, value in named.items():
        if name == "past_key_values" or name == "logits_to_keep" and not (isinstance(value, int) and value == 0):
            raise UnsupportedError(f"use: {name} is not served by a model whose sequence is cut over ranks")
        if isinstance(value, torch.Tensor) and value.dim() > 0 and name not in _CUT:
            raise UnsupportedError(f"use: {name} is a tensor that is not known how to cut over ranks")
    named.setdefault("position_ids", torch.arange(total, device=whole.device)[None].expand(batch, -1))
    shares = ranks.cut(total)
    rows = shares[ranks.rank]
    for name in _CUT:
        if name in named:
            named[name] = distributed.take(named[name], rows, -1 if name == "position_ids" else 1)
    if labels is not None:
        shifted = _shifted_labels(model, labels)
        named.setdefault("num_items_in_batch", (shifted != _IGNORED_LABEL).sum())
        named["labels"] = named["shift_labels"] = distributed.take(shifted, rows, 1)
    if "use_cache" in inspect.signature(type(model).forward).parameters:
        named["use_cache"] = False
    ranks.shares, ranks.padding = shares, _padding(mask, total)
    try:
        return type(model).forward(model, **named)
    finally:
        ranks.shares, ranks.padding = None, {}


def generate(model: Any, *_: Any, **__: Any) -> None:
    raise UnsupportedError(
        f"use: {type(model).__name__} is cut over ranks, where the last row is on one rank alone; restore() it to generate"
    )


def cut_model(model: Any, ranks: Ranks) -> None:
    for module in model.modules():
        module._rootdk_ranks = ranks
    _set(model, "forward", forward)
    if hasattr(type(model), "generate"):
        _set(model, "generate", generate)


def _set(model: Any, name: str, function: Callable[..., Any]) -> None:
    model.__dict__[name] = types.MethodType(function, model)


def join_model(model: Any) -> None:
    """Undoes cut_model."""
    if model.__dict__.get("_rootdk_ranks") is None:
        return
    for module in model.modules():
        module.__dict__.pop("_rootdk_ranks", None)
    for name in ("forward", "generate"):
        model.__dict__.pop(name, None)


def gathered(ranks: Ranks, part: torch.Tensor, dim: int) -> torch.Tensor:
    """The whole on every rank, from the rows of each."""
    dim = dim % part.dim()
    wire = ranks.wire(part.device)
    count = torch.tensor([part.shape[dim]], device=wire)
    counts = [torch.zeros_like(count) for _ in range(ranks.size)]
    dist.all_gather(counts, count, group=ranks.group)
    sizes = [int(x) for x in counts]
    shares = ranks.cut(sum(sizes))
    expected = [sum(end - begin for begin, end in rows) for rows in shares]
    if sizes != expected:
        raise ValueError(f"gather: the ranks have {sizes} rows in dimension {dim}, expected {expected}")
    shape: List[int] = list(part.shape)
    shape[dim] = max(sizes)
    padded = part.new_zeros(shape, device=wire)
    padded.narrow(dim, 0, part.shape[dim]).copy_(part.detach())
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded, group=ranks.group)
    whole = distributed.put([x.narrow(dim, 0, size) for x, size in zip(parts, sizes)], shares, dim)
    return whole.to(part.device)
