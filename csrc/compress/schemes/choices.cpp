#include "compress/schemes/choices.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "kernels/linear/sparse.h"

namespace commprof::compress {

namespace {

using kernels::kSparsePart;
using kernels::sparseParts;

// Chosen places that are expected among the drawn ones: with 8 ranks the share
// then is known to about 2 %.
constexpr size_t kWanted = 256;
constexpr size_t kMost = 2 * kWanted;

// The finaliser of MurmurHash3 (Appleby, public domain): all bits of a place
// count, so that regular choices are drawn from like any others.
uint32_t mixed(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x85ebca6bu;
  x = (x ^ (x >> 13)) * 0xc2b2ae35u;
  return x ^ (x >> 16);
}

// Places whose mixed() is not above it are drawn.
uint32_t limitFor(size_t k) {
  return uint32_t(
      std::min<uint64_t>(
          UINT32_MAX, (uint64_t(kWanted) << 32) / std::max<size_t>(k, 1)));
}

} // namespace

size_t choicesBytes(size_t n) {
  return (sparseParts(n) + 1 + kMost) * sizeof(uint32_t);
}

void writeChoices(std::span<const int32_t> chosen, size_t n, std::byte* out) {
  std::vector<uint32_t> words(choicesBytes(n) / sizeof(uint32_t));
  uint32_t& drawn = words[sparseParts(n)];
  uint32_t* const list = &drawn + 1;
  const uint32_t limit = limitFor(chosen.size());
  for (const int32_t place : chosen) {
    ++words[size_t(place) / kSparsePart];
    if (mixed(uint32_t(place)) <= limit && drawn < kMost) {
      list[drawn++] = uint32_t(place);
    }
  }
  std::memcpy(out, words.data(), choicesBytes(n));
}

std::optional<Choices> readChoices(const std::byte* in, size_t n, size_t k) {
  std::vector<uint32_t> words(choicesBytes(n) / sizeof(uint32_t));
  std::memcpy(words.data(), in, choicesBytes(n));
  const auto counts_end = words.begin() + long(sparseParts(n));
  const uint32_t drawn = *counts_end;
  for (size_t part = 0; part < sparseParts(n); ++part) {
    if (words[part] > std::min(kSparsePart, n - part * kSparsePart)) {
      return std::nullopt;
    }
  }
  if (drawn > kMost ||
      std::accumulate(words.begin(), counts_end, uint64_t(0)) != k) {
    return std::nullopt;
  }
  return Choices{
      {words.begin(), counts_end},
      {counts_end + 1, counts_end + 1 + long(drawn)}};
}

double distinctShare(std::span<const Choices> ranks) {
  std::vector<uint32_t> all;
  for (const Choices& one : ranks) {
    all.insert(all.end(), one.drawn.begin(), one.drawn.end());
  }
  if (all.empty()) {
    return 1;
  }
  std::sort(all.begin(), all.end());
  const auto distinct = std::unique(all.begin(), all.end()) - all.begin();
  return double(distinct) / double(all.size());
}

} // namespace commprof::compress
