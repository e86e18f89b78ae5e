// The run that the plugin writes: the trace of this process, and the switch
// that ends all recording.
#pragma once

#include <optional>
#include <string>

namespace commprof::nccl {

// True while records are taken. Any thread.
bool isOn() noexcept;

// Switches the plugin off for good, with one line on stderr. NCCL goes on, and
// asks for no more events once it reads its mask again.
void switchOff(const std::string& reason) noexcept;

// Tells which variable of NCCL's switchOff() sets to 0; null for none.
void holdMask(int* mask) noexcept;

struct Place {
  int rank;
  int world_size;
};

// Place of this process in its job, according to its launcher's environment, by
// the rules of commprof/launched.py; none if no launcher set a place.
std::optional<Place> placeFromLauncher();

// Opens the trace in the directory $COMMPROF_OUT, once per process. Throws
// std::runtime_error with the reason and the next step, or std::system_error.
void openRun(const Place& place);
bool isRunOpen() noexcept;

} // namespace commprof::nccl
