// The tables that NCCL looks up, one for each version of its interface, and the
// translation of their events to operations, calls and channels.
//
// The record path (begin and end of events) neither allocates nor locks nor
// calls into the system once a thread has its ring: see core/recorder.h.
//
// One file, because all versions share the translations and capture's module
// compiles it again, to export the tables itself.
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <exception>
#include <limits>
#include <optional>
#include <stdexcept>
#include <type_traits>

#include "base/clock.h"
#include "core/current_op.h"
#include "core/recorder.h"
#include "nccl_plugin/calls.h"
#include "nccl_plugin/communicator.h"
#include "nccl_plugin/interface.h"
#include "nccl_plugin/names.h"
#include "nccl_plugin/operations.h"
#include "nccl_plugin/run.h"
#include "nccl_plugin/transfers.h"

namespace commprof::nccl {

namespace {

// The masks of each level, without and with kernels' and proxy's events.
constexpr int kOperationsV3 = int(kColl | kP2p);
constexpr int kOperationsV5 = kOperationsV3 | int(kCollApi | kP2pApi);
constexpr int kOperationsV6 = kOperationsV5 | int(kCeColl);
constexpr int kProxy = int(kProxyOp | kProxyStep);

std::atomic<bool> g_kernels{false}; // the mask has kKernelCh
std::atomic<int> g_process{0}; // this process

// Runs what may throw; a failure switches the plugin off.
template <class Body>
void guarded(Body body) noexcept {
  try {
    body();
  } catch (const std::exception& error) {
    switchOff(error.what());
  } catch (...) {
    switchOff("an unknown error");
  }
}

// ---- Communicators

// Decides what is recorded; for kAuto, `unset`. Returns the mask.
int maskOf(int operations, Level unset) {
  const Level wanted = levelFromEnvironment();
  const Level level = wanted == Level::kAuto ? unset : wanted;
  g_kernels.store(level >= Level::kKernels);
  g_process.store(getpid());
  return operations | (level >= Level::kKernels ? int(kKernelCh) : 0) |
      (level >= Level::kNetwork ? kProxy : 0);
}

// `versioned`: returns the mask, and may throw.
template <class Versioned>
Result openNamed(
    void** context,
    uint64_t id,
    int* mask,
    Versioned versioned,
    const char* name,
    int ranks,
    int rank) noexcept {
  *context = nullptr;
  *mask = 0;
  guarded([&] {
    if (!isOn()) {
      return;
    }
    const int wanted = versioned();
    const Place place = placeFromLauncher().value_or(Place{rank, ranks});
    if (!isRunOpen()) {
      openRun(place);
    }
    setFirstRank(place.rank == 0);
    *context = openCommunicator(id, name, rank, ranks);
    *mask = isOn() ? wanted : 0;
  });
  return kSuccess;
}

Result initV3(void** context, int* mask) {
  *context = nullptr;
  *mask = 0;
  holdMask(mask);
  guarded([&] {
    const std::optional<Place> place = placeFromLauncher();
    if (!isOn()) {
      return;
    }
    const int wanted = maskOf(kOperationsV3, Level::kKernels) & ~kProxy;
    if (!isRunOpen()) {
      if (!place) {
        throw std::runtime_error(
            "NCCL below 2.27 does not say how many ranks there are; set RANK "
            "and WORLD_SIZE");
      }
      openRun(*place);
    }
    setFirstRank(!place || place->rank == 0);
    *context = openUnnamedCommunicator();
    *mask = isOn() ? wanted : 0;
  });
  return kSuccess;
}

Result initV4(
    void** context,
    int* mask,
    const char* name,
    uint64_t id,
    int /*nodes*/,
    int ranks,
    int rank,
    Logger /*logger*/) {
  holdMask(mask);
  const auto versioned = [] { return maskOf(kOperationsV3, Level::kKernels); };
  return openNamed(context, id, mask, versioned, name, ranks, rank);
}

template <int operations>
Result initV5(
    void** context,
    uint64_t id,
    int* mask,
    const char* name,
    int /*nodes*/,
    int ranks,
    int rank,
    Logger /*logger*/) {
  holdMask(mask);
  const auto versioned = [] { return maskOf(operations, Level::kKernels); };
  return openNamed(context, id, mask, versioned, name, ranks, rank);
}

// Version 7 comes with NCCL 2.31, which polls kernels in a thread of its own.
// It is not known for how long its mask lives, so nothing writes to it later.
Result initV7(
    void** context,
    uint64_t id,
    int* mask,
    const char* name,
    int /*nodes*/,
    int ranks,
    int rank,
    Logger /*logger*/) {
  const auto versioned = [] {
    static std::atomic_flag warned;
    if (levelFromEnvironment() == Level::kAuto && !warned.test_and_set()) {
      std::fputs(
          "commprof: NCCL's operations are recorded without times on the GPU, "
          "which cost NCCL 2.31 and newer up to a tenth of a collective's time "
          "(NVIDIA/nccl issue 2357); COMMPROF_NCCL=kernels records them\n",
          stderr);
    }
    return maskOf(kOperationsV6, Level::kOperations);
  };
  return openNamed(context, id, mask, versioned, name, ranks, rank);
}

Result finalize(void* context) {
  auto* communicator = static_cast<Communicator*>(context);
  if (communicator != nullptr && isOn()) {
    guarded([&] {
      settleOperations(communicator);
      if (closeCommunicator(*communicator)) {
        holdMask(nullptr); // NCCL may be unloaded from here on
      }
      if (!isJoined()) {
        Recorder::instance().flush();
      }
    });
  }
  return kSuccess;
}

// ---- Operations

// What a version of the interface tells of a launched operation.
struct Told {
  const char* func;
  const char* datatype;
  uint64_t count; // as in the function's call
  int root_or_peer;
  Channels channels;
  uint8_t algorithm = 0; // in kAlgorithms
  uint8_t protocol = 0; // in kProtocols
  bool has_kernel = true;
};

// The larger side of a gathering or scattering collective stays 0 if the number
// of ranks is not known.
void setBytes(Record& issue, uint64_t size, int ranks) noexcept {
  const uint64_t all =
      ranks == Communicator::kUnknown ? 0 : size * uint64_t(ranks);
  switch (issue.op) {
    case Op::kAllGatherIntoTensor:
      issue.bytes_in = size;
      issue.bytes_out = all;
      break;
    case Op::kReduceScatterTensor:
      issue.bytes_in = all;
      issue.bytes_out = size;
      break;
    case Op::kSend:
      issue.bytes_in = size;
      break;
    case Op::kRecv:
      issue.bytes_out = size;
      break;
    default:
      issue.bytes_in = issue.bytes_out = size;
  }
}

// Pushes the record of the call to a trace of the plugin's own.
void pushIssue(
    const Communicator& communicator,
    const Launched& launched,
    const Caller& caller,
    uint8_t datatype) noexcept {
  const Record& op = launched.op;
  Record issue;
  issue.kind = Kind::kIssue;
  issue.op = op.op;
  issue.op_id = op.op_id;
  issue.timestamp_ns = launched.issue_ns;
  issue.dtype = caller.known && caller.call.datatype != 0 ? caller.call.datatype
                                                          : datatype;
  issue.reduce_op = std::numeric_limits<uint8_t>::max(); // not known
  issue.group = communicator.groups[size_t(caller.origin)].load();
  issue.thread = launched.thread;
  issue.aux = op.thread;
  setBytes(issue, op.bytes_in, communicator.ranks);
  issue.seq = op.seq;
  issue.flags = kDeviceAsync;
  Recorder::instance().push(issue);
}

Handle begin(
    Communicator& communicator,
    const Told& told,
    Handle parent) noexcept {
  Recorder& recorder = Recorder::instance();
  const uint8_t datatype = datatypeOf(told.datatype);
  Launched launched;
  Record& op = launched.op;
  op.op = opOf(told.func);
  if (op.op == Op::kOther || datatype == 0) {
    recorder.countDropped();
    return {};
  }
  const auto part = uint32_t(op.op) << 24 ^ uint32_t(told.root_or_peer);
  const Caller caller = callerOf(parent, part);
  const bool eager = caller.known && caller.origin == Origin::kCall;
  const uint64_t recorded_id = caller.known ? caller.call.op_id : t_current_op;
  launched.issue_ns = eager ? caller.call.begin_ns : nowNs();
  launched.thread = caller.known ? caller.call.thread : Recorder::threadId();
  launched.channels = told.channels;
  op.kind = Kind::kNcclOp;
  op.op_id = recorded_id != 0 ? recorded_id : recorder.nextOpId();
  op.group = communicator.number;
  op.thread = uint32_t(told.root_or_peer < 0 ? 0 : told.root_or_peer);
  op.dtype = told.channels.most;
  op.reduce_op = uint8_t(told.algorithm << 4 | told.protocol);
  op.aux = caller.replay;
  sayRecorded();
  op.bytes_in = told.count * kDatatypes[datatype].bytes;
  op.seq = isPointToPoint(op.op)
      ? communicator.nextMessage(caller.origin, op.op, told.root_or_peer)
      : communicator.nextCollective(caller.origin);
  if (!isJoined()) {
    pushIssue(communicator, launched, caller, datatype);
  }
  if (!told.has_kernel || !g_kernels.load(std::memory_order_relaxed)) {
    recordUntimed(launched);
    return {};
  }
  return beginOperation(communicator, launched);
}

// A message is cut into parts of whole 4 KiB pages, one for each channel; the
// last channels may get none.
uint8_t channelsWithData(uint64_t size, uint8_t channels) noexcept {
  if (channels == 0 || size == 0) {
    return channels;
  }
  constexpr uint64_t kPage = 4096;
  const uint64_t share = (size + channels - 1) / channels;
  const uint64_t part = (share + kPage - 1) / kPage * kPage;
  return uint8_t((size + part - 1) / part);
}

Told told(const CollFields& coll) noexcept {
  return {
      coll.func,
      coll.datatype,
      coll.count,
      coll.root,
      {coll.channels, coll.channels},
      codeIn(kAlgorithms, coll.algorithm),
      codeIn(kProtocols, coll.protocol)};
}

Told told(const P2pFields& p2p) noexcept {
  const uint64_t size = p2p.count * kDatatypes[datatypeOf(p2p.datatype)].bytes;
  const uint8_t least = channelsWithData(size, p2p.channels);
  return {p2p.func, p2p.datatype, p2p.count, p2p.peer, {p2p.channels, least}};
}

// Copy engines run no kernel, so no channel tells its times.
Handle beginCeColl(
    Communicator& communicator,
    const CeCollFields& coll,
    Handle parent) noexcept {
  Told of_coll{coll.func, coll.datatype, coll.count, coll.root, {}};
  of_coll.algorithm = codeIn(kAlgorithms, "COPY_ENGINE");
  of_coll.has_kernel = false;
  return begin(communicator, of_coll, parent);
}

// The call that this thread makes; capture may know it as an operation.
ApiCall callNow(const char* datatype) noexcept {
  return {nowNs(), Recorder::threadId(), datatypeOf(datatype), t_current_op};
}

Handle beginCall(
    Communicator& communicator,
    const char* datatype,
    bool captured) noexcept {
  if (!captured) {
    return rememberCall(callNow(datatype));
  }
  guarded([&] { communicator.describe(Origin::kReplay); });
  return rememberCapturedCall(callNow(datatype));
}

// ---- Events

// Returns the open communicator of an event; null if it is not recorded.
Communicator* communicatorOf(void* context) noexcept {
  auto* communicator = static_cast<Communicator*>(context);
  const bool recorded = communicator != nullptr &&
      communicator->open.load(std::memory_order_relaxed);
  return recorded ? communicator : nullptr;
}

Handle beginEvent(Communicator& communicator, const DescriptorV5& event) {
  const Handle parent = Handle::of(event.parent);
  switch (event.type) {
    case kCollApi:
      return beginCall(
          communicator, event.coll_api.datatype, event.coll_api.graph_captured);
    case kP2pApi:
      return beginCall(
          communicator, event.p2p_api.datatype, event.p2p_api.graph_captured);
    case kColl:
      return begin(communicator, told(event.coll), parent);
    case kP2p:
      return begin(communicator, told(event.p2p), parent);
    case kCeColl:
      return beginCeColl(communicator, event.ce_coll, parent);
    case kKernelCh:
      return beginChannel(
          parent, event.kernel_ch.channel, event.kernel_ch.gpu_ns);
    default:
      return {};
  }
}

// In version 4 the parent of an operation is the group of kernels.
Handle beginEvent(Communicator& communicator, const DescriptorV4& event) {
  switch (event.type) {
    case kColl:
      return begin(communicator, told(event.coll), {});
    case kP2p:
      return begin(communicator, told(event.p2p), {});
    case kKernelCh:
      return beginChannel(
          Handle::of(event.parent),
          event.kernel_ch.channel,
          event.kernel_ch.gpu_ns);
    default:
      return {};
  }
}

void nameFrom(
    Communicator& communicator,
    uint64_t id,
    const char* name,
    int rank) noexcept {
  if (communicator.rank.load(std::memory_order_relaxed) ==
      Communicator::kUnknown) {
    guarded([&] { nameCommunicator(communicator, id, name, rank); });
  }
}

Handle beginEvent(Communicator& communicator, const DescriptorV3& event) {
  switch (event.type) {
    case kColl: {
      const CollFieldsV3& coll = event.coll;
      nameFrom(
          communicator,
          coll.communicator_id,
          coll.communicator_name,
          event.rank);
      Told of_coll = told(coll.of_all_versions);
      of_coll.channels.least = 1;
      return begin(communicator, of_coll, {});
    }
    case kP2p: {
      const P2pFieldsV3& p2p = event.p2p;
      nameFrom(
          communicator, p2p.communicator_id, p2p.communicator_name, event.rank);
      const Channels channels{0, 1};
      return begin(
          communicator,
          {p2p.func, p2p.datatype, p2p.count, p2p.peer, channels},
          {});
    }
    case kKernelCh:
      return beginChannel(Handle::of(event.parent), event.kernel_ch.channel, 0);
    default:
      return {};
  }
}

// Of the proxy's events. Those of another process's operation (PXN) come with
// its context and its handles, which mean nothing here.
template <class Descriptor>
Handle beginProxyEvent(const Descriptor& event) noexcept {
  const Handle parent = Handle::of(event.parent);
  if (event.type == kProxyStep) {
    return beginStep(parent, event.proxy_step.step);
  }
  const bool own =
      event.proxy_op.pid == g_process.load(std::memory_order_relaxed);
  return beginTransfer(own ? idOf(parent) : OperationId{}, event.proxy_op);
}

template <class Descriptor>
Handle beginAny(void* context, const Descriptor& event) {
  if (!isRecording()) {
    return {};
  }
  if constexpr (!std::is_same_v<Descriptor, DescriptorV3>) {
    if (event.type == kProxyOp || event.type == kProxyStep) {
      return beginProxyEvent(event);
    }
  }
  Communicator* communicator = communicatorOf(context);
  return communicator == nullptr ? Handle{} : beginEvent(*communicator, event);
}

template <class Descriptor>
Result startEvent(void* context, void** handle, Descriptor* event) {
  // Always set: NCCL keeps the handle of an earlier event otherwise.
  *handle = beginAny(context, *event).pointer();
  return kSuccess;
}

// Calls and operations are only enqueued when they are stopped.
Result stopEvent(void* pointer) {
  const Handle handle = Handle::of(pointer);
  if (handle.tag == Tag::kStep && isOn()) {
    endStep(handle);
  } else if (handle.tag == Tag::kTransfer && isOn()) {
    endTransfer(handle);
  }
  return kSuccess;
}

Result stopEventV3(void* handle) {
  if (isOn()) {
    endUntimedChannel(Handle::of(handle)); // nothing else if it is no channel's
  }
  return kSuccess;
}

Result recordEventState(void* pointer, int state, StateArgs* args) {
  const Handle handle = Handle::of(pointer);
  if (state == kKernelChStop && args != nullptr && isOn()) {
    endChannel(handle, args->gpu_ns);
  } else if (handle.tag == Tag::kStep && isOn()) {
    recordStepState(handle, state, args);
  }
  return kSuccess;
}

Result ignoreState(void* /*handle*/, int /*state*/, StateArgs* /*args*/) {
  return kSuccess;
}

constexpr const char* kName = "commprof";

#ifdef COMMPROF_MODULE // a part of capture's module
[[maybe_unused]] const bool g_joined = (join(), true);
#endif

} // namespace

} // namespace commprof::nccl

