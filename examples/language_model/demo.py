"""A language model on an Ethos-U85: trained, compiled as prefill and decode with one cache, and telling on.

    python demo.py [TEXT] [--target ethos-u85-256] [--steps 100] [--dim 64] [--layers 2]

The text may be any; unless given, it is Python's own help, and so little training gives words without sense.
Debian's package bible-kjv prints one of four million letters, `bible -f ge1:1-re22:21 > bible.txt`; with
`--steps 5000 --layers 5 --length 256`, which takes minutes, the model continues it.
"""

import argparse
import math
import sys
from pathlib import Path
from pydoc_data.topics import topics

import torch
import torch.nn.functional as F
from model import Model
from tokenizer import Tokenizer

import micronpu

LETTERS = 200_000
"""Of Python's help that are read: the tokenizer takes as long as they are many."""


def trained(model, data, steps, length):
    optimizer = torch.optim.AdamW(model.parameters(), 4e-3, betas=(0.9, 0.98), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, eta_min=1e-5)
    for step in range(steps):
        starts = torch.randint(0, len(data) - length - 1, (8,))
        rows = torch.stack([data[s : s + length + 1] for s in starts])
        loss = F.cross_entropy(model.whole(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if sys.stderr.isatty() or (step + 1) % (steps // 10 or 1) == 0:
            start, end = ("\r", " ") if sys.stderr.isatty() else ("", "\n")
            print(f"{start}step {step + 1} of {steps}, loss {loss:.2f}", end=end, file=sys.stderr, flush=True)
    return model.eval()


def calls(tokens, n):
    """A text as the calls that read it, n tokens at a time."""
    return [(tokens[None, i : i + n], torch.arange(i, i + n)) for i in range(0, len(tokens) - n + 1, n)]


def main(argv=None):
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("text", type=Path, nargs="?", help="the help of Python unless given")
    options.add_argument("--target", default="ethos-u85-256")
    for name, value in (("steps", 100), ("vocab", 512), ("dim", 64), ("layers", 2), ("length", 64), ("new", 32)):
        options.add_argument(f"--{name}", type=type(value), default=value)
    given = options.parse_args(argv)
    torch.manual_seed(0)
    text, n = given.text.read_text(encoding="latin1") if given.text else "\n".join(topics.values())[:LETTERS], 16
    cut = len(text) * 95 // 100
    tokenizer = Tokenizer(text[:cut], given.vocab)
    train, test = (torch.tensor(tokenizer.encode(t)) for t in (text[:cut], text[cut:]))
    length = given.length
    model = Model(len(tokenizer.tokens), given.dim, given.layers, hidden=given.dim * 8 // 3, length=length)
    model = trained(model, train, given.steps, length * 3 // 4)

    rows = [train[s : s + length] for s in torch.linspace(0, len(train) - length, 4).long()]
    program = micronpu.compile(
        {"prefill": (model, calls(rows[0], n)[0]), "decode": (model, calls(rows[0], 1)[0])},
        given.target,
        calibration={name: [calls(row, size) for row in rows] for name, size in (("prefill", n), ("decode", 1))},
        quantization="int16",
    )
    print(program.report.summary())

    row = test[: length + 1]
    with torch.no_grad():
        exact = model.whole(row[None, :-1])[0]
    program.reset()
    found = torch.cat([program.run(*x, method="decode")[0] for x in calls(row[:-1], 1)])
    perplexity = [math.exp(F.cross_entropy(scores, row[1:])) for scores in (exact, found)]
    print(f"perplexity of {length} tokens that it has not seen: {perplexity[0]:.2f} in float, {perplexity[1]:.2f} here")

    program.reset()
    prompt, told = test[: 2 * n], test[: 2 * n].tolist()
    for x in calls(prompt, n):
        scores = program.run(*x, method="prefill")
    for i in range(2 * n, min(2 * n + given.new, length)):
        told.append(int(scores[0, -1].argmax()))
        scores = program.run(torch.tensor([told[-1:]]), torch.tensor([i]), method="decode")
    print(tokenizer.decode(told))
    latency = program.methods["decode"].report.latency
    if latency:
        step = sum(part.milliseconds for part in latency)
        print(f"about {1000 / step:,.0f} tokens a second on {given.target}, by the estimates of the report")
    return perplexity


if __name__ == "__main__":
    main()
