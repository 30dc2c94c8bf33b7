#include "kernels.h"

#include <algorithm>
#include <cstring>

// GCC vectorizes these loops at -O3 only.
#if defined(__GNUC__) && !defined(__clang__)
#define ETHOSU_VECTORIZE __attribute__((optimize("O3")))
#else
#define ETHOSU_VECTORIZE
#endif

namespace ethosu {
namespace {

// Computes four channels at once, which share the loads of the input.
template <class T, class Sum>
ETHOSU_VECTORIZE void dot4(const T* in, const T* weights, int64_t count, Sum* sums) {
  const T *w0 = weights, *w1 = w0 + count, *w2 = w1 + count, *w3 = w2 + count;
  Sum s0 = 0, s1 = 0, s2 = 0, s3 = 0;
  for (int64_t i = 0; i < count; ++i) {
    const Sum v = in[i];
    s0 += v * static_cast<Sum>(w0[i]);
    s1 += v * static_cast<Sum>(w1[i]);
    s2 += v * static_cast<Sum>(w2[i]);
    s3 += v * static_cast<Sum>(w3[i]);
  }
  sums[0] = s0, sums[1] = s1, sums[2] = s2, sums[3] = s3;
}

template <class T, class Sum>
ETHOSU_VECTORIZE Sum dot(const T* in, const T* weights, int64_t count) {
  Sum sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    sum += static_cast<Sum>(in[i]) * static_cast<Sum>(weights[i]);
  }
  return sum;
}

} // namespace

template <class T, class Sum>
ETHOSU_VECTORIZE void convolve_row(
    const Plane<T>& in, const Kernel& kernel, const T* weights, int64_t y, int64_t width, int64_t depth,
    std::vector<T>& patch, Sum* sums) {
  const int64_t count = kernel.height * kernel.width * in.depth;
  patch.resize(static_cast<size_t>(count));
  for (int64_t x = 0; x < width; ++x, sums += depth) {
    const T* from = in.at(y * kernel.stride_y, x * kernel.stride_x);
    if (kernel.height != 1 || kernel.width != 1) {
      T* to = patch.data();
      for (int64_t ky = 0; ky < kernel.height; ++ky) {
        const T* row = from + ky * kernel.dilation_y * in.width * in.depth;
        if (kernel.dilation_x == 1) {
          to = std::copy_n(row, kernel.width * in.depth, to);
        } else {
          for (int64_t kx = 0; kx < kernel.width; ++kx) {
            to = std::copy_n(row + kx * kernel.dilation_x * in.depth, in.depth, to);
          }
        }
      }
      from = patch.data();
    }
    int64_t o = 0;
    for (; o + 4 <= depth; o += 4) {
      dot4<T, Sum>(from, weights + o * count, count, sums + o);
    }
    for (; o < depth; ++o) {
      sums[o] = dot<T, Sum>(from, weights + o * count, count);
    }
  }
}

template <class T, class Sum>
ETHOSU_VECTORIZE void depthwise_row(
    const Plane<T>& in, const Kernel& kernel, const T* weights, int64_t y, int64_t width, int64_t depth, Sum* sums) {
  for (int64_t x = 0; x < width; ++x, sums += depth) {
    std::fill(sums, sums + depth, Sum(0));
    const T* w = weights;
    for (int64_t ky = 0; ky < kernel.height; ++ky) {
      for (int64_t kx = 0; kx < kernel.width; ++kx, w += depth) {
        const T* from = in.at(y * kernel.stride_y + ky * kernel.dilation_y, x * kernel.stride_x + kx * kernel.dilation_x);
        for (int64_t c = 0; c < depth; ++c) {
          sums[c] += static_cast<Sum>(from[c]) * static_cast<Sum>(w[c]);
        }
      }
    }
  }
}

template <class T, class Sum>
ETHOSU_VECTORIZE void pool_row(const Plane<T>& in, const Kernel& kernel, Pool pool, int64_t y, int64_t width, Sum* sums) {
  const int64_t depth = in.depth;
  for (int64_t x = 0; x < width; ++x, sums += depth) {
    for (int64_t ky = 0; ky < kernel.height; ++ky) {
      for (int64_t kx = 0; kx < kernel.width; ++kx) {
        const T* from = in.at(y * kernel.stride_y + ky * kernel.dilation_y, x * kernel.stride_x + kx * kernel.dilation_x);
        if (ky == 0 && kx == 0) {
          std::copy_n(from, depth, sums);
        } else if (pool == Pool::sum) {
          for (int64_t c = 0; c < depth; ++c) {
            sums[c] += from[c];
          }
        } else if (pool == Pool::greatest) {
          for (int64_t c = 0; c < depth; ++c) {
            sums[c] = std::max<Sum>(sums[c], from[c]);
          }
        } else {
          for (int64_t c = 0; c < depth; ++c) {
            sums[c] = std::min<Sum>(sums[c], from[c]);
          }
        }
      }
    }
  }
}

#define INSTANTIATE(T, Sum) \
  template void convolve_row<T, Sum>( \
      const Plane<T>&, const Kernel&, const T*, int64_t, int64_t, int64_t, std::vector<T>&, Sum*); \
  template void depthwise_row<T, Sum>(const Plane<T>&, const Kernel&, const T*, int64_t, int64_t, int64_t, Sum*); \
  template void pool_row<T, Sum>(const Plane<T>&, const Kernel&, Pool, int64_t, int64_t, Sum*);
INSTANTIATE(int16_t, int32_t)
INSTANTIATE(int32_t, int64_t)
INSTANTIATE(int64_t, int64_t)
#undef INSTANTIATE

} // namespace ethosu
