// One simulated host of a job in always-on mode, for live.py. ArrivalBoard and
// ArrivalCarrier are the real code. One thread stands for the helper threads of
// all ranks of the host.
//
//   live_host HOST HOSTS RANKS_PER_HOST TOKEN
//
// The program first writes its port. It reads the commands "peer HOST PORT
// TOKEN", "go BEGIN_NS", "late RANK" and "end", and writes a line of JSON every
// 0.5 s. Each rank belongs to four groups. In a step of 0.25 s, each group has
// this many collectives:
//
//   world  1  all ranks
//   tp     4  8 neighbours
//   dp     4  all ranks with the same place in their tp groups
//   pp     2  8 ranks, each an eighth of the world after the previous one
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "always_on/hosts/arrival_carrier.h"
#include "base/clock.h"

using namespace commprof;
using State = ArrivalBoard::State;

namespace {

constexpr uint64_t kMs = 1'000'000;
constexpr uint64_t kStepNs = 250 * kMs;
constexpr uint64_t kLateNs = 20 * kMs;
constexpr uint64_t kPatienceNs = 5'000 * kMs;
enum GroupKind { kWorld, kTp, kDp, kPp, kKinds };
constexpr uint32_t kCalls[kKinds] = {1, 4, 4, 2};
constexpr const char* kNames[kKinds] = {"world", "tp", "dp", "pp"};

struct Membership {
  ArrivalBoard::Group group;
  GroupKind kind;
  uint32_t rank; // rank in the world
  // True for this host's first rank in the group. Only this rank asks the board
  // which rank came last.
  bool asks;
};

// Counts of collectives, by what the board knew about the rank that came last.
struct Counts {
  uint64_t known = 0;
  uint64_t partial = 0;
  uint64_t unknown = 0;
  // Known and partial collectives for which the board named the right rank. If
  // the group has no late rank, every rank counts as right.
  uint64_t correct = 0;
};

struct Asked {
  Membership* member;
  uint32_t seq;
  uint64_t issue_ns;
  uint32_t late; // the late rank, if has_late
  bool has_late;
};

uint64_t residentBytes() {
  std::ifstream status("/proc/self/smaps_rollup");
  std::string word;
  while (status >> word) {
    if (word == "Pss:") {
      uint64_t kib = 0;
      status >> kib;
      return kib << 10;
    }
  }
  return 0;
}

double cpuSeconds() {
  rusage use{};
  getrusage(RUSAGE_SELF, &use);
  return double(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
      double(use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e6;
}

} // namespace

int main(int count, char** words) {
  if (count != 5) {
    return 2;
  }
  const auto host = uint32_t(std::atoi(words[1]));
  const auto hosts = uint32_t(std::atoi(words[2]));
  const auto per_host = uint32_t(std::atoi(words[3]));
  const uint64_t token = std::strtoull(words[4], nullptr, 10);
  const uint32_t ranks = hosts * per_host;
  const int64_t ahead_ns =
      int64_t(host - 1) * int64_t(kMs); // offset from rank 0's clock
  ClockTrack clock;
  clock.add({nowNs(), -ahead_ns, 1'000, 2'000});
  const std::shared_ptr<ArrivalBoard> board =
      ArrivalBoard::create(token, per_host);
  ArrivalCarrier carrier(board, clock, {"127.0.0.1", token, host});
  std::printf("%u\n", carrier.port());
  std::fflush(stdout);

  std::vector<Membership> members;
  uint32_t refused = 0;
  std::vector<bool> asked_for(4ull * ranks + 4);
  for (uint32_t rank = (host - 1) * per_host; rank < host * per_host; ++rank) {
    const uint32_t sizes[kKinds] = {ranks, 8, ranks / 8, 8};
    const uint32_t groups[kKinds] = {0, rank / 8, rank % 8, rank % (ranks / 8)};
    const uint32_t places[kKinds] = {
        rank, rank % 8, rank / 8, rank / (ranks / 8)};
    for (int kind = 0; kind < kKinds; ++kind) {
      const uint64_t number = uint64_t(kind) * ranks + groups[kind];
      Membership made{{}, GroupKind(kind), rank, !asked_for[number]};
      const bool joined = board->join(
          {0x9e3779b97f4a7c15ull * (number + 1),
           places[kind],
           sizes[kind],
           rank},
          made.group);
      refused += !joined;
      if (joined) {
        asked_for[number] = true;
        members.push_back(made);
      }
    }
  }

  std::atomic<uint64_t> begin_ns{0};
  std::atomic<uint64_t> late{UINT64_MAX};
  std::atomic<bool> over{false};
  std::thread reader([&] {
    std::string word;
    while (std::cin >> word && word != "end") {
      if (word == "peer") {
        uint32_t number = 0;
        uint32_t port = 0;
        uint64_t its_token = 0;
        std::cin >> number >> port >> its_token;
        carrier.addPeer({number, "127.0.0.1", uint16_t(port), its_token});
      } else {
        uint64_t value = 0;
        std::cin >> value;
        (word == "go" ? begin_ns : late).store(value);
      }
    }
    over.store(true);
  });

  Counts counts[kKinds];
  std::deque<Asked> open;
  // The ranks that came last to the newest world collectives.
  std::vector<uint32_t> world_last;
  uint64_t step = 0;
  uint64_t next_line_ns = 0;
  while (!over.load()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const uint64_t begin = begin_ns.load();
    if (begin == 0 || nowNs() < begin) {
      continue;
    }
    // All arrivals of a step are posted when the step is over, as by a helper
    // thread that reads a rank's ring once per step.
    for (; nowNs() > begin + (step + 1) * kStepNs; ++step) {
      const uint64_t late_rank = late.load();
      const auto culprit = uint32_t(late_rank);
      const bool has_late = late_rank < ranks;
      for (Membership& member : members) {
        for (uint32_t call = 0; call < kCalls[member.kind]; ++call) {
          const auto seq = uint32_t(step) * kCalls[member.kind] + call;
          const uint64_t jitter_ns =
              (uint64_t(member.rank) * 2654435761u + seq * 40503u) % kMs;
          const uint64_t true_ns = begin + step * kStepNs + call * 20 * kMs +
              jitter_ns + (member.rank == culprit && has_late ? kLateNs : 0);
          const uint64_t own_ns = true_ns + uint64_t(ahead_ns);
          member.group.post(seq, own_ns);
          if (member.asks) {
            const bool holds = member.kind == kWorld ||
                (member.kind == kTp && culprit / 8 == member.rank / 8) ||
                (member.kind == kDp && culprit % 8 == member.rank % 8) ||
                (member.kind == kPp &&
                 culprit % (ranks / 8) == member.rank % (ranks / 8));
            open.push_back({&member, seq, own_ns, culprit, has_late && holds});
          }
        }
      }
    }
    const uint64_t own_now_ns = nowNs() + uint64_t(ahead_ns);
    std::deque<Asked> rest;
    for (const Asked& asked : open) {
      ArrivalBoard::Last last;
      const State state =
          asked.member->group.last(asked.seq, asked.issue_ns, last);
      const bool is_over = own_now_ns > asked.issue_ns + kPatienceNs;
      Counts& kind = counts[asked.member->kind];
      const bool is_partial = state == State::kPartial && is_over;
      if (state == State::kKnown || is_partial) {
        ++(is_partial ? kind.partial : kind.known);
        kind.correct += !asked.has_late || last.rank == asked.late;
        if (asked.member->kind == kWorld) {
          world_last.push_back(last.rank);
        }
      } else if (is_over || state == State::kLost) {
        ++kind.unknown;
      } else {
        rest.push_back(asked);
      }
    }
    open.swap(rest);
    if (nowNs() > next_line_ns) {
      next_line_ns = nowNs() + 500 * kMs;
      const ArrivalCarrier::Traffic sent = carrier.traffic();
      const HostLinks links = board->links();
      std::printf(
          "{\"host\": %u, \"time_ns\": %llu, \"bytes\": %llu, \"datagrams\": "
          "%llu, \"flows\": %u, \"hosts\": %u, \"unsent\": %llu, \"skipped\": "
          "%llu, \"refused\": %u, \"board_bytes\": %zu, \"resident_bytes\": "
          "%llu, \"cpu_s\": %.3f",
          host,
          (unsigned long long)nowNs(),
          (unsigned long long)sent.bytes,
          (unsigned long long)sent.datagrams,
          sent.flows,
          links.heard + 1,
          (unsigned long long)links.unsent,
          (unsigned long long)links.skipped,
          refused,
          board->usedBytes(),
          (unsigned long long)residentBytes(),
          cpuSeconds());
      for (int kind = 0; kind < kKinds; ++kind) {
        std::printf(
            ", \"%s\": [%llu, %llu, %llu, %llu]",
            kNames[kind],
            (unsigned long long)counts[kind].known,
            (unsigned long long)counts[kind].partial,
            (unsigned long long)counts[kind].unknown,
            (unsigned long long)counts[kind].correct);
      }
      std::printf(", \"world_last\": [");
      for (size_t i = 0; i < world_last.size(); ++i) {
        std::printf(i == 0 ? "%u" : ", %u", world_last[i]);
      }
      std::printf("]}\n");
      std::fflush(stdout);
      world_last.clear();
    }
  }
  reader.join();
  return 0;
}
