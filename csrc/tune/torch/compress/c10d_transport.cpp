#include "tune/torch/compress/c10d_transport.h"

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <string>
#include <vector>

#include "tune/torch/error_reason.h"

namespace commprof::tune {

namespace {

using compress::Transfer;
using compress::TransportError;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

std::vector<at::Tensor> overMemory(
    const void* data,
    size_t count,
    at::ScalarType type) {
  return {at::from_blob(
      const_cast<void*>(data), {int64_t(count)}, at::dtype(type))};
}

class Operation {
 public:
  template <class Start>
  Operation(std::string name, bool is_message, Start start)
      : name_(std::move(name)), is_message_(is_message) {
    guarded([&] { work_ = start(); });
  }
  Operation(Operation&&) = default;
  Operation& operator=(Operation&&) = default;

  void wait() {
    guarded([this] { work_->wait(); });
    work_.reset();
  }
  // Ends the operation, so that its memory may be freed. Aborts a message, but
  // waits for an all-reduce. Does nothing after wait().
  void giveUp() noexcept {
    try {
      if (work_) {
        is_message_ ? work_->abort() : void(work_->wait());
      }
    } catch (const std::exception&) {
      // Ignored: the first error has already been reported.
    }
    work_.reset();
  }

 private:
  template <class Call>
  void guarded(Call call) {
    try {
      call();
    } catch (const std::exception& error) {
      throw TransportError(name_ + " failed: " + reasonOf(error));
    }
  }

  std::string name_;
  bool is_message_;
  WorkPtr work_;
};

std::string describe(const char* what, size_t bytes, int peer) {
  return std::string(what) + std::to_string(peer) + ", " +
      std::to_string(bytes) + " bytes,";
}

Operation sendTo(
    c10d::ProcessGroup& group,
    int peer,
    const void* data,
    size_t bytes,
    int tag) {
  return Operation(describe("send to rank ", bytes, peer), true, [&] {
    auto tensors = overMemory(data, bytes, at::kByte);
    return group.send(tensors, peer, tag);
  });
}

Operation receiveFrom(
    c10d::ProcessGroup& group,
    int peer,
    void* data,
    size_t bytes,
    int tag) {
  return Operation(describe("receive from rank ", bytes, peer), true, [&] {
    auto tensors = overMemory(data, bytes, at::kByte);
    return group.recv(tensors, peer, tag);
  });
}

// Waits for all operations. If an operation fails, the destructor ends the
// operations after it.
class Operations {
 public:
  Operations() = default;
  Operations(const Operations&) = delete;
  Operations& operator=(const Operations&) = delete;
  ~Operations() {
    for (Operation& operation : operations_) {
      operation.giveUp();
    }
  }
  void add(Operation operation) {
    operations_.push_back(std::move(operation));
  }
  void wait() {
    for (Operation& operation : operations_) {
      operation.wait();
    }
    operations_.clear();
  }

 private:
  std::vector<Operation> operations_;
};

class Messages final : public Transfer {
 public:
  void wait() override {
    operations.wait();
  }
  Operations operations;
};

class AllReduce final : public Transfer {
 public:
  AllReduce(c10d::ProcessGroup& group, std::span<float> data)
      : operation_(
            "all-reduce of " + std::to_string(data.size_bytes()) + " bytes",
            false,
            [&] {
              auto tensors = overMemory(data.data(), data.size(), at::kFloat);
              return group.allreduce(tensors);
            }) {}
  ~AllReduce() override {
    operation_.giveUp();
  }
  void wait() override {
    operation_.wait();
  }

 private:
  Operation operation_;
};

} // namespace

C10dTransport::C10dTransport(c10::intrusive_ptr<c10d::ProcessGroup> group)
    : group_(std::move(group)),
      rank_(group_->getRank()),
      size_(group_->getSize()) {}

C10dTransport::~C10dTransport() = default;

int C10dTransport::rank() const {
  return rank_;
}
int C10dTransport::size() const {
  return size_;
}

// gloo's tags have 31 bits: 12 bits for the exchange's index, and 19 bits for a
// hash of the length. 12 bits suffice, because few exchanges are in flight.
int C10dTransport::tagOf(size_t length) const {
  const uint64_t hash = (uint64_t(length) * 0x9e3779b97f4a7c15ull) >> 45;
  return int((exchanges_ % 4096) << 19 | uint32_t(hash));
}

std::unique_ptr<Transfer> C10dTransport::exchange(
    std::span<const std::span<const std::byte>> send,
    std::span<const std::span<std::byte>> recv) {
  auto transfer = std::make_unique<Messages>();
  ++exchanges_;
  // Receives are posted first, which saves wake-ups. Each rank begins with its
  // neighbour, so that the ranks send to different ranks.
  for (int step = 1; step < size_; ++step) {
    const int from = (rank_ + size_ - step) % size_;
    const std::span<std::byte> in = recv[size_t(from)];
    if (!in.empty()) {
      transfer->operations.add(
          receiveFrom(*group_, from, in.data(), in.size(), tagOf(in.size())));
    }
  }
  for (int step = 1; step < size_; ++step) {
    const int to = (rank_ + step) % size_;
    const std::span<const std::byte> out = send[size_t(to)];
    if (!out.empty()) {
      transfer->operations.add(
          sendTo(*group_, to, out.data(), out.size(), tagOf(out.size())));
    }
  }
  return transfer;
}

std::unique_ptr<Transfer> C10dTransport::allReduceSum(std::span<float> data) {
  return std::make_unique<AllReduce>(*group_, data);
}

} // namespace commprof::tune
