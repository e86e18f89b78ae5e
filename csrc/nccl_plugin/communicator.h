// Communicators of this process. In the plugin's own trace, each communicator
// is also recorded as a process group.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/record.h"
#include "nccl_plugin/gpu_clock.h"

namespace commprof::nccl {

// Whether an operation comes from a call or from a replay of a CUDA graph. The
// order of calls and replays differs between ranks. So replays have their own
// sequence numbers, and a process group of their own.
enum class Origin : uint8_t { kCall, kReplay };

// NCCL's context of a communicator. Never destroyed, because NCCL may use it
// after finalize(). It is reused after kQuarantine other communicators were
// finalised.
struct Communicator {
  // Value of `rank` or `ranks` if it is not known, in version 3 of the
  // interface.
  static constexpr int kUnknown = -1;

  // Returns null if the context is not a Communicator of this process. It may
  // belong to the user's plugin or, with PXN, to another process. Another
  // process's context is no address in this process.
  static Communicator* of(void* context) noexcept;

  std::atomic<uint32_t> generation{0}; // increases with each use of this object
  std::atomic<bool> open{false};
  std::atomic<int> rank{kUnknown};
  int ranks = kUnknown;
  uint32_t number = 0; // id in the trace, from 1; never reused
  // `passed_on`: true if the user's plugin knows the communicator.
  // `users_context`: the communicator's context in that plugin.
  std::atomic<bool> passed_on{false};
  std::atomic<void*> users_context{nullptr};
  // Ids of the process groups in the trace, by Origin; 0: not described yet.
  std::atomic<uint32_t> groups[2]{};

  // Returns the sequence number of the next collective, equal on all ranks.
  uint32_t nextCollective(Origin origin) noexcept {
    return collectives_[size_t(origin)].fetch_add(1, std::memory_order_relaxed);
  }
  // Returns the sequence number of the next message to or from a peer, equal on
  // both ranks. kNoSeq if there is no counter for the peer (in version 3 of the
  // interface, for ranks from 1024 on).
  uint32_t nextMessage(Origin origin, Op op, int peer) noexcept;
  // See GpuClock::add().
  bool sawGpuTime(uint64_t gpu_ns, uint64_t host_ns) noexcept;
  // Converts a time of the GPU. Requires an earlier call of sawGpuTime().
  uint64_t gpuToHost(uint64_t gpu_ns) noexcept;
  // Adds the communicator to the plugin's own trace as a process group, unless
  // it is there already. Allocates.
  void describe(Origin origin);

  bool isOf(uint64_t id) const noexcept {
    return rank.load() != kUnknown && id_ == id;
  }
  // Used by the functions below this class.
  void begin(int ranks);
  void describeSelf() const;

 private:
  friend bool nameCommunicator(Communicator&, uint64_t, const char*, int);

  std::atomic<uint32_t> collectives_[2]{};
  // Counters [origin][is send][peer]. If there are too few counters, a larger
  // array is made. Old arrays are kept, because a thread may still count in
  // them.
  std::vector<std::unique_ptr<std::atomic<uint32_t>[]>> kept_;
  std::atomic<std::atomic<uint32_t>*> messages_{nullptr};
  std::atomic<int> room_{0};
  std::atomic_flag clock_used_; // held only for a few instructions
  GpuClock clock_;
  uint64_t id_ = 0;
  std::string name_;
};

// Largest number of communicators at one time.
inline constexpr int kMaxCommunicators = 4096;
inline constexpr int kQuarantine = 256;

// Returns a communicator for init(); null if there are too many.
Communicator* openCommunicator(int ranks);
// Names a communicator, once. In version 3 of the interface, the name comes
// with the communicator's first operation. Returns false if this process
// already has another rank of the same communicator. Nothing of this rank is
// then recorded, because a trace holds one rank.
bool nameCommunicator(
    Communicator& communicator,
    uint64_t id,
    const char* name,
    int rank);
// Returns the context for communicators that this plugin does not record, if
// the user's plugin made no context.
Communicator* unrecordedCommunicator() noexcept;
// Returns true if no communicator is open any more.
bool closeCommunicator(Communicator& communicator) noexcept;

} // namespace commprof::nccl
