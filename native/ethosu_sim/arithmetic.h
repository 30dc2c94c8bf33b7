// Requantization with every rounding of the three families.
#pragma once

#include "fault.h"

#include <cstdint>
#include <initializer_list>

namespace ethosu {

// How value * scale >> shift is rounded. `double_*`: where shift > 31 - d, first 2^(30 - d) outwards, then half an LSB.
// U55 and U65: double_up (d = 0), toward_zero, half_up. U85 names them by number, see u85_*.
enum class Rounding {
  double_symmetric, // the magnitude is rounded: halves away from zero
  double_up, // the first step outwards, the second half up
  double_asymmetric, // the first step upwards, the second half up
  half_up, // "natural"
  symmetric, // half away from zero
  toward_zero,
  down,
};

struct Scale {
  uint32_t scale = 1;
  unsigned shift = 0; // 0 to 63
  Rounding rounding = Rounding::half_up;
  unsigned left_shift = 0; // d of double rounding
};

// value * scale >> shift. Exact for any 64-bit value: 128 bits inside. Saturates at 2^62, so that an
// offset can be added.
int64_t rescale_wide(int64_t value, const Scale& scale);

// Same, for |value| * scale < 2^62, which the caller ensures (|value| < 2^30, or scale < 2^31 and a 31-bit value).
// Inline: it is in the innermost loops.
inline int64_t rescale(int64_t value, const Scale& s) {
  const int64_t v = value * static_cast<int64_t>(s.scale);
  const int64_t half = s.shift ? int64_t{1} << (s.shift - 1) : 0;
  switch (s.rounding) {
    case Rounding::half_up:
      return (v + half) >> s.shift;
    case Rounding::double_up: {
      const int64_t first = s.shift > 31 - s.left_shift ? int64_t{1} << (30 - s.left_shift) : 0;
      return (v + (v >= 0 ? first : -first) + half) >> s.shift;
    }
    case Rounding::double_asymmetric: {
      const int64_t first = s.shift > 31 - s.left_shift ? int64_t{1} << (30 - s.left_shift) : 0;
      return (v + first + half) >> s.shift;
    }
    case Rounding::double_symmetric: {
      const int64_t first = s.shift > 31 - s.left_shift ? int64_t{1} << (30 - s.left_shift) : 0;
      return v >= 0 ? (v + first + half) >> s.shift : -((-v + first + half) >> s.shift);
    }
    case Rounding::symmetric:
      return v >= 0 ? (v + half) >> s.shift : -((-v + half) >> s.shift);
    case Rounding::toward_zero:
      return v >= 0 ? v >> s.shift : -(-v >> s.shift);
    case Rounding::down:
      break;
  }
  return v >> s.shift;
}

// Selects between the two by the magnitude of the value.
inline int64_t rescale_any(int64_t value, const Scale& s) {
  constexpr int64_t limit = int64_t{1} << 30;
  return value < limit && value > -limit && s.shift < 62 ? rescale(value, s) : rescale_wide(value, s);
}

// Product of amounts of work, saturating at 2^64 - 1.
inline uint64_t product(std::initializer_list<int64_t> factors) {
  uint64_t result = 1;
  for (const int64_t factor : factors) {
    const uint64_t f = factor < 0 ? 0 : static_cast<uint64_t>(factor);
    result = f && result > UINT64_MAX / f ? UINT64_MAX : result * f;
  }
  return result;
}

inline int64_t clamp(int64_t value, int64_t least, int64_t most) {
  return value < least ? least : value > most ? most : value;
}

} // namespace ethosu
