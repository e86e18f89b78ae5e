#include "always_on/arrivals/arrival_board.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <bit>
#include <cerrno>
#include <stdexcept>
#include <system_error>

#include "base/fnv1a.h"
#include "core/record.h"

namespace commprof {

namespace {

uint32_t lowBits(uint32_t place, int count) noexcept {
  return place & ((uint32_t(1) << count) - 1);
}

// True if the rank at `place` in gloo's binomial tree cannot be done before the
// rank at `other` has arrived. A rank waits for all ranks above it, up to the
// root, and for its children. The number of a parent is that of its child
// without the highest set bit.
bool needsInTree(uint32_t place, uint32_t other) noexcept {
  const bool is_above = lowBits(place, std::bit_width(other)) == other;
  const bool is_child =
      other != 0 && lowBits(other, std::bit_width(other) - 1) == place;
  return is_above || is_child;
}

} // namespace

bool mayBeDoneEarly(Op op) noexcept {
  return awaitsOf(op) != Awaits::kAll;
}

bool needs(
    const Meaning& meaning,
    uint32_t size,
    uint32_t rank,
    uint32_t other) noexcept {
  if (rank == other) {
    return true;
  }
  const Awaits awaits = awaitsOf(meaning.op);
  if (awaits == Awaits::kRoot) {
    return rank == meaning.root || other == meaning.root;
  }
  if (awaits == Awaits::kTree && meaning.is_gloo) {
    const uint32_t shift = size - meaning.root % size;
    return needsInTree((rank + shift) % size, (other + shift) % size);
  }
  return true;
}

bool needsAll(const Meaning& meaning, uint32_t size, uint32_t rank) noexcept {
  if (size <= 2) {
    return true;
  }
  const Awaits awaits = awaitsOf(meaning.op);
  if (awaits == Awaits::kRoot) {
    return rank == meaning.root;
  }
  return awaits != Awaits::kTree || !meaning.is_gloo;
}

namespace {

using Word = std::atomic<uint64_t>;
static_assert(Word::is_always_lock_free && sizeof(Word) == 8);

// The lower kTimeBits bits of a cell hold a time. The bits above hold the
// round: 1 for the first use of the slots, 2 for the second, and so on.
constexpr uint32_t kTimeBits = 45;
constexpr uint64_t kTimeMask = (uint64_t(1) << kTimeBits) - 1;
// An offset that means "no room"; nothing begins at offset 1.
constexpr uint64_t kNoRoom = 1;

// Rounds are counted modulo this number. With kSlots slots, rounds and sequence
// numbers then wrap around at the same time.
constexpr uint64_t kRounds = (uint64_t(1) << 32) / ArrivalBoard::kSlots;
static_assert(kRounds < uint64_t(1) << (64 - kTimeBits));

enum class Age { kEmpty, kOlder, kSame, kNewer };

Age ageOf(uint64_t cell, uint64_t round) noexcept {
  const uint64_t held = cell >> kTimeBits;
  if (held == 0 || held == round) {
    return held == 0 ? Age::kEmpty : Age::kSame;
  }
  return (held + kRounds - round) % kRounds < kRounds / 2 ? Age::kNewer
                                                          : Age::kOlder;
}

// Returns the time in a cell minus `near_ns`. The two shifts extend the sign of
// a number of kTimeBits bits.
int64_t sinceNs(uint64_t cell, uint64_t near_ns) noexcept {
  return int64_t((cell - near_ns) << (64 - kTimeBits)) >> (64 - kTimeBits);
}

uint64_t pairOf(uint32_t low, uint32_t high) noexcept {
  return uint64_t(high) << 32 | low;
}

} // namespace

namespace board_memory {

// Two words that the carrier writes together. During a write, `check` is 0. If
// `check` is the same before and after a read, both words come from the same
// write.
struct Checked {
  Word check;
  Word first;
  Word second;

  void write(uint64_t new_check, uint64_t one, uint64_t two) noexcept {
    check.store(0, std::memory_order_relaxed);
    first.store(one, std::memory_order_release);
    second.store(two, std::memory_order_release);
    check.store(new_check, std::memory_order_release);
  }
  // Returns `check`; 0 if the words changed meanwhile.
  uint64_t read(uint64_t& one, uint64_t& two) const noexcept {
    const uint64_t before = check.load(std::memory_order_acquire);
    one = first.load(std::memory_order_acquire);
    two = second.load(std::memory_order_acquire);
    return check.load(std::memory_order_relaxed) == before ? before : 0;
  }
};

// Hash table of arrivals of single ranks of other hosts. The key is group,
// sequence number and rank.
struct ListedTable {
  static constexpr size_t kWays = 4; // places of a set; the oldest is reused
  static constexpr size_t kSets = 1 << 13;
  Checked places[kSets][kWays]; // words: time of arrival, global rank

