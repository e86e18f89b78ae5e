// A transport whose messages are recorded like c10d's messages.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <span>

#include "tune/compress/exchange/transport.h"

namespace c10d {
class ProcessGroup;
}

namespace commprof {
struct GroupInfo;
}

namespace commprof::tune {

// With it, reports, the watchdog and predictions see the messages of any
// transport. All-reduces are not recorded here, because c10d's all-reduces are
// recorded when they are called.
class RecordedTransport final : public compress::Transport {
 public:
  // `inner` has the ranks of `group`, in the same order.
  RecordedTransport(
      const c10::intrusive_ptr<c10d::ProcessGroup>& group,
      std::unique_ptr<compress::Transport> inner);

  int rank() const override {
    return inner_->rank();
  }
  int size() const override {
    return inner_->size();
  }
  std::unique_ptr<compress::Transfer> exchange(
      std::span<const std::span<const std::byte>> send,
      std::span<const std::span<std::byte>> recv) override;
  std::unique_ptr<compress::Transfer> allReduceSum(
      std::span<float> data) override {
    return inner_->allReduceSum(data);
  }
  int nameOf(int rank) const override {
    return inner_->nameOf(rank);
  }
  void abandon() noexcept override {
    inner_->abandon();
  }
  void interrupt() noexcept override {
    inner_->interrupt();
  }

 private:
  GroupInfo& info_;
  const std::unique_ptr<compress::Transport> inner_;
};

} // namespace commprof::tune
