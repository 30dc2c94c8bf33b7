#include "weights.h"

#include <cstring>

namespace ethosu {
namespace {

// Reader of bits, lowest bit of each byte first.
class Bits {
 public:
  Bits(const uint8_t* data, size_t size) : data_(data), bits_(size * 8) {}

  size_t left() const {
    return bits_ - at_;
  }

  unsigned take(unsigned count) {
    if (count > left()) {
      invalid("the weight stream ends in the middle of a slice");
    }
    unsigned value = 0;
    for (unsigned done = 0; done < count;) {
      const unsigned in_byte = at_ % 8, part = count - done < 8 - in_byte ? count - done : 8 - in_byte;
      value |= ((static_cast<unsigned>(data_[at_ / 8]) >> in_byte) & ((1u << part) - 1)) << done;
      done += part, at_ += part;
    }
    return value;
  }

  void align() {
    at_ = (at_ + 7) / 8 * 8;
  }

 private:
  const uint8_t* data_;
  size_t bits_, at_ = 0;
};

constexpr unsigned kNoZeroRuns = 6, kEnd = 7; // values of the field "divisor of the zero runs"
constexpr unsigned kUncompressed = 7; // of the field "divisor of the weights"
constexpr unsigned kSymbols = 12; // maximum quotients in a chunk

// Lookup table of weight indices: palette first, then direct values.
struct Palette {
  unsigned size = 0, bits = 2, offset = 0;
  uint16_t entries[32] = {};

  int16_t weight(unsigned index) const {
    const unsigned value = index < size ? entries[index] : index - size + offset;
    const int magnitude = static_cast<int>(value >> 1);
    return static_cast<int16_t>(value & 1 ? -magnitude : magnitude);
  }
};

// Quotients whose remainders follow one chunk later.
struct Chunk {
  bool there = false;
  unsigned count = 0;
  unsigned quotients[kSymbols] = {};
};

// One of the two sequences of a slice (weights, zero runs): Golomb-Rice codes whose unary parts come in chunks.
struct Sequence {
  size_t total = 0, seen = 0; // values; quotients of them read so far
  std::vector<uint32_t> values;
  unsigned divisor = 0, open = 0; // bits of a remainder; quotient not yet ended
  Chunk last;

  void push(Chunk& chunk, unsigned quotient) {
    chunk.quotients[chunk.count++] = quotient;
  }