  static uint64_t hashOf(uint64_t key, uint32_t seq, uint32_t rank) noexcept {
    Fnv1a hash;
    hash.add(key);
    hash.add(pairOf(seq, rank));
    return hash.value() | 1;
  }
  void write(uint64_t hash, uint64_t at_ns, uint32_t global_rank) noexcept {
    Checked* const ways = places[(hash >> 32) % kSets];
    Checked* oldest = ways;
    for (Checked* way = ways; way != ways + kWays; ++way) {
      if (way->check.load(std::memory_order_relaxed) == hash) {
        oldest = way;
        break;
      }
      if (int64_t(
              way->first.load(std::memory_order_relaxed) -
              oldest->first.load(std::memory_order_relaxed)) < 0) {
        oldest = way;
      }
    }
    oldest->write(hash, at_ns, global_rank);
  }
  bool read(uint64_t hash, uint64_t& at_ns, uint64_t& global_rank)
      const noexcept {
    for (const Checked& way : places[(hash >> 32) % kSets]) {
      if (way.read(at_ns, global_rank) == hash) {
        return true;
      }
    }
    return false;
  }
};

} // namespace board_memory

using board_memory::Checked;
using board_memory::ListedTable;

struct ArrivalBoard::Place {
  Word key; // 0: free
  Word shape; // number of ranks, and number of slots
  // Offset of the list of last arrivals. 0: there is no list yet; kNoRoom:
  // there was no room for the list.
  Word lasts;
  Word columns; // offset of the newest column; 0: none
  Word local_ranks; // number of columns, one for each rank of this host

  uint32_t size() const noexcept {
    return uint32_t(shape.load(std::memory_order_relaxed));
  }
  uint32_t slots() const noexcept {
    return uint32_t(shape.load(std::memory_order_relaxed) >> 32);
  }
  uint64_t roundOf(uint32_t seq) const noexcept {
    return seq / slots() % kRounds + 1;
  }
};

// Head of a column, which holds the arrivals of one rank of this host. The
// cells follow the head in memory, and then the kinds of the arrivals.
struct ArrivalBoard::Column {
  Word who; // rank in the group and global rank
  Word next; // offset of an older column; 0: none
  Word end; // newest sequence number plus 1; 0: none yet
  Word reserved;

  Word* cells() noexcept {
    return reinterpret_cast<Word*>(this + 1);
  }
  std::atomic<Kind>* kinds(uint32_t slots) noexcept {
    return reinterpret_cast<std::atomic<Kind>*>(cells() + slots);
  }
  uint32_t rank() const noexcept {
    return uint32_t(who.load(std::memory_order_relaxed));
  }
  uint32_t globalRank() const noexcept {
    return uint32_t(who.load(std::memory_order_relaxed) >> 32);
  }
  static uint64_t bytes(uint64_t slots) noexcept {
    return sizeof(Column) + slots * (sizeof(Word) + sizeof(Kind));
  }
};

struct ArrivalBoard::Header {
  Word token; // written last
  Word used_bytes;
  Word local_ranks; // ranks that are expected on this host
  // The next words are the fields of HostLinks.
  Word clock_known;
  Word clock_offset_ns;
  Word peers;
  Word heard;
  Word unsent;
  Word skipped;
  Place places[kMaxGroups];
  ListedTable listed;

