"""Models of transformers whose attention modules are wrapped: tiny random ones, against their own eager attention."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
if int(transformers.__version__.split(".")[0]) < 5:
    pytest.skip(f"transformers is {transformers.__version__}, older than 5", allow_module_level=True)

import rootdk.huggingface  # noqa: E402

TINY = dict(vocab_size=64, hidden_size=32, bos_token_id=1, eos_token_id=2, pad_token_id=0)


def bloom():
    config = transformers.BloomConfig(n_layer=2, n_head=4, attention_dropout=0.0, hidden_dropout=0.0, **TINY)
    return transformers.BloomForCausalLM, config


def bloom_of_six_heads():
    """Not a power of two: half of the slopes are others."""
    config = transformers.BloomConfig(n_layer=2, n_head=6, **{**TINY, "hidden_size": 48})
    return transformers.BloomForCausalLM, config


def falcon(**options):
    config = transformers.FalconConfig(num_hidden_layers=2, num_attention_heads=4, **TINY, **options)
    return transformers.FalconForCausalLM, config


def falcon_new():
    return falcon(new_decoder_architecture=True, num_kv_heads=2, bias=True)


def falcon_heads():
    return falcon(multi_query=False, parallel_attn=False)


def falcon_alibi():
    return falcon(alibi=True, multi_query=False, parallel_attn=False)


def gptj(rotary_dim=4):
    names = dict(n_embd=32, n_layer=2, n_head=4, n_positions=64, rotary_dim=rotary_dim)
    return transformers.GPTJForCausalLM, transformers.GPTJConfig(
        vocab_size=64, bos_token_id=1, eos_token_id=2, pad_token_id=0, tie_word_embeddings=False, **names
    )


DECODERS = [bloom, bloom_of_six_heads, falcon, falcon_new, falcon_heads, falcon_alibi, gptj]


def deberta(**options):
    sizes = dict(num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, max_position_embeddings=64)
    config = transformers.DebertaV2Config(**{**TINY, **sizes}, type_vocab_size=0, **options)
    return transformers.DebertaV2Model, config


def deberta_relative():
    return deberta(
        relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8, share_att_key=True, norm_rel_ebd="layer_norm"
    )


def deberta_apart():
    return deberta(relative_attention=True, pos_att_type=["c2p"])


ENCODERS = [deberta, deberta_relative, deberta_apart]


def made(make, implementation="eager"):
    torch.manual_seed(0)
    kind, config = make()
    # transformers adds alibi twice in Falcon's eager attention; its sdpa adds it once, as the model was trained.
    if make is falcon_alibi:
        implementation = "sdpa"
    config._attn_implementation = implementation
    model = kind(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(8.0)  # weights as at first make every row attend to all keys alike
    return model


@pytest.fixture(params=DECODERS + ENCODERS, ids=lambda make: make.__name__)
def model(request):
    return made(request.param)


@pytest.fixture(params=DECODERS, ids=lambda make: make.__name__)
def decoder(request):
    return made(request.param)


def ids_and_mask(padding_side):
    torch.manual_seed(1)
    ids = torch.randint(3, 64, (2, 11))
    mask = torch.ones_like(ids)
    if padding_side == "left":
        mask[0, :4] = 0
    elif padding_side == "right":
        mask[0, -4:] = 0
    return ids, mask


def first(output):
    return output.logits if hasattr(output, "logits") else output.last_hidden_state


def assert_close(actual, expected):
    scale = expected.abs().max().item()
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5 * max(1.0, scale))


@pytest.mark.parametrize("padding_side", ["none", "right", "left"])
def test_the_same_numbers_as_eager(model, padding_side):
    ids, mask = ids_and_mask(padding_side)
    real = mask.bool()
    given = {} if padding_side == "none" else {"attention_mask": mask}
    with torch.no_grad():
        expected = first(model(ids, **given))
        rootdk.huggingface.use(model)
        assert model.config._attn_implementation == "rootdk"
        actual = first(model(ids, **given))
        assert (actual[real] - expected[real]).abs().max() > 0 or torch.equal(actual, expected)
        assert_close(actual[real], expected[real])
        rootdk.huggingface.restore(model)
        assert torch.equal(first(model(ids, **given)), expected)


def test_gradients(model):
    ids, mask = ids_and_mask("none")

    def gradients():
        model.zero_grad()
        first(model(ids, attention_mask=mask)).square().mean().backward()
        return {name: x.grad.clone() for name, x in model.named_parameters() if x.grad is not None}

    expected = gradients()
    rootdk.huggingface.use(model)
    actual = gradients()
    assert set(actual) == set(expected)
    for name in expected:
        assert_close(actual[name], expected[name])


def test_generation_with_a_cache(decoder):
    ids, mask = ids_and_mask("left")
    options = dict(max_new_tokens=12, do_sample=False, attention_mask=mask, return_dict_in_generate=True, output_logits=True)
    expected = decoder.generate(ids, **options)
    rootdk.huggingface.use(decoder)
    actual = decoder.generate(ids, **options)
    assert torch.equal(actual.sequences, expected.sequences)
    for a, b in zip(actual.logits, expected.logits):
        assert_close(a, b)
    assert torch.equal(decoder.generate(ids, use_cache=False, **options).sequences, expected.sequences)


@pytest.mark.parametrize("make", [bloom, falcon])
def test_a_cache_is_told_where_new_keys_go(make):
    """As the first versions of transformers 5 do."""
    told = []

    class Cache(transformers.DynamicCache):
        def update(self, k, v, layer, *rest):
            told.append(rest)
            return super().update(k, v, layer)

    model = made(make)
    rootdk.huggingface.use(model)
    attention = next(x for x in model.modules() if type(x).__name__ in ("BloomAttention", "FalconAttention"))
    inner = attention.forward
    attention.forward = lambda *given, **named: inner(*given, **named, cache_position="here")
    model(ids_and_mask("left")[0], past_key_values=Cache())
    assert told == [({"cache_position": "here"},), ()]


def test_shares_are_checked_also_without_a_group():
    model = made(bloom)
    with pytest.raises(ValueError, match="shares is 'zigzog', expected one of zigzag, contiguous, striped"):
        rootdk.huggingface.use(model, shares="zigzog")


def test_weights_and_statistics(model):
    ids, mask = ids_and_mask("none")
    with torch.no_grad():
        expected = model(ids, attention_mask=mask, output_attentions=True).attentions
        statistics = rootdk.huggingface.use(model, stats=True)
        output = model(ids, attention_mask=mask, output_attentions=True)
    if type(model).__name__.startswith("Falcon") and model.config.alibi:
        expected = [None] * len(expected)  # PyTorch's function gives none
    assert len(output.attentions) == 2
    for a, b in zip(output.attentions, expected):
        assert a.shape == (2, model.config.num_attention_heads, 11, 11)
        if b is not None:
            assert_close(a, b)
    table = statistics.table()
    assert len(table) == 2 * model.config.num_attention_heads
    assert all(line.rows == 22 and 1.0 <= line.effective_keys <= 11.0 for line in table)
    with torch.no_grad():
        assert all(x is None for x in model(ids, attention_mask=mask).attentions or [])


def test_training_mode_drops(decoder):
    if isinstance(decoder.config, transformers.FalconConfig) and not decoder.config.alibi:
        pytest.skip("Falcon without alibi drops no attention weights")
    for module in decoder.modules():
        for name in ("attention_dropout", "attn_dropout"):
            if isinstance(getattr(module, name, None), torch.nn.Dropout):
                getattr(module, name).p = 0.5
    ids, _ = ids_and_mask("none")
    rootdk.huggingface.use(decoder)
    decoder.train()
    with torch.no_grad():
        torch.manual_seed(3)
        once = first(decoder(ids))
        assert not torch.equal(once, first(decoder(ids)))
        torch.manual_seed(3)
        assert torch.equal(once, first(decoder(ids)))


def test_what_is_not_served_is_refused_by_name():
    model = made(bloom)
    for module in model.modules():
        if type(module).__name__ == "BloomAttention":
            module.pretraining_tp, module.slow_but_exact = 2, True
    with pytest.raises(rootdk.UnsupportedError, match="BloomForCausalLM: slow_but_exact .*it is on 'eager'"):
        rootdk.huggingface.use(model)
    assert model.config._attn_implementation == "eager"


def test_hooks_around_a_module_stay():
    """accelerate keeps a module's forward aside and calls it from its own."""
    model = made(gptj)
    ids, _ = ids_and_mask("none")
    calls = []
    for module in model.modules():
        if type(module).__name__ == "GPTJAttention":
            module._old_forward = module.forward

            def around(*arguments, module=module, **options):
                calls.append(module)
                return module._old_forward(*arguments, **options)

            module.forward = around
    with torch.no_grad():
        expected = first(model(ids))
        statistics = rootdk.huggingface.use(model, stats=True)
        assert_close(first(model(ids)), expected)
        assert len(calls) == 4 and len(statistics.table()) == 8
        rootdk.huggingface.restore(model)
        assert torch.equal(first(model(ids)), expected) and len(calls) == 6
