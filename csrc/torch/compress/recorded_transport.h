// A transport whose messages are recorded as c10d's are, in the group whose
// ranks exchange them.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <span>

#include "compress/exchange/transport.h"

namespace c10d {
class ProcessGroup;
}

namespace commprof {

struct GroupInfo;

// So reports, the watchdog and predictions see who sent what to whom and who
// waited, whatever carried it. All-reduces are the inner transport's: c10d's
// own are recorded where they are called.
class RecordedTransport final : public compress::Transport {
 public:
  // Of the same ranks, numbered alike.
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

} // namespace commprof