  // Reserves `bytes` and returns their offset; kNoRoom if too few bytes are
  // left.
  uint64_t take(uint64_t bytes) noexcept {
    const uint64_t whole = (bytes + 63) / 64 * 64;
    uint64_t begin = used_bytes.load();
    do {
      if (whole > kBytes - begin) {
        return kNoRoom;
      }
    } while (!used_bytes.compare_exchange_weak(begin, begin + whole));
    return begin;
  }
};

namespace {

void* mapShared(int fd) noexcept {
  const int access = PROT_READ | PROT_WRITE;
  return mmap(nullptr, ArrivalBoard::kBytes, access, MAP_SHARED, fd, 0);
}

template <class T>
T* inMemory(void* memory, uint64_t offset) noexcept {
  return reinterpret_cast<T*>(static_cast<char*>(memory) + offset);
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

std::unique_ptr<ArrivalBoard> ArrivalBoard::create(
    uint64_t token,
    uint32_t local_ranks) {
  const int fd = memfd_create("commprof-arrivals", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, off_t(kBytes)) != 0) {
    fail(fd, "cannot make shared memory for the arrival times of ranks");
  }
  void* memory = mapShared(fd);
  if (memory == MAP_FAILED) {
    fail(fd, "cannot make shared memory for the arrival times of ranks");
  }
  auto* header = static_cast<Header*>(memory); // new memory is zero
  header->used_bytes.store((sizeof(Header) + 63) / 64 * 64);
  header->local_ranks.store(local_ranks);
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
  // The pid may belong to another process by now: check before reading.
  if (!S_ISREG(found.st_mode) || found.st_size != off_t(kBytes)) {
    close(fd);
    throw std::invalid_argument(path + " holds no arrival times of ranks");
  }
  void* memory = mapShared(fd);
  if (memory == MAP_FAILED) {
    fail(fd, path);
  }
  std::unique_ptr<ArrivalBoard> board(new ArrivalBoard(fd, memory));
  if (board->header_->token.load(std::memory_order_acquire) != token) {
    throw std::invalid_argument(
        path + " holds the arrival times of another job's ranks");
  }
  return board;
}

size_t ArrivalBoard::usedBytes() const noexcept {
  return header_->used_bytes.load();
}

// Once half of the memory is taken, new groups get far fewer slots, so that
// more groups have room.
uint32_t ArrivalBoard::slotsFor(uint32_t size) const noexcept {
  const uint64_t local = std::min(
      uint64_t(size), std::max<uint64_t>(header_->local_ranks.load(), 1));
  const uint64_t left = kBytes - header_->used_bytes.load();
  const uint64_t share = left > kBytes / 2 ? left / 8 : left / 192;
  uint32_t slots = kSlots;
  while (slots > kFewestSlots &&
         slots * sizeof(Checked) + local * Column::bytes(slots) > share) {
    slots /= 2;
  }
  return slots;
}

bool ArrivalBoard::join(const Member& member, Group& group) noexcept {
  for (uint32_t step = 0; step < kMaxGroups; ++step) {
    Place& place = header_->places[(member.key + step) % kMaxGroups];
    uint64_t key = 0;
    if (place.key.compare_exchange_strong(key, member.key)) {
      const uint32_t slots = slotsFor(member.size);
      place.shape.store(pairOf(member.size, slots));
      place.lasts.store(header_->take(slots * sizeof(Checked)));
    } else if (key != member.key) {
      continue;
    }
    const uint64_t lasts = place.lasts.load();
    if (lasts == 0) {
      return true;
    }
    if (lasts == kNoRoom || place.size() != member.size ||
        member.rank >= member.size) {
      return false;
    }
    Column* const own = columnOf(place, member);
    if (own == nullptr) {
      return false;
    }
    group.board_ = this;
    group.place_ = &place;
    group.own_ = own;
    return true;
  }
  return false;
}

ArrivalBoard::Column* ArrivalBoard::columnAt(uint64_t offset) const noexcept {
  return offset == 0 ? nullptr : inMemory<Column>(header_, offset);
}

// Returns the column of a rank, and makes it if there is none yet. Null if
// there is no room. Only the rank itself makes its column.
ArrivalBoard::Column* ArrivalBoard::columnOf(
    Place& place,
    const Member& member) noexcept {
  for (Column* column = columnAt(place.columns.load()); column != nullptr;
       column = columnAt(column->next.load())) {
    if (column->rank() == member.rank) {
      column->who.store(pairOf(member.rank, member.global_rank));
      return column;
    }
  }
  const uint64_t offset = header_->take(Column::bytes(place.slots()));
  if (offset == kNoRoom) {
    return nullptr;
  }
  Column* const column = columnAt(offset);
  column->who.store(pairOf(member.rank, member.global_rank));
  uint64_t newest = place.columns.load();
  do {
    column->next.store(newest);
  } while (!place.columns.compare_exchange_weak(newest, offset));
  place.local_ranks.fetch_add(1);
  return column;
}

ArrivalBoard::Group ArrivalBoard::at(uint32_t place, uint64_t& key) noexcept {
  Place& found = header_->places[place];
  key = found.key.load();
  Group group;
  if (key != 0 && found.lasts.load() > kNoRoom) {
    group.board_ = this;
    group.place_ = &found;
  }
  return group;
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
  header_->skipped.store(links.skipped);
  header_->clock_known.store(links.clock_known);
}

HostLinks ArrivalBoard::links() const noexcept {
  HostLinks links;
  links.clock_known = header_->clock_known.load() != 0;
  links.clock_offset_ns = int64_t(header_->clock_offset_ns.load());
  links.peers = uint32_t(header_->peers.load());
  links.heard = uint32_t(header_->heard.load());
  links.unsent = header_->unsent.load();
  links.skipped = header_->skipped.load();
  return links;
}

uint32_t ArrivalBoard::Group::size() const noexcept {
  return place_->size();
}

uint32_t ArrivalBoard::Group::slots() const noexcept {
  return place_->slots();
}

uint32_t ArrivalBoard::Group::localRanks() const noexcept {
  return uint32_t(place_->local_ranks.load(std::memory_order_acquire));
}

bool ArrivalBoard::Group::isLocal(uint32_t rank) const noexcept {
  for (const Column* column = board_->columnAt(place_->columns.load());
       column != nullptr;
       column = board_->columnAt(column->next.load())) {
    if (column->rank() == rank) {
      return true;
    }
  }
  return false;
}

bool ArrivalBoard::Group::newestEnd(uint32_t& newest) const noexcept {
  bool any = false;
  for (Column* column = board_->columnAt(place_->columns.load());
       column != nullptr;
       column = board_->columnAt(column->next.load())) {
    const uint64_t end = column->end.load(std::memory_order_acquire);
    if (end != 0 && (!any || comesBefore(newest, uint32_t(end)))) {
      newest = uint32_t(end);
      any = true;
    }
  }
  return any;
}

void ArrivalBoard::Group::arrivals(
    uint32_t seq,
    uint64_t near_ns,
    std::vector<Arrival>& out) const {
  const uint32_t slots = place_->slots();
  for (Column* column = board_->columnAt(place_->columns.load());
       column != nullptr;
       column = board_->columnAt(column->next.load())) {
    const uint64_t cell =
        column->cells()[seq % slots].load(std::memory_order_acquire);
    if (ageOf(cell, place_->roundOf(seq)) == Age::kSame) {
      out.push_back(
          {column->rank(),
           column->globalRank(),
           near_ns + uint64_t(sinceNs(cell, near_ns)),
           column->kinds(slots)[seq % slots].load(std::memory_order_relaxed)});
    }
  }
}

void ArrivalBoard::Group::setLast(
    uint32_t seq,
    const GroupLast& last) noexcept {
  auto* lasts = inMemory<Checked>(board_->header_, place_->lasts.load());
  lasts[seq % place_->slots()].write(
      place_->roundOf(seq) << kTimeBits | (last.at_ns & kTimeMask),
      pairOf(last.global_rank, last.absent),
      last.error_ns);
}

void ArrivalBoard::Group::setListed(
    uint32_t seq,
    const Arrival& arrival) noexcept {
  board_->header_->listed.write(
      ListedTable::hashOf(place_->key.load(), seq, arrival.rank),
      arrival.at_ns,
      arrival.global_rank);
}

void ArrivalBoard::Group::post(
    uint32_t seq,
    uint64_t issue_ns,
    Kind kind) noexcept {
  const uint32_t slots = place_->slots();
  const uint64_t cell =
      place_->roundOf(seq) << kTimeBits | (issue_ns & kTimeMask);
  own_->kinds(slots)[seq % slots].store(kind, std::memory_order_relaxed);
  own_->cells()[seq % slots].store(cell, std::memory_order_release);
  const uint64_t end = own_->end.load(std::memory_order_relaxed);
  const uint32_t further = seq + 1 - uint32_t(end);
  if (end == 0 || comesBefore(uint32_t(end), seq + 1)) {
    const uint64_t next = end == 0 ? uint64_t(seq) + 1 : end + further;
    own_->end.store(next, std::memory_order_release);
  }
}

ArrivalBoard::State ArrivalBoard::Group::last(
    uint32_t seq,
    uint64_t near_ns,
    Last& found,
    const AskedAbout& asked) const noexcept {
  const uint32_t slots = place_->slots();
  const uint32_t size = place_->size();
  const uint64_t round = place_->roundOf(seq);
  // Reads `lasts` before the columns. The columns then include every rank of
  // this host whose arrival `lasts` includes.
  const auto* lasts = inMemory<Checked>(board_->header_, place_->lasts.load());
  uint64_t who = 0;
  uint64_t error_ns = 0;
  const uint64_t group_cell = lasts[seq % slots].read(who, error_ns);

  Last local; // of the ranks of this host that this rank needs
  bool is_any_local = false;
  uint32_t local_ranks = 0;
  bool missing = false;
  bool last_is_local = false;
  for (Column* column = board_->columnAt(place_->columns.load());
       column != nullptr;
       column = board_->columnAt(column->next.load())) {
    ++local_ranks;
    const uint64_t cell =
        column->cells()[seq % slots].load(std::memory_order_acquire);
    const Age age = ageOf(cell, round);
    if (age == Age::kNewer) {
      return State::kLost;
    }
    missing = missing || age != Age::kSame;
    last_is_local = last_is_local || column->globalRank() == uint32_t(who);
    const uint32_t rank = column->rank();
    const uint64_t at_ns = near_ns + uint64_t(sinceNs(cell, near_ns));
    const uint32_t global_rank = column->globalRank();
    const bool held_up = column == own_ ||
        (at_ns <= asked.done_ns &&
         needs(asked.meaning, size, own_->rank(), rank));
    if (held_up &&
        (!is_any_local ||
         isLastOf(at_ns, global_rank, local.at_ns, local.rank))) {
      local = {at_ns, global_rank, 0};
      is_any_local = true;
    }
  }
  const Age age = ageOf(group_cell, round);
  const bool is_local = local_ranks == size;
  if (!is_local && age == Age::kNewer) {
    return State::kLost;
  }
  if (missing || (!is_local && age != Age::kSame)) {
    return State::kMissing;
  }
  found = local;
  if (is_local) {
    return State::kKnown;
  }
  GroupLast last;
  last.at_ns = near_ns + uint64_t(sinceNs(group_cell, near_ns));
  last.global_rank = uint32_t(who);
  last.absent = uint32_t(who >> 32);
  found.clock_error_ns = error_ns;
  if (mayBeDoneEarly(asked.meaning.op) && size > 2 &&
      (last.at_ns > asked.done_ns ||
       !needsAll(asked.meaning, size, own_->rank()))) {
    return lastOfSome(seq, last, asked, found);
  }
  if (!last_is_local && last.at_ns <= asked.done_ns &&
      isLastOf(last.at_ns, last.global_rank, found.at_ns, found.rank)) {
    found.at_ns = last.at_ns;
    found.rank = last.global_rank;
  }
  return last.absent == 0 ? State::kKnown : State::kPartial;
}

// `found` already holds the last arrival on this host. Replaces `found` if a
// rank of another host that this rank needs came later.
ArrivalBoard::State ArrivalBoard::Group::lastOfSome(
    uint32_t seq,
    const GroupLast& last,
    const AskedAbout& asked,
    Last& found) const noexcept {
  const uint32_t size = place_->size();
  const uint32_t own = own_->rank();
  const bool for_root_only =
      awaitsOf(asked.meaning.op) == Awaits::kRoot && own != asked.meaning.root;
  if (size > kMostListed && !for_root_only) {
    return State::kUnlisted;
  }
  const uint64_t key = place_->key.load();
  const uint32_t begin = for_root_only ? asked.meaning.root : 0;
  const uint32_t end = for_root_only ? begin + 1 : size;
  bool unseen = false;
  for (uint32_t rank = begin; rank < end; ++rank) {
    if (isLocal(rank) || !needs(asked.meaning, size, own, rank)) {
      continue;
    }
    uint64_t at_ns = 0;
    uint64_t global_rank = 0;
    if (!board_->header_->listed.read(
            ListedTable::hashOf(key, seq, rank), at_ns, global_rank)) {
      unseen = true;
    } else if (
        at_ns <= asked.done_ns &&
        isLastOf(at_ns, uint32_t(global_rank), found.at_ns, found.rank)) {
      found.at_ns = at_ns;
      found.rank = uint32_t(global_rank);
    }
  }
  if (!unseen) {
    return State::kKnown;
  }
  return last.absent == 0 ? State::kMissing : State::kPartial;
}

} // namespace commprof
