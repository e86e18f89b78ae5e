#pragma once

#include <cstddef>
#include <filesystem>

// The result includes the descriptor with which this function reads the list.
inline size_t openFiles() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}
