"""A small language model trained with rootdk's attention and with PyTorch's own: one loss curve, to rounding."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import rootdk.torch  # noqa: E402

VOCABULARY, WIDTH, HEADS, LENGTH, STEPS = 20, 32, 4, 24, 60


def pytorch_attention(q, k, v):
    logits = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    keep = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
    return logits.masked_fill(~keep, -float("inf")).softmax(-1) @ v


def rootdk_attention(q, k, v):
    return rootdk.torch.scaled_dot_product_attention(q, k, v, is_causal=True)


class Block(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.attention = attention
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed_forward = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x):
        q, k, v = (y.view(*x.shape[:2], HEADS, -1).transpose(1, 2) for y in self.qkv(self.norms[0](x)).chunk(3, -1))
        x = x + self.out(self.attention(q, k, v).transpose(1, 2).reshape(x.shape))
        return x + self.feed_forward(self.norms[1](x))


def train(attention, device, dtype):
    """The losses of predicting the next token of sequences that repeat after a few tokens."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(VOCABULARY, WIDTH), Block(attention), Block(attention), nn.Linear(WIDTH, VOCABULARY)
    ).to(device, dtype)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step)
        period = torch.randint(VOCABULARY, (8, 5), generator=generator)
        text = period.repeat(1, LENGTH // 5 + 1)[:, :LENGTH].to(device)
        logits = model(text[:, :-1])
        loss = nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), text[:, 1:].reshape(-1))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 2e-4), (torch.float64, 1e-10)], ids=str)
def test_the_loss_curve_is_the_same(dtype, tolerance):
    ours, theirs = train(rootdk_attention, "cpu", dtype), train(pytorch_attention, "cpu", dtype)
    assert theirs[-1] < 0.9 * theirs[0]  # it learns something
    assert max(abs(a - b) for a, b in zip(ours, theirs)) < tolerance


def test_the_loss_curve_is_the_same_on_the_gpu(device):
    if device == "cpu":
        pytest.skip("the CPU has its own test")
    ours, theirs = (train(attention, device, torch.bfloat16) for attention in (rootdk_attention, pytorch_attention))
    assert theirs[-1] < 0.95 * theirs[0]
    assert max(abs(a - b) for a, b in zip(ours, theirs)) < 0.15  # bf16 keeps two digits
