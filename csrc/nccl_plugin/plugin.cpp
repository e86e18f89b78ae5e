// The tables of functions that NCCL looks up, one for each version of its
// interface, and the translation of NCCL's events to operations, calls and
// channels.
//
// The record path (begin and end of events) does not allocate, take a mutex or
// make system calls once a thread has its ring (core/recorder.h), except when
// it describes a communicator (a first capture, or version 3). The tables and
// the translation are in one file for two reasons: all versions share the
// translation, and the module of commprof's capture compiles the file again to
// export the tables itself.
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
#include "nccl_plugin/user_plugin.h"

namespace commprof::nccl {

namespace {

// Bits of the mask by which a plugin requests events of operations. They depend
// on the version of the interface.
constexpr uint64_t operationsOf(int version) {
  return kColl | kP2p | (version >= 5 ? kCollApi | kP2pApi : 0) |
      (version >= 6 ? kCeColl : 0);
}
constexpr uint64_t kProxy = kProxyOp | kProxyStep;

// Runs `body`, which may throw; an exception switches the plugin off.
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

// Returns the mask of the events to request from NCCL. From version 7 of the
// interface on (NCCL 2.31), NCCL polls kernels in a separate thread, which
// slows collectives down. Events of kernels are then requested only if the user
// asks for them.
template <int version>
int eventsAskedFor() {
  Level level = levelFromEnvironment();
  if (level == Level::kAuto) {
    level = version < 7 ? Level::kKernels : Level::kOperations;
    static std::atomic_flag warned;
    if (version >= 7 && !warned.test_and_set()) {
      std::fputs(
          "commprof: NCCL's operations are recorded without times on the GPU, "
          "because from NCCL 2.31 on these times can slow a collective down by "
          "a tenth (NVIDIA/nccl issue 2357). Set COMMPROF_NCCL=kernels to "
          "record them\n",
          stderr);
    }
  }
  return int(
      operationsOf(version) | (level >= Level::kKernels ? kKernelCh : 0) |
      (level >= Level::kNetwork && version > 3 ? kProxy : 0));
}

// Opens the communicator's entry, and the trace if it is not open yet. Returns
// null if the communicator is not recorded. May throw.
template <int version>
Communicator* openRecorded(const Opening& opening) {
  if (!isOn()) {
    return nullptr;
  }
  askFor(eventsAskedFor<version>());
  const std::optional<Place> launched = placeFromLauncher();
  if (!isRunOpen()) {
    if (!launched && version == 3) {
      throw std::runtime_error(
          "NCCL below 2.27 does not report how many ranks there are; set RANK "
          "and WORLD_SIZE");
    }
    openRun(launched.value_or(Place{opening.rank, opening.ranks}));
  }
  setFirstRank((launched ? launched->rank : opening.rank) == 0);
  Communicator* opened = openCommunicator(opening.ranks);
  if (version > 3 && opened != nullptr &&
      !nameCommunicator(*opened, opening.id, opening.name, opening.rank)) {
    closeCommunicator(*opened);
    return nullptr;
  }
  return opened;
}

template <int version>
Result open(const Opening& opening) {
  // It is not known how long the mask of version 7 stays valid.
  if (isOn() && version < 7) {
    holdMask(opening.mask);
  }
  thisProcess();
  Communicator* communicator = nullptr;
  guarded([&] { communicator = openRecorded<version>(opening); });
  *opening.context = communicator;
  void* users = nullptr;
  if (UserPlugin* user = UserPlugin::load(version);
      user != nullptr && user->init(opening, &users)) {
    if (communicator != nullptr) {
      communicator->users_context.store(users);
      communicator->passed_on.store(true);
    } else {
      *opening.context = users != nullptr ? users : unrecordedCommunicator();
    }
  }
  // Other communicators may use the same mask at this time.
  __atomic_store_n(opening.mask, mask(), __ATOMIC_RELAXED);
  return kSuccess;
}

Result initV3(void** context, int* mask) {
  return open<3>(
      {context, 0, mask, nullptr, 0, Communicator::kUnknown, 0, nullptr});
}

Result initV4(
    void** context,
    int* mask,
    const char* name,
    uint64_t id,
    int nodes,
    int ranks,
    int rank,
    Logger logger) {
  return open<4>({context, id, mask, name, nodes, ranks, rank, logger});
}

template <int version>
Result initV5(
    void** context,
    uint64_t id,
    int* mask,
    const char* name,
    int nodes,
    int ranks,
    int rank,
    Logger logger) {
  return open<version>({context, id, mask, name, nodes, ranks, rank, logger});
}

template <int version>
Result finalize(void* context) {
  Communicator* communicator = Communicator::of(context);
  if (UserPlugin* user = UserPlugin::of(version)) {
    void* users = communicator == nullptr
        ? context
        : communicator->users_context.exchange(nullptr);
    if (users != nullptr && communicator != nullptr) {
      communicator->passed_on.store(false);
    }
    if (users != nullptr) {
      user->finalize(users);
    }
  }
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

// What each version of the interface reports in its own way about a launched
// operation.
struct Told {
  const char* func;
  const char* datatype;
  uint64_t count; // count argument of the call
  int root_or_peer;
  Channels channels;
  uint8_t algorithm = 0; // index in kAlgorithms
  uint8_t protocol = 0; // index in kProtocols
  bool has_kernel = true;
};

// Sets the bytes of a call's input and output. If the number of ranks is not
// known, sizes that depend on it stay 0.
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

// Pushes a record of the call that launched an operation, to the plugin's own
// trace. If the plugin is a part of commprof's capture, capture records the
// calls of torch instead.
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
  if (!told.has_kernel || !isAsked(kKernelCh)) {
    recordUntimed(launched);
    return {};
  }
  return beginOperation(communicator, launched);
}

// Returns the number of channels that carry data. A message is cut into parts
// of whole 4 KiB pages, one for each channel. The last channels may get no
// part.
uint8_t channelsWithData(uint64_t size, uint8_t channels) noexcept {
  if (channels == 0 || size == 0) {
    return channels;
  }
  constexpr uint64_t kPage = 4096;
  const uint64_t share = (size + channels - 1) / channels;
  const uint64_t part = (share + kPage - 1) / kPage * kPage;
  return uint8_t((size + part - 1) / part);
}

Told told(const CollFields& coll, bool is_v3) noexcept {
  // Version 3 reports only the largest number of channels that a collective may
  // have.
  const uint8_t least = is_v3 ? 1 : coll.channels;
  return {
      coll.func,
      coll.datatype,
      coll.count,
      coll.root,
      {coll.channels, least},
      codeIn(kAlgorithms, coll.algorithm),
      codeIn(kProtocols, coll.protocol)};
}

Told told(const P2pFields& p2p, bool is_v3) noexcept {
  const uint64_t size = p2p.count * kDatatypes[datatypeOf(p2p.datatype)].bytes;
  const Channels channels = is_v3
      ? Channels{0, 1}
      : Channels{p2p.channels, channelsWithData(size, p2p.channels)};
  return {p2p.func, p2p.datatype, p2p.count, p2p.peer, channels};
}

// Copy engines run no kernel, so there are no times of channels.
Told told(const CeCollFields& coll) noexcept {
  Told of_coll{coll.func, coll.datatype, coll.count, coll.root, {}};
  of_coll.algorithm = codeIn(kAlgorithms, "COPY_ENGINE");
  of_coll.has_kernel = false;
  return of_coll;
}

// Returns the call that this thread is making. Its op_id is that of the
// operation that capture recorded for the call, or 0.
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

template <class Fields>
void nameFrom(Communicator& communicator, const Fields& fields, int rank) {
  if (communicator.rank.load(std::memory_order_relaxed) ==
      Communicator::kUnknown) {
    guarded([&] {
      nameCommunicator(
          communicator, fields.communicator_id, fields.communicator_name, rank);
    });
  }
}

// Begins an event of the proxy. If the operation belongs to another process
// (PXN), the context and the handles in the event are not valid here.
template <class Event>
Handle beginProxyEvent(
    const Communicator* communicator,
    const Event& event) noexcept {
  const Handle parent = Handle::of(event.parent);
  if (event.type == kProxyStep) {
    return beginStep(parent, event.proxy_step.step);
  }
  OperationId operation;
  if (event.proxy_op.pid == thisProcess()) {
    operation = idOf(parent);
    if (operation.op_id == 0 && communicator != nullptr) {
      operation.communicator = communicator->number;
    }
  }
  return beginTransfer(operation, event.proxy_op);
}

template <class Event>
Handle beginEvent(Communicator* communicator, const Event& event) {
  constexpr bool is_v3 = std::is_same_v<Event, DescriptorV3>;
  constexpr bool is_v5 = std::is_same_v<Event, DescriptorV5>;
  if (!isRecording()) {
    return {};
  }
  if (event.type == kProxyOp || event.type == kProxyStep) {
    return isAsked(event.type) ? beginProxyEvent(communicator, event)
                               : Handle{};
  }
  if (communicator == nullptr ||
      !communicator->open.load(std::memory_order_relaxed)) {
    return {};
  }
  const Handle parent = Handle::of(event.parent);
  // Before version 5, an operation's parent is NCCL's event of a group, not the
  // event of a call.
  const Handle call = is_v5 ? parent : Handle{};
  switch (uint64_t(event.type)) {
    case kColl:
      if constexpr (is_v3) {
        nameFrom(*communicator, event.coll, event.rank);
      }
      return begin(*communicator, told(event.coll.fields, is_v3), call);
    case kP2p:
      if constexpr (is_v3) {
        nameFrom(*communicator, event.p2p, event.rank);
      }
      return begin(*communicator, told(event.p2p.fields, is_v3), call);
    case kKernelCh:
      return beginChannel(
          parent, event.kernel_ch.channel, is_v3 ? 0 : event.kernel_ch.gpu_ns);
    case kCollApi:
      return beginCall(
          *communicator,
          event.coll_api.datatype,
          event.coll_api.graph_captured);
    case kP2pApi:
      return beginCall(
          *communicator, event.p2p_api.datatype, event.p2p_api.graph_captured);
    case kCeColl:
      return begin(*communicator, told(event.ce_coll), call);
    default:
      return {};
  }
}

// ---- What NCCL calls, for this plugin and for the user's

template <int version, class Event>
Result startEvent(void* context, void** handle, Event* event) {
  Communicator* communicator = Communicator::of(context);
  const Handle ours = beginEvent(communicator, *event);
  void* users = nullptr;
  if (UserPlugin* user = UserPlugin::of(version)) {
    if (communicator == nullptr && context != nullptr) {
      users = user->start(context, *event);
    } else if (communicator != nullptr && communicator->passed_on.load()) {
      users = user->start(communicator->users_context.load(), *event);
    }
  }
  // Always set, because NCCL otherwise keeps the handle of an earlier event.
  *handle = joinHandles(ours, users);
  return kSuccess;
}

template <int version, class Tell>
Result tellUser(void* pointer, Tell tell) {
  if (UserPlugin* user = UserPlugin::of(version)) {
    if (void* users = usersHandle(pointer)) {
      tell(*user, users);
    }
  }
  return kSuccess;
}

// If NCCL stops the event of a call or an operation, the operation has only
// been enqueued.
template <int version>
Result stopEvent(void* pointer) {
  const Handle handle = Handle::of(pointer);
  if (version == 3 && isOn()) {
    endChannel(handle, 0); // ignores other handles
  } else if (handle.tag() == Tag::kStep && isOn()) {
    endStep(handle);
  } else if (handle.tag() == Tag::kTransfer && isOn()) {
    endTransfer(handle);
  }
  return tellUser<version>(
      pointer, [](UserPlugin& user, void* users) { user.stop(users); });
}

template <int version>
Result recordEventState(void* pointer, int state, StateArgs* args) {
  const Handle handle = Handle::of(pointer);
  if (version == 3 || !isOn()) {
    // Version 3 reports no times.
  } else if (state == kKernelChStop && args != nullptr) {
    endChannel(handle, args->gpu_ns);
  } else if (handle.tag() == Tag::kStep) {
    recordStepState(handle, state, args);
  }
  return tellUser<version>(pointer, [&](UserPlugin& user, void* users) {
    user.record(users, state, args);
  });
}

template <int version, class Init, class Event>
constexpr Table<Init, Event> tableOf(Init init) {
  return {
      kPluginName,
      init,
      startEvent<version, Event>,
      stopEvent<version>,
      recordEventState<version>,
      finalize<version>};
}

#ifdef COMMPROF_MODULE // a part of the module of commprof's capture
[[maybe_unused]] const bool g_joined = (join(), true);
#endif

} // namespace

} // namespace commprof::nccl

// One library may export tables of all versions; NCCL takes the highest version
// that it knows.
#define COMMPROF_EXPORT extern "C" __attribute__((visibility("default")))

COMMPROF_EXPORT commprof::nccl::TableV3 ncclProfiler_v3;
COMMPROF_EXPORT commprof::nccl::TableV4 ncclProfiler_v4;
COMMPROF_EXPORT commprof::nccl::TableV5 ncclProfiler_v5;
COMMPROF_EXPORT commprof::nccl::TableV5 ncclProfiler_v6;
COMMPROF_EXPORT commprof::nccl::TableV5 ncclProfiler_v7;

using namespace commprof::nccl;

TableV3 ncclProfiler_v3 = tableOf<3, InitV3, DescriptorV3>(initV3);
TableV4 ncclProfiler_v4 = tableOf<4, InitV4, DescriptorV4>(initV4);
TableV5 ncclProfiler_v5 = tableOf<5, InitV5, DescriptorV5>(initV5<5>);
TableV5 ncclProfiler_v6 = tableOf<6, InitV5, DescriptorV5>(initV5<6>);
TableV5 ncclProfiler_v7 = tableOf<7, InitV5, DescriptorV5>(initV5<7>);
