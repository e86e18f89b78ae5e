#include "compress/feedback/withheld.h"

#include <algorithm>

#include "kernels/linear/compare.h"

namespace commprof::compress {

namespace {

// Looks no further than the first part that holds something.
bool allZero(const float* x, size_t n) {
  constexpr size_t kPart = 4096;
  for (size_t at = 0; at < n; at += kPart) {
    if (kernels::maxAbsBits(x + at, std::min(kPart, n - at)) != 0) {
      return false;
    }
  }
  return true;
}

} // namespace

Withheld::Withheld(const Bucket& bucket, float* residual)
    : residual_(residual) {
  if (residual == nullptr) {
    return;
  }
  for (const Slot& slot : bucket.slots) {
    float* const own = residual + slot.offset;
    if (allZero(bucket.gradient + slot.offset, slot.numel) &&
        !allZero(own, slot.numel)) {
      aside_.emplace_back(
          slot.offset, std::vector<float>(own, own + slot.numel));
      std::fill_n(own, slot.numel, 0.0f);
    }
  }
}

void Withheld::putBack() {
  for (const auto& [offset, values] : aside_) {
    for (size_t i = 0; i < values.size(); ++i) {
      residual_[offset + i] += values[i];
    }
  }
  aside_.clear();
}

} // namespace commprof::compress
