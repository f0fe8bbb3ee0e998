"""Attention modules of transformers (5 and later) that compute attention themselves instead of through the attention
interface: Bloom, Falcon, GPT-J and DeBERTa-v2. Each gets a forward that calls `attend`, a function with the signature of
the interface; projections, rotary positions and caches stay the module's.
"""

import math
import sys
import types
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch import nn

Attend = Callable[..., Tuple[torch.Tensor, Optional[torch.Tensor]]]
Output = Tuple[torch.Tensor, Optional[torch.Tensor]]


def _dropout_of(module: nn.Module, dropout: nn.Dropout) -> float:
    return float(dropout.p) if module.training else 0.0


def _cached(
    module: Any, layer_past: Any, k: torch.Tensor, v: torch.Tensor, options: Dict[str, Any]
) -> Tuple[torch.Tensor, torch.Tensor]:
    """The keys and values so far. The first versions of transformers 5 tell a cache of fixed size where new ones go."""
    if layer_past is None:
        return k, v
    position = options.get("cache_position")
    told = () if position is None else ({"cache_position": position},)
    return layer_past.update(k, v, module.layer_idx, *told)  # type: ignore[no-any-return]


def _bloom(attend: Attend) -> Dict[str, Callable[..., Any]]:
    def forward(
        module: Any,
        hidden_states: torch.Tensor,
        residual: torch.Tensor,
        alibi: torch.Tensor,
        attention_mask: Optional[torch.Tensor],
        layer_past: Any = None,
        output_attentions: bool = False,
        **options: Any,
    ) -> Output:
        q, k, v = module._reshape(module.query_key_value(hidden_states))
        k, v = _cached(module, layer_past, k, v, options)
        out, weights = attend(
            module,
            q,
            k,
            v,
            attention_mask,
            scaling=module.inv_norm_factor,
            dropout=_dropout_of(module, module.attention_dropout),
            position_bias=alibi.view(q.shape[0], q.shape[1], 1, -1)[..., : k.shape[2]],
            output_attentions=output_attentions,
        )
        out = nn.functional.dropout(module.dense(out.flatten(2)), module.hidden_dropout, module.training)
        return residual + out, weights

    return {"forward": forward}


def _falcon(attend: Attend) -> Dict[str, Callable[..., Any]]:
    def forward(
        module: Any,
        hidden_states: torch.Tensor,
        alibi: Optional[torch.Tensor],
        attention_mask: Optional[torch.Tensor],
        layer_past: Any = None,
        output_attentions: bool = False,
        position_embeddings: Optional[Tuple[torch.Tensor, torch.Tensor]] = None,
        **options: Any,
    ) -> Output:
        q, k, v = (x.transpose(1, 2) for x in module._split_heads(module.query_key_value(hidden_states)))
        if alibi is None:
            rotate = sys.modules[type(module).__module__].apply_rotary_pos_emb  # type: ignore[attr-defined]
            q, k = rotate(q, k, *position_embeddings)  # type: ignore[misc]
        k, v = _cached(module, layer_past, k, v, options)
        # The model has added alibi to the mask. Dropout without alibi is left out, as in the module itself.
        out, weights = attend(
            module,
            q,
            k,
            v,
            attention_mask,
            scaling=module.inv_norm_factor,
            dropout=0.0 if alibi is None else _dropout_of(module, module.attention_dropout),
            output_attentions=output_attentions,
        )
        return module.dense(out.flatten(2)), weights

    return {"forward": forward}


def _gptj(attend: Attend) -> Dict[str, Callable[..., Any]]:
    def forward(module: Any, *arguments: Any, output_attentions: bool = False, **options: Any) -> Any:
        module._rootdk_weights = bool(output_attentions)
        return type(module).forward(module, *arguments, output_attentions=output_attentions, **options)

    def attention(module: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any = None) -> Output:
        out, weights = attend(
            module,
            q,
            k,
            v,
            mask,
            scaling=1.0 / module.scale_attn,
            dropout=_dropout_of(module, module.attn_dropout),
            output_attentions=module._rootdk_weights,
        )
        return out.transpose(1, 2), weights

    return {"forward": forward, "_attn": attention}