  void remainders(Bits& bits) {
    for (unsigned i = 0; last.there && i < last.count && values.size() < total; ++i) {
      values.push_back((last.quotients[i] << divisor) + (divisor ? bits.take(divisor) : 0));
    }
  }
};

void decode_slice(
    Bits& bits, unsigned zero_divisor, bool& first, Palette& palette, size_t limit, std::vector<int16_t>& out) {
  if (zero_divisor > 3 && zero_divisor != kNoZeroRuns) {
    invalid("the weight stream has a zero run divisor of " + std::to_string(zero_divisor));
  }
  const bool zero_runs = zero_divisor != kNoZeroRuns;
  Sequence weights, zeros;
  weights.total = bits.take(15) + 1;
  weights.divisor = bits.take(3);
  const bool truncated = bits.take(1), new_palette = bits.take(1);
  if (new_palette) {
    palette.offset = bits.take(5);
    palette.size = bits.take(5);
    palette.size += palette.size > 0;
    palette.bits = bits.take(3) + 2;
    for (unsigned i = 0; i < palette.size; ++i) {
      palette.entries[i] = static_cast<uint16_t>(bits.take(palette.bits));
    }
  } else if (first) {
    invalid("the first slice of the weight stream has no palette");
  }
  first = false;
  const bool plain = weights.divisor == kUncompressed;
  if (plain) {
    weights.divisor = palette.bits;
    if (palette.size) {
      for (weights.divisor = 0; 1u << weights.divisor < palette.size;) {
        ++weights.divisor;
      }
    }
  } else if (weights.divisor == 6) {
    invalid("the weight stream has a weight divisor of 6");
  }
  zeros.total = zero_runs ? weights.total + (new_palette ? 1 : 0) : 0;
  zeros.divisor = zero_runs ? zero_divisor : 0;
  const unsigned zero_chunk = zero_divisor < 3 ? 12 : 8;
  const unsigned weight_chunk = plain && weights.divisor > 5 ? 8 : kSymbols;

  // Chunks of both sequences alternate; a sequence too far ahead of the other pauses.
  do {
    Chunk w, z;
    const bool behind = !zero_runs || weights.seen < zeros.seen + 8;
    w.there = behind && weights.seen < weights.total;
    z.there = zero_runs && weights.seen >= zeros.seen && zeros.seen < zeros.total;
    const unsigned unary0 = w.there && !plain ? bits.take(12) : 0;
    if (z.there) {
      const unsigned unary = bits.take(zero_chunk);
      for (unsigned i = 0; i < zero_chunk; ++i) {
        if (unary >> i & 1) {
          ++zeros.open;
        } else {
          zeros.push(z, zeros.open);
          zeros.open = 0;
        }
      }
      zeros.seen += z.count;
    }
    if (w.there) {
      unsigned ones = 0;
      for (unsigned i = 0; i < weight_chunk; ++i) {
        ones += unary0 >> i & 1;
      }
      unsigned unary1 = ones ? bits.take(ones) : 0;
      for (unsigned i = 0; i < weight_chunk && w.count < weights.total - weights.seen; ++i) {
        unsigned code = 0;
        if (unary0 >> i & 1) {
          code = 1 + (unary1 & 1);
          unary1 >>= 1;
        }
        weights.open += code;
        if (code < 2 || truncated) {
          weights.push(w, weights.open);
          weights.open = 0;
        }
      }
      weights.seen += w.count;
    }
    weights.remainders(bits);
    zeros.remainders(bits);
    weights.last = w;
    zeros.last = z;
  } while (weights.last.there || zeros.last.there);

  size_t run = 0;
  const auto room = [&](size_t count) {
    if (count > limit - out.size()) {
      invalid("the weight stream holds more than the " + std::to_string(limit) + " weights that the operation reads");
    }
  };
  const auto zero_run = [&] {
    const size_t count = zeros.values[run++];
    room(count);
    out.insert(out.end(), count, 0);
  };
  if (zero_runs && new_palette) {
    zero_run();
  }
  for (const uint32_t index : weights.values) {
    if (index >= 512) {
      invalid("the weight stream has the index " + std::to_string(index) + ", but weights have 9 bits");
    }
    room(1);
    out.push_back(palette.weight(index));
    if (zero_runs) {
      zero_run();
    }
  }
}

uint64_t digest(const std::vector<std::pair<const uint8_t*, size_t>>& streams) {
  uint64_t hash = 0xcbf29ce484222325u;
  const auto mix = [&](uint64_t word) { hash = (hash ^ word) * 0x9e3779b97f4a7c15u, hash ^= hash >> 29; };
  for (const auto& [data, size] : streams) {
    mix(size);
    size_t i = 0;
    for (; i + 8 <= size; i += 8) {
      uint64_t word;
      std::memcpy(&word, data + i, 8);
      mix(word);
    }
    for (; i < size; ++i) {
      mix(data[i]);
    }
  }
  return hash;
}

} // namespace

void decode_mlw(const uint8_t* data, size_t size, size_t limit, std::vector<int16_t>& weights) {
  Bits bits(data, size);
  Palette palette;
  bool first = true;
  weights.clear();
  for (;;) {
    // The remaining bits of the last byte may be too few for an end mark.
    unsigned divisor = bits.left() < 3 ? kEnd : bits.take(3);
    while (divisor == kEnd) {
      bits.align();
      if (bits.left() < 3) {
        return;
      }
      divisor = bits.take(3);
    }
    decode_slice(bits, divisor, first, palette, limit, weights);
  }
}

Weights WeightCache::get(
    const std::string& key, const std::vector<std::pair<const uint8_t*, size_t>>& streams,
    const std::function<std::vector<int16_t>()>& decode) {
  const uint64_t hash = digest(streams) ^ std::hash<std::string>()(key);
  const auto same = [&](const Entry& entry) {
    size_t at = 0;
    for (const auto& [data, size] : streams) {
      if (entry.bytes.size() - at < size || (size && std::memcmp(entry.bytes.data() + at, data, size) != 0)) {
        return false;
      }
      at += size;
    }
    return at == entry.bytes.size() && entry.key == key;
  };
  const auto [begin, end] = entries_.equal_range(hash);
  for (auto it = begin; it != end; ++it) {
    if (same(it->second)) {
      return it->second.weights;
    }
  }
  Entry entry{key, {}, std::make_shared<const std::vector<int16_t>>(decode())};
  for (const auto& [data, size] : streams) {
    entry.bytes.insert(entry.bytes.end(), data, data + size);
  }
  const size_t bytes = entry.bytes.size() + entry.weights->size() * sizeof(int16_t);
  if (held_ + bytes > limit_) {
    clear();
  }
  if (bytes > limit_) {
    return entry.weights;
  }
  held_ += bytes;
  return entries_.emplace(hash, std::move(entry))->second.weights;
}

void WeightCache::clear() {
  entries_.clear();
  held_ = 0;
}

void WeightCache::set_limit(size_t bytes) {
  limit_ = bytes;
  if (held_ > limit_) {
    clear();
  }
}

} // namespace ethosu
