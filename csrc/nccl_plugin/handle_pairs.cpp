#include "nccl_plugin/handle_pairs.h"

#include <sys/mman.h>

#include <array>
#include <atomic>
#include <stdexcept>

namespace commprof::nccl {

namespace {

constexpr uint32_t kUsersOnly = 1 << 14; // number of slots for Tag::kUsers

using UsersHandle = ValueOfUse<void*>;

// Number of slots of a tag, and number of handles per slot.
struct Room {
  uint32_t slots;
  uint32_t of_slot;
};
constexpr std::array<Room, 8> kRooms = {{
    {0, 0},
    {kCalls, 1},
    {kCapturedCalls, 1},
    {kOperations, 1},
    {kOperations, kMaxChannels},
    {kTransfers, 1},
    {kTransfers, kStepsInFlight},
    {kUsersOnly, 1},
}};

// Index of each tag's first pair. The last element is the number of all pairs.
constexpr std::array<size_t, 9> kFirst = [] {
  std::array<size_t, 9> first{};
  for (size_t tag = 0; tag < kRooms.size(); ++tag) {
    first[tag + 1] =
        first[tag] + size_t(kRooms[tag].slots) * kRooms[tag].of_slot;
  }
  return first;
}();

// Mapped when the user's plugin is loaded. A page takes memory once it is used.
std::atomic<UsersHandle*> g_pairs{nullptr};
std::atomic<uint64_t> g_users_only{0};

UsersHandle* pairOf(Handle handle) noexcept {
  const Room& room = kRooms[size_t(handle.tag())];
  UsersHandle* pairs = g_pairs.load(std::memory_order_acquire);
  if (pairs == nullptr || handle.slot() >= room.slots ||
      handle.channel() >= room.of_slot) {
    return nullptr;
  }
  return pairs + kFirst[size_t(handle.tag())] +
      size_t(handle.channel()) * room.slots + handle.slot();
}

} // namespace

void mapHandlePairs() {
  if (g_pairs.load() != nullptr) {
    return;
  }
  void* mapped = mmap(
      nullptr,
      kFirst.back() * sizeof(UsersHandle),
      PROT_READ | PROT_WRITE,
      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
      -1,
      0);
  if (mapped == MAP_FAILED) {
    throw std::runtime_error("there is no memory for the plugin's handles");
  }
  g_pairs.store(static_cast<UsersHandle*>(mapped));
}

void* joinHandles(Handle ours, void* users) noexcept {
  if (users == nullptr) {
    return ours.pointer();
  }
  if (ours.tag() == Tag::kNone) {
    if (Handle::of(users).tag() == Tag::kNone) {
      return users;
    }
    const Turn turn = nextTurn(g_users_only, kUsersOnly);
    ours = {Tag::kUsers, 0, turn.slot, turn.use};
  }
  if (UsersHandle* pair = pairOf(ours)) {
    pair->write(users, ours.use());
  }
  return ours.pointer();
}

void* usersHandle(void* joined) noexcept {
  const Handle handle = Handle::of(joined);
  if (handle.tag() == Tag::kNone) {
    return joined;
  }
  const UsersHandle* pair = pairOf(handle);
  void* users = nullptr;
  return pair != nullptr && pair->read(users, handle.use()) ? users : nullptr;
}

} // namespace commprof::nccl
