#include "tune/shm/team.h"

#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <utility>

namespace commprof::shm {

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kLineBytes = 192;
// Number of spins before the first yield. They take about as long as a sleep
// and a wake-up.
constexpr uint32_t kSpins = 1500;
// Number of yields before a rank sleeps. Linux may wake a sleeping thread on
// the core of the thread that wakes it. The two threads would then share one
// core while another core is idle.
constexpr uint32_t kYields = 64;
constexpr size_t kCoreWords = 128; // 64 bits each, for at most 8192 cores
constexpr auto kRankCheckInterval = std::chrono::milliseconds(50);

using Clock = std::chrono::steady_clock;

void pause() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

void futexWait(
    std::atomic<uint32_t>& word,
    uint32_t value,
    std::chrono::milliseconds most) noexcept {
  const timespec limit{
      most.count() / 1000, long(most.count() % 1000) * 1000000};
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &limit, nullptr, 0);
}

void futexWakeAll(std::atomic<uint32_t>& word) noexcept {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Returns a number for the pid namespace. A pid is valid only in its namespace.
uint64_t pidNamespace() noexcept {
  struct stat status{};
  return stat("/proc/self/ns/pid", &status) == 0 ? uint64_t(status.st_ino) : 0;
}

bool hasEnded(int pidfd) noexcept {
  pollfd one{pidfd, POLLIN, 0};
  return pidfd >= 0 && poll(&one, 1, 0) == 1;
}

size_t headerBytes(int size) {
  const size_t bytes = kPage + size_t(size) * kLineBytes;
  return (bytes + kPage - 1) / kPage * kPage;
}

} // namespace

// Shared state of the team, initially all zero.
struct Team::Shared {
  // Number of ranks that have reached the current barrier.
  alignas(64) std::atomic<uint32_t> arrived;
  // Number of completed barriers. Ranks sleep on this futex.
  alignas(64) std::atomic<uint32_t> generation;
  alignas(64) std::atomic<uint32_t> sleepers;
  // 0: not broken; 1: broken, reason is being written; 2: reason is complete.
  alignas(64) std::atomic<uint32_t> broken;
  char reason[512];
  std::atomic<uint64_t> cores[kCoreWords]; // bit mask of all ranks' cores

  void addCores() noexcept {
    uint64_t own[kCoreWords] = {};
    if (sched_getaffinity(0, sizeof own, reinterpret_cast<cpu_set_t*>(own)) ==
        0) {
      for (size_t i = 0; i < kCoreWords; ++i) {
        cores[i].fetch_or(own[i], std::memory_order_relaxed);
      }
    }
  }
  int countCores() const noexcept {
    int count = 0;
    for (const auto& word : cores) {
      count += std::popcount(word.load(std::memory_order_relaxed));
    }
    return count;
  }
};

struct Team::RankLine {
  // Number of barriers that this rank has reached.
  std::atomic<uint32_t> barriers;
  int32_t pid;
  uint64_t pid_namespace;
  Intent intents[2]; // for even and for odd barriers
};

size_t segmentBytes(int size, size_t slot_bytes) {
  return headerBytes(size) + 2 * size_t(size + 1) * slot_bytes;
}

// Reserves the memory that this rank writes: its two slots, and its part of
// each of the two results. Rank 0 also reserves the header.
Segment Team::reserve(const TeamOptions& options) {
  const size_t bytes = segmentBytes(options.size, options.slot_bytes);
  const size_t header = headerBytes(options.size);
  const size_t slot = options.slot_bytes;
  const size_t rank = size_t(options.rank);
  const size_t size = size_t(options.size);
  std::vector<Segment::Range> own;
  own.push_back({header + 2 * rank * slot, header + 2 * (rank + 1) * slot});
  for (const size_t half : {0, 1}) {
    const size_t result = header + (2 * size + half) * slot;
    own.push_back(
        {result + slot / size * rank,
         rank + 1 == size ? result + slot : result + slot / size * (rank + 1)});
  }
  if (rank == 0) {
    own.push_back({0, header});
  }
  return rank == 0 ? Segment::create(options.name, bytes, own)
                   : Segment::open(options.name, bytes, own);
}

