// Switching the mode of a running job from outside: a signal, or a file that
// all ranks of the job watch. The training threads take no part in it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/modes/mode.h"

namespace commprof {

// poll() is called by one thread, all else before that.
class ModeSwitch {
 public:
  // Watches `path`, none if empty, from now on.
  void watch(const std::string& path);

  // Counts `number` from now on, for the rest of the process: a signal that
  // comes after the trace is closed shall not end the program. False where the
  // program has a handler of its own, or ignores the signal: it stays.
  static bool countSignals(int number) noexcept;

  // The mode that was asked for since the last call, if any. After a signal it
  // is the one after `current`, and the file tells the other ranks.
  std::optional<Mode> poll(Mode current);

 private:
  std::optional<Mode> readFile();
  void writeFile(Mode mode) noexcept;
  bool changed() noexcept;

  std::string path_;
  uint64_t looked_ns_ = 0;
  // Of the file's content that was read last.
  struct Version {
    int64_t seconds = 0;
    int64_t nanoseconds = 0;
    uint64_t inode = 0;
    uint64_t bytes = 0;
    bool operator==(const Version&) const = default;
  } seen_;
  uint64_t signals_ = 0; // answered
};

} // namespace commprof
