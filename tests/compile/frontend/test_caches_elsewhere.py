"""Models whose cache is an object beside them, as Hugging Face writes them: without a wrapper, inputs by name."""

from __future__ import annotations

import copy
import importlib.util
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import micronpu
from micronpu.base.errors import ModelError

VOCAB, DIM, HEADS, GROUPS, LENGTH = 24, 16, 4, 2, 16
EACH = DIM // HEADS


class Cache:
    """No module: torch.export does not see that its tensors are the buffers of one."""

    def __init__(self) -> None:
        self.keys, self.values = (torch.zeros(1, GROUPS, LENGTH, EACH) for _ in range(2))
        self.filled = torch.tensor([0], dtype=torch.int64).squeeze(0)

    def update(self, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        place = torch.arange(k.shape[2]) + self.filled
        self.filled.add_(k.shape[2])
        self.keys.index_copy_(2, place, k)
        self.values.index_copy_(2, place, v)
        return self.keys, self.values


class Beside(nn.Module):
    """A layer that is told the place of its tokens, or takes embeddings in the place of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, DIM)
        self.q, self.o = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
        self.k, self.v = (nn.Linear(DIM, GROUPS * EACH) for _ in range(2))
        self.rate = 1.0 / 100 ** (torch.arange(0, EACH, 2).float() / EACH)
        self.cache = Cache()
        self.register_buffer("key_cache", self.cache.keys, persistent=False)
        self.register_buffer("value_cache", self.cache.values, persistent=False)
        self.register_buffer("filled", self.cache.filled, persistent=False)

    def forward(self, ids: torch.Tensor | None = None, embeds: Any = None, place: torch.Tensor | None = None) -> Any:
        """ids [1, n], place [n] -> [1, n, VOCAB]"""
        assert place is not None
        self.cache.filled.copy_(place[0])
        x = self.embedding(ids) if embeds is None else embeds
        n = x.shape[1]
        positions = (torch.arange(n) + self.cache.filled)[None]
        angle = (self.rate[None, :, None] @ positions[:, None].float()).transpose(1, 2)
        cos, sin = (torch.cat([f, f], -1) for f in (angle.cos(), angle.sin()))
        shown = torch.arange(LENGTH)[None, None, None] <= positions[:, None, :, None]
        q, k, v = (f(x).view(1, n, -1, EACH).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = (t * cos + torch.cat([-t[..., EACH // 2 :], t[..., : EACH // 2]], -1) * sin for t in (q, k))
        k, v = self.cache.update(k, v)
        k, v = (
            t[:, :, None].expand(1, GROUPS, HEADS // GROUPS, LENGTH, EACH).reshape(1, HEADS, LENGTH, EACH)
            for t in (k, v)
        )
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=shown)
        y = x + self.o(y.transpose(1, 2).reshape(1, n, DIM))
        return F.linear(y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5), self.embedding.weight)


def steps(seed: int, ids: str = "ids", place: str = "place") -> list[dict[str, torch.Tensor]]:
    tokens = torch.randint(0, VOCAB, (LENGTH,), generator=torch.Generator().manual_seed(seed))
    return [{ids: tokens[None, i : i + 1], place: torch.tensor([i])} for i in range(LENGTH)]


@pytest.mark.sweep
def test_a_cache_beside_the_model() -> None:
    torch.manual_seed(0)
    model = Beside().eval()
    exact = copy.deepcopy(model)
    program = micronpu.compile(
        model, steps(0)[0], "ethos-u85-256", calibration=[steps(s) for s in range(4)], quantization="int16"
    )
    assert {s.name for s in program.states} == {"key_cache", "value_cache", "filled"}
    # What is left is the model's own count, and casts of its inputs.
    assert {v.operator for v in program.report.host} <= {"to.dtype", "select.int", "add.Tensor"}
    assert len(program.report.host) <= 4 and program.report.partitions == 1
    assert [tensor.name for tensor in program.report.inputs] == ["ids", "place"]
    with pytest.raises(ModelError, match="The inputs 'ids' were given, and the program takes 'ids', 'place'"):
        program.run({"ids": steps(9)[0]["ids"]})
    program.reset()
    with torch.no_grad():
        for row in steps(9):
            wanted, found = exact(**row), program.run(row)
            assert (wanted - found).abs().max() < 0.02 * wanted.abs().max()
    with pytest.raises(ModelError, match=f"Input 1 of the program has {LENGTH}, and is a number from 0 to"):
        program.run(row["ids"], row["place"] + 1)


class Loose(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kept = [torch.zeros(1, 4)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept[0].add_(x)
        return self.kept[0] * 2


def test_refusals() -> None:
    row = steps(0)[0]
    for model, examples, calibration, words in (
        (Beside(), {"idss": row["ids"]}, None, r"forward of Beside does not take the example inputs 'idss'"),
        (Beside(), row, [{"ids": row["ids"]}], "has the inputs 'ids', and the example inputs are 'ids', 'place'"),
        (Loose(), (torch.zeros(1, 4),), [torch.zeros(1, 4)], r"writes into the tensor `kept\[0\]`, which is no buffer"),
        (lambda x: x, {"x": torch.zeros(1)}, None, "The example inputs are by name, and the model is"),
    ):
        model = model.eval() if isinstance(model, nn.Module) else model
        with pytest.raises(ModelError, match=words):
            micronpu.compile(model, examples, "ethos-u85-256", calibration=calibration)  # type: ignore[call-overload]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="pip install transformers")
@pytest.mark.parametrize("kind", ["Llama", "GPT2", "Gemma", "Gemma3Text", "Qwen3"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_hugging_face(kind: str, attention: str) -> None:
    """Tiny ones with random weights, through the library's own module for export."""
    import transformers
    from transformers.integrations.executorch import TorchExportableModuleWithStaticCache

    torch.manual_seed(0)
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 4, "n_positions": LENGTH}
    if kind != "GPT2":
        sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
        sizes |= {"num_key_value_heads": 2, "head_dim": 4, "max_position_embeddings": LENGTH}
    config = getattr(transformers, f"{kind}Config")(vocab_size=VOCAB, attn_implementation=attention, **sizes)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=0.2)
    exact = copy.deepcopy(model)
    model.generation_config = transformers.GenerationConfig(
        use_cache=True, cache_implementation="static", cache_config={"batch_size": 1, "max_cache_len": LENGTH}
    )

    def calls(seed: int) -> list[dict[str, torch.Tensor]]:
        return steps(seed, "input_ids", "cache_position")

    program = micronpu.compile(
        TorchExportableModuleWithStaticCache(model).eval(),
        calls(0)[0],
        "ethos-u85-256",
        calibration=[calls(s) for s in range(3)],
        quantization="int16",
    )
    assert len(program.report.host) <= 8 and program.report.partitions == 1
    program.reset()
    with torch.no_grad():
        wanted = exact(torch.cat([row["input_ids"] for row in calls(9)], 1), use_cache=False).logits[0]
    found = torch.stack([program.run(*row.values()).reshape(-1) for row in calls(9)])
    assert (wanted - found).square().sum() < 0.01 * wanted.square().sum()
