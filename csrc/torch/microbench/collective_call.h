// One collective with fixed buffers, repeated and timed without Python between
// the calls: an interpreter's microseconds are enough for a backend's threads
// to fall asleep, and waking them would be in the next call's time.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace commprof {

// What to call, in the words of commprof/microbench/operations.py.
struct CollectiveSpec {
  std::string op;
  std::string redop; // of operations that reduce
  int64_t root = 0; // of operations that have one, in the group
  at::Tensor source; // the input
  at::Tensor target; // the output; `source` itself where there is one buffer
};

// When each call began and when its result was there, by nowNs().
using CallTimes = std::pair<std::vector<uint64_t>, std::vector<uint64_t>>;

// Not thread-safe. Tensors are on the CPU, where a Work's end is the result's.
class CollectiveCall {
 public:
  // Throws std::invalid_argument for an operation or reduce op that is unknown,
  // and for tensors that are elsewhere.
  CollectiveCall(
      c10::intrusive_ptr<c10d::ProcessGroup> group,
      CollectiveSpec spec);

  // Issues the operation and waits until its result is there. Where the
  // operation works in place and the buffers are two, the input is copied
  // first.
  void run() const {
    run_();
  }

  // Runs it so many times, each right behind `meet`, which is in no time; null:
  // each right behind the last one.
  CallTimes sample(int64_t iterations, const CollectiveCall* meet) const;

 private:
  std::function<void()> run_;
};

} // namespace commprof
