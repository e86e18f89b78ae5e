#include "tune/torch/microbench/collective_call.h"

#include <map>
#include <stdexcept>

#include "base/clock.h"

namespace commprof::tune {

namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
using Run = std::function<void()>;
using Tensors = std::vector<at::Tensor>;
using Make = Run (*)(const Group& group, const CollectiveSpec& spec);

template <class Table>
const auto& entry(const Table& table, const std::string& name, const char* of) {
  const auto found = table.find(name);
  if (found == table.end()) {
    std::string allowed;
    for (const auto& [key, value] : table) {
      allowed += (allowed.empty() ? "" : ", ") + key;
    }
    throw std::invalid_argument(
        std::string("unknown ") + of + " '" + name + "' (allowed: " + allowed +
        ")");
  }
  return found->second;
}

c10d::ReduceOp reduceOp(const std::string& name) {
  static const std::map<std::string, c10d::ReduceOp::RedOpType> kOps{
      {"sum", c10d::ReduceOp::SUM},
      {"prod", c10d::ReduceOp::PRODUCT},
      {"min", c10d::ReduceOp::MIN},
      {"max", c10d::ReduceOp::MAX},
      {"avg", c10d::ReduceOp::AVG}};
  return entry(kOps, name, "reduce op");
}

template <class Options>
Options synchronous() {
  Options options;
  options.asyncOp = false;
  return options;
}

// A backend that has already waited returns no Work.
void finish(const c10::intrusive_ptr<c10d::Work>& work) {
  if (work) {
    work->wait();
  }
}

Run copyingFirst(const CollectiveSpec& spec, bool copies, Run run) {
  if (!copies || spec.source.is_same(spec.target)) {
    return run;
  }
  return [source = spec.source, target = spec.target, run = std::move(run)] {
    target.copy_(source);
    run();
  };
}

Run allReduce(const Group& group, const CollectiveSpec& spec) {
  auto options = synchronous<c10d::AllreduceOptions>();
  options.reduceOp = reduceOp(spec.redop);
  return copyingFirst(
      spec, true, [group, options, tensors = Tensors{spec.target}]() mutable {
        finish(group->allreduce(tensors, options));
      });
}

Run reduce(const Group& group, const CollectiveSpec& spec) {
  auto options = synchronous<c10d::ReduceOptions>();
  options.reduceOp = reduceOp(spec.redop);
  options.rootRank = spec.root;
  return copyingFirst(
      spec, true, [group, options, tensors = Tensors{spec.target}]() mutable {
        finish(group->reduce(tensors, options));
      });
}

Run broadcast(const Group& group, const CollectiveSpec& spec) {
  auto options = synchronous<c10d::BroadcastOptions>();
  options.rootRank = spec.root;
  return copyingFirst(
      spec,
      group->getRank() == spec.root,
      [group, options, tensors = Tensors{spec.target}]() mutable {
        finish(group->broadcast(tensors, options));
      });
}

// These functions exist in all supported versions of torch. Later versions
// deprecate them, in favour of all_gather_single and similar functions.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

Run allGather(const Group& group, const CollectiveSpec& spec) {
  const auto options = synchronous<c10d::AllgatherOptions>();
  return
      [group, options, source = spec.source, target = spec.target]() mutable {
        finish(group->_allgather_base(target, source, options));
      };
}

Run reduceScatter(const Group& group, const CollectiveSpec& spec) {
  auto options = synchronous<c10d::ReduceScatterOptions>();
  options.reduceOp = reduceOp(spec.redop);
  return
      [group, options, source = spec.source, target = spec.target]() mutable {
        finish(group->_reduce_scatter_base(target, source, options));
      };
}

Run allToAll(const Group& group, const CollectiveSpec& spec) {
  const auto options = synchronous<c10d::AllToAllOptions>();
  return
      [group, options, source = spec.source, target = spec.target]() mutable {
        std::vector<int64_t> equal_parts;
        finish(group->alltoall_base(
            target, source, equal_parts, equal_parts, options));
      };
}

#pragma GCC diagnostic pop

// Sends to the next rank and receives from the previous rank, like sendrecv of
// nccl-tests.
Run sendRecv(const Group& group, const CollectiveSpec& spec) {
  const int size = group->getSize();
  const int after = (group->getRank() + 1) % size;
  const int before = (group->getRank() + size - 1) % size;
  return [group,
          after,
          before,
          sent = Tensors{spec.source},
          received = Tensors{spec.target}]() mutable {
    const auto sending = group->send(sent, after, 0);
    const auto receiving = group->recv(received, before, 0);
    finish(sending);
    finish(receiving);
  };
}

Run barrier(const Group& group, const CollectiveSpec&) {
  auto options = synchronous<c10d::BarrierOptions>();
  options.device = at::Device(at::kCPU);
  return [group, options] { finish(group->barrier(options)); };
}

const std::map<std::string, Make>& makers() {
  static const std::map<std::string, Make> kMakers{
      {"all_gather", allGather},
      {"all_reduce", allReduce},
      {"all_to_all", allToAll},
      {"barrier", barrier},
      {"broadcast", broadcast},
      {"reduce", reduce},
      {"reduce_scatter", reduceScatter},
      {"send_recv", sendRecv}};
  return kMakers;
}

} // namespace

CollectiveCall::CollectiveCall(Group group, CollectiveSpec spec) {
  for (const at::Tensor& tensor : {spec.source, spec.target}) {
    if (!tensor.is_cpu()) {
      throw std::invalid_argument(
          "a tensor is on " + tensor.device().str() +
          " (allowed: cpu); time the collective from Python, where the "
          "device is synchronised");
    }
  }
  run_ = entry(makers(), spec.op, "operation")(group, spec);
}

CallTimes CollectiveCall::sample(int64_t iterations, const CollectiveCall* meet)
    const {
  CallTimes times;
  auto& [begin_ns, end_ns] = times;
  // Page faults happen here, not between two samples.
  begin_ns.resize(size_t(iterations));
  end_ns.resize(size_t(iterations));
  for (size_t i = 0; i < size_t(iterations); ++i) {
    if (meet != nullptr) {
      meet->run();
    }
    begin_ns[i] = nowNs();
    run_();
    end_ns[i] = nowNs();
  }
  return times;
}

} // namespace commprof::tune