// One library may export all of them; NCCL takes the highest that it knows.
#define COMMPROF_EXPORT extern "C" __attribute__((visibility("default")))

COMMPROF_EXPORT commprof::nccl::TableV3 ncclProfiler_v3;
COMMPROF_EXPORT commprof::nccl::TableV4 ncclProfiler_v4;
COMMPROF_EXPORT commprof::nccl::TableV5 ncclProfiler_v5;
COMMPROF_EXPORT commprof::nccl::TableV5 ncclProfiler_v6;
COMMPROF_EXPORT commprof::nccl::TableV5 ncclProfiler_v7;

using namespace commprof::nccl;

TableV3 ncclProfiler_v3 = {
    kName,
    initV3,
    startEvent<DescriptorV3>,
    stopEventV3,
    ignoreState,
    finalize};
TableV4 ncclProfiler_v4 = {
    kName,
    initV4,
    startEvent<DescriptorV4>,
    stopEvent,
    recordEventState,
    finalize};
TableV5 ncclProfiler_v5 = {
    kName,
    initV5<kOperationsV5>,
    startEvent<DescriptorV5>,
    stopEvent,
    recordEventState,
    finalize};
TableV5 ncclProfiler_v6 = {
    kName,
    initV5<kOperationsV6>,
    startEvent<DescriptorV5>,
    stopEvent,
    recordEventState,
    finalize};
TableV5 ncclProfiler_v7 = {
    kName,
    initV7,
    startEvent<DescriptorV5>,
    stopEvent,
    recordEventState,
    finalize};
