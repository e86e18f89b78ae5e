// test_nccl_network
//     checks how the time of a transfer is split
// test_nccl_network simulate RANK RANKS BASE_NS SEED SLOW
//     plays one rank of all-reduces in a ring, in which the link from rank SLOW
//     to the next rank is slow. The clocks of all ranks begin at BASE_NS.
//     Prints the true sums in ns:
//     link      sending, waiting for the peer, and waiting for the GPU
//     waits     time in which the kernels waited for the last rank
//     transfer  time from the begin of the last rank to the end
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "core/recorder.h"
#include "nccl_player.h"
#include "trace_file.h"

using namespace commprof;
using nccl_player::Communicator;
using nccl_player::gpuNow;
using nccl_player::Player;

namespace {

// At 0, clock_gettime() returns the real time.
std::atomic<uint64_t> g_now_ns{0};

void passUs(double us) {
  g_now_ns += uint64_t(us * 1000);
}

} // namespace

// This function replaces the C library's clock_gettime().
extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const uint64_t now_ns = g_now_ns;
  if (clock != CLOCK_MONOTONIC || now_ns == 0) {
    return int(syscall(SYS_clock_gettime, clock, time));
  }
  time->tv_sec = time_t(now_ns / 1'000'000'000);
  time->tv_nsec = long(now_ns % 1'000'000'000);
  return 0;
}

namespace {

constexpr size_t kStepBytes = 512 << 10;
const Player::Operation kReduce{"AllReduce", "ncclFloat32", 1 << 20, 0, 2};

Record lastOf(Kind kind, const std::string& path) {
  Recorder::instance().flush();
  Record last;
  for (const Record& record : trace_file::read(path).records) {
    last = record.kind == kind ? record : last;
  }
  return last;
}

class Transfer {
 public:
  Transfer(Player& player, void* operation, bool sends, int peer, int pid)
      : player_(player) {
    op_ = player.beginProxyOp(
        context, operation, {pid, 1, peer, 8, int(kStepBytes), sends ? 1 : 0});
  }
  void post(int step) {
    steps_.resize(size_t(step) + 1);
    steps_.back() = player_.beginStep(context, op_, step);
  }
  void tell(int step, int state) {
    player_.state(steps_[size_t(step)], state, kStepBytes);
  }
  void done(int step) {
    player_.stop(steps_[size_t(step)]);
  }
  void end() {
    player_.stop(op_);
  }
  // With PXN, this context belongs to another process and must never be read.
  static inline void* context = nullptr;

 private:
  Player& player_;
  void* op_ = nullptr;
  std::vector<void*> steps_;
};

void splitsSends(Player& player, void* operation, const std::string& path) {
  Transfer send(player, operation, true, 3, getpid());
  for (int step = 0; step < 3; ++step) {
    send.post(step);
    send.tell(step, nccl::kSendGpuWait);
  }
  passUs(10);
  for (int tries = 0; tries < 5; ++tries) {
    send.tell(0, nccl::kSendPeerWait);
    passUs(4);
  }
  send.tell(0, nccl::kSendWait);
  passUs(30);
  send.tell(1, nccl::kSendPeerWait);
  send.tell(1, nccl::kSendWait);
  passUs(7);
  send.done(0);
  passUs(30);
  send.done(1);
  passUs(5);
  send.tell(2, nccl::kSendPeerWait);
  send.tell(2, nccl::kSendWait);
  passUs(31);
  send.done(2);
  passUs(100);
  send.end();
  const Record record = lastOf(Kind::kNcclSend, path);
  // A send waited for the GPU (bytes_in) and for the peer (bytes_out).
  CHECK_EQ(record.bytes_in, 15'000u);
  CHECK_EQ(record.bytes_out, 20'000u);
  CHECK_EQ(record.value - record.timestamp_ns, 133'000u);
  CHECK_EQ(record.aux, 3u);
  CHECK_EQ(record.thread, 3 * kStepBytes);
  CHECK(record.op_id != 0 && record.group != 0);
}

void splitsReceives(Player& player, void* operation, const std::string& path) {
  Transfer receive(player, operation, false, 2, getpid());
  receive.post(0);
  receive.tell(0, nccl::kRecvWait);
  passUs(12);
  receive.tell(0, nccl::kRecvFlushWait);
  passUs(3);
  receive.tell(0, nccl::kRecvGpuWait);
  passUs(8);
  receive.done(0);
  receive.end();
  const Record record = lastOf(Kind::kNcclRecv, path);
  // A receive waited for the GPU (bytes_in) and for the flush (bytes_out).
  CHECK_EQ(record.bytes_in, 8000u);
  CHECK_EQ(record.bytes_out, 3000u);
  CHECK_EQ(record.value - record.timestamp_ns, 23'000u);
  CHECK_EQ(record.thread, kStepBytes);
}

void takesOtherProcesses(
    Player& player,
    void* operation,
    const std::string& path) {
  Transfer::context = reinterpret_cast<void*>(0x1234560);
  Transfer send(player, operation, true, 5, getpid() + 1);
  send.post(0);
  passUs(20);
  send.tell(0, nccl::kSendPeerWait);
  send.tell(0, nccl::kSendWait);
  passUs(20);
  send.done(0);
  send.done(0);
  send.end();
  send.end();
  send.post(1);
  Transfer::context = nullptr;
  const Record record = lastOf(Kind::kNcclSend, path);
  CHECK_EQ(record.aux, 5u);
  CHECK_EQ(record.op_id, 0u);
  CHECK_EQ(record.group, 0u);
}

// An operation with an unknown type of elements is not recorded and has no
// handle.
void takesUnknownOperations(Player& player, const std::string& path) {
  Transfer send(player, nullptr, true, 6, getpid());
  send.post(0);
  passUs(20);
  send.done(0);
  send.end();
  const Record record = lastOf(Kind::kNcclSend, path);
  CHECK_EQ(record.aux, 6u);
  CHECK_EQ(record.op_id, 0u);
  CHECK(record.group != 0);
}

void checkSplit(const std::string& path) {
  for (const int version : {4, 6}) {
    Player player(version, nccl_player::tableOf(version));
    Communicator c{nullptr, 0x100u + uint64_t(version), "dp0", 8, 0};
    player.init(c);
    Transfer::context = c.context;
    CHECK(player.mask & int(nccl::kProxyStep));
    void* operation = player.launch(c, kReduce, nullptr);
    splitsSends(player, operation, path);
    splitsReceives(player, operation, path);
    takesUnknownOperations(player, path);
    takesOtherProcesses(player, operation, path);
    player.finalize(c);
  }
}

enum class Fault { kNone, kFirstMissing, kLastMissing, kSetForward, kSetBack };

void takesNoImpossibleTimes(const std::string& path) {
  constexpr int kOperationsPerFault = 100;
  constexpr uint64_t kHourNs = 3'600'000'000'000;
  Player player(6, nccl_player::tableOf(6));
  Communicator c{nullptr, 0x200, "dp0", 8, 0};
  player.init(c);
  uint64_t set_ns = kHourNs;
  std::vector<uint64_t> begins_ns;
  for (const Fault fault :
       {Fault::kNone,
        Fault::kFirstMissing,
        Fault::kLastMissing,
        Fault::kSetForward,
        Fault::kSetBack}) {
    for (int i = 0; i < kOperationsPerFault; ++i) {
      const auto happens = [&](Fault wanted) {
        return i == 0 && fault == wanted;
      };
      void* operation = player.launch(c, kReduce, nullptr);
      passUs(100);
      set_ns -= happens(Fault::kSetBack) ? kHourNs : 0;
      const uint64_t gpu_ns = gpuNow() + set_ns;
      begins_ns.push_back(g_now_ns);
      void* channels[] = {
          player.beginChannel(
              c, operation, 0, happens(Fault::kFirstMissing) ? 0 : gpu_ns),
          player.beginChannel(
              c, operation, 1, happens(Fault::kLastMissing) ? 0 : gpu_ns)};
      passUs(40);
      set_ns += happens(Fault::kSetForward) ? kHourNs : 0;
      for (void* channel : channels) {
        player.endChannel(channel, gpuNow() + set_ns);
      }
      passUs(20'000);
    }
  }
  player.finalize(c);
  Recorder::instance().flush();
  std::vector<int> unknown(5);
  int operations = 0;
  for (const Record& record : trace_file::read(path).records) {
    // Groups 1 and 2 are those of checkSplit().
    if (record.kind != Kind::kNcclOp || record.group != 3) {
      continue;
    }
    ++operations;
    if (record.value == record.timestamp_ns) {
      ++unknown[record.seq / kOperationsPerFault];
      continue;
    }
    // The converted times may be off by the largest drift of the clock.
    const uint64_t begin_ns = begins_ns[record.seq];
    CHECK(std::abs(int64_t(record.timestamp_ns - begin_ns)) < 200'000);
    CHECK(std::abs(int64_t(record.value - begin_ns) - 40'000) < 200'000);
  }
  CHECK_EQ(size_t(operations), begins_ns.size());
  // The clock counts as set forward after 64 readings, which are 32 operations.
  // The clock counts as set back after 1 s, which is 50 operations.
  CHECK(unknown == (std::vector{0, 1, 1, 32, 50}));
}

struct Link {
  double network_us;
  double slack_us;
};

std::vector<Link> linksOf(int ranks, uint64_t seed, int slow) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> around(0.9, 1.1);
  std::vector<Link> links(static_cast<size_t>(ranks));
  double pace_us = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    Link& link = links[size_t(rank)];
    link.network_us = 40 * around(random) * (rank == slow ? 4 : 1);
    pace_us = std::max(pace_us, link.network_us);
  }
  for (Link& link : links) {
    link.slack_us = 1.02 * pace_us - link.network_us;
  }
  return links;
}

int simulate(int rank, int ranks, uint64_t base_ns, uint64_t seed, int slow) {
  constexpr int kOperations = 12;
  constexpr int kSteps = 16;
  g_now_ns = base_ns;
  Player player(6, &ncclProfiler_v6);
  Communicator c{nullptr, 0xabc, "dp0", ranks, rank};
  player.init(c);
  Transfer::context = c.context;
  const Link link = linksOf(ranks, seed, slow)[size_t(rank)];
  std::mt19937_64 random(seed + 1);
  const double gpu_us = link.slack_us / 4;
  const double peer_us = link.slack_us - gpu_us;
  const double transfer_us = kSteps * (link.network_us + link.slack_us);
  double waits_us = 0;
  uint64_t begin_ns = base_ns;
  for (int i = 0; i < kOperations; ++i) {
    begin_ns += 20'000'000;
    double own_us = 0;
    double last_us = 0;
    for (int each = 0; each < ranks; ++each) {
      const double us = double(random() % 5000);
      last_us = std::max(last_us, us);
      own_us = each == rank ? us : own_us;
    }
    g_now_ns = begin_ns + uint64_t(own_us * 1000);
    void* call = player.call(c, "AllReduce", "ncclFloat32", 1 << 20, false);
    player.stop(call);
    void* operation = player.launch(c, kReduce, call);
    player.stop(operation);
    void* channels[2];
    for (uint8_t channel = 0; channel < 2; ++channel) {
      channels[channel] = player.beginChannel(c, operation, channel, gpuNow());
    }
    passUs(last_us - own_us);
    waits_us += last_us - own_us;
    Transfer send(player, operation, true, (rank + 1) % ranks, getpid());
    for (int step = 0; step < kSteps; ++step) {
      send.post(step);
      send.tell(step, nccl::kSendGpuWait);
      passUs(gpu_us);
      send.tell(step, nccl::kSendPeerWait);
      passUs(peer_us);
      send.tell(step, nccl::kSendWait);
      passUs(link.network_us);
      send.done(step);
    }
    send.end();
    g_now_ns = begin_ns + uint64_t((last_us + transfer_us) * 1000);
    for (void* channel : channels) {
      player.endChannel(channel, gpuNow());
    }
  }
  player.finalize(c);
  const double steps = kOperations * kSteps * 1000;
  std::printf(
      "link %.0f %.0f %.0f\nwaits %.0f\ntransfer %.0f\n",
      steps * link.network_us,
      steps * peer_us,
      steps * gpu_us,
      waits_us * 1000,
      kOperations * transfer_us * 1000);
  return 0;
}

} // namespace

int main(int count, char** arguments) {
  setenv("COMMPROF_NCCL", "network", 1);
  if (count == 7 && std::string(arguments[1]) == "simulate") {
    setenv("RANK", arguments[2], 1);
    setenv("WORLD_SIZE", arguments[3], 1);
    return simulate(
        std::atoi(arguments[2]),
        std::atoi(arguments[3]),
        std::strtoull(arguments[4], nullptr, 10),
        std::strtoull(arguments[5], nullptr, 10),
        std::atoi(arguments[6]));
  }
  const trace_file::Directory directory;
  setenv("COMMPROF_OUT", (directory / "run").c_str(), 1);
  setenv("RANK", "0", 1);
  setenv("WORLD_SIZE", "8", 1);
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  g_now_ns = (uint64_t(now.tv_sec) + 1000) * 1'000'000'000;
  checkSplit(directory / "run/rank_0.trace");
  takesNoImpossibleTimes(directory / "run/rank_0.trace");
  Recorder::instance().stop();
  return check::report();
}