Team::Team(TeamOptions options, Segment segment)
    : options_(std::move(options)),
      segment_(std::move(segment)),
      pid_(getpid()),
      timeout_ms_(options_.timeout.count()) {
  static_assert(sizeof(Shared) <= kPage && sizeof(RankLine) <= kLineBytes);
  static_assert(std::atomic<uint32_t>::is_always_lock_free);
  pidfds_.assign(size_t(options_.size), -1);
  RankLine& own = line(options_.rank);
  own.pid = pid_;
  own.pid_namespace = pidNamespace();
  shared().addCores();
  try {
    arriveAndWait();
  } catch (const TeamError&) {
    // Rank 0 may be missing, so this rank removes the name.
    shm_unlink(options_.name.c_str());
    throw;
  }
  segment_.unlinkName();
  segment_.populate();
  spins_ = shared().countCores() >= options_.size ? kSpins : 0;
  for (int rank = 0; rank < options_.size; ++rank) {
    if (rank != options_.rank &&
        line(rank).pid_namespace == own.pid_namespace) {
      pidfds_[size_t(rank)] = int(syscall(SYS_pidfd_open, line(rank).pid, 0));
    }
  }
}

Team::~Team() {
  leave();
  for (const int pidfd : pidfds_) {
    if (pidfd >= 0) {
      close(pidfd);
    }
  }
}

Team::Shared& Team::shared() const noexcept {
  return *reinterpret_cast<Shared*>(segment_.data());
}

Team::RankLine& Team::line(int rank) const noexcept {
  return *reinterpret_cast<RankLine*>(
      segment_.data() + kPage + size_t(rank) * kLineBytes);
}

std::byte* Team::slot(int rank, uint32_t half) const noexcept {
  const size_t place = size_t(rank) * 2 + half;
  return segment_.data() + headerBytes(options_.size) +
      place * options_.slot_bytes;
}

std::byte* Team::result(uint32_t half) const noexcept {
  return slot(options_.size, half);
}

void Team::arriveAndWait() {
  Shared& all = shared();
  if (broken()) {
    throwReason();
  }
  const uint32_t generation = barriers_entered_++;
  // barriers_reached is stored last. So the rank that arrives last counts as
  // missing if it dies before it has released the other ranks.
  auto& barriers_reached = line(options_.rank).barriers;
  const uint32_t size = uint32_t(options_.size);
  if (all.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == size) {
    all.arrived.store(0, std::memory_order_relaxed);
    // Sequentially consistent: either this thread sees the sleeper, or the
    // sleeper sees the new generation.
    all.generation.store(barriers_entered_);
    if (all.sleepers.load() != 0) {
      futexWakeAll(all.generation);
    }
    barriers_reached.store(barriers_entered_, std::memory_order_relaxed);
    return;
  }
  barriers_reached.store(barriers_entered_, std::memory_order_relaxed);
  waitUntilPast(generation);
}

void Team::waitUntilPast(uint32_t generation) {
  Shared& all = shared();
  for (uint32_t i = 0; i < spins_; ++i) {
    if (all.generation.load(std::memory_order_acquire) != generation) {
      return;
    }
    pause();
  }
  for (uint32_t i = 0; i < kYields; ++i) {
    if (all.generation.load(std::memory_order_acquire) != generation) {
      return;
    }
    sched_yield();
  }
  const auto deadline =
      Clock::now() + std::chrono::milliseconds(timeout_ms_.load());
  while (all.generation.load(std::memory_order_acquire) == generation) {
    all.sleepers.fetch_add(1);
    futexWait(all.generation, generation, kRankCheckInterval);
    all.sleepers.fetch_sub(1);
    if (all.generation.load(std::memory_order_acquire) == generation) {
      breakIfRankMissing(generation, deadline);
    }
  }
}

