// What the collectives share: the check that all ranks do the same, and copies.
#pragma once

#include <cstddef>
#include <cstring>
#include <string>

#include "kernels/linear/combine.h"
#include "shm/team.h"

namespace commprof::shm {

// memcpy, which may not be called with null even for nothing.
inline void copyBytes(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes != 0) {
    std::memcpy(to, from, bytes);
  }
}

// What ranks compare, and what they say where they differ.
Team::Intent intend(const std::string& what, uint64_t bytes);

// "all_reduce fp32 sum"
std::string named(
    const char* what,
    kernels::Element element,
    kernels::Reduction reduction);

// The meetings of one operation, the first of which checks that all ranks do
// the same.
class Meetings {
 public:
  Meetings(Team& team, const Team::Intent& intent)
      : team_(team), intent_(intent) {}
  void meet() {
    if (first_) {
      first_ = false;
      team_.meetCheck(intent_);
    } else {
      team_.meet();
    }
  }

 private:
  Team& team_;
  const Team::Intent intent_;
  bool first_ = true;
};

} // namespace commprof::shm
