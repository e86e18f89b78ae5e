// Repeats and times one collective with fixed buffers, without Python between
// the calls. The interpreter takes microseconds, in which a backend's threads
// fall asleep; the next call's time would include waking them.
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
  at::Tensor target; // the output; `source` itself if there is one buffer
};

// Begin and end of each call, from nowNs().
using CallTimes = std::pair<std::vector<uint64_t>, std::vector<uint64_t>>;

// Not thread-safe. Tensors must be on the CPU, where a Work is complete only
// once the result is there.
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

  // Runs the operation `iterations` times. Each call follows a call of `meet`,
  // whose time does not count. If `meet` is null, each call directly follows
  // the previous call.
  CallTimes sample(int64_t iterations, const CollectiveCall* meet) const;

 private:
  std::function<void()> run_;
};

} // namespace commprof::tune
