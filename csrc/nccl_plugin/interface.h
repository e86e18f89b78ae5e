// The part of NCCL's profiler interface that the plugin uses, versions 3 to 7,
// in our own words. The source for versions up to 6 is NVIDIA/nccl up to 2.30.
// The source for version 7 is the debug information of the library in
// nvidia-nccl-cu12 2.32.3. `make nccl-matrix` checks the description with the
// loaders and adapters inside NCCL.
//
// NCCL looks up a table ncclProfiler_v<N> for the highest N that it knows.
// Version 3 came with NCCL 2.26, 4 with 2.27, 5 with 2.28, 6 with 2.29, 7 with
// 2.31.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace commprof::nccl {

using Result = int; // ncclResult_t
inline constexpr Result kSuccess = 0;

// Types of events, which are also the bits of the mask of events.
inline constexpr uint64_t kGroup = 1 << 0; // kernels launched together
inline constexpr uint64_t kColl = 1 << 1; // a collective of a launched kernel
inline constexpr uint64_t kP2p = 1 << 2; // a message of a launched kernel
inline constexpr uint64_t kProxyOp = 1 << 3; // a channel's traffic with a peer
inline constexpr uint64_t kProxyStep = 1 << 4; // one buffer of a kProxyOp
inline constexpr uint64_t kProxyCtrl = 1 << 5; // a state of the proxy's thread
inline constexpr uint64_t kKernelCh = 1 << 6; // one channel of a kernel
// Events of NCCL's network plugin.
inline constexpr uint64_t kNetPlugin = 1 << 7;
inline constexpr uint64_t kGroupApi = 1 << 8; // the outermost group of calls
inline constexpr uint64_t kCollApi = 1 << 9; // a call of a collective
inline constexpr uint64_t kP2pApi = 1 << 10; // a call of ncclSend or ncclRecv
inline constexpr uint64_t kKernelLaunch = 1 << 11;
inline constexpr uint64_t kCeColl = 1 << 12; // a collective by copy engines
inline constexpr uint64_t kCeSync = 1 << 13;
inline constexpr uint64_t kCeBatch = 1 << 14;
inline constexpr uint64_t kKernelPhase = 1 << 15; // from version 7 on

// True if NCCL reports events of `type` to a plugin with this mask. NCCL also
// reports the parents of the events in the mask.
constexpr bool isTold(uint64_t type, int mask, int version) {
  constexpr uint64_t kOfProxyStep = kProxyStep | kNetPlugin;
  constexpr uint64_t kOfProxyOp = kProxyOp | kOfProxyStep;
  constexpr uint64_t kOfKernelCh = kKernelCh | kKernelPhase;
  constexpr uint64_t kOfCeColl = kCeColl | kCeSync | kCeBatch;
  constexpr uint64_t kOfP2p = kP2p | kOfProxyOp | kOfKernelCh;
  constexpr uint64_t kOfColl = kColl | kOfProxyOp | kOfKernelCh;
  constexpr std::array<uint64_t, 16> kAskedBy = {
      // by bit of the type
      kGroup | kOfColl | kOfP2p,
      kOfColl,
      kOfP2p,
      kOfProxyOp,
      kOfProxyStep,
      kProxyCtrl,
      kOfKernelCh,
      kNetPlugin,
      kGroupApi | kCollApi | kP2pApi | kKernelLaunch | kGroup | kOfColl |
          kOfP2p | kOfCeColl,
      kCollApi | kOfColl | kOfCeColl,
      kP2pApi | kOfP2p,
      kKernelLaunch,
      kOfCeColl,
      kCeSync,
      kCeBatch,
      kKernelPhase};
  // For each version from 3 on: the first type of event that the version does
  // not have.
  constexpr uint64_t kNewer[] = {
      kGroupApi, kGroupApi, kCeColl, kKernelPhase, 2 * kKernelPhase};
  const uint64_t newer = kNewer[version - 3];
  const uint64_t asked = uint64_t(unsigned(mask)) & (newer - 1);
  return type != 0 && type < newer &&
      (asked & kAskedBy[size_t(std::countr_zero(type))]) != 0;
}

