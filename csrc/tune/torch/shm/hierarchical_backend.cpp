#include "tune/torch/shm/hierarchical_backend.h"

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <algorithm>
#include <deque>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tune/shm/slices.h"
#include "tune/shm/team.h"
#include "tune/torch/error_reason.h"
#include "tune/torch/shm/dense.h"
#include "tune/torch/shm/peers.h"
#include "tune/torch/shm/threaded_backend.h"

namespace commprof::tune {

namespace {

using kernels::Element;
using kernels::Reduction;

// Number of chunks in flight between hosts. gloo has two threads per group.
constexpr size_t kInFlight = 2;

struct Connections {
  std::shared_ptr<shm::Team> team;
  std::unique_ptr<Peers> peers; // null if this rank has no peers
  int owners = 1;
};

// Runs work that comes before this rank's message to its peers. On an error,
// notifies the peers, so that they do not wait for this rank.
template <class Local>
void notifyPeersOnError(Connections& connections, Local local) {
  try {
    local();
  } catch (const std::exception& error) {
    if (connections.peers) {
      connections.peers->giveUp(reasonOf(error));
    }
    throw;
  }
}

// One all-reduce. The data is summed within the host, exchanged between hosts,
// and then shared within the host. Large data is divided into chunks, and a few
// chunks are in flight between hosts at a time.
class Exchange {
 public:
  Exchange(
      Connections& connections,
      const at::Tensor& tensor, // contiguous; receives the result
      Element element,
      c10d::ReduceOp::RedOpType reduction,
      int world)
      : connections_(connections),
        flat_(tensor.view({-1})),
        element_(element),
        reduction_(reduction),
        partial_(
            reduction == c10d::ReduceOp::AVG ? Reduction::kSum
                                             : *reductionOf(reduction)),
        world_(world) {}

  // `what` names the operation. Ranks compare it.
  void run(const std::string& what) {
    const size_t bytes = count() * width();
    const shm::Team::Intent intent = shm::intend(what, bytes);
    try {
      if (bytes <= Peers::kMostPayload) {
        runAtOnce(intent);
      } else {
        runInChunks(intent);
      }
    } catch (const shm::TeamError&) {
      throw;
    } catch (const std::exception& error) {
      throw std::runtime_error("between hosts: " + reasonOf(error));
    }
  }

 private:
  struct Chunk {
    shm::Slice range;
    std::vector<shm::Slice> slices; // slices of the range, by owner
    at::Tensor part; // this rank's slice; undefined if it owns none
    WorkPtr work; // null if this rank sends nothing
  };

  void runAtOnce(const shm::Team::Intent& intent) {
    Chunk chunk;
    notifyPeersOnError(
        connections_, [&] { chunk = reducedInHost({0, count()}, intent); });
    if (connections_.peers) {
      const size_t part = chunk.part.defined() ? size_t(chunk.part.numel()) : 0;
      std::byte* own = part == 0 ? nullptr : bytesOf(chunk.part);
      auto messages =
          connections_.peers->startExchange(intent, {own, part * width()});
      messages.wait();
      if (part != 0) {
        const auto parts = messages.payloads();
        kernels::combine(
            element_, partial_, parts.data(), int(parts.size()), own, part);
        divide(chunk);
      }
    }
    share(chunk);
  }

  void runInChunks(const shm::Team::Intent& intent) {
    if (team().size() > 1) {
      notifyPeersOnError(connections_, [&] { team().arriveAndCheck(intent); });
    }
    // The peers' messages arrive while the first chunk is summed.
    std::optional<Peers::Messages> messages;
    if (connections_.peers) {
      messages = connections_.peers->startExchange(intent, {});
    }
    for (const shm::Slice& range :
         shm::chunksOf(count(), width(), connections_.owners)) {
      under_way_.push_back(reducedInHost(range));
      if (messages) {
        messages->wait();
        messages.reset();
      }
      launch(under_way_.back());
      if (under_way_.size() > kInFlight) {
        finishOldest();
      }
    }
    while (!under_way_.empty()) {
      finishOldest();
    }
  }

  shm::Team& team() const {
    return *connections_.team;
  }
  size_t count() const {
    return size_t(flat_.numel());
  }
  size_t width() const {
    return kernels::elementBytes(element_);
  }
  std::byte* at(const shm::Slice& range) const {
    return bytesOf(flat_) + range.begin * width();
  }

