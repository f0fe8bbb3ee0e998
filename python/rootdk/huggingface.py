"""A switch for Hugging Face models: attention through rootdk, with statistics per layer.

    import rootdk.huggingface
    statistics = rootdk.huggingface.use(model, stats=True)
    model(**inputs)
    print(statistics)

Works with every model that goes through the attention interface of transformers (4.48 and later), and with Bloom, Falcon,
GPT-J and DeBERTa-v2 (5 and later), whose attention modules are wrapped. `restore(model)` switches back.
"""

import html
import math
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch

from . import _hf_modules, _svg
from ._errors import UnsupportedError
from ._result import SUMMARY_COLUMNS
from ._tables import layer_maps, text_table
from .torch import attention
from .torch._sdpa import lower_for_autocast

NAME = "rootdk"
_RANKS = "rootdk_ranks"  # attention over the ranks of a group
SHARES = ("zigzag", "contiguous", "striped")  # how they divide a sequence
_SATURATED = 0.9
_COLUMNS = (("layer", ""), *SUMMARY_COLUMNS)
_STATS = ("entropy", "max_logit", "max_weight", "sum_p2")


class LayerHead(NamedTuple):
    """One head of one layer, over all rows seen."""

    layer: str  # the module's name in the model
    head: int
    effective_keys: float  # exp of the mean entropy: about how many keys a row attends to
    max_logit: float
    mean_max_weight: float
    saturated: float  # the share of rows that read one key
    rows: int


class Statistics:
    """What the attention layers of a model did since `reset`: running sums on the layer's device, read by `table`."""

    def __init__(self) -> None:
        self._layers: Dict[str, Dict[str, torch.Tensor]] = {}  # in the order in which they first ran

    def reset(self) -> None:
        self._layers.clear()

    @torch.no_grad()
    def record(self, layer: str, stats: Dict[str, torch.Tensor]) -> None:
        """Adds one call: each statistic is [batch, heads, q_len]. Rows that saw no key do not count."""
        seen = torch.isfinite(stats["max_logit"])
        zero = torch.zeros((), device=seen.device)
        rows = {
            "rows": seen.sum((0, 2)),
            "entropy": torch.where(seen, stats["entropy"], zero).sum((0, 2)),
            "max_weight": torch.where(seen, stats["max_weight"], zero).sum((0, 2)),
            "saturated": (seen & (stats["sum_p2"] > _SATURATED)).sum((0, 2)),
        }
        top = stats["max_logit"].amax((0, 2))
        known = self._layers.get(layer)
        if known is None:
            self._layers[layer] = dict(rows, max_logit=top)
            return
        for name, value in rows.items():
            known[name] = known[name] + value  # not in place: a tensor of inference mode does not change outside it
        known["max_logit"] = torch.maximum(known["max_logit"], top)

    def table(self) -> List[LayerHead]:
        """One line for each layer and head."""
        lines = []
        for layer, tensors in self._layers.items():
            sums = {name: x.tolist() for name, x in tensors.items()}
            for head, count in enumerate(sums["rows"]):
                share = 1.0 / count if count else math.nan  # no row saw a key: there is nothing to say
                lines.append(
                    LayerHead(
                        layer,
                        head,
                        math.exp(sums["entropy"][head] * share),
                        sums["max_logit"][head],
                        sums["max_weight"][head] * share,
                        sums["saturated"][head] * share,
                        int(count),
                    )
                )
        return lines

    def __repr__(self) -> str:
        return "\n".join(text_table(_COLUMNS, [row[:-1] for row in self.table()]))

    def plot(self, path: Optional[str] = None) -> "_svg.Svg":
        """Effective keys, mean largest weight and saturation, as heat maps with a row a layer and a column a head."""
        table = self.table()
        if not table:
            raise ValueError("plot: no attention layer has run yet")
        layers = list(self._layers)
        names = ("effective_keys", "mean_max_weight", "saturated")
        maps = {
            name.replace("_", " "): [[getattr(row, name) for row in table if row.layer == layer] for layer in layers]
            for name in names
        }
        picture = layer_maps("attention by layer and head", maps)
        return picture if path is None else picture.save(path)

    def _repr_svg_(self) -> Optional[str]:
        return str(self.plot()) if self._layers else None

    def _repr_html_(self) -> str:
        return f"<div>{self._repr_svg_() or ''}<pre>{html.escape(repr(self))}</pre></div>"


def _split_mask(mask: Optional[torch.Tensor], kv_len: int) -> Tuple[Optional[torch.Tensor], Optional[torch.Tensor]]:
    """(mask, bias) of attention: booleans that keep, or numbers that are added. [batch, kv_len] is padding."""
    if mask is None:
        return None, None
    if mask.dim() == 2:
        return mask[:, None, None, :kv_len].bool(), None
    mask = mask[..., :kv_len]
    return (mask, None) if mask.dtype == torch.bool else (None, mask)


