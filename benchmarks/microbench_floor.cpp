// The least that a loop over a c10d process group can be: what commprof
// microbench is compared with. Built by microbench_floor.py.
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/extension.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

namespace {

int64_t nowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// The same meeting as commprof.microbench.start_line's, over memory of its own:
// rank 0 waits for all and says when to begin.
class Meeting {
 public:
  Meeting(int64_t address, int rank, int world_size)
      : words_(reinterpret_cast<std::atomic<int64_t>*>(address)),
        rank_(rank),
        world_size_(world_size) {}

  void wait() {
    std::atomic<int64_t>& start = words_[world_size_ * kStride];
    const int64_t before = start.load();
    const int64_t sample = words_[rank_ * kStride].fetch_add(1) + 1;
    if (rank_ == 0) {
      for (int other = 1; other < world_size_; ++other) {
        while (words_[other * kStride].load() < sample) {
          std::this_thread::yield();
        }
      }
      start.store(nowNs() + kLeadNs);
    } else {
      while (start.load() == before) {
        std::this_thread::yield();
      }
    }
    while (nowNs() < start.load()) {
    }
  }

 private:
  static constexpr int kStride = 16;
  static constexpr int64_t kLeadNs = 10'000;
  std::atomic<int64_t>* const words_;
  const int rank_;
  const int world_size_;
};

using Times = std::pair<std::vector<int64_t>, std::vector<int64_t>>;

// Begins and ends of `iterations` all-reduces. `address`: of the meeting's
// memory; 0: one behind the other.
Times allReduces(
    const c10::intrusive_ptr<c10d::ProcessGroup>& group,
    const at::Tensor& tensor,
    int64_t iterations,
    int64_t address) {
  const pybind11::gil_scoped_release release;
  Meeting meeting(address, group->getRank(), group->getSize());
  std::vector<at::Tensor> tensors{tensor};
  Times times;
  for (int64_t i = 0; i < iterations; ++i) {
    if (address != 0) {
      meeting.wait();
    }
    times.first.push_back(nowNs());
    group->allreduce(tensors)->wait();
    times.second.push_back(nowNs());
  }
  return times;
}

} // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("all_reduces", &allReduces);
}