// State of a kKernelCh event: its kernel has ended on this channel.
inline constexpr int kKernelChStop = 22;
// States of a kProxyStep event, in order: first for a buffer to be sent, then
// for a buffer to be received. kSendPeerWait is new in version 4. It is
// reported at each try to send.
inline constexpr int kSendGpuWait = 8; // the GPU has to fill the buffer
// The peer has to be ready for the data.
inline constexpr int kSendPeerWait = 20;
inline constexpr int kSendWait = 9; // the network has to send the data
inline constexpr int kRecvWait = 10; // the data have to arrive
// The data have to reach the GPU's memory.
inline constexpr int kRecvFlushWait = 11;
inline constexpr int kRecvGpuWait = 12; // the GPU has to take the data

struct CollApiFields {
  const char* func;
  size_t count;
  const char* datatype;
  int root;
  void* stream;
  bool graph_captured;
};

struct P2pApiFields {
  const char* func;
  size_t count;
  const char* datatype;
  void* stream;
  bool graph_captured;
};

// Fields of a collective by copy engines. The fields of other collectives begin
// in the same way.
struct CeCollFields {
  uint64_t seq; // counted per communicator and function
  const char* func;
  const void* send_buffer;
  void* recv_buffer;
  size_t count;
  int root;
  const char* datatype;
};

struct CollFields : CeCollFields {
  uint8_t channels; // in version 3: the largest possible number
  uint8_t warps;
  const char* algorithm;
  const char* protocol;
};

struct P2pFields {
  const char* func;
  void* buffer;
  const char* datatype;
  size_t count;
  int peer;
  uint8_t channels; // not set in version 3
};

// Version 3 names the communicator in each operation.
template <class Fields>
struct Named {
  const char* communicator_name;
  uint64_t communicator_id;
  Fields fields;
};

// From version 5 on, an operation's group of kernels is a field; in earlier
// versions it is the parent of the operation's event.
template <class Fields>
struct InGroup {
  Fields fields;
  void* group;
};

// Version 4 adds nothing to the fields of an operation.
template <class Fields>
struct Alone {
  Fields fields;
};

struct ProxyOpFields {
  int pid; // process that the operation belongs to (PXN)
  uint8_t channel;
  int peer;
  int steps;
  int chunk_bytes;
  int is_send;
};

struct ProxyStepFields {
  int step;
};

struct KernelChFields {
  uint8_t channel;
  uint64_t gpu_ns; // the GPU's globaltimer at the start; not set in version 3
};

// Describes an event. Versions 5 to 7 added fields at the end of some events.
// These fields are not used here.
template <class EventType, template <class> class Operation>
struct Descriptor {
  EventType type;
  void* parent;
  int rank;
  union {
    Operation<CollFields> coll;
    Operation<P2pFields> p2p;
    ProxyOpFields proxy_op;
    ProxyStepFields proxy_step;
    KernelChFields kernel_ch;
    // From version 5 on:
    CollApiFields coll_api;
    P2pApiFields p2p_api;
    CeCollFields ce_coll;
  };
};
using DescriptorV3 = Descriptor<uint8_t, Named>;
using DescriptorV4 = Descriptor<uint8_t, Alone>;
// From version 5 on, the parent of a Coll or P2p event is the event of its API
// call (CollApi or P2pApi).
using DescriptorV5 = Descriptor<uint64_t, InGroup>; // also of versions 6 and 7

// What NCCL reports together with the new state of an event.
union StateArgs {
  uint64_t gpu_ns; // kKernelChStop: the GPU's globaltimer at the end
  size_t bytes; // size of the step
};

using Logger = void (*)(int, unsigned long, const char*, int, const char*, ...);

// The table that a plugin exports. NCCL may call all functions except init()
// and finalize() from any thread, also from a callback of CUDA.
template <class Init, class Event>
struct Table {
  const char* name;
  Init init;
  Result (*start_event)(void* context, void** handle, Event* event);
  Result (*stop_event)(void* handle);
  Result (*record_event_state)(void* handle, int state, StateArgs* args);
  Result (*finalize)(void* context);
};

using InitV3 = Result (*)(void** context, int* mask);
using InitV4 = Result (*)(
    void** context,
    int* mask,
    const char* communicator_name,
    uint64_t communicator_id,
    int nodes,
    int ranks,
    int rank,
    Logger logger);
using InitV5 = Result (*)(
    void** context,
    uint64_t communicator_id,
    int* mask,
    const char* communicator_name,
    int nodes,
    int ranks,
    int rank,
    Logger logger);

using TableV3 = Table<InitV3, DescriptorV3>;
using TableV4 = Table<InitV4, DescriptorV4>;
using TableV5 = Table<InitV5, DescriptorV5>; // also of versions 6 and 7

} // namespace commprof::nccl