def attention_forward(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Optional[torch.Tensor],
    scaling: Optional[float] = None,
    dropout: float = 0.0,
    is_causal: Optional[bool] = None,
    sliding_window: Optional[int] = None,
    softcap: Optional[float] = None,
    s_aux: Optional[torch.Tensor] = None,
    position_bias: Optional[torch.Tensor] = None,
    output_attentions: bool = False,
    **_: Any,
) -> Tuple[torch.Tensor, Optional[torch.Tensor]]:
    """The attention function that transformers calls: query [batch, heads, q_len, head_dim], key and value with their
    own heads; gives [batch, q_len, heads, value_dim] and, with output_attentions, the weights.

    A mask that is given holds every rule (causal, window, padding). Without one, causal and window are the module's."""
    query, key, value = lower_for_autocast(query, key, value)
    mask, bias = _split_mask(attention_mask, key.shape[2])
    if position_bias is not None:
        bias = position_bias if bias is None else bias + position_bias
    if bias is not None and (bias.dtype not in (torch.float32, query.dtype) or query.dtype == torch.float64):
        bias = bias.to(query.dtype)
    causal = window = None
    if attention_mask is None:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        # A window of n keys counts the query's own.
        window = None if sliding_window is None else (sliding_window - 1, None if causal else sliding_window - 1)
    small = torch.float64 if query.dtype == torch.float64 else torch.float32
    collector = getattr(module, "_rootdk_statistics", None)
    asked: Any = _STATS if collector is not None else False
    result: Any = attention(
        *(x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value)),
        causal=bool(causal),
        window=window,
        scale=scaling,
        softcap=softcap,
        mask=mask,
        bias=bias,
        sinks=None if s_aux is None else s_aux.to(small),
        dropout=dropout,
        seed=torch.randint(2**62, ()) if dropout > 0 else 0,
        stats=asked,
        weights=bool(output_attentions),
    )
    if isinstance(result, torch.Tensor):
        return result.transpose(1, 2).contiguous(), None
    if collector is not None:
        collector.record(module._rootdk_name, result.stats())
    return result.out.transpose(1, 2).contiguous(), None if result.weights is None else result.weights.to(query.dtype)


def register() -> None:
    """Makes attn_implementation="rootdk" known to transformers. Masks are those of "sdpa": booleans, or none at all
    where causal says everything."""
    import transformers

    transformers.AttentionInterface.register(NAME, attention_forward)
    masks = getattr(transformers, "AttentionMaskInterface", None)
    if masks is not None:
        from transformers.masking_utils import sdpa_mask

        masks.register(NAME, sdpa_mask)


def _set_implementation(model: Any, name: str) -> None:
    if hasattr(model, "set_attn_implementation") and not _hf_modules.wrapped_modules(model):
        model.set_attn_implementation(name)
        return
    for module in model.modules():
        if hasattr(module, "config"):
            module.config._attn_implementation = name


def _switch(model: Any, name: str, group: Any) -> str:
    """Sets the attention of a model. Gives the reason where it cannot be set; the model then has its attention of before."""
    import transformers

    wrapped = _hf_modules.wrapped_modules(model)
    reason = _hf_modules.refusal(model) if wrapped else ""
    attend = attention_forward
    if group is not None:
        from . import _hf_ranks

        reason = reason or _hf_ranks.refusal(model)
        attend = _hf_ranks.attention_forward
        # Not registered as a mask: transformers then makes none.
        transformers.AttentionInterface.register(_RANKS, attend)
    if reason:
        return reason
    restore(model)
    _set_implementation(model, name)
    if model.config._attn_implementation != name:
        return "does not let its attention be set"
    if wrapped:
        _hf_modules.wrap(model, attend)
    return ""


def use(model: Any, *, stats: bool = False, group: Any = None, shares: str = "zigzag") -> Optional[Statistics]:
    """Switches a model to rootdk. With stats=True gives the Statistics that its layers fill from now on.

    With a `group` of torch.distributed (torch.distributed.group.WORLD: all ranks) the model's sequence is cut over its
    ranks. Every rank then calls the model with the whole token ids (and attention_mask, labels), and gets its rows of
    the logits or hidden states: rows(model, total) says which, gather(model, x) joins those of all ranks. With labels the
    losses of the ranks add up to that of the whole, and so do the gradients of the parameters. `shares` is how the rows
    are handed out: "zigzag", "contiguous" or "striped"."""
    if shares not in SHARES:
        raise ValueError(f"use: shares is {shares!r}, expected one of {', '.join(SHARES)}")
    register()
    ranks: Any = None
    if group is not None:
        from . import _hf_ranks

        ranks = _hf_ranks.Ranks(group, shares, _hf_ranks.device_of(model))
    before = model.config._attn_implementation
    reason = _switch(model, NAME if group is None else _RANKS, group)
    if reason:
        raise UnsupportedError(f"use: {type(model).__name__}: {reason}; it is on {model.config._attn_implementation!r}")
    if before not in (NAME, _RANKS):
        model._rootdk_before = before
    if ranks is not None:
        _hf_ranks.cut_model(model, ranks)
    statistics = Statistics() if stats else None
    for name, module in model.named_modules():
        module._rootdk_statistics, module._rootdk_name = statistics, name
    return statistics


def restore(model: Any) -> None:
    """Gives a model its own attention back, and its whole sequence."""
    if model.config._attn_implementation in (NAME, _RANKS):
        _set_implementation(model, getattr(model, "_rootdk_before", "eager"))
    _hf_modules.unwrap(model)
    if getattr(model, "_rootdk_ranks", None) is not None:
        from . import _hf_ranks

        _hf_ranks.join_model(model)
    for module in model.modules():
        module._rootdk_statistics = None


def _ranks_of(model: Any) -> Any:
    ranks = getattr(model, "_rootdk_ranks", None)
    if ranks is None:
        raise ValueError(f"rootdk: {type(model).__name__} is not cut over ranks (use(model, group=...))")
    return ranks


def rows(model: Any, total: int) -> List[Tuple[int, int]]:
    """Which rows of a sequence of `total` tokens this rank has, as ranges in their order, in a model that is cut."""
    return list(_ranks_of(model).rows(total))


def gather(model: Any, part: torch.Tensor, dim: int = 1) -> torch.Tensor:
    """The whole on every rank, from the rows that each rank got from a model that is cut. Carries no gradient."""
    from . import _hf_ranks

    return _hf_ranks.gathered(_ranks_of(model), part, dim)
