"""A keyword spotter over a whole second of sound, turned into one that hears a frame at a time.

The network is that of MLPerf Tiny with windows over time that pad nothing; its weights are random here, since what is
shown does not depend on them: every hop gives what the network gives for the last 49 frames, for a tenth of the work.

    python examples/streaming_keyword_spotting/demo.py [target]
"""

import sys

import torch
from torch import nn

import micronpu

FRAMES, COEFFICIENTS = 49, 10


class Spotter(nn.Module):
    def __init__(self, channels=64, words=12):
        super().__init__()
        self.first = nn.Conv2d(1, channels, (10, 4), stride=(1, 2), padding=(0, 1))
        self.depth = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=(0, 1), groups=channels) for _ in range(4))
        self.point = nn.ModuleList(nn.Conv2d(channels, channels, 1) for _ in range(4))
        self.head = nn.Linear(channels, words)

    def forward(self, x):
        x = torch.relu(self.first(x))
        for depth, point in zip(self.depth, self.point, strict=True):
            x = torch.relu(point(torch.relu(depth(x))))
        return self.head(x.mean((2, 3)))


def main():
    target = sys.argv[1] if len(sys.argv) > 1 else "ethos-u55-128"
    torch.manual_seed(0)
    model = Spotter().eval()
    whole = torch.randn(1, 1, FRAMES, COEFFICIENTS)

    stream = micronpu.streaming(model, (whole,), dim=2, step=1)
    recordings = [list(torch.randn(1, 1, 60, COEFFICIENTS).split(1, 2)) for _ in range(4)]
    with torch.no_grad():
        hops = [stream(frame) for frame in recordings[0]]
        own = model(torch.cat(recordings[0][-FRAMES:], 2))
        same = torch.allclose(hops[-1], own, atol=1e-6)  # the sums have another order
    stream.reset()

    program = micronpu.compile(stream, (whole[:, :, :1],), target, calibration=recordings)
    offline = micronpu.check(model, (whole,), target).report
    print(program.report)
    print(f"\nThe last hop is the network's own answer for the last {FRAMES} frames: {same}")
    print(f"MACs for each new frame: {offline.macs:,} over the whole second, {program.report.macs:,} in a stream")
    states = sum(state.bytes for state in program.states)
    print(f"Bytes that stay from hop to hop: {states:,}; .pte of {len(program.buffer):,} bytes")
    for number, frame in enumerate(recordings[1]):
        scores = program.run(frame)
        if number >= FRAMES - 1:
            print(f"frame {number}: word {int(scores.argmax())}")
    program.reset()


if __name__ == "__main__":
    main()
