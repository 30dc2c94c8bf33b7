"""Rows for `micronpu.ops.resize`."""

from micronpu.ops.resize import ResizeBilinear, ResizeNearest
from micronpu.targets.ethosu.rewrites.fit import BilinearProducts
from tests.cases import case, i8

# (align_corners, half_pixel_centers)
CENTERS = [(False, False), (True, False), (False, True)]
SIZES = [
    ((3, 4), (6, 8)),
    ((3, 4), (12, 4)),
    ((1, 1), (8, 2)),
    ((5, 3), (5, 3)),
    ((5, 3), (7, 8)),
    ((7, 8), (3, 4)),
    ((2, 3), (6, 9)),
    ((5, 5), (1, 1)),
    ((4, 5), (32, 40)),
    ((3, 2), (9, 5)),
]

CASES = [
    *(
        case(resize(after, *centers), x=i8(1, *before, 5, zero=3))
        for resize in (ResizeNearest, ResizeBilinear)
        for centers in CENTERS
        for before, after in SIZES
    ),
    *(
        case(resize((6, 10), half_pixel_centers=resize is ResizeBilinear), x=i8(2, 3, 5, channels, zero=zero))
        for resize in (ResizeNearest, ResizeBilinear)
        for channels, zero in [(1, -128), (8, 127), (17, 0)]
    ),
    *(
        case(ResizeBilinear((16, 16), half_pixel_centers=True), x=i8(1, 2, 2, 3, scale=scale, zero=zero))
        for scale, zero in [(1e-6, -128), (30.0, 127)]
    ),
    *(
        case(BilinearProducts((rows * factor, columns * factor), half_pixel_centers=True), x=x)
        for factor in (2, 4)
        for rows, columns, x in [
            (1, 1, i8(1, 1, 1, 3)),
            (4, 5, i8(1, 4, 5, 5, zero=3)),
            (3, 2, i8(2, 3, 2, 8, zero=-128)),
            (16, 16, i8(1, 16, 16, 1, scale=30.0, zero=127)),
        ]
    ),
]