  Chunk reducedInHost(
      const shm::Slice& range,
      const std::optional<shm::Team::Intent>& intent = {}) const {
    Chunk chunk{
        range, shm::equalSlices(connections_.owners, range.count()), {}, {}};
    if (team().size() > 1) {
      shm::reduceToOwners(
          team(), at(range), chunk.slices, element_, partial_, intent);
    }
    const shm::Slice own = team().rank() < connections_.owners
        ? chunk.slices[size_t(team().rank())]
        : shm::Slice{};
    if (own.count() != 0) {
      chunk.part = flat_.narrow(
          0, int64_t(range.begin + own.begin), int64_t(own.count()));
    }
    return chunk;
  }

  void launch(Chunk& chunk) const {
    if (!chunk.part.defined()) {
      return;
    }
    c10d::AllreduceOptions options;
    options.reduceOp =
        reduction_ == c10d::ReduceOp::AVG ? c10d::ReduceOp::SUM : reduction_;
    options.asyncOp = true;
    std::vector<at::Tensor> tensors{chunk.part};
    chunk.work = connections_.peers->across().allreduce(tensors, options);
  }

  void finishOldest() {
    const Chunk chunk = std::move(under_way_.front());
    under_way_.pop_front();
    if (chunk.work) {
      chunk.work->wait();
      divide(chunk);
    }
    share(chunk);
  }

  void divide(const Chunk& chunk) const {
    if (reduction_ == c10d::ReduceOp::AVG) {
      at::Tensor part = chunk.part;
      part.is_floating_point() ? part.div_(world_) : part.div_(world_, "trunc");
    }
  }

  void share(const Chunk& chunk) const {
    if (team().size() > 1) {
      shm::shareFromOwners(team(), at(chunk.range), chunk.slices, element_);
    }
  }

  Connections& connections_;
  const at::Tensor flat_;
  const Element element_;
  const c10d::ReduceOp::RedOpType reduction_;
  const Reduction
      partial_; // reduction before the division by the number of ranks
  const int world_;
  std::deque<Chunk> under_way_;
};

std::shared_ptr<Connections> connectionsOf(Hierarchy hierarchy) {
  auto connections = std::make_shared<Connections>();
  connections->owners = hierarchy.owners;
  if (hierarchy.across) {
    connections->peers = std::make_unique<Peers>(
        std::move(hierarchy.across),
        hierarchy.team->globalRank(hierarchy.team->rank()));
  }
  connections->team = std::move(hierarchy.team);
  return connections;
}

class HierarchicalBackend final : public ThreadedBackend {
 public:
  HierarchicalBackend(
      c10::intrusive_ptr<c10d::Backend> wrapped,
      Hierarchy hierarchy)
      : ThreadedBackend(std::move(wrapped), hierarchy.team),
        connections_(connectionsOf(std::move(hierarchy))) {}

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options)
      override {
    const auto element =
        tensors.size() == 1 ? elementOf(tensors[0]) : std::optional<Element>();
    if (!element || !reductionOf(options.reduceOp)) {
      return WrappingBackend::allreduce(tensors, options);
    }
    return start(
        c10d::OpType::ALLREDUCE,
        tensors,
        options.asyncOp,
        [connections = connections_,
         tensor = tensors[0],
         element,
         op = options.reduceOp.op_,
         world = size_] {
          std::optional<InOrder> data;
          notifyPeersOnError(*connections, [&] { data.emplace(tensor); });
          Exchange(*connections, data->dense(), *element, op, world)
              .run(shm::named("all_reduce", *element, *reductionOf(op)));
          data->copyBack();
        });
  }

  void setTimeout(std::chrono::milliseconds timeout) override {
    ThreadedBackend::setTimeout(timeout);
    if (connections_->peers) {
      connections_->peers->setTimeout(timeout);
    }
  }

  // gloo's own barrier would not wait for all-reduces that this backend runs.
  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    return startBarrier(
        options.asyncOp, [connections = connections_, world = size_] {
          const at::Tensor nothing = at::empty({0}, at::kFloat);
          Exchange(
              *connections, nothing, Element::kF32, c10d::ReduceOp::SUM, world)
              .run("barrier");
        });
  }

 protected:
  // Closes gloo's connections; the other ends detect this immediately.
  void disconnect() override {
    connections_->peers.reset();
  }

 private:
  const std::shared_ptr<Connections> connections_;
};

} // namespace

c10::intrusive_ptr<c10d::Backend> makeHierarchicalBackend(
    c10::intrusive_ptr<c10d::Backend> wrapped,
    Hierarchy hierarchy) {
  return c10::make_intrusive<HierarchicalBackend>(
      std::move(wrapped), std::move(hierarchy));
}

} // namespace commprof::tune
