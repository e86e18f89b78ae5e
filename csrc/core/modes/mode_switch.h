// Switches the mode of a running job from outside: with a signal, or with a
// file that all ranks of the job watch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/modes/mode.h"

namespace commprof {

// Only one thread may call poll(). Call the other functions before the first
// poll().
class ModeSwitch {
 public:
  // Watches the file at `path` from now on; no file if `path` is empty.
  void watch(const std::string& path);

  // Counts the signals with this number until the process ends. Returns false
  // and changes nothing if the program itself handles or ignores the signal. A
  // signal after the end of the trace must not end the program.
  static bool countSignals(int number) noexcept;

  // Returns the mode that was requested since the last call, if any. A signal
  // requests the mode after `current`; poll() then also writes this mode to the
  // file for the other ranks.
  std::optional<Mode> poll(Mode current);

 private:
  std::optional<Mode> readFile();
  void writeFile(Mode mode) noexcept;
  bool changed() noexcept;

  std::string path_;
  uint64_t last_check_ns_ = 0;
  // Version of the file's content that was read last.
  struct Version {
    int64_t seconds = 0;
    int64_t nanoseconds = 0;
    uint64_t inode = 0;
    uint64_t bytes = 0;
    bool operator==(const Version&) const = default;
  } seen_;
  uint64_t signals_ = 0; // number of signals already handled
};

} // namespace commprof
