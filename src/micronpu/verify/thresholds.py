"""Numbers by which this package decides [unit; the measurement that chose it, with its commit, or the calculation]."""

from __future__ import annotations

import torch

# Distance from float below which a program is usually useless [dB; calculated: errors a third as large as the values]
FAR = 10.0
NEAR = 20.0  # Distance from float below which a program deserves a look [dB; classifiers of docs/accuracy.md]
# Size of the difference of a program from its module, in parts of an output [ratio; calculated: 2^13 roundings of
# float32]
SAME_AS_MODULE = 2.0**-10
NUDGE = 2.0**-20  # Relative change of inputs that shows what roundings may change [ratio; calculated: 2^3 roundings]
EXPLAINED_BY_ROUNDING = 16.0  # Ratio to the change by a nudge that roundings explain [ratio; not measured]
EXPLAINED = 30.0  # Distance at which nearly equal scores explain one changed decision [dB; not measured]
# Minimum share of samples with another top-1 result for a note; `WRONG` is that for a warning [share; not measured]
FEW_CHANGED = 0.125
NEAREST = 8  # Number of samples that tell the noise of a lead [samples; 4 to 16 give the same for eight classifiers]
# Expected share of changed decisions that is too large [share; fer at 26 dB: 3.2 %, of which 5 to 7.5 % change;
# cifarnet, dscnn and mobilenetv1: at most 1.6 %, of which 0.8 to 1.7 % change]
CHANGED = 0.02
# Standard deviation of a figure between data sets, beyond that within one [dB; 30 networks of docs/zoo.md (b4898863):
# Paule and Mandel's estimate is 1.4, of the first 28 of them 1.5; 28 of 30 intervals contain the figure from 1.2 on]
BETWEEN_DATA = 1.5
# Maximum work of the calls for which the program is judged [MACs; 1 to 2 seconds of a program on any backend]
PROGRAM_JUDGED = 4_000_000_000
BLAME_CALLS = 64  # Maximum number of calls of a recording for that [calls; riann: the order is right from 32 calls on]
OWN_CALLS = 16  # Maximum number of calls for errors of single results [calls; not measured]
# Maximum work for that; two operators may exceed it [MACs; 0.05 to 0.15 seconds]
BLAME_WORK = 1_500_000_000
ALIKE = 0.5  # Noise of an operator over the largest, from which both cost the same [ratio; calculated: 3 dB]
# Share of the noise at an output from which one operator is named as the cause [share; calculated: without it, 1.2 dB
# less noise]
CAUSE = 0.25
# Clipping of a sample over the rounding of a value from which it runs again [ratio; a thousandth of the noise at most]
CLIPPED_NOISE = 0.1
CLIPPED = 0.1  # Excess over a range, from which values are clipped and not only rounded [range; not measured]
# Share of a layer's noise at an output, from which its saturated values are read [share; calculated: without them, 0.5
# dB less noise]
READ = 0.1
# Ratio of a range to its values from which other values must have widened it [ratio; calculated: three bits]
WIDE = 8.0
# Distance by which samples other than the held-out ones may be further from float [dB; calculated: twice the noise]
MARGIN = 3.0
AVOIDABLE = 3.0  # Distance from the limit of int8 to be avoidable [dB; 9 of 15 random networks found (14deb9e3)]
LOOKS = 3  # Runs for measuring one sample [runs; calculated: the float model, the program, and separate qparams]
# Number of samples that evaluate a program of a search, calibrating ones beside fewer held-out ones [samples; selfie
# segmentation of MediaPipe: three held-out ones choose ranges that clip another]
EVALUATED = 16
FRESH = 16  # Size of all values below which an output looks untrained [smallest LSB; calculated: four of eight bits]
RESAMPLES = 100  # Resamples for the interval of a metric [resamples; calculated: an end is off by 7 % of the interval]
BY_CHANCE = 1.645  # Excess of a sum of ranks in 5 % of the cases [standard deviations; normal distribution]
APART = 8.0  # Ratio of neighbours in sorted order, for parts by themselves [ratio; calculated: three bits]
CHANNELS = 64  # Maximum number of channels; a longer axis has positions [channels; not measured]
EMPTY = 2.0**-24  # Ratio to the largest size below which a channel is empty [ratio; calculated: float32 rounds there]
# Maximum number of sources, and of channels of one, that are named [names; calculated: with their channels they fill a
# line]
SHOWN = 4
# Runs before a difference is called an error: one of ten nearly equal values comes first in a few of a hundred runs
# [runs; 10,000 random networks, seeds 1950 and 7081 (c90a4a45)]
TRIES = 128
# Difference of rounding; operators of int16 interpolate in tables [LSB; 10,000 random networks (c34e7802)]
ROUNDED = {torch.int8: 1, torch.int16: 4}
DIFFERENCE = 4  # Allowed difference from the quantized model beyond that of `GROWTH` [LSB; not measured]
GROWTH = 2.0  # Allowed difference from the quantized model over the error of quantization [ratio; not measured]
ALONE = 4  # Maximum difference of one operator with equal operands [LSB; not measured]
ALONE_INT16 = 128  # That of an operator in int16 [LSB; tables have lines of 128 numbers]
UNKNOWN = 0.1  # Allowed error of quantization, if the float model is unknown [largest value; not measured]
INSIDE = 0.5  # Standard deviation of a feature that rounding removes [LSB of its input; calculated]
FEATURES = 256  # Maximum number of features; more are samples in time [features; not measured]
# Maximum number of features for a note about constant ones: of many, as the columns of a picture, some may be
# [features; not measured]
FEW_FEATURES = 16
REPEATS = 4  # Mean number of repetitions from which repeated samples are reported [repetitions; not measured]
# Root mean square below which a part of an output has hardly any distinct values [LSB; calculated: rounding leaves 23
# dB]
FEW_STEPS = 4
JUMP = 0.2  # Part of a result's range within an LSB of the operand, of which most is lost [share; not measured]
ROOT_JUMP = 0.05  # That of a root [share; calculated: that of one of 255 LSBs is 0.063]
# Distance of outputs without a loss of small operands [dB; an evidential head at 43 (5fae5f6e)]
NO_LOSS = 30.0
# Ratio of LSBs from which a part of a tensor is reported for using those of the whole [ratio; calculated: two bits]
FINER_PART = 4.0
# Minimum number of values for that: fewer may all be small by chance [values; calculated: so many normal numbers are
# `APART` from others in 1e-12 of cases]
ENOUGH_VALUES = 16
SATURATED = 6.5  # Value from which its sigmoid is 0 or 1 to within half an LSB of int8 [value; calculated]
# Maximum number of values that are measured alone: those with the largest rounding noise [values; not measured]
MOST_ORDERED = 64
DOWN = 3.2  # Time of a conversion from int16 to int8 [NPU cycles per element; Vela's figures of pnet]
UP = 1.03  # Time of a conversion from int8 to int16 [NPU cycles per element; Vela's figures of pnet]
INTERVAL = (2.5, 97.5)  # Percentiles of the interval of a metric [percent; 95 % of resamples, by convention]
SAME_SCALE = 1e-6  # Relative difference up to which two scales are equal [ratio; a rounding of float32, calculated]
VARIES = 1e-6  # Deviation over the mean above which a feature varies [ratio; roundings of float32, calculated]
FIRST = 1e-6  # Smallest operand that counts where a function is infinite at 0 [LSB; not measured]
