"""Numbers by which this package decides [unit; the measurement that chose it, with its commit, or the calculation]."""

from __future__ import annotations

ALIGNMENT = 16  # Alignment of values in a memory pool [bytes; ExecuTorch's memory planning]
# Distance from float from which int8 suffices unless decisions change [dB; real networks of docs/quantization.md
# (2bed7126)]
NEAR = 26.0
# Distance from which int8 suffices if no decision changes on held-out samples [dB; real networks, none below is as good
# as float (2bed7126)]
FAR = 20.0
# Distance at which a search ends for outputs without decisions [dB; MTCNN's first network, F1: 0.970 at 28.3, 0.988 at
# 35.0; selfie segmentation, IoU: 0.989 at 31.4]
REACHED = 32.0
# Expected share of changed decisions with which a search ends, and starts by probabilities [share; fer at 35 dB: 0.7 %
# expected, 2.5 % change, so that 0.01 loses what int16 gains, and does not help MTCNN's third network, where int16 has
# 0.7 % (72be9313); ecg at 41 dB: 0.6 %, and with other ranges 0.498 %, expected, 2 % change]
LEFT_CHANGED = 0.0045
CHEAP = 1.1  # Time of int16 everywhere up to which nothing is given back to int8 [times int8's; not measured]
FREE_GAIN = 0.5  # Minimum gain of a correction on held-out samples [dB; not measured]
PAID_GAIN = 1.0  # Minimum gain of a program that takes more time [dB; not measured]
# Gain that corrections of an int8 program do not reach [dB; at most 9 in the measured networks (278a220e)]
MOST_CORRECTED = 12.0
FEWEST_HELD_OUT = 2  # Minimum number of held-out calls for a choice [calls; calculated: the fewest that can differ]
FEWEST_CALLS = 64  # Minimum number of calls that also calibrated for a choice [calls; not measured]
TRIALS = 9  # Approximate number of programs that a search tries [programs; not measured]
MOST_SETS = 3  # Maximum number of sets of operators among them [sets; calculated: an eighth of the path is left]
WIDE_COST = 1.7  # Cycles of operators in int16 where they are unknown [times int8's; at most 1.7 in the zoo (8109fd30)]
ORDER_SAMPLES = 8  # Samples that order the values [samples; 4 suffice, 8 are sure, in a detector of faces (f38f8cd9)]
ORDER_CALLS = 64  # Calls of a recording that order the values [calls; riann: the order is right from 32 on (f38f8cd9)]
ORDER_WORK = 12_000_000_000  # Maximum work to order values [MACs; about a second, as `EVALUATION_WORK`]
ORDER_NODES = 400_000  # Maximum number of operators that run to order values [operators; 2.4 seconds, at 6 µs each]
FIT_WORK = 4_000_000_000  # Maximum work of the search for ranges [MACs; 0.1 to 0.4 seconds for the results alone]
# Distance up to which "accurate" searches, and operators are moved to the core [dB; not measured]
CLOSE = 40.0
CORE_GAIN = 3.0  # Minimum gain by operators on the core [dB; calculated: half of the noise]
CORE_CYCLES = 30.0  # Time of an operator that computes in float [core cycles per element; not measured]
# Time of portable float kernels, as of operators between parts of a Neutron: int8 takes 0.26 to 0.31 MAC a cycle of a
# Cortex-M33 in NXP's figures, and float is assumed to reach two thirds [core cycles; not measured]
FLOAT_MAC, FLOAT_ELEMENT, FLOAT_CALL = 5, 40, 2_000
SOFT_FLOAT = 8.0  # Time of such a kernel on a core without floats over that on one with them [ratio; not measured]
FLOAT_BAND = (0.25, 3.0)  # True over estimated time of such kernels [ratio; not measured]
CORE_ROOM = 20_000.0  # Maximum time of operators that are moved to the core [core cycles; not measured]
MOST_ON_CORE = 12  # Maximum number of such operators [operators; riann needs six (f38f8cd9)]
METRIC = 1e-3  # Minimum difference of the user's metric that decides between two programs [metric; not measured]
LOST = 1e-2  # Maximum loss of the user's metric that counts as none [metric; not measured]
MOST_TYPED = 4  # Maximum number of operators whose settings the report shows [operators; calculated: they fill a line]
SMALL_WORK = 0.01  # Maximum work of an operator that is moved to the core [share of all work; not measured]
# Noise of an operator alone over that of all others from which it is tried [ratio; calculated: 0.04 dB]
LEAST_NOISE = 0.01
# Minimum number of calls from which the limits of weights and of activations follow [calls; one sample of basic_pitch
# says 102 and 77 dB of a program at 20.9 dB]
FEWEST_LIMITS = 3
