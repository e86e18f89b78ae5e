#include "tune/torch/compress/recorded_transport.h"

#include <ATen/core/ScalarType.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "core/record.h"
#include "tune/torch/core.h"

namespace commprof::tune {

namespace {

struct Issued {
  uint64_t op_id;
  Op op;
};

// Records the issue of one message if recording is on. Always counts the
// message, because both ends must agree on its index.
void recordIssue(
    GroupInfo& info,
    Op op,
    int peer,
    uint64_t bytes,
    std::vector<Issued>& issued) {
  const uint32_t seq = core().next_message(info, op, peer);
  if (!core().recording()) {
    return;
  }
  Record issue;
  issue.kind = Kind::kIssue;
  issue.op = op;
  issue.op_id = core().next_op_id();
  issue.dtype = uint8_t(at::kByte);
  issue.group = core().group_id(info);
  issue.thread = core().thread_id();
  issue.aux = uint32_t(peer);
  (op == Op::kSend ? issue.bytes_in : issue.bytes_out) = bytes;
  issue.seq = seq;
  issue.value = uint64_t(core().bracket_finalize() + 1);
  issue.timestamp_ns = nowNs();
  core().push(issue);
  issued.push_back({issue.op_id, op});
}

void recordWait(uint64_t op_id, Op op, uint64_t begin_ns, uint64_t end_ns) {
  if (!core().recording()) {
    return;
  }
  Record wait;
  wait.kind = Kind::kWait;
  wait.op = op;
  wait.op_id = op_id;
  wait.thread = core().thread_id();
  wait.timestamp_ns = begin_ns;
  wait.value = end_ns;
  core().push(wait);
}

// The end of a message is recorded as the end of a wait. wait() waits for all
// messages together. If only one message is received, the wait for it is
// recorded with its true length. All other waits are recorded with length zero:
// they only show that the message was complete at that time.
class RecordedMessages final : public compress::Transfer {
 public:
  RecordedMessages(
      std::vector<Issued> issued,
      std::unique_ptr<compress::Transfer> inner)
      : issued_(std::move(issued)), inner_(std::move(inner)) {}

  void wait() override {
    const uint64_t begin_ns = nowNs();
    try {
      inner_->wait();
    } catch (...) {
      recordWaits(begin_ns);
      throw;
    }
    recordWaits(begin_ns);
  }

 private:
  void recordWaits(uint64_t begin_ns) const {
    const uint64_t end_ns = nowNs();
    const auto received =
        std::count_if(issued_.begin(), issued_.end(), [](const Issued& one) {
          return one.op == Op::kRecv;
        });
    for (const auto& [op_id, op] : issued_) {
      const bool held_up = op == Op::kRecv && received == 1;
      recordWait(op_id, op, held_up ? begin_ns : end_ns, end_ns);
    }
  }

  const std::vector<Issued> issued_;
  const std::unique_ptr<compress::Transfer> inner_;
};

} // namespace

RecordedTransport::RecordedTransport(
    const c10::intrusive_ptr<c10d::ProcessGroup>& group,
    std::unique_ptr<compress::Transport> inner)
    : info_(core().group(*group)), inner_(std::move(inner)) {}

std::unique_ptr<compress::Transfer> RecordedTransport::exchange(
    std::span<const std::span<const std::byte>> send,
    std::span<const std::span<std::byte>> recv) {
  std::vector<Issued> issued;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) {
      continue;
    }
    if (const size_t bytes = recv[size_t(peer)].size(); bytes != 0) {
      recordIssue(info_, Op::kRecv, peer, bytes, issued);
    }
    if (const size_t bytes = send[size_t(peer)].size(); bytes != 0) {
      recordIssue(info_, Op::kSend, peer, bytes, issued);
    }
  }
  try {
    auto transfer = inner_->exchange(send, recv);
    return std::make_unique<RecordedMessages>(
        std::move(issued), std::move(transfer));
  } catch (...) {
    for (const auto& [op_id, op] : issued) {
      core().record_end(op_id, op, true);
    }
    throw;
  }
}

} // namespace commprof::tune
