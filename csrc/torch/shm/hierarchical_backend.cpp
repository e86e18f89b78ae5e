#include "torch/shm/hierarchical_backend.h"

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <algorithm>
#include <deque>
#include <stdexcept>
#include <string>
#include <utility>

#include "shm/slices.h"
#include "torch/shm/dense.h"
#include "torch/shm/threaded_backend.h"

namespace commprof {

namespace {

using kernels::Element;
using kernels::Reduction;

// An owner's part of a chunk: long enough to fill a link between hosts while
// the next one is added up, short enough that little of the work within the
// host is before the first or behind the last transfer.
constexpr size_t kLongestPart = size_t(1) << 20;
constexpr size_t kShortestPart = size_t(1) << 16;
constexpr size_t kChunksAtLeast = 8;
// Chunks between hosts at a time: gloo has two threads for each group.
constexpr size_t kInFlight = 2;

size_t chunkElements(size_t count, size_t width, int owners) {
  const size_t part = count * width / size_t(owners) / kChunksAtLeast;
  const size_t bytes =
      std::clamp(part, kShortestPart, kLongestPart) * size_t(owners);
  return bytes / width;
}

// One all-reduce under way: chunks are added up within the host in order, some
// are between hosts, and those that came back are shared in the same order.
class Exchange {
 public:
  Exchange(
      const Hierarchy& hierarchy,
      const at::Tensor& tensor, // in order; the result goes there
      Element element,
      c10d::ReduceOp::RedOpType reduction,
      int world)
      : hierarchy_(hierarchy),
        flat_(tensor.view({-1})),
        element_(element),
        reduction_(reduction),
        world_(world) {}

  void run() {
    const size_t count = size_t(flat_.numel());
    const size_t chunk =
        chunkElements(count, kernels::elementBytes(element_), owners());
    for (size_t begin = 0; begin < count; begin += chunk) {
      launch({begin, std::min(count, begin + chunk)});
      if (under_way_.size() > kInFlight) {
        finishOldest();
      }
    }
    while (!under_way_.empty()) {
      finishOldest();
    }
  }

 private:
  struct Chunk {
    shm::Slice range;
    std::vector<shm::Slice> slices; // of the range, by owner
    at::Tensor part; // this owner's
    WorkPtr work; // null where this rank sends nothing
  };

  int owners() const {
    return hierarchy_.owners;
  }
  shm::Team& team() const {
    return *hierarchy_.team;
  }
  std::byte* at(const shm::Slice& range) const {
    return bytesOf(flat_) + range.begin * kernels::elementBytes(element_);
  }

  void launch(const shm::Slice& range) {
    const bool mean = reduction_ == c10d::ReduceOp::AVG;
    Chunk chunk{range, shm::equalSlices(owners(), range.count()), {}, {}};
    if (team().size() > 1) {
      shm::reduceToOwners(
          team(),
          at(range),
          chunk.slices,
          element_,
          mean ? Reduction::kSum : *reductionOf(reduction_));
    }
    const shm::Slice own = team().rank() < owners()
        ? chunk.slices[size_t(team().rank())]
        : shm::Slice{};
    if (own.count() != 0) {
      chunk.part = flat_.narrow(
          0, int64_t(range.begin + own.begin), int64_t(own.count()));
      c10d::AllreduceOptions options;
      options.reduceOp = mean ? c10d::ReduceOp::SUM : reduction_;
      options.asyncOp = true;
      std::vector<at::Tensor> tensors{chunk.part};
      chunk.work = hierarchy_.across->allreduce(tensors, options);
    }
    under_way_.push_back(std::move(chunk));
  }

  void finishOldest() {
    const Chunk chunk = std::move(under_way_.front());
    under_way_.pop_front();
    if (chunk.work) {
      chunk.work->wait();
      if (reduction_ == c10d::ReduceOp::AVG) {
        at::Tensor part = chunk.part;
        part.is_floating_point() ? part.div_(world_)
                                 : part.div_(world_, "trunc");
      }
    }
    if (team().size() > 1) {
      shm::shareFromOwners(team(), at(chunk.range), chunk.slices, element_);
    }
  }

  const Hierarchy& hierarchy_;
  const at::Tensor flat_;
  const Element element_;
  const c10d::ReduceOp::RedOpType reduction_;
  const int world_;
  std::deque<Chunk> under_way_;
};

class HierarchicalBackend final : public ThreadedBackend {
 public:
  HierarchicalBackend(
      c10::intrusive_ptr<c10d::Backend> wrapped,
      Hierarchy hierarchy)
      : ThreadedBackend(std::move(wrapped)), hierarchy_(std::move(hierarchy)) {}

  const std::string getBackendName() const override {
    return "commprof";
  }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options)
      override {
    const auto element =
        tensors.size() == 1 ? elementOf(tensors[0]) : std::optional<Element>();
    if (!element || !reductionOf(options.reduceOp)) {
      return wrapped_->allreduce(tensors, options);
    }
    return start(
        c10d::OpType::ALLREDUCE,
        tensors,
        options.asyncOp,
        [hierarchy = hierarchy_,
         tensor = tensors[0],
         element,
         op = options.reduceOp.op_,
         world = size_] {
          const at::NoGradGuard no_grad;
          InOrder data(tensor);
          try {
            Exchange(hierarchy, data.dense(), *element, op, world).run();
          } catch (const shm::TeamError&) {
            throw;
          } catch (const std::exception& error) {
            // The others of this host must not wait for what will not come.
            const std::string what =
                std::string("between hosts: ") + error.what();
            hierarchy.team->abandon(what);
            throw std::runtime_error("commprof backend, " + what);
          }
          data.copyBack();
        });
  }

 private:
  const Hierarchy hierarchy_;
};

} // namespace

c10::intrusive_ptr<c10d::Backend> makeHierarchicalBackend(
    c10::intrusive_ptr<c10d::Backend> wrapped,
    Hierarchy hierarchy) {
  return c10::make_intrusive<HierarchicalBackend>(
      std::move(wrapped), std::move(hierarchy));
}

} // namespace commprof