// Throws if the team is broken, or if a missing rank has ended or is late.
void Team::breakIfRankMissing(uint32_t generation, Clock::time_point deadline) {
  if (broken()) {
    if (shared().generation.load(std::memory_order_acquire) != generation) {
      return; // this barrier was complete before the team broke
    }
    throwReason();
  }
  const bool late = Clock::now() > deadline;
  for (int rank = 0; rank < options_.size; ++rank) {
    const uint32_t barriers_reached =
        line(rank).barriers.load(std::memory_order_relaxed);
    if (barriers_reached == barriers_entered_ || rank == options_.rank) {
      continue;
    }
    if (hasEnded(pidfds_[size_t(rank)])) {
      breakUp(rank, "its process has ended");
    }
    if (late) {
      breakUp(
          rank,
          "it did not take part within " + std::to_string(timeout_ms_.load()) +
              " ms");
    }
  }
}

int Team::globalRank(int rank) const {
  const auto& names = options_.global_ranks;
  return size_t(rank) < names.size() ? names[size_t(rank)] : rank;
}

std::string Team::nameOf(int rank) const {
  return "rank " + std::to_string(globalRank(rank));
}

std::string Team::nameAndPid(int rank) const {
  return nameOf(rank) + " (pid " + std::to_string(line(rank).pid) + ")";
}

void Team::breakUp(int missing, const std::string& why) {
  breakWithReason(nameAndPid(missing) + " is missing: " + why);
  throwReason();
}

void Team::abandon(const std::string& why) noexcept {
  if (getpid() == pid_) { // the memory is not mapped in forked children
    breakWithReason(nameAndPid(options_.rank) + " gave up: " + why);
  }
}

void Team::leave() noexcept {
  if (getpid() == pid_ && !broken()) {
    breakWithReason(
        nameAndPid(options_.rank) + " left: it shut its process group down");
  }
}

bool Team::broken() const noexcept {
  return shared().broken.load(std::memory_order_acquire) != 0;
}

// Stores the reason and breaks the team; later reasons are ignored.
void Team::breakWithReason(const std::string& reason) noexcept {
  Shared& all = shared();
  uint32_t whole = 0;
  if (all.broken.compare_exchange_strong(whole, 1)) {
    std::strncpy(all.reason, reason.c_str(), sizeof all.reason - 1);
    all.broken.store(2, std::memory_order_release);
    futexWakeAll(all.generation);
  }
}

void Team::throwReason() {
  const Shared& all = shared();
  // Writing the reason takes microseconds, unless the writer dies meanwhile.
  for (int i = 0; i < 1000 && all.broken.load(std::memory_order_acquire) != 2;
       ++i) {
    usleep(100);
  }
  throw TeamError(
      "shared memory of " + std::to_string(options_.size) + " ranks: " +
      (all.broken.load(std::memory_order_acquire) == 2
           ? std::string(all.reason, strnlen(all.reason, sizeof all.reason))
           : "a rank failed, and ended before it had stored the reason"));
}

std::string Team::Intent::text() const {
  return std::string(what, strnlen(what, sizeof what)) + " of " +
      std::to_string(bytes) + " bytes";
}

void Team::arriveAndCheck(const Intent& intent) {
  const uint32_t parity = barriers_entered_ & 1;
  line(options_.rank).intents[parity] = intent;
  arriveAndWait();
  const Intent& first = line(0).intents[parity];
  for (int rank = 0; rank < options_.size; ++rank) {
    const Intent& other = line(rank).intents[parity];
    if (other != first) {
      // After different calls, ranks may use different halves. No rank reads
      // slots now, so all ranks begin with the same half again.
      half_ = 0;
      throw TeamError(
          "the ranks' calls differ: " + nameOf(0) + " does " + first.text() +
          ", " + nameOf(rank) + " does " + other.text());
    }
  }
}

Team::Intent intend(const std::string& what, uint64_t bytes) {
  Team::Intent intent;
  std::strncpy(intent.what, what.c_str(), sizeof intent.what - 1);
  intent.bytes = bytes;
  return intent;
}

std::string named(
    const char* what,
    kernels::Element element,
    kernels::Reduction reduction) {
  constexpr const char* kElements[] = {
      "fp32", "fp64", "fp16", "bf16", "int32", "int64"};
  constexpr const char* kReductions[] = {"sum", "mean", "max", "min"};
  return std::string(what) + " " + kElements[size_t(element)] + " " +
      kReductions[size_t(reduction)];
}

} // namespace commprof::shm
