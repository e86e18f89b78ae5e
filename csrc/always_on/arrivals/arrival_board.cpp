#include "always_on/arrivals/arrival_board.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <bit>
#include <cerrno>
#include <new>
#include <stdexcept>
#include <system_error>

#include "core/record.h"

namespace commprof {

namespace {

uint32_t lowBits(uint32_t place, int count) noexcept {
  return place & ((uint32_t(1) << count) - 1);
}

// True if `place` needs `other` in gloo's binomial tree: a place gets its data
// from the place without its highest bit, and waits for those that it sends to.
bool needsInTree(uint32_t place, uint32_t other) noexcept {
  const bool is_above = lowBits(place, std::bit_width(other)) == other;
  const bool is_child =
      other != 0 && lowBits(other, std::bit_width(other) - 1) == place;
  return is_above || is_child;
}

} // namespace

bool mayBeDoneEarly(Op op) noexcept {
  return op == Op::kBroadcast || op == Op::kReduce || op == Op::kGather ||
      op == Op::kScatter || isPointToPoint(op);
}

bool needs(
    const Meaning& meaning,
    uint32_t size,
    uint32_t rank,
    uint32_t other) noexcept {
  if (rank == other) {
    return true;
  }
  if (meaning.op == Op::kGather || meaning.op == Op::kScatter) {
    return rank == meaning.root || other == meaning.root;
  }
  if (meaning.op == Op::kBroadcast && meaning.is_gloo) {
    const uint32_t shift = size - meaning.root % size;
    return needsInTree((rank + shift) % size, (other + shift) % size);
  }
  return true;
}

namespace {

using Word = std::atomic<uint64_t>;
static_assert(Word::is_always_lock_free && sizeof(Word) == 8);

// A cell holds the round of the slots, counted from 1, above the time's bits.
constexpr uint32_t kTimeBits = 45;
constexpr uint64_t kTimeMask = (uint64_t(1) << kTimeBits) - 1;
constexpr uint64_t kNoRoom = 1; // no place begins there

// Words of each group rank before the cells: global rank, end(), clock error.
constexpr uint64_t kWordsPerRank = 3;
constexpr uint64_t kRemote = uint64_t(1) << 32; // next to global rank + 1

// Numbers of collectives, and with them rounds, wrap around.
constexpr uint64_t kRounds = (uint64_t(1) << 32) / ArrivalBoard::kSlots;
static_assert(kRounds < uint64_t(1) << (64 - kTimeBits));

uint64_t roundOf(uint32_t seq) noexcept {
  return uint64_t(seq / ArrivalBoard::kSlots) + 1;
}

enum class Age { kEmpty, kOlder, kSame, kNewer };

// Compares what a cell holds with a round, the shorter way round the circle.
Age ageOf(uint64_t cell, uint64_t round) noexcept {
  const uint64_t held = cell >> kTimeBits;
  if (held == 0 || held == round) {
    return held == 0 ? Age::kEmpty : Age::kSame;
  }
  return (held + kRounds - round) % kRounds < kRounds / 2 ? Age::kNewer
                                                          : Age::kOlder;
}

// Shifting the difference to the top and back extends its sign.
int64_t sinceNs(uint64_t cell, uint64_t near_ns) noexcept {
  return int64_t((cell - near_ns) << (64 - kTimeBits)) >> (64 - kTimeBits);
}

} // namespace

struct ArrivalBoard::Header {
  Word token; // written last
  Word used_bytes;
  // The fields of HostLinks.
  Word clock_known;
  Word clock_offset_ns;
  Word peers;
  Word heard;
  Word unsent;
  struct Place {
    Word key; // 0: free
    Word size; // ranks
    Word offset; // 0 until it has one, kNoRoom if it gets none
  };
  Place places[kMaxGroups];

