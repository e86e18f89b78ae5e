#include "nccl_plugin/communicator.h"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <mutex>
#include <new>
#include <vector>

#include "base/json_string.h"
#include "core/recorder.h"
#include "nccl_plugin/handle.h"
#include "nccl_plugin/run.h"

namespace commprof::nccl {

namespace {

// Number of peers whose messages are counted if the number of ranks is not
// known, as in version 3 of the interface.
constexpr int kPeersOfUnknown = 1024;

struct Registry {
  std::mutex mutex;
  std::vector<Communicator*> opened;
  std::deque<Communicator*> closed; // in order of closing
  uint32_t groups = 0;
  uint32_t communicators = 0;
};

// Never destroyed: NCCL may finalise after static objects are gone.
Registry& registry() {
  static Registry* made = new Registry();
  return *made;
}

// Storage for communicators. A communicator is constructed when it is first
// needed.
constexpr int kMost = kMaxCommunicators + kQuarantine + 2;
alignas(Communicator) std::byte g_storage[kMost][sizeof(Communicator)];
std::atomic<int> g_made{0};

Communicator* makeCommunicator() {
  return new (g_storage[g_made++]) Communicator();
}

std::string hexadecimal(uint64_t number) {
  std::string text(16, '0');
  for (auto digit = text.rbegin(); digit != text.rend(); ++digit) {
    *digit = "0123456789abcdef"[number & 15];
    number >>= 4;
  }
  return text;
}

} // namespace

Communicator* Communicator::of(void* context) noexcept {
  const uintptr_t place = reinterpret_cast<uintptr_t>(context) -
      reinterpret_cast<uintptr_t>(g_storage);
  const bool made = place < sizeof(g_storage) &&
      place % sizeof(Communicator) == 0 &&
      place / sizeof(Communicator) < size_t(g_made.load());
  return made ? static_cast<Communicator*>(context) : nullptr;
}

Communicator* unrecordedCommunicator() noexcept {
  static Communicator* const made = [] {
    Communicator* unrecorded = makeCommunicator();
    unrecorded->passed_on.store(true);
    return unrecorded;
  }();
  return made;
}

uint32_t Communicator::nextMessage(Origin origin, Op op, int peer) noexcept {
  const int room = room_.load(std::memory_order_acquire);
  std::atomic<uint32_t>* counters = messages_.load(std::memory_order_acquire);
  if (peer < 0 || peer >= room) {
    return kNoSeq;
  }
  const size_t row = 2 * size_t(origin) + (op == Op::kSend ? 1 : 0);
  return counters[row * size_t(room) + size_t(peer)].fetch_add(
      1, std::memory_order_relaxed);
}

// The lock is seldom contended: usually only one thread of NCCL calls this for
// a communicator.
bool Communicator::sawGpuTime(uint64_t gpu_ns, uint64_t host_ns) noexcept {
  const Held held(clock_used_);
  return clock_.add(host_ns, gpu_ns);
}

uint64_t Communicator::gpuToHost(uint64_t gpu_ns) noexcept {
  const Held held(clock_used_);
  return clock_.toHost(gpu_ns);
}

void Communicator::begin(int of_ranks) {
  const int room = of_ranks == kUnknown ? kPeersOfUnknown : of_ranks;
  if (room > room_.load()) {
    const int larger = std::max(room, 2 * room_.load());
    kept_.push_back(
        std::make_unique<std::atomic<uint32_t>[]>(size_t(larger) * 4));
    messages_.store(kept_.back().get());
    room_.store(larger);
  }
  for (size_t i = 0; i < size_t(room_.load()) * 4; ++i) {
    messages_.load()[i].store(0);
  }
  for (size_t origin = 0; origin < 2; ++origin) {
    collectives_[origin].store(0);
    groups[origin].store(0);
  }
  {
    const Held held(clock_used_);
    clock_ = GpuClock();
  }
  users_context.store(nullptr);
  rank.store(kUnknown);
  ranks = of_ranks;
  generation.fetch_add(1);
  open.store(true);
}

void Communicator::describeSelf() const {
  Recorder::instance().addDocument(
      BlockType::kCommunicator,
      "{\"id\": " + std::to_string(number) + ", \"hash\": " +
          jsonString(hexadecimal(id_)) + ", \"name\": " + jsonString(name_) +
          ", \"rank\": " + std::to_string(rank.load()) +
          ", \"size\": " + std::to_string(std::max(ranks, 0)) + "}");
}

void Communicator::describe(Origin origin) {
  std::atomic<uint32_t>& group = groups[size_t(origin)];
  if (isJoined() || group.load() != 0) {
    // Described already, or the trace belongs to commprof's capture, which adds
    // torch's process groups.
    return;
  }
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (group.load() != 0) {
    return;
  }
  const bool replays = origin == Origin::kReplay;
  const uint32_t number = ++all.groups;
  const std::string name = hexadecimal(id_) + (replays ? " replays" : "");
  std::string description = name_;
  if (replays) {
    description = (name_.empty() ? hexadecimal(id_) : name_) + " replays";
  }
  const auto size = uint32_t(std::max(ranks, 0));
  Recorder::instance().addGroup(
      {number, name, uint32_t(rank.load()), size, false},
      "{\"id\": " + std::to_string(number) + ", \"name\": " + jsonString(name) +
          ", \"description\": " + jsonString(description) +
          ", \"backend\": \"nccl\", \"rank\": " + std::to_string(rank.load()) +
          ", \"size\": " + std::to_string(size) + "}");
  group.store(number);
}

Communicator* openCommunicator(int ranks) {
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  Communicator* taken = nullptr;
  if (all.opened.size() >= size_t(kMaxCommunicators)) {
    return nullptr;
  }
  if (all.closed.size() > size_t(kQuarantine)) {
    taken = all.closed.front();
    all.closed.pop_front();
  } else if (g_made.load() < kMost - 1) {
    taken = makeCommunicator();
  } else {
    return nullptr;
  }
  all.opened.push_back(taken);
  taken->number = ++all.communicators;
  taken->begin(ranks);
  return taken;
}

bool nameCommunicator(
    Communicator& communicator,
    uint64_t id,
    const char* name,
    int rank) {
  {
    Registry& all = registry();
    const std::lock_guard<std::mutex> lock(all.mutex);
    if (communicator.rank.load() != Communicator::kUnknown) {
      return true;
    }
    for (const Communicator* other : all.opened) {
      if (other->isOf(id)) {
        communicator.open.store(false);
        return false;
      }
    }
    communicator.id_ = id;
    communicator.name_ = name == nullptr ? "" : name;
    communicator.rank.store(rank);
  }
  communicator.describeSelf();
  communicator.describe(Origin::kCall);
  return true;
}

bool closeCommunicator(Communicator& communicator) noexcept {
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto place =
      std::find(all.opened.begin(), all.opened.end(), &communicator);
  if (place == all.opened.end()) {
    return false; // NCCL finalises it a second time
  }
  communicator.open.store(false);
  communicator.passed_on.store(false);
  all.opened.erase(place);
  try {
    all.closed.push_back(&communicator);
  } catch (...) { // out of memory: this communicator is not reused
  }
  return all.opened.empty();
}

} // namespace commprof::nccl
