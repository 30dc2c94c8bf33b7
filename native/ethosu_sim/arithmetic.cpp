#include "arithmetic.h"

namespace ethosu {

int64_t rescale_wide(int64_t value, const Scale& s) {
  __extension__ typedef __int128 Wide;
  const Wide v = static_cast<Wide>(value) * s.scale;
  const Wide half = s.shift ? static_cast<Wide>(1) << (s.shift - 1) : 0;
  const Wide first = s.shift > 31 - s.left_shift ? static_cast<Wide>(1) << (30 - s.left_shift) : 0;
  Wide result = 0;
  switch (s.rounding) {
    case Rounding::half_up:
      result = (v + half) >> s.shift;
      break;
    case Rounding::double_up:
      result = (v + (v >= 0 ? first : -first) + half) >> s.shift;
      break;
    case Rounding::double_asymmetric:
      result = (v + first + half) >> s.shift;
      break;
    case Rounding::double_symmetric:
      result = v >= 0 ? (v + first + half) >> s.shift : -((-v + first + half) >> s.shift);
      break;
    case Rounding::symmetric:
      result = v >= 0 ? (v + half) >> s.shift : -((-v + half) >> s.shift);
      break;
    case Rounding::toward_zero:
      result = v >= 0 ? v >> s.shift : -(-v >> s.shift);
      break;
    case Rounding::down:
      result = v >> s.shift;
      break;
  }
  constexpr Wide most = Wide{1} << 62;
  return static_cast<int64_t>(result > most ? most : result < -most ? -most : result);
}

} // namespace ethosu
