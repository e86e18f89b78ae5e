// The tables that NCCL looks up, one for each version of its interface, and the
// translation of their events to operations, calls and channels.
//
// The record path (begin and end of events) neither allocates nor locks nor
// calls into the system once a thread has its ring: see core/recorder.h.
#include <atomic>
#include <cstdio>
#include <exception>
#include <limits>
#include <optional>
#include <stdexcept>

#include "base/clock.h"
#include "core/recorder.h"
#include "nccl_plugin/calls.h"
#include "nccl_plugin/communicator.h"
#include "nccl_plugin/interface.h"
#include "nccl_plugin/names.h"
#include "nccl_plugin/operations.h"
#include "nccl_plugin/run.h"

namespace commprof::nccl {

namespace {

constexpr int kMaskV3 = int(kColl | kP2p | kKernelCh);
constexpr int kMaskV5 = kMaskV3 | int(kCollApi | kP2pApi);

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

Result openNamed(
    void** context,
    uint64_t id,
    int* mask,
    int wanted_mask,
    const char* name,
    int ranks,
    int rank) noexcept {
  *context = nullptr;
  guarded([&] {
    if (!isOn()) {
      return;
    }
    if (!isRunOpen()) {
      openRun(placeFromLauncher().value_or(Place{rank, ranks}));
    }
    *context = openCommunicator(id, name, rank, ranks);
  });
  *mask = isOn() ? wanted_mask : 0;
  return kSuccess;
}

Result initV3(void** context, int* mask) {
  *context = nullptr;
  guarded([&] {
    const std::optional<Place> place = placeFromLauncher();
    if (!isOn()) {
      return;
    }
    if (!place) {
      throw std::runtime_error(
          "NCCL below 2.27 does not say how many ranks there are; set RANK and "
          "WORLD_SIZE");
    }
    openRun(*place);
    *context = openUnnamedCommunicator();
  });
  holdMask(mask);
  *mask = isOn() ? kMaskV3 : 0;
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
  return openNamed(context, id, mask, kMaskV3, name, ranks, rank);
}

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
  return openNamed(context, id, mask, kMaskV5, name, ranks, rank);
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
  static std::atomic_flag warned;
  if (isOn() && !warned.test_and_set()) {
    std::fputs(
        "commprof: times of kernels can cost NCCL 2.31 and newer up to a tenth "
        "of a collective's time (NVIDIA/nccl issue 2357)\n",
        stderr);
  }
  return openNamed(context, id, mask, kMaskV5, name, ranks, rank);
}

Result finalize(void* context) {
  auto* communicator = static_cast<Communicator*>(context);
  if (communicator != nullptr && isOn()) {
    guarded([&] {
      settleOperations(communicator);
      if (closeCommunicator(*communicator)) {
        holdMask(nullptr); // NCCL may be unloaded from here on
      }
      Recorder::instance().flush();
    });
  }
  return kSuccess;
}

// ---- Operations

// An operation of a launched kernel, as all versions describe it.
struct Launched {
  const char* func;
  const char* datatype;
  uint64_t count; // as in the function's call
  int root_or_peer;
  Channels channels;
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

Handle begin(
    Communicator& communicator,
    const Launched& launched,
    const Caller& caller) noexcept {
  Recorder& recorder = Recorder::instance();
  const uint8_t datatype = datatypeOf(launched.datatype);
  Record issue;
  issue.op = opOf(launched.func);
  if (issue.op == Op::kOther || datatype == 0) {
    recorder.countDropped();
    return {};
  }
  const bool eager = caller.known && caller.origin == Origin::kCall;
  issue.timestamp_ns = eager ? caller.call.begin_ns : nowNs();
  issue.op_id = recorder.nextOpId();
  issue.kind = Kind::kIssue;
  issue.dtype = caller.known && caller.call.datatype != 0 ? caller.call.datatype
                                                          : datatype;
  issue.reduce_op = std::numeric_limits<uint8_t>::max(); // not known
  issue.group = communicator.groups[size_t(caller.origin)].load();
  issue.thread = caller.known ? caller.call.thread : Recorder::threadId();
  issue.aux = uint32_t(launched.root_or_peer < 0 ? 0 : launched.root_or_peer);
  const uint64_t size = launched.count * kDatatypes[datatype].bytes;
  setBytes(issue, size, communicator.ranks);
  issue.seq = isPointToPoint(issue.op)
      ? communicator.nextMessage(caller.origin, issue.op, launched.root_or_peer)
      : communicator.nextCollective(caller.origin);
  issue.flags = kDeviceAsync;
  recorder.push(issue);
  return beginOperation(communicator, issue, launched.channels);
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

Launched launchedColl(const CollFields& coll) noexcept {
  return {
      coll.func,
      coll.datatype,
      coll.count,
      coll.root,
      {coll.channels, coll.channels}};
}

Launched launchedP2p(const P2pFields& p2p) noexcept {
  const uint64_t size = p2p.count * kDatatypes[datatypeOf(p2p.datatype)].bytes;
  const uint8_t least = channelsWithData(size, p2p.channels);
  return {p2p.func, p2p.datatype, p2p.count, p2p.peer, {p2p.channels, least}};
}

// The seam for calls that commprof's own capture records in the same process:
// the calling thread's operation id would be read here.
ApiCall callNow(const char* datatype) noexcept {
  return {nowNs(), Recorder::threadId(), datatypeOf(datatype)};
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
  const bool recorded = isOn() && communicator != nullptr &&
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
      return begin(communicator, launchedColl(event.coll), callerOf(parent));
    case kP2p:
      return begin(communicator, launchedP2p(event.p2p), callerOf(parent));
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
      return begin(communicator, launchedColl(event.coll), {});
    case kP2p:
      return begin(communicator, launchedP2p(event.p2p), {});
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
      Launched launched = launchedColl(coll.of_all_versions);
      launched.channels.least = 1;
      return begin(communicator, launched, {});
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

template <class Descriptor>
Result startEvent(void* context, void** handle, Descriptor* event) {
  Communicator* communicator = communicatorOf(context);
  // Always set: NCCL keeps the handle of an earlier event otherwise.
  *handle = communicator == nullptr
      ? nullptr
      : beginEvent(*communicator, *event).pointer();
  return kSuccess;
}

Result stopEvent(void* /*handle*/) {
  return kSuccess; // calls and operations are only enqueued by then
}

Result stopEventV3(void* handle) {
  if (isOn()) {
    endUntimedChannel(Handle::of(handle)); // nothing else if it is no channel's
  }
  return kSuccess;
}

Result recordEventState(void* handle, int state, StateArgs* args) {
  if (state == kKernelChStop && args != nullptr && isOn()) {
    endChannel(Handle::of(handle), args->gpu_ns);
  }
  return kSuccess;
}

Result ignoreState(void* /*handle*/, int /*state*/, StateArgs* /*args*/) {
  return kSuccess;
}

constexpr const char* kName = "commprof";

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
    initV5,
    startEvent<DescriptorV5>,
    stopEvent,
    recordEventState,
    finalize};
TableV5 ncclProfiler_v6 = {
    kName,
    initV5,
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
