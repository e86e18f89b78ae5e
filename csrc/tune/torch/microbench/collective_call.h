// Repeats and times one collective, without Python between the calls. Python
// would take microseconds, in which the backend's threads fall asleep. The next
// call's time would then include their wake-up.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace commprof::tune {

// A collective to call, named as in commprof/forecast/microbench/operations.py.
struct CollectiveSpec {
  std::string op;
  std::string redop; // reduction, for operations that reduce
  int64_t root = 0; // rank in the group, for operations with a root
  at::Tensor source; // the input
  at::Tensor target; // the output; may be the same tensor as `source`
};

// Begin and end of each call, from nowNs().
using CallTimes = std::pair<std::vector<uint64_t>, std::vector<uint64_t>>;

// Not thread-safe. Only for tensors on the CPU.
class CollectiveCall {
 public:
  // Throws std::invalid_argument for an unknown operation or reduce op, and for
  // tensors that are not on the CPU.
  CollectiveCall(
      c10::intrusive_ptr<c10d::ProcessGroup> group,
      CollectiveSpec spec);

  // Issues the operation and waits for its result. If the operation works in
  // place and there are two buffers, the input is copied first.
  void run() const {
    run_();
  }

  // Runs the operation `iterations` times. Before each call, runs `meet`, which
  // is not timed. `meet` may be null.
  CallTimes sample(int64_t iterations, const CollectiveCall* meet) const;

 private:
  std::function<void()> run_;
};

} // namespace commprof::tune
