// Determines where the plugin's records go: into a trace of its own, or into
// the trace of commprof's capture if the plugin is a part of its module. Also
// has the switch that ends all recording.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace commprof::nccl {

// Makes the plugin a part of commprof's capture, so that it has no trace of its
// own. Called before all other functions.
void join() noexcept;
bool isJoined() noexcept;

// True unless the plugin is switched off. Any thread.
bool isOn() noexcept;
bool isRecording() noexcept;

// The level of recording. Each level includes the levels listed before it.
enum class Level : uint8_t {
  kAuto, // $COMMPROF_NCCL is "auto" or not set: kKernels if that costs little
  kOperations, // calls, and the operations that NCCL launches
  kKernels, // times on the GPU
  kNetwork, // transfers by NCCL's proxy
};
// Reads the level from $COMMPROF_NCCL. Throws std::runtime_error if the value
// is "off" or unknown.
Level levelFromEnvironment();
// Prints once that NCCL is recorded, if this is the first rank.
void sayRecorded() noexcept;
void setFirstRank(bool first) noexcept;

// Switches the plugin's recording off for good, and prints the reason. NCCL
// then reports only events that the user's plugin asks for.
void switchOff(const std::string& reason) noexcept;

// Sets the address from which NCCL reads the mask of events; null: none.
void holdMask(int* mask) noexcept;
// Sets the events that this plugin asks for.
void askFor(int events) noexcept;
// Sets the events that the user's plugin asks for.
void askForUser(int events) noexcept;
bool isAsked(uint64_t type) noexcept;
int mask() noexcept;

// Returns the process id as NCCL knows it. A fork does not change it.
int thisProcess() noexcept;

struct Place {
  int rank;
  int world_size;
};

// Returns the place of this process in its job, according to the launcher's
// environment variables, by the rules of commprof/launched.py. Returns nothing
// if no launcher set a place.
std::optional<Place> placeFromLauncher();

// Opens the trace in the directory $COMMPROF_OUT, once per process. Throws
// std::runtime_error or std::system_error.
void openRun(const Place& place);
bool isRunOpen() noexcept;

} // namespace commprof::nccl
