// Where the plugin's records go: into a trace of its own or, as a part of
// capture's module, into the one that capture has open; and the switch that
// ends all recording.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace commprof::nccl {

// Makes the plugin a part of capture. Called before all other functions.
void join() noexcept;
bool isJoined() noexcept;

// True unless the plugin is switched off. Any thread.
bool isOn() noexcept;
// True while records are taken.
bool isRecording() noexcept;

// What is recorded, each with all before it.
enum class Level : uint8_t {
  kAuto, // $COMMPROF_NCCL is not set: kKernels where these are cheap
  kOperations, // calls, and what NCCL makes of them
  kKernels, // times on the GPU
  kNetwork, // transfers by NCCL's proxy
};
// Throws std::runtime_error if the variable has another value.
Level levelFromEnvironment();
// Says once, if this is the first rank, that NCCL is recorded.
void sayRecorded() noexcept;
void setFirstRank(bool first) noexcept;

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
