"""Numbers by which this package decides [unit; the measurement that chose it, with its commit, or the calculation]."""

from __future__ import annotations

import math

# Maximum size of an operand for which another form of an operator takes hardly any time [elements; not measured]
SMALL_OPERAND = 4000
# Range of separate qparams for averages over their observed range [ratio; 300 random networks with unequal ranges
# (0be4df2e)]
AVERAGE_MARGIN = 1.25
# Scale of a concatenation over that of an operand, from which the operand keeps its qparams: two bits of precision are
# worth an operator [ratio; calculated]
FINER_OPERAND = 4.0
# Smallest scale of activations and weights: small enough for amperes or seconds; a softmax, whose exponents have 26
# fractional bits, reads a four times smaller one as 0 [scale; a network on inputs of 1 to 1e-6, 32.5 dB at each size
# (5fae5f6e)]
ACTIVATION_EPS = {"int8": 2**-24, "int16": 2**-24}
# Smallest scale of other constants, and of weights of a softmax over long rows [scale; calculated: 1/N of a mean over
# `MOST_FOLDED` elements has seven bits]
CONSTANT_EPS = 2**-30
# Maximum size of a constant that replaces operators [elements; 4 MB in int8: the flash of half of the chips in `chips`
# is smaller]
MOST_FOLDED = 1 << 22
DIGEST_DIGITS = 16  # Length of a digest: enough to detect accidental changes [hexadecimal digits; calculated]
# Maximum number of digests of samples; of more samples each is that of a block [digests; calculated: with
# `DIGEST_DIGITS` they take 16 kB]
MOST_DIGESTS = 1024
DEAD_CHANNEL = 1e-6  # Part of the largest range below which a channel counts as dead [ratio; not measured]
MOST_EQUALIZED = 1e4  # Maximum factor of equalization in either direction [ratio; not measured]
EQUALIZE_ROUNDS = 20  # Maximum number of passes over all pairs of layers [passes; not measured]
# Largest change of a factor in a pass that ends equalization [ratio; calculated: an LSB of the 127 of a range]
EQUALIZED = 0.01
# Minimum of half a far value over the largest of the others: at least two bits of int8 are at stake [ratio; calculated]
FAR_GAP = 4.0
# Distances of a clamp from the other values that are tried [largest magnitude of these; calculated: with a range 256
# times as large int8 rounds all others to 0]
FAR_DISTANCES = (0, 1, 4, 16, 64, 256)
MOST_FAR = 64  # Maximum number of ranges that are tried, in the order of the program [ranges; not measured]
# Error by rounding the raw input and the constants over that by rounding the result, from which a standardisation stays
# in float [ratio; weather data and riann (19ef07aa, 930ba541)]
FEATURE_NOISE = 4.0
# Mean over features from which it does not: the largest feature would hide the others [dB; weather data and riann
# (19ef07aa, 930ba541)]
FEATURE_ENOUGH = 40.0
FEATURE_LOST = 20.0  # Predicted SQNR of a first layer below which it has them, too [dB; at 33 dB they gain 2 dB]
# Error of a first layer over that with factors of its features, from which it has them [ratio; resemblyzer 40 and 350]
FEATURE_GAIN = 10.0
HALVES_DOWN = 0.49  # Number that is added before rounding down, so that halves are rounded down [exponent; calculated]
MOST_EXPONENT = 16  # Largest exponent of two in such a factor [exponent; not measured]
SECOND_PART = 128  # Factor of the second part of weights, whose integers reach 64 [ratio; calculated]
MOST_ADDED_WORK = 0.05  # Maximum work of second parts [share of the network's MACs; 3 % in a speaker encoder]
FEATURE_SAMPLES = 4096  # Maximum number of samples of features that are measured [samples; not measured]
FEATURE_ROWS = 64  # Calibration samples whose range is measured [samples; not measured]
# Magnitude from which constants mean infinity, as before a softmax (`micronpu.ops.softmax`) [value; not measured]
INFINITE = 1e3
# Maximum size of a padded channel for which depthwise convolutions are computed tap by tap [elements; 25x25 of 64
# channels take 0.5 instead of 0.8 ms, 64x64 of 16 as long]
SMALL_IMAGE = 40 * 40
# Maximum length of expressions that models repeat [successive operators; calculated: at most 31 comparisons of
# operators with two operands]
EQUAL_DEPTH = 4
# Factor of the largest of four projections that halves its error [ratio; calculated]
PROJECTION_GAIN = 2 / (1 + math.cos(math.pi / 8))
# Distance of masked scores below the lowest unmasked one [exponent of e; calculated: exp(-16) = 1.1e-7 is 0 in int8]
MASKED_FLOOR = 16.0
# Distance below the largest of its row up to which a score counts [exponent of e; calculated: lower ones have at most
# 1.3e-14 of its weight]
SCORE_REACH = 32.0
SMALLEST_GAMMA = 1e-4  # Magnitude from which factors of a norm can be divided by [value; not measured]
# Ratio of the 95th to the 5th percentile of rows from which a norm is computed in int16, beyond that of as many normal
# numbers [ratio; not measured]
UNEQUAL_ROWS = 1.5
# Relative error of the mean of a row's squares with shared qparams from which single large rows count, too [ratio; one
# row of thirty eight times larger, 13 dB (bf44dff2)]
COARSE_SQUARES = 0.04
STEPS_INT8 = 255  # LSBs of the range of int8 [LSB; calculated]
# Distance of the normal distribution's 95th percentile from its mean [standard deviations; calculated]
NORMAL_95 = 1.65
NORM_ROWS = 8  # Calibration samples whose norms are measured [samples; not measured]
# Ratio of scales from which a result has its own [ratio; 300 random networks with unequal ranges (0be4df2e)]
FINER_RESULT = 2.0
# Candidates that are tried for each end of a range [candidates; calculated: neighbours are two of 127 LSBs apart]
CANDIDATES = 64
# Largest weight of a softmax up to which a separate scale saves at least two bits over 1/256 [weight; calculated;
# attention over 400 tokens 5.0 to 26.8 dB (37bc4003)]
MOST_SHARE = 0.25
TABLE_POSITIONS = 4096  # Maximum number of positions of a table [positions; not measured]
# Maximum size of what is computed for all positions of a table [elements; memory of a long prompt (af42fea8)]
TABLE_COMPUTED = 1 << 25
# Lists of positions on which rows are compared with the program's results [lists; calculated: all of them hold one
# position only in at most one of eight cases]
TABLE_TRIES = 3
# Maximum time of a chosen program over int8's [ratio; int16 everywhere takes 1.0 to 1.8 in the zoo]
SLOWDOWN = {"auto": 2.0, "accurate": 2.0}
# Range of a distance, and of what it is computed from, over that of calibration [ratio; faults of twelve
# autoencoders: 4 costs 4 to 9 dB more in int8]
UNLIKE_ROWS = 2.0
# Part of its range for a difference of which only the sign is read: its LSB is a quarter of that of its operands
# [ratio; calculated: of twice their range]
SIGN_RANGE = 0.125
# Part by which a range exceeds the end from which a sigmoid saturates [fraction; two LSBs of the 255 between both ends]
SATURATED = 1 / 64
# Maximum number of sums, by their other terms, whose saturation limits a value [sums; calculated: those of four
# residual connections, each of which doubles them]
MOST_SUMS = 16
MOST_TERMS = 4  # Maximum number of other terms of such a sum [terms; gates of recurrent layers have up to two]
# Maximum number of successive averages and clamps whose qparams are chosen together: each passes its results to those
# before [operators; calculated: they are observed at most that many times]
FINER_DEPTH = 16
PROGRAM_CALLS = 2  # Maximum number of calls of the program on samples that calibrated [calls; not measured]
# Maximum work of all calls that the program runs [MACs; a tenth of a second in LiteRT's reference kernels]
PROGRAM_WORK = 30_000_000
# Squared distance of two samples over that to most others below which they are near-duplicates [ratio; calibration data
# of 30 networks of docs/zoo.md: photographs cut into pieces have 1.5 of 60 pieces so near, recordings and print none]
NEAR_DUPLICATE = 0.1
MOST_SAMPLES = 0.75  # Quantile of the distances that is called most [share; not measured]
MOST_COMPARED = 1024  # Maximum number of samples that are compared with each other [samples; not measured]
# Elements of a sample below which others are near by chance [elements; with two, 5 of 48 normal samples]
FEWEST_COMPARED = 8
COMPARED_ELEMENTS = 1024  # Elements of a sample that are compared, evenly spread [elements; not measured]
EXAMINED_AGAIN = 16  # Maximum number of calibration samples that are examined again [samples; not measured]
PROGRAM_HELD_OUT = 8  # Maximum number of calls that the program itself runs if they were held out [calls; not measured]
ENOUGH_SAMPLES = 32  # Samples that suffice for calibration, so that others are held out [samples; not measured]
EVALUATION_WORK = 10_000_000_000  # Maximum work of an evaluation [MACs; about a second]
CALL_WORK = 400_000  # Overhead of a call [MACs; not measured]
# Maximum size of the results of all samples [bytes; 64 MB, where the smallest compilation takes 400]
RESULT_BYTES = 1 << 26
# Widths that weights may have [bits; accuracy within 0.2 points with six on three trained networks (ebc27c87)]
WEIGHT_BITS = (8, 7, 6, 5, 4)
# Memory of a transposed convolution in float64 from which it is computed in pieces [bytes; not measured]
COLUMN_BYTES = 1 << 30
# Size of the rows that are kept of a generator of calibration data [bytes; 80 pictures of 224x224x3]
STREAM_BYTES = 48 << 20
LEAST_OF_STREAM = 16  # Number of rows that are kept at any size [rows; those that suffice to hold some out]
# Samples from which on a single one does not decide; of fewer, one often makes most noise [samples; recordings of riann
# (8bde1681)]
SEVERAL = 4
MOST_ITEMS = 1 << 16  # Items after which a generator counts as endless [items; not measured]
FIT_SAMPLES = 100  # Maximum number of samples that fit ranges [samples; not measured]
# Least number of samples that fit ranges where `FIT_ELEMENTS` limits them [samples; 17 are as good as 64 (8c694177)]
FEWEST_FIT = 16
# Maximum size of all values of the samples that fit ranges [elements; about ten seconds (8c694177)]
FIT_ELEMENTS = 150_000_000
DIRECTIONS = 2  # Random directions at the results, for each sample [directions; not measured]
# Recordings, and values, that run side by side [recordings; 64 of a small network take 18 ms, one by one 63]
BATCH = 16
COUNTED = 1 << 14  # Values that a histogram counts at once [values; 1.6 million take 10 instead of 16 ms]
# Maximum size of a value of recordings that run side by side [elements; calculated: 16 MB in float32]
BATCH_ELEMENTS = 1 << 22
# Weights of a module that are dequantized once [elements; 64 MB in float32, where the smallest compilation takes 400]
KEPT_WEIGHTS = 1 << 24
# Power of a difference over that of the results, up to which a batch gives what single runs give [ratio; not measured]
SAME_RESULTS = 1e-2
# Positions for each weight of an output channel [ratio; a recurrent network on other data (de8c33a7)]
ENOUGH_POSITIONS = 4
CORRECTION_WORK = 2_000_000_000  # Maximum work of samples beyond `ENOUGH_SAMPLES` [MACs; 0.1 to 0.2 seconds]
MOST_POSITIONS = 256  # Maximum number of positions of a convolution in each sample [positions; not measured]
# Weights of an output channel above which a layer keeps the nearest rounding [weights; memory of its moments]
WIDEST = 4096
MOMENTS_AT_ONCE = 256  # Rows of the moments of operands that are multiplied at once [rows; 1,152 take 19 of 43 ms]
# Places of a window, and its positions, from which moments follow from its first place [places; an electrocardiogram's
# windows of 1 to 113 take 34 instead of 153 CPU s]
LONG_WINDOW = 16
# Maximum size of moments that are kept for further quantizations [bytes; 128 MB, where the smallest compilation takes
# 400]
KEPT_MOMENTS = 1 << 27
MOST_THRESHOLDS = 64  # Maximum number of thresholds in a range, of over four LSBs each [thresholds; calculated]
# Maximum factor by which a scale may grow for a threshold to be between two LSBs [ratio; calculated: it costs 1.9 dB]
WIDER = 1.25
# Scales that are tried for that [scales; calculated: neighbours move a threshold at the end of a range by a sixteenth
# of an LSB]
SCALES = 512
# Smallest scale of values that were always 0, for sums in int32, and LSB of values without qparams [scale; calculated
# (5fae5f6e)]
NOTHING = 2**-16
FARTHEST_BEYOND = 2**20  # Maximum ratio of a saturating value to the range, in LSBs of int32 [ratio; calculated]
# Values above which no margin is added to a range for few values [values; of 98 random networks 1,000 made more worse,
# 300 fewer better (cd0f6116)]
ENOUGH_VALUES = 600
LARGEST_MARGIN = 0.03  # Largest margin of ranges of many values [end of the range; 0.26 dB where none needs it]
ON_STEP = 1e-3  # Largest distance of numbers from an LSB that has them [LSB; float32 of 255 LSBs is exact to 3e-5]
EXTREMES = 14  # Extremes of calls that are kept; all but one estimate others [calls; 120 small networks]
FEWEST_EXTREMES = 6  # Least number of extremes, and of calls, that estimate others [extremes; not measured]
EMPTY_ROW = 1e-3  # Size of a row over the largest one's, up to which a norm has nothing to divide [ratio; not measured]
# Quantiles of the sizes of rows that are compared [share; calculated: those of `NORMAL_95`]
SMALL_ROW, LARGE_ROW = 0.05, 0.95
# Maximum spread of the sizes of rows of normal numbers, of which few have any [ratio; calculated: only rows of one
# number, which have 1.17, exceed it]
MOST_SPREAD = 0.9
LATEST = 0.01  # Weight of a batch in a moving average of extremes [share; torchao's observer]
PERCENTILE = 99.99  # Percentage of values in the range at either end by default [percent; as in LiteRT and TensorRT]
SMALLEST_RANGE = 0.2  # Smallest range of weights that is tried, over their largest magnitude [ratio; not measured]
# Penalty of a larger scale against thresholds nearer to halfway between two LSBs [LSB at twice it; not measured]
WIDER_COST = 0.1
AS_NEAR = 2e-9  # Difference up to which distances of thresholds count as equal [LSB; rounding of float64, calculated]
BINS = 2048  # Bins of a histogram [bins; torchao's observer]
SAME_VALUES = 1e-5  # Relative difference up to which results are the same [ratio; float32 sums in another order]
SAME_WEIGHTS = 1e-9  # Weights of far values that are almost zero [share of the largest result; not measured]
SATURATING = 1e9  # Finite number that represents infinity in a pad [value; beyond any range, calculated]
NO_GAIN = 1e-12  # Relative gain of another rounding that is one of float64's rounding [ratio; calculated]
SAMPLE_PART, RECORDING_PART = 8, 4  # One of how many is held out [samples; not measured]
DEEPEST = 32  # Operators between a convolution and its logarithm [operators; a few in published networks, assumed]
