// A compressor's transport over its own process group.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "tune/compress/exchange/transport.h"

namespace c10d {
class ProcessGroup;
}

namespace commprof::tune {

// Messages use send and recv of c10d. gloo's all-gather and reduce-scatter
// would copy the data once more, and its all-to-all would use two threads for
// all peers.
//
// gloo aborts the process if the two ends of a message differ in length. So a
// message's tag contains a hash of its length: a send and a receive of
// different lengths do not match, and end with the group's timeout.
//
// Used by one thread. No other code may use the group for messages or
// all-reduces.
class C10dTransport final : public compress::Transport {
 public:
  // The group's backend must support CPU tensors.
  explicit C10dTransport(c10::intrusive_ptr<c10d::ProcessGroup> group);
  ~C10dTransport() override;

  int rank() const override;
  int size() const override;
  std::unique_ptr<compress::Transfer> exchange(
      std::span<const std::span<const std::byte>> send,
      std::span<const std::span<std::byte>> recv) override;
  std::unique_ptr<compress::Transfer> allReduceSum(
      std::span<float> data) override;

 private:
  int tagOf(size_t length) const;

  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
  const int rank_;
  const int size_;
  uint32_t exchanges_ = 0; // number of exchanges, the same on all ranks
};

} // namespace commprof::tune
