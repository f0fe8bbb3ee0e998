"""A whole transformers model over the ranks of torch.distributed: torchrun --nproc_per_node 2 huggingface_ranks.py

Every rank gives the model the whole token ids and computes its rows. The losses of the ranks add up to the loss of the
whole; so do the gradients, which is what all_reduce is for."""

import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM

import rootdk.huggingface

TOTAL = 2000

dist.init_process_group("gloo")
torch.manual_seed(0)  # the same model and text on every rank
sizes = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
model = LlamaForCausalLM(LlamaConfig(vocab_size=256, max_position_embeddings=TOTAL, **sizes))
ids = torch.randint(256, (1, TOTAL))

rootdk.huggingface.use(model, group=dist.group.WORLD)
output = model(ids, labels=ids)
output.loss.backward()
loss = output.loss.detach()
for x in (loss, *(p.grad for p in model.parameters())):
    dist.all_reduce(x)

mine = rootdk.huggingface.rows(model, TOTAL)
whole = rootdk.huggingface.gather(model, output.logits)
print(f"rank {dist.get_rank()}: rows {mine}, logits {tuple(output.logits.shape)} of {tuple(whole.shape)}, loss {loss:.4f}")
dist.barrier()
dist.destroy_process_group()
