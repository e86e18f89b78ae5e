// The team's ranks are threads that share one mapping, so the thread sanitizer
// observes every access.
#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "tune/shm/team.h"

namespace commprof::shm {

inline TeamOptions teamOptions(int rank, int size, size_t slot_bytes) {
  TeamOptions options;
  options.rank = rank;
  options.size = size;
  options.slot_bytes = slot_bytes;
  return options;
}

inline void runTeam(
    int size,
    size_t slot_bytes,
    const std::function<void(Team&)>& body) {
  TeamOptions first = teamOptions(0, size, slot_bytes);
  first.name = Team::makeName();
  Segment segment = Team::reserve(first);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      TeamOptions options = teamOptions(rank, size, slot_bytes);
      options.name = first.name;
      Team team(options, Segment::alias(segment));
      body(team);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

} // namespace commprof::shm
