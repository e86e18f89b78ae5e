// What this rank sent in the current step, as encoded. Where GradScaler skips
// the step, it goes back to the residuals. Costs memory only with error
// feedback: the payload's bytes once more, 1 % of the gradients' for topk with
// its standard ratio; with two phases 4 bytes for each value of this rank's
// chunk besides (int4: 1/8 + 1/W of the gradients).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace commprof::compress {

struct Sent {
  uint64_t signature = 0;
  uint64_t step = 0;
  size_t numel = 0; // of the bucket
  int world = 1;
  int exponent = 0; // of 16-bit values
  size_t trailer = 0; // bytes of each message that are the channel's
  float factor = 1; // by which residuals were scaled since
  bool lossless = false; // payload is the bucket in fp32
  bool chosen = false; // payload is topk's choice, not all values
  std::vector<std::byte> payload; // otherwise the scheme's own
  // What two phases put into the residual besides: their second rounding.
  std::vector<float> lost;
  size_t lost_offset = 0;

  void keep(std::span<const std::byte> bytes) {
    payload.assign(bytes.begin(), bytes.end());
  }
};

class SentLog {
 public:
  // Forgets everything if `step` is another one than before.
  void beginStep(uint64_t step) {
    if (step != step_) {
      clear();
      step_ = step;
    }
  }
  void clear() {
    used_ = 0; // their memory is used again
  }
  Sent& append() {
    if (used_ == entries_.size()) {
      entries_.emplace_back();
    }
    return entries_[used_++];
  }
  std::span<Sent> entries() {
    return std::span(entries_).first(used_);
  }

 private:
  std::vector<Sent> entries_;
  size_t used_ = 0;
  uint64_t step_ = 0;
};

} // namespace commprof::compress
