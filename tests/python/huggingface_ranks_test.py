"""Whole models of transformers with their sequence cut over gloo ranks, against the same model in one process."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
import torch.distributed as dist  # noqa: E402

if int(transformers.__version__.split(".")[0]) < 5:
    pytest.skip(f"transformers is {transformers.__version__}, older than 5", allow_module_level=True)
if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("this PyTorch has no torch.distributed with gloo", allow_module_level=True)

import torch.multiprocessing as processes  # noqa: E402

import rootdk.huggingface  # noqa: E402

LENGTH = 37  # no multiple of anything
SIZES = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=64, max_position_embeddings=64)


def llama():
    config = transformers.LlamaConfig(intermediate_size=48, num_key_value_heads=2, **SIZES)
    return transformers.LlamaForCausalLM(config)


def mistral():
    """With a window of 9 keys."""
    config = transformers.MistralConfig(intermediate_size=48, num_key_value_heads=2, sliding_window=9, **SIZES)
    return transformers.MistralForCausalLM(config)


def gpt2():
    config = transformers.GPT2Config(
        n_embd=32, n_layer=2, n_head=4, vocab_size=64, n_positions=64, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0
    )
    return transformers.GPT2LMHeadModel(config)


def gptj():
    config = transformers.GPTJConfig(
        n_embd=32, n_layer=2, n_head=4, vocab_size=64, n_positions=64, rotary_dim=4, tie_word_embeddings=False
    )
    return transformers.GPTJForCausalLM(config)


def falcon():
    return transformers.FalconForCausalLM(transformers.FalconConfig(**{**SIZES, "max_position_embeddings": 64}))


def bert():
    config = transformers.BertConfig(intermediate_size=48, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **SIZES)
    return transformers.BertModel(config, add_pooling_layer=False)


MODELS = [llama, mistral, gpt2, gptj, falcon, bert]


def made(make):
    torch.manual_seed(0)
    model = make().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4.0)
    torch.manual_seed(1)
    ids = torch.randint(64, (2, LENGTH))
    mask = torch.ones_like(ids)
    mask[0, -6:] = 0
    return model, ids, mask


def first(output):
    return output.logits if hasattr(output, "logits") else output.last_hidden_state


def results(model, ids, mask):
    """Rows with and without padding, and where the model has a loss, the loss and the gradients."""
    with torch.no_grad():
        rows = [first(model(ids)), first(model(ids, attention_mask=mask))]
    if hasattr(model, "lm_head"):
        labels = ids.masked_fill(mask == 0, -100)
        loss = model(ids, attention_mask=mask, labels=labels).loss
    else:
        loss = first(model(ids)).square().sum() / 1000
    loss.backward()
    return rows, loss.detach(), {name: x.grad for name, x in model.named_parameters() if x.grad is not None}


def check_model(rank, ranks, make, layout):
    model, ids, mask = made(make)
    model.config._attn_implementation = "eager"
    rows, loss, gradients = results(model, ids, mask)
    model.zero_grad(set_to_none=True)
    rootdk.huggingface.use(model, group=dist.group.WORLD, shares=layout)
    held = rootdk.huggingface.rows(model, LENGTH)
    my_rows, my_loss, my_gradients = results(model, ids, mask)
    where = f"{make.__name__}, {layout}, rank {rank}"
    for mine, whole, real in zip(my_rows, rows, (torch.ones_like(mask), mask)):
        assert mine.shape[1] == sum(end - begin for begin, end in held) < LENGTH, where
        all_rows = rootdk.huggingface.gather(model, mine)
        keep = real.bool()
        torch.testing.assert_close(all_rows[keep], whole[keep], rtol=0, atol=2e-5 * whole.abs().max().item(), msg=where)
        taken = rootdk.distributed.take(all_rows, held, 1)
        assert torch.equal(taken, mine), where
    dist.all_reduce(my_loss)
    torch.testing.assert_close(my_loss, loss, rtol=1e-5, atol=1e-6, msg=where)
    assert set(my_gradients) == set(gradients), where
    for name, gradient in my_gradients.items():
        dist.all_reduce(gradient)
        wanted = gradients[name]
        torch.testing.assert_close(
            gradient, wanted, rtol=0, atol=1e-4 * wanted.abs().max().item() + 1e-7, msg=lambda m: f"{where}, {name}: {m}"
        )
    rootdk.huggingface.restore(model)
    assert first(model(ids)).shape[1] == LENGTH


def check_models(rank, ranks):
    for make in MODELS:
        for layout in ("zigzag", "contiguous") if ranks == 2 else ("zigzag",):
            check_model(rank, ranks, make, layout)


def check_left_padding_and_positions(rank, ranks):
    """Padding on the left, positions of the caller, embeddings instead of ids: without gradients."""
    model, ids, _ = made(llama)
    mask = torch.ones_like(ids)
    mask[1, :5] = 0
    positions = (mask.cumsum(1) - 1).clamp_min(0)
    embedded = model.get_input_embeddings()(ids).detach()
    with torch.no_grad():
        whole = model(inputs_embeds=embedded, attention_mask=mask, position_ids=positions).logits
        rootdk.huggingface.use(model, group=dist.group.WORLD)
        mine = model(inputs_embeds=embedded, attention_mask=mask, position_ids=positions).logits
    all_rows = rootdk.huggingface.gather(model, mine)
    keep = mask.bool()
    torch.testing.assert_close(all_rows[keep], whole[keep], rtol=0, atol=2e-5 * whole.abs().max().item())


def check_statistics(rank, ranks):
    model, ids, _ = made(llama)
    with torch.no_grad():
        statistics = rootdk.huggingface.use(model, stats=True, group=dist.group.WORLD)
        model(ids)
    mine = sum(end - begin for begin, end in rootdk.huggingface.rows(model, LENGTH))
    assert len(statistics.table()) == 8 and all(line.rows == 2 * mine for line in statistics.table())


def check_dropout(rank, ranks):
    """The seed is the same on all ranks although their generators are not."""
    model, ids, _ = made(llama)
    rootdk.huggingface.use(model, group=dist.group.WORLD)
    model.train()
    for module in model.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.5
    torch.manual_seed(rank)
    with torch.no_grad():
        a, b = model(ids).logits, model(ids).logits
    assert torch.isfinite(a).all() and not torch.equal(a, b)


def check_refusals(rank, ranks):
    model, ids, mask = made(llama)
    rootdk.huggingface.use(model, group=dist.group.WORLD)
    with pytest.raises(rootdk.UnsupportedError, match="cut over ranks"):
        model.generate(ids)
    with pytest.raises(rootdk.UnsupportedError, match="past_key_values is not served"):
        model(ids, past_key_values=transformers.DynamicCache())
    with pytest.raises(rootdk.UnsupportedError, match=r"attention_mask has the shape \(2, 1, 1, 37\)"):
        model(ids, attention_mask=mask[:, None, None, :])
    with pytest.raises(RuntimeError, match="a part of the model was called"):
        model.model(ids)
    with pytest.raises(ValueError, match="a sequence of 1 tokens is cut over 2 ranks"):
        model(ids[:, :1])
    with pytest.raises(rootdk.UnsupportedError, match="BertModel|whole sequence"):
        masked = transformers.BertForMaskedLM(made(bert)[0].config)
        rootdk.huggingface.use(masked, group=dist.group.WORLD)
        masked(ids, labels=ids)
    bloom = transformers.BloomForCausalLM(transformers.BloomConfig(hidden_size=32, n_layer=1, n_head=4, vocab_size=64))
    with pytest.raises(rootdk.UnsupportedError, match="BloomForCausalLM: its forward takes no position_ids"):
        rootdk.huggingface.use(bloom, group=dist.group.WORLD)
    with pytest.raises(rootdk.UnsupportedError, match="position_ids do not rise by 1"):
        model(ids, position_ids=(torch.arange(LENGTH) % 20)[None].expand(2, -1))
    model.train()
    model.gradient_checkpointing_enable()
    with pytest.raises(rootdk.UnsupportedError, match="gradient checkpointing is not served"):
        model(ids)
    model.gradient_checkpointing_disable()
    rootdk.huggingface.use(model, group=dist.group.WORLD, shares="striped")
    with pytest.raises(ValueError, match="striped shares of 37 tokens over 2 ranks leave a rank without rows"):
        model(ids)
    rootdk.huggingface.restore(model)
    with pytest.raises(ValueError, match="is not cut over ranks"):
        rootdk.huggingface.rows(model, LENGTH)


def work(rank, ranks, body, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + os.path.join(folder, "meet"), rank=rank, world_size=ranks)
    body(rank, ranks)
    dist.barrier()
    os._exit(0)


def run(ranks, body):
    with tempfile.TemporaryDirectory() as folder:
        processes.spawn(work, (ranks, body, folder), nprocs=ranks)


@pytest.mark.parametrize("ranks", [2, 3])
def test_rows_loss_and_gradients_are_those_of_the_whole(ranks):
    run(ranks, check_models)


@pytest.mark.parametrize("body", [check_left_padding_and_positions, check_statistics, check_dropout, check_refusals])
def test_two_ranks(body):
    run(2, body)


def roberta():
    return transformers.RobertaForMaskedLM(transformers.RobertaConfig(intermediate_size=48, **SIZES))


def opt():
    config = transformers.OPTConfig(ffn_dim=48, word_embed_proj_dim=32, **SIZES)
    return transformers.OPTForCausalLM(config)


def llama_of_changing_angles():
    config = transformers.LlamaConfig(intermediate_size=48, **SIZES)
    config.rope_parameters = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    return transformers.LlamaForCausalLM(config)


def bert_that_pools():
    return transformers.BertModel(transformers.BertConfig(intermediate_size=48, **SIZES))


def classifier():
    return transformers.LlamaForSequenceClassification(transformers.LlamaConfig(intermediate_size=48, **SIZES))


@pytest.mark.parametrize(
    "make, reason",
    [
        (roberta, "counts positions from the tokens of the whole"),
        (opt, "counts positions from the tokens of the whole"),
        (llama_of_changing_angles, "of the type dynamic"),
        (bert_that_pools, "pools a whole sequence"),
        (classifier, "one row of the whole sequence"),
    ],
)
def test_models_that_look_at_the_whole_are_refused(make, reason):
    from rootdk import _hf_ranks

    assert reason in _hf_ranks.refusal(make())


def test_a_model_lies_on_one_device_that_its_group_reaches(monkeypatch):
    split = llama()
    split.lm_head.to("meta")
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=0, world_size=1)
        try:
            with pytest.raises(rootdk.UnsupportedError, match="is on cpu, meta; a model that is cut is on one device"):
                rootdk.huggingface.use(split, group=dist.group.WORLD)
            monkeypatch.setattr(dist, "get_backend", lambda group=None: "nccl")
            with pytest.raises(ValueError, match="on the CPU, which a group on nccl does not send"):
                rootdk.huggingface.use(llama(), group=dist.group.WORLD)
        finally:
            monkeypatch.undo()
            dist.destroy_process_group()


def test_without_a_process_group():
    model, _, _ = made(llama)
    with pytest.raises(RuntimeError, match="no process group"):
        rootdk.huggingface.use(model, group=dist.group)
    assert model.config._attn_implementation != "rootdk_ranks"


def test_the_example_runs():
    example = Path(os.environ.get("ROOTDK_SOURCE_DIR", Path(__file__).resolve().parents[2])) / "examples/huggingface_ranks.py"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", example]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rank 0: rows [(0, 500), (1500, 2000)]" in done.stdout and "rank 1" in done.stdout
