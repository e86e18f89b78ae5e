// Returns the number of this process's open files, including the one that is
// open while they are counted.
#pragma once

#include <cstddef>
#include <filesystem>

inline size_t openFiles() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}
