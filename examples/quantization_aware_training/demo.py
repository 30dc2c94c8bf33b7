"""A network trained in float, quantized after training and in training, as programs for i.MX RT700.

    python examples/quantization_aware_training/demo.py                       # with drawings of clothes
    python examples/quantization_aware_training/demo.py --data fashion-mnist --images 10000  # downloads 30 MB
    python examples/quantization_aware_training/demo.py --recipe              # through executorch.export

Takes less than a minute; with FashionMNIST a few.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from fashion import Fashion, load, network
from torch import Tensor, nn

import micronpu
from micronpu.runtime import HostProgram

BATCH = 64


def train(module: nn.Module, data: Fashion, epochs: int, rate: float) -> None:
    """Trains a module in place: a float one and one with fake quantization alike."""
    random = torch.Generator().manual_seed(0)
    steps = epochs * -(-len(data.train_x) // BATCH)
    optimizer = torch.optim.Adam(module.parameters(), rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    module.train()
    for epoch in range(epochs):
        total, start = 0.0, time.perf_counter()
        for rows in torch.randperm(len(data.train_x), generator=random).split(BATCH):
            optimizer.zero_grad()
            loss = F.cross_entropy(module(data.train_x[rows]), data.train_y[rows])
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item() * len(rows)
        print(f"  epoch {epoch + 1}: loss {total / len(data.train_x):.3f}, {time.perf_counter() - start:.0f} s")


def accuracy(answers: Tensor, data: Fashion) -> str:
    return f"{100 * (answers.argmax(1) == data.test_y).float().mean().item():.2f} %"


def on_device(program: bytes, data: Fashion) -> Tensor:
    """Return the answers of a finished program, in the runtime of this machine."""
    host = HostProgram(program)
    return torch.cat([host.run(row)[0] for row in data.test_x.split(1)])


def with_recipe(model: nn.Module, example: Tensor, target: str, **options: object) -> bytes:
    """The same programs through ExecuTorch's export recipes."""
    from executorch.export import export

    kind = "int8_qat" if "train" in options else "int8"
    session = export(model, [(example,)], micronpu.get_chip_recipe(target, kind, **options))
    return bytes(session.get_pte_buffer())


def with_compile(model: nn.Module, example: Tensor, target: str, **options: object) -> bytes:
    return micronpu.compile(model, (example,), target, **options).buffer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="fashion-mnist, an .npz, or the folder of its four files")
    parser.add_argument("--images", type=int, default=2_500, help="how many to train with")
    parser.add_argument("--epochs", type=int, default=4, help="in float")
    parser.add_argument("--qat-epochs", type=int, default=2, help="with fake quantization")
    parser.add_argument("--target", default="imxrt700-neutron", help="see `micronpu targets`")
    parser.add_argument("--recipe", action="store_true", help="through executorch.export instead of micronpu.compile")
    parser.add_argument("--output", type=Path, default=Path("fashion.pte"), help="where to write the QAT program")
    options = parser.parse_args()

    data = load(options.data, train=options.images)
    torch.manual_seed(0)
    model = network()
    print(f"Training in float with {len(data.train_x)} images:")
    train(model, data, options.epochs, rate=1e-2)
    model.eval()
    with torch.no_grad():
        in_float = model(data.test_x)

    build = with_recipe if options.recipe else with_compile
    example = data.train_x[:1]
    calibration = [(row,) for row in data.train_x[:100].split(1)]
    after = build(model, example, options.target, calibration=calibration)

    print("Training with fake quantization:")
    torch.manual_seed(0)
    trained = build(
        model, example, options.target, train=lambda module: train(module, data, options.qat_epochs, rate=2e-3)
    )
    options.output.write_bytes(trained)

    print(f"\n{len(data.test_x)} test images:")
    print(f"  float                  {accuracy(in_float, data)}")
    print(f"  int8, after training   {accuracy(on_device(after, data), data)}")
    print(f"  int8, in training      {accuracy(on_device(trained, data), data)}")
    print(f"Wrote {options.output}, {len(trained):,} bytes.")


if __name__ == "__main__":
    main()