  // Reserves `bytes` and returns their offset; kNoRoom if too few are left,
  // which stay available to smaller groups.
  uint64_t take(uint64_t bytes) noexcept {
    uint64_t begin = used_bytes.load();
    do {
      if (bytes > kBytes - begin) {
        return kNoRoom;
      }
    } while (!used_bytes.compare_exchange_weak(begin, begin + bytes));
    return begin;
  }
};

namespace {

void* mapShared(int fd) noexcept {
  const int access = PROT_READ | PROT_WRITE;
  return mmap(nullptr, ArrivalBoard::kBytes, access, MAP_SHARED, fd, 0);
}

[[noreturn]] void fail(int fd, const std::string& what) {
  const int error = errno;
  if (fd >= 0) {
    close(fd);
  }
  throw std::system_error(error, std::generic_category(), what);
}

} // namespace

ArrivalBoard::ArrivalBoard(int fd, void* memory) noexcept
    : fd_(fd), header_(static_cast<Header*>(memory)) {}

ArrivalBoard::~ArrivalBoard() {
  munmap(header_, kBytes);
  close(fd_);
}

std::unique_ptr<ArrivalBoard> ArrivalBoard::create(uint64_t token) {
  const int fd = memfd_create("commprof-arrivals", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, off_t(kBytes)) != 0) {
    fail(fd, "memory for arrivals");
  }
  void* memory = mapShared(fd);
  if (memory == MAP_FAILED) {
    fail(fd, "memory for arrivals");
  }
  auto* header = new (memory) Header{};
  header->used_bytes.store((sizeof(Header) + 63) / 64 * 64);
  header->token.store(token, std::memory_order_release);
  return std::unique_ptr<ArrivalBoard>(new ArrivalBoard(fd, memory));
}

std::unique_ptr<ArrivalBoard> ArrivalBoard::open(
    const std::string& path,
    uint64_t token) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
  struct stat found{};
  if (fd < 0 || fstat(fd, &found) != 0) {
    fail(fd, path);
  }
  // Another process may have the pid by now: check before reading.
  if (!S_ISREG(found.st_mode) || found.st_size != off_t(kBytes)) {
    close(fd);
    throw std::invalid_argument(path + " holds no arrivals");
  }
  void* memory = mapShared(fd);
  if (memory == MAP_FAILED) {
    fail(fd, path);
  }
  std::unique_ptr<ArrivalBoard> board(new ArrivalBoard(fd, memory));
  if (board->header_->token.load(std::memory_order_acquire) != token) {
    throw std::invalid_argument(path + " holds the arrivals of another job");
  }
  return board;
}

bool ArrivalBoard::join(const Member& member, Group& group) noexcept {
  const uint64_t words = (kSlots + kWordsPerRank) * member.size;
  const uint64_t bytes = words * sizeof(Word);
  for (uint32_t step = 0; step < kMaxGroups; ++step) {
    Header::Place& place = header_->places[(member.key + step) % kMaxGroups];
    uint64_t key = 0;
    if (place.key.compare_exchange_strong(key, member.key)) {
      place.size.store(member.size);
      place.offset.store(header_->take(bytes));
    } else if (key != member.key) {
      continue;
    }
    const uint64_t offset = place.offset.load();
    if (offset == kNoRoom) {
      return false;
    }
    if (offset == 0) {
      return true;
    }
    if (place.size.load() != member.size || member.rank >= member.size) {
      return false;
    }
    group = groupAt(offset, member.size);
    group.rank_ = member.rank;
    group.ranks_[member.rank].store(uint64_t(member.global_rank) + 1);
    group.errors_ns_[member.rank].store(0);
    return true;
  }
  return false;
}

ArrivalBoard::Group ArrivalBoard::groupAt(
    uint64_t offset,
    uint64_t size) noexcept {
  Group group;
  group.size_ = uint32_t(size);
  group.ranks_ =
      reinterpret_cast<Word*>(reinterpret_cast<char*>(header_) + offset);
  group.ends_ = group.ranks_ + size;
  group.errors_ns_ = group.ends_ + size;
  group.cells_ = group.errors_ns_ + size;
  return group;
}

ArrivalBoard::Group ArrivalBoard::at(uint32_t place, uint64_t& key) noexcept {
  const Header::Place& found = header_->places[place];
  key = found.key.load();
  const uint64_t offset = key == 0 ? 0 : found.offset.load();
  if (offset <= kNoRoom) {
    return {};
  }
  return groupAt(offset, found.size.load());
}

ArrivalBoard::Group ArrivalBoard::find(uint64_t key) noexcept {
  for (uint32_t step = 0; step < kMaxGroups; ++step) {
    uint64_t there = 0;
    const Group group = at(uint32_t((key + step) % kMaxGroups), there);
    if (there == key) {
      return group;
    }
    if (there == 0) {
      break;
    }
  }
  return {};
}

