"""The switch for Hugging Face models, on a model that goes through the attention interface as transformers has it.
Where transformers is not installed, a stand-in with its two registries takes its place."""

import math
import sys
import types

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402


def sdpa_mask(*args, **kwargs):
    raise AssertionError("the model below makes its own masks")


class Registry(dict):
    @classmethod
    def register(cls, name, function):
        cls.known[name] = function


@pytest.fixture
def transformers(monkeypatch):
    """A module named transformers with AttentionInterface and AttentionMaskInterface."""
    fake, masking = types.ModuleType("transformers"), types.ModuleType("transformers.masking_utils")
    fake.AttentionInterface = type("AttentionInterface", (Registry,), {"known": {}})
    fake.AttentionMaskInterface = type("AttentionMaskInterface", (Registry,), {"known": {}})
    masking.sdpa_mask = sdpa_mask
    monkeypatch.setitem(sys.modules, "transformers", fake)
    monkeypatch.setitem(sys.modules, "transformers.masking_utils", masking)
    return fake


def eager(
    module,
    query,
    key,
    value,
    attention_mask,
    scaling=None,
    dropout=0.0,
    sliding_window=None,
    softcap=None,
    s_aux=None,
    **_,
):
    """The attention of the model itself, in the way of transformers."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    logits = query @ key.transpose(2, 3) * scaling
    if softcap:
        logits = torch.tanh(logits / softcap) * softcap
    q_len, kv_len = logits.shape[-2:]
    if attention_mask is None:
        distance = torch.arange(q_len)[:, None] + (kv_len - q_len) - torch.arange(kv_len)[None, :]
        keep = distance >= 0
        if sliding_window:
            keep &= distance < sliding_window
        logits = logits.masked_fill(~keep, -math.inf)
    else:
        logits = logits.masked_fill(~attention_mask, -math.inf)
    if s_aux is not None:
        logits = torch.cat([logits, s_aux[None, :, None, None].expand(*logits.shape[:3], 1)], -1)
    weights = logits.softmax(-1)[..., :kv_len]
    return (weights @ value).transpose(1, 2).contiguous(), weights


class Attention(nn.Module):
    is_causal = True

    def __init__(self, config, layer_idx):
        super().__init__()
        self.config, self.layer_idx = config, layer_idx
        self.q, self.k, self.v = nn.Linear(32, 32), nn.Linear(32, 16), nn.Linear(32, 16)
        self.sinks = nn.Parameter(torch.randn(4))

    def forward(self, x, mask, **options):
        heads = lambda y: y.view(*x.shape[:2], -1, 8).transpose(1, 2)  # noqa: E731
        run = self.config.functions.get(self.config._attn_implementation, eager)
        out, weights = run(self, heads(self.q(x)), heads(self.k(x)), heads(self.v(x)), mask, scaling=8**-0.5, **options)
        return x + out.reshape(*x.shape[:2], -1), weights


class Model(nn.Module):
    def __init__(self, functions):
        super().__init__()
        self.config = types.SimpleNamespace(_attn_implementation="eager", functions=functions)
        self.layers = nn.ModuleList(Attention(self.config, i) for i in range(2))

    def forward(self, x, mask=None, sinks=False, **options):
        for layer in self.layers:
            x, weights = layer(x, mask, s_aux=layer.sinks if sinks else None, **options)
        return x, weights


@pytest.fixture
def model(transformers):
    torch.manual_seed(0)
    return Model(transformers.AttentionInterface.known)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sliding_window": 3},
        {"softcap": 2.0},
        {"sinks": True},
        {
            "mask": torch.ones(2, 1, 6, 6, dtype=torch.bool).tril() & (torch.arange(6) > 0)[None, None, None]
            | torch.eye(6, dtype=torch.bool)
        },
    ],
    ids=["plain", "window", "softcap", "sinks", "mask"],
)
def test_the_switched_model_computes_the_same(model, options):
    import rootdk.huggingface

    x = torch.randn(2, 6, 32)
    before = model(x, **options)[0]
    wanted = torch.autograd.grad(before.square().sum(), list(model.layers[0].q.parameters()))
    rootdk.huggingface.use(model)
    assert model.config._attn_implementation == "rootdk"
    after = model(x, **options)[0]
    torch.testing.assert_close(after, before, rtol=0, atol=1e-5)
    for a, b in zip(torch.autograd.grad(after.square().sum(), list(model.layers[0].q.parameters())), wanted):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    rootdk.huggingface.restore(model)
    assert model.config._attn_implementation == "eager"
    torch.testing.assert_close(model(x, **options)[0], before)


def test_float_and_padding_masks(model):
    import rootdk.huggingface

    x = torch.randn(2, 6, 32)
    keep = torch.ones(6, 6, dtype=torch.bool).tril()[None, None].repeat(2, 1, 1, 1)
    expected = model(x, mask=keep)[0]
    rootdk.huggingface.use(model)
    added = torch.zeros(2, 1, 6, 8).masked_fill(~torch.nn.functional.pad(keep, (0, 2)), torch.finfo(torch.float32).min)
    torch.testing.assert_close(model(x, mask=added)[0], expected, rtol=0, atol=1e-5)  # longer than the keys: cut
    padding = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]])
    out = model(x, mask=padding)[0]
    changed = x.clone()
    changed[0, 4:] += 1.0
    torch.testing.assert_close(model(changed, mask=padding)[0][0, :4], out[0, :4])


def test_weights_come_on_demand(model):
    import rootdk.huggingface

    x = torch.randn(2, 6, 32)
    expected = model(x)[1]
    rootdk.huggingface.use(model)
    assert model(x)[1] is None
    torch.testing.assert_close(model(x, output_attentions=True)[1], expected, rtol=0, atol=1e-5)


def test_statistics_by_layer(model):
    import rootdk.huggingface

    x = torch.randn(2, 6, 32)
    statistics = rootdk.huggingface.use(model, stats=True)
    assert statistics.table() == []
    model(x)
    weights = model(x, output_attentions=True)[1].double()
    table = statistics.table()
    assert [(row.layer, row.head) for row in table] == [(f"layers.{n}", h) for n in range(2) for h in range(4)]
    assert all(row.rows == 24 for row in table)  # two calls of 2 x 6 rows
    entropy = -torch.where(weights > 0, weights * weights.clamp_min(1e-30).log(), torch.zeros(())).sum(-1)
    last = table[4:]
    for row, mean in zip(last, entropy.mean((0, 2)).exp().tolist()):
        assert row.effective_keys == pytest.approx(mean, rel=1e-4)
    for row, largest in zip(last, weights.amax(-1).mean((0, 2)).tolist()):
        assert row.mean_max_weight == pytest.approx(largest, rel=1e-4)
    for row, share in zip(last, ((weights**2).sum(-1) > 0.9).double().mean((0, 2)).tolist()):
        assert row.saturated == pytest.approx(share)
    assert (
        "layers.1" in repr(statistics) and statistics.plot().startswith("<svg") and "<svg" in statistics._repr_html_()
    )
    statistics.reset()
    assert statistics.table() == []
    rootdk.huggingface.restore(model)
    model(x)
    assert statistics.table() == []


def test_statistics_go_on_after_inference_mode(model):
    import rootdk.huggingface

    statistics = rootdk.huggingface.use(model, stats=True)
    with torch.inference_mode():
        model(torch.randn(2, 6, 32))
    model(torch.randn(2, 6, 32))
    assert all(row.rows == 24 for row in statistics.table())


def test_autocast_brings_the_types_together():
    import rootdk.huggingface

    query, key, value = torch.randn(3, 1, 2, 4, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, _ = rootdk.huggingface.attention_forward(nn.Module(), query, key, value.bfloat16(), None)
    assert out.dtype == torch.bfloat16


def test_registration_takes_the_masks_of_sdpa(model, transformers):
    import rootdk.huggingface

    rootdk.huggingface.use(model)
    assert transformers.AttentionInterface.known == {"rootdk": rootdk.huggingface.attention_forward}
    assert transformers.AttentionMaskInterface.known == {"rootdk": sdpa_mask}


def test_a_model_that_cannot_be_switched_says_so(model):
    import rootdk.huggingface

    model.set_attn_implementation = lambda name: None
    with pytest.raises(ValueError, match="Model: does not let its attention be set; it is on 'eager'"):
        rootdk.huggingface.use(model)