def _deberta_v2(attend: Attend) -> Dict[str, Callable[..., Any]]:
    def forward(
        module: Any,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor,
        output_attentions: bool = False,
        query_states: Optional[torch.Tensor] = None,
        relative_pos: Optional[torch.Tensor] = None,
        rel_embeddings: Optional[torch.Tensor] = None,
    ) -> Output:
        heads = module.num_attention_heads
        sources = (hidden_states if query_states is None else query_states, hidden_states, hidden_states)
        projections = (module.query_proj, module.key_proj, module.value_proj)
        # [batch * heads, len, head_dim], as the module's own functions want them.
        q, k, v = (module.transpose_for_scores(project(x), heads) for project, x in zip(projections, sources))
        scores = 1 + ("c2p" in module.pos_att_type) + ("p2c" in module.pos_att_type)
        bias = None
        if module.relative_attention:
            table = module.pos_dropout(rel_embeddings)
            bias = module.disentangled_attention_bias(q, k, relative_pos, table, scores)
            bias = bias.view(-1, heads, *bias.shape[1:]) if isinstance(bias, torch.Tensor) else None
        out, weights = attend(
            module,
            *(x.view(-1, heads, *x.shape[1:]) for x in (q, k, v)),
            attention_mask.bool(),
            scaling=1.0 / math.sqrt(q.shape[-1] * scores),
            dropout=_dropout_of(module, module.dropout),
            position_bias=bias,
            output_attentions=output_attentions,
        )
        return out.flatten(2), weights

    return {"forward": forward}


_MODULES: Dict[Tuple[str, str], Callable[[Attend], Dict[str, Callable[..., Any]]]] = {
    ("transformers.models.bloom.modeling_bloom", "BloomAttention"): _bloom,
    ("transformers.models.falcon.modeling_falcon", "FalconAttention"): _falcon,
    ("transformers.models.gptj.modeling_gptj", "GPTJAttention"): _gptj,
    ("transformers.models.deberta_v2.modeling_deberta_v2", "DisentangledSelfAttention"): _deberta_v2,
}


def _maker(module: nn.Module) -> Optional[Callable[[Attend], Dict[str, Callable[..., Any]]]]:
    return _MODULES.get((type(module).__module__, type(module).__name__))


def wrapped_modules(model: nn.Module) -> List[nn.Module]:
    """The modules of a model that have to be wrapped."""
    return [module for module in model.modules() if _maker(module) is not None]


def refusal(model: nn.Module) -> str:
    """Why a model whose modules could be wrapped is not served; empty: it is."""
    import transformers

    version = str(getattr(transformers, "__version__", "5"))
    if int(version.split(".")[0]) < 5:
        return f"transformers is {version}; this model is served from 5 on"
    for module in wrapped_modules(model):
        if getattr(module, "pretraining_tp", 1) > 1 and getattr(module, "slow_but_exact", False):
            return "slow_but_exact with pretraining_tp above 1 adds in another order"
    return ""


def wrap(model: nn.Module, attend: Attend) -> None:
    """Lets attention modules call `attend`. Hooks of accelerate, which keep the module's forward aside, stay around it."""
    unwrap(model)
    for module in wrapped_modules(model):
        maker, own = _maker(module), module.__dict__
        assert maker is not None
        before: Dict[str, Any] = {}
        for name, function in maker(attend).items():
            place = "_old_forward" if name == "forward" and "_old_forward" in own else name
            before[place] = own.get(place)
            own[place] = types.MethodType(function, module)
        own["_rootdk_before_wrap"] = before


def unwrap(model: nn.Module) -> None:
    """Undoes wrap."""
    for module in wrapped_modules(model):
        own = module.__dict__
        for place, value in own.pop("_rootdk_before_wrap", {}).items():
            if value is None:
                del own[place]
            else:
                own[place] = value