void ArrivalBoard::setLinks(const HostLinks& links) noexcept {
  header_->clock_offset_ns.store(uint64_t(links.clock_offset_ns));
  header_->peers.store(links.peers);
  header_->heard.store(links.heard);
  header_->unsent.store(links.unsent);
  header_->clock_known.store(links.clock_known);
}

HostLinks ArrivalBoard::links() const noexcept {
  HostLinks links;
  links.clock_known = header_->clock_known.load() != 0;
  links.clock_offset_ns = int64_t(header_->clock_offset_ns.load());
  links.peers = uint32_t(header_->peers.load());
  links.heard = uint32_t(header_->heard.load());
  links.unsent = header_->unsent.load();
  return links;
}

bool ArrivalBoard::Group::isLocal(uint32_t rank) const noexcept {
  const uint64_t who = ranks_[rank].load();
  return who != 0 && (who & kRemote) == 0;
}

uint32_t ArrivalBoard::Group::globalRank(uint32_t rank) const noexcept {
  return uint32_t((ranks_[rank].load() & ~kRemote) - 1);
}

uint64_t ArrivalBoard::Group::end(uint32_t rank) const noexcept {
  return ends_[rank].load(std::memory_order_acquire);
}

bool ArrivalBoard::Group::find(
    uint32_t rank,
    uint32_t seq,
    uint64_t near_ns,
    uint64_t& issue_ns) const noexcept {
  const uint64_t cell = cells_[uint64_t(seq % kSlots) * size_ + rank].load(
      std::memory_order_acquire);
  issue_ns = near_ns + uint64_t(sinceNs(cell, near_ns));
  return ageOf(cell, roundOf(seq)) == Age::kSame;
}

bool ArrivalBoard::Group::beginPostingFor(
    const Member& remote,
    uint64_t clock_error_ns) noexcept {
  if (remote.rank >= size_ || isLocal(remote.rank)) {
    return false;
  }
  rank_ = remote.rank;
  ranks_[rank_].store((uint64_t(remote.global_rank) + 1) | kRemote);
  errors_ns_[rank_].store(clock_error_ns, std::memory_order_relaxed);
  return true;
}

void ArrivalBoard::Group::post(uint32_t seq, uint64_t issue_ns) noexcept {
  const uint64_t cell = roundOf(seq) << kTimeBits | (issue_ns & kTimeMask);
  cells_[uint64_t(seq % kSlots) * size_ + rank_].store(
      cell, std::memory_order_release);
  const uint64_t end = ends_[rank_].load(std::memory_order_relaxed);
  const uint32_t further = seq + 1 - uint32_t(end); // numbers wrap around
  if (end == 0 || comesBefore(uint32_t(end), seq + 1)) {
    const uint64_t next = end == 0 ? uint64_t(seq) + 1 : end + further;
    ends_[rank_].store(next, std::memory_order_release);
  }
}

ArrivalBoard::State ArrivalBoard::Group::last(
    uint32_t seq,
    uint64_t near_ns,
    Last& found,
    const AskedAbout& asked) const noexcept {
  const Word* cells = cells_ + uint64_t(seq % kSlots) * size_;
  const uint64_t round = roundOf(seq);
  int64_t latest_ns = INT64_MIN; // relative to near_ns
  uint32_t latest_rank = 0;
  uint64_t error_ns = 0;
  bool missing = false;
  for (uint32_t rank = 0; rank < size_; ++rank) {
    const uint64_t cell = cells[rank].load(std::memory_order_acquire);
    const Age age = ageOf(cell, round);
    if (age == Age::kNewer) {
      return State::kLost;
    }
    missing = missing || age != Age::kSame;
    const int64_t after_ns = sinceNs(cell, near_ns);
    error_ns =
        std::max(error_ns, errors_ns_[rank].load(std::memory_order_relaxed));
    const bool came = near_ns + uint64_t(after_ns) <= asked.done_ns;
    const bool held_up =
        rank == rank_ || (came && needs(asked.meaning, size_, rank_, rank));
    if (held_up && after_ns > latest_ns) {
      latest_ns = after_ns;
      latest_rank = rank;
    }
  }
  if (missing) {
    return State::kMissing;
  }
  found.at_ns = near_ns + uint64_t(latest_ns);
  found.rank = globalRank(latest_rank);
  found.clock_error_ns = error_ns;
  return State::kKnown;
}

} // namespace commprof
